"""Figures of experiments."""

from regard.experiments.toolkit.figures import line_style


def test_line_styles_differ_in_all_three() -> None:
    looks = [line_style(n) for n in range(7)]
    for what in ("color", "marker", "linestyle"):
        assert len({str(look[what]) for look in looks}) == 7
