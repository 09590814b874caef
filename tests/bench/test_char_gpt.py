"""Two character models: both learn and are evaluated alike; compilation and evaluation are not timed."""

import json
from pathlib import Path

import pytest

from regard.bench import char_gpt

TINY = ("dim=16", "layers=1", "heads=2", "context=16", "batch_tokens=128", "steps=24", "warmup=4", "precision=no")


@pytest.mark.parametrize("goal", [100.0, 0.0])
def test_both_run_to_the_goal_or_to_their_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, goal: float) -> None:
    monkeypatch.setattr(char_gpt, "GOAL_LOSS", goal)
    text, out = tmp_path / "a.txt", tmp_path / "race.json"
    text.write_text("to be or not to be, that is the question.\n" * 60, "utf8")
    sets = [word for pair in TINY for word in ("--set", pair)]
    char_gpt.main(["--text", str(text), "--out", str(out), "--steps", "24", "--every", "12", *sets])
    document = json.loads(out.read_text("utf8"))
    ours, plain = (document["curves"][name] for name in ("regard", "plain loop"))
    assert [step for step, *_ in ours] == [12, 24]
    assert [step for step, *_ in plain] == ([12] if goal else [12, 24])
    for curve in (ours, plain):
        assert all(loss < 4 for *_, loss in curve), "the loss stays bounded"
        assert all(seconds > 0 for _, seconds, _ in curve)
    assert all((reached is not None) == bool(goal) for reached in document["reached"].values())
