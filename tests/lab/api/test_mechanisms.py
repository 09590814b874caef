"""The mechanisms page: parts, masks, plans and the Python program."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import regard as rg
from regard.lab.api import mechanisms
from regard.lab.server.jobs import Job

LINE = "The owl sat in the oak.\n猫坐在垫子上。\n"
POEM = f"{LINE}The more he saw the less he spoke.\n{LINE}"


LINES = [(kind, line) for kind, lines in mechanisms.choices(None, {}, Job())["choices"].items() for line in lines]  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "line"), LINES)
def test_every_choice_is_a_program_that_runs(kind: str, line: str) -> None:
    found = mechanisms.plan(None, {kind: line}, Job())  # type: ignore[arg-type]
    names: dict[str, Any] = {}
    exec(found["python"], names)
    assert names["y"].shape == (1, 8, 64, 32)
    assert found["refused"] is None and found["plan"]["backend"] in found["text"]
    if found["layer"] is not None:
        layer = eval(found["layer"], {"rg": rg})
        assert layer(torch.randn(1, 64, 256)).shape == (1, 64, 256)
    planned = mechanisms.plan(None, {kind: line, "sizes": {"queries": 700, "keys": 900}}, Job())  # type: ignore[arg-type]
    assert planned["tiles"].shape[0] <= 128


def test_the_mask_is_drawn_pair_by_pair_and_tile_by_tile() -> None:
    line = {"mask": "(Causal() & Window(before=8)) | Global(tokens=2)"}
    mask = rg.Causal() & rg.Window(8) | rg.Global(2)
    found = mechanisms.plan(None, line, Job())  # type: ignore[arg-type]
    assert torch.equal(found["mask"], mask.dense(64, 64))
    large = mechanisms.plan(None, line | {"sizes": {"queries": 100_000, "keys": 100_000, "heads": 2}}, Job())  # type: ignore[arg-type]
    assert large["mask"] is None and large["tiles"].shape == (128, 128) and large["plan"]["tiles"] < 0.05


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        ({"mask": "__import__('os').system('true')"}, "not the text of a part"),
        ({"mask": "Window(before=(1).__class__)"}, "not a number, text"),
        ({"mask": "Window(behind=3)"}, "behind"),
        ({"mask": "Window(before=99999999)"}, "numbers must be at most"),
        ({"score": "Dott()"}, "Did you mean Dot"),
        ({"score": "Dot(" * 200}, "at most 400"),
        ({"position": "Rotary(factor=2.0)"}, "base and dim"),
        ({"sizes": {"heads": 0}}, "heads"),
        ({"sizes": {"queries": 131_072, "heads": 64, "head_dim": 256}}, "numbers in q"),
        ({"score": "Additive()", "position": "Shaw(reach=8)"}, "needs the score Dot"),
    ],
)
def test_lines_that_make_no_part_are_told(ask: dict[str, Any], words: str) -> None:
    with pytest.raises(rg.RegardError, match=words):
        mechanisms.plan(None, ask, Job())  # type: ignore[arg-type]


def test_a_method_says_what_it_cannot_do() -> None:
    found = mechanisms.plan(None, {"method": "Nystrom(landmarks=8)", "mask": "Causal()"}, Job())  # type: ignore[arg-type]
    assert "cannot apply the mask" in found["refused"]


def test_fruit_is_apple_and_banana() -> None:
    for asked, entries in (("fruit", None), ("水果", {"苹果": 10, "香蕉": 5, "椅子": 2})):
        found = mechanisms.dictionary(None, {"asked": asked, "entries": entries}, Job())  # type: ignore[arg-type]
        torch.testing.assert_close(found["weights"], torch.tensor([0.6, 0.4, 0.0]), atol=1e-4, rtol=0)
        assert found["answer"] == pytest.approx(8.0, abs=1e-3) and found["hard"]["value"] == 10
    word = mechanisms.dictionary(None, {"asked": "chair"}, Job())  # type: ignore[arg-type]
    assert word["answer"] == pytest.approx(2.0, abs=1e-3)


def test_pictures_are_the_masks_and_the_biases() -> None:
    found = mechanisms.pictures(None, {}, Job())  # type: ignore[arg-type]
    assert len(found["mask"]) == len(mechanisms.CHOICES["mask"])
    assert torch.equal(found["mask"][1].bool(), rg.Causal().dense(32, 32).view(32, 32))
    assert bool(found["mask"][0].all())
    bias = dict(zip(mechanisms.CHOICES["position"], found["position"], strict=True))
    assert bias[""] is None and bias["Rotary()"] is None
    i, j = torch.arange(32)[:, None], torch.arange(32)[None, :]
    torch.testing.assert_close(bias["Alibi()"], -(2.0**-3) * (i - j).abs().float())


def test_the_bias_of_a_head_for_every_pair() -> None:
    sizes = {"heads": 4, "queries": 6, "keys": 9}
    found = mechanisms.plan(None, {"position": "Alibi()", "sizes": sizes, "head": 1}, Job())["bias"]  # type: ignore[arg-type]
    i, j = torch.arange(6)[:, None] + 3, torch.arange(9)[None, :]
    torch.testing.assert_close(found, -(2.0**-4) * (i - j).abs().float())
    with pytest.raises(rg.RegardError, match="head is 4"):
        mechanisms.plan(None, {"position": "Alibi()", "sizes": sizes, "head": 4}, Job())  # type: ignore[arg-type]
    for line in ("Rotary()", "Shaw(reach=8)", ""):
        assert mechanisms.plan(None, {"position": line, "sizes": sizes}, Job())["bias"] is None  # type: ignore[arg-type]
