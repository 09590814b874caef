"""Parts from text: what is accepted, what is refused, and that a part that prints can be parsed again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import regard as rg
from regard.attention.parts.text import parse_call, parse_mask, parse_part

from .strategies import masks

CHOICES = {part.__name__: part for part in (rg.Dot, rg.Cosine, rg.Alibi, rg.Rotary, rg.Exact, rg.Nystrom, rg.Performer)}
numbers = st.integers(-100, 100) | st.floats(allow_nan=False, allow_infinity=False)
parts = st.one_of(
    st.builds(rg.Dot, st.none() | numbers),
    st.builds(rg.Cosine, numbers),
    st.builds(rg.Alibi),
    st.builds(rg.Rotary, st.floats(1.0, 1e6), st.none() | st.sampled_from([2, 64])),
    st.builds(rg.Exact),
    st.builds(rg.Nystrom, st.integers(1, 99), st.integers(1, 9)),
    st.builds(rg.Performer, st.integers(1, 99), st.integers(0, 9)),
)


@given(masks)
def test_a_mask_that_is_printed_and_parsed_is_equal(mask: rg.Mask) -> None:
    assert parse_mask(repr(mask)) == mask
    assert repr(parse_mask(repr(mask))) == repr(mask)


@given(parts)
def test_a_part_that_is_printed_and_parsed_is_equal(part: Any) -> None:
    assert parse_part(repr(part), CHOICES) == part


@given(st.text())
def test_any_text_makes_a_mask_or_is_refused(text: str) -> None:
    try:
        assert isinstance(parse_mask(text), rg.Mask)
    except rg.BadInput:
        return


@pytest.mark.parametrize(
    "text, mask",
    [
        ("Causal()", rg.Causal()),
        (" Window(3) ", rg.Window(3)),
        ("Window(3, 1)", rg.Window(3, 1)),
        ("Window(3, after=1)", rg.Window(3, 1)),
        ("Causal() & Window(255) | Global(1)", (rg.Causal() & rg.Window(255)) | rg.Global(1)),
        ("Causal() & (Window(255) | ~Global((0, 2)))", rg.Causal() & (rg.Window(255) | ~rg.Global((0, 2)))),
        ("Global([0, 2])", rg.Global((0, 2))),
        ("Causal() & Chunked(8192)", rg.Causal() & rg.Chunked(8192)),
        ("Causal() | Prefix(4)", rg.Causal() | rg.Prefix(4)),
        ("Tree([-1, 0, 0])", rg.Tree((-1, 0, 0))),
        ("(\n  Causal()\n  & Window(3)\n)", rg.Causal() & rg.Window(3)),
        ("longformer(8, causal=True)", rg.longformer(8, causal=True)),
        ("bigbird(4, tokens=None)", rg.bigbird(4)),
    ],
)
def test_text_is_what_python_would_make_of_it(text: str, mask: rg.Mask) -> None:
    assert parse_mask(text) == mask


def test_arguments_may_be_negative_none_and_nested() -> None:
    assert parse_part("Dot(-0.5)", CHOICES) == rg.Dot(-0.5)
    assert parse_part("Rotary(dim=None)", CHOICES) == rg.Rotary()
    assert parse_call("f(-1, None, [1, (2, 3)], x='y', z=True)") == (
        "f",
        [-1, None, [1, (2, 3)]],
        {"x": "y", "z": True},
    )


@pytest.mark.parametrize(
    "text, message",
    [
        ("Cuasal()", "there is no Cuasal here. Did you mean Causal?"),
        ("Windows(3)", "Did you mean Window?"),
        ("Window(befor=3)", "Did you mean before?"),
        ("Window()", "Its arguments are before, after"),
        ("Window(1, 2, 3)", "Its arguments are before, after"),
        ("Window(3, before=3)", "multiple values"),
        ("Window(-1)", "Window's before is -1"),
        ("Window(before=n)", "has an argument that is not a number"),
        ("Window(2 * 3)", "has an argument that is not a number"),
        ("Window(*[1])", "has an argument that is not a number"),
        ("Window(**{'before': 1})", "unexpected keyword"),
        ("Causal", "is not the text of a part. Write its name and arguments"),
        ("rg.Causal()", "is not the text of a part. Write its name and arguments"),
        ("Causal() + Window(3)", "is not the text of a part"),
        ("Causal() and Window(3)", "is not the text of a part"),
        ("-Causal()", "is not the text of a part"),
        ("__import__('os')", "there is no __import__ here"),
        ("Causal(", r"never closed\). Write it as Python"),
        ("", "is not the text of a part"),
        ("\0", "is not the text of a part"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(rg.BadInput, match=message):
        parse_mask(text)


def test_another_set_of_choices() -> None:
    assert parse_mask("Near(3) & Causal()", {"Near": rg.Window, "Causal": rg.Causal}) == rg.Window(3) & rg.Causal()
    with pytest.raises(rg.BadInput, match="Known: Near"):
        parse_mask("Window(3)", {"Near": rg.Window})
