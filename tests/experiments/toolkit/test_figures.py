"""Figures of experiments."""

from regard.experiments.toolkit.figures import line_style


def test_line_styles_differ_in_all_three() -> None:
    styles = [line_style(n) for n in range(7)]
    for key in ("color", "marker", "linestyle"):
        assert len({str(style[key]) for style in styles}) == 7
