"""Long texts: pooled maps equal the pooled weights."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

import regard as rg
from regard.lab.api import long
from regard.lab.inputs import long_texts
from regard.lab.inputs.model_input import LONG, SHORT, WINDOWED, Token, limit_hint
from regard.lab.inspect.capture import capture
from regard.lab.inspect.windows import plan_windows, window_input
from regard.lab.lab import Lab
from regard.lab.server.jobs import Cancelled, Job
from regard.lab.server.wire import pack

LINE = "The owl sat in the oak.\n猫坐在垫子上。\n"
POEM = f"{LINE}The more he saw the less he spoke.\n{LINE}"


def long_ask(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "input": {"text": POEM}, **more}


@pytest.mark.parametrize("model", ["recall", "llama"])
def test_a_long_map_is_the_pooled_weights(lab: Lab, model: str) -> None:
    told = long.run(lab, long_ask(model), Job())
    count = told["tokens"]
    assert told["offsets"].shape == (count, 2) and int(told["offsets"][-1, 1]) <= len(POEM)
    whole = long.map(lab, long_ask(model, shape=[16, 16], head=1), Job())
    assert whole["visited"] == whole["of"] == count and whole["map"].shape == (16, 16)
    torch.testing.assert_close(whole["map"].sum(-1), torch.ones(16, dtype=whole["map"].dtype))
    part = long.map(lab, long_ask(model, shape=[8, 8], head=1, rows=[40, 48], keys=[10, 18]), Job())
    every = long.capture(lab, long_ask(model), Job()).attention(0).weights(1)
    torch.testing.assert_close(part["map"], every[40:48, 10:18])
    row = long.row(lab, long_ask(model, head=1, query=50, top=5), Job())
    best = every[50].topk(5)
    torch.testing.assert_close(row["weights"], best.values[best.values > 0])


def test_a_hundred_thousand_characters_are_looked_at(lab: Lab) -> None:
    text = (long.sample(lab, {"name": "source", "characters": 60_000}, Job())["text"] * 2)[:100_000]
    body = {"model": "recall", "input": {"text": text}}
    assert long.run(lab, body, Job())["tokens"] == 100_000
    region = {"rows": [99_000, 99_256], "keys": [39_000, 39_256], "shape": [256, 256]}
    tile = long.map(lab, body | region, Job())
    assert tile["map"].shape == (256, 256) and len(pack(tile)) < 1_000_000
    with pytest.raises(rg.BadInput, match="200,001 characters"):
        long.run(lab, {"model": "recall", "input": {"text": "a" * 200_001}}, Job())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"rows": [5, 5]}, "rows"),
        ({"keys": [0, 10**9]}, "keys"),
        ({"shape": [0, 4]}, "shape"),
        ({"shape": [4, 4096]}, "512"),
    ],
)
def test_regions_that_are_not_there(lab: Lab, more: dict[str, Any], words: str) -> None:
    with pytest.raises(rg.BadInput, match=words):
        long.map(lab, long_ask("recall", **more), Job())


def read_windowed(lab: Lab, model: str, text: str, **more: Any) -> tuple[dict[str, Any], Any]:
    body = {"model": model, "input": {"text": text}, "windows": True, **more}
    return body, long.read_text(lab, body, Job())


@pytest.mark.parametrize("model", ["shakespeare", "tagger"])
def test_a_text_beyond_the_training_length_is_read_by_windows(lab: Lab, model: str) -> None:
    """Every row is that of a window of the training length, as the model reads the window alone."""
    text = "First Citizen: Before we proceed any further, hear me speak. " * 40
    body, read = read_windowed(lab, model, text)
    length, count = lab.library.entry(model).training_length, len(read.tokens)
    assert read.plan is not None and read.plan.length == length < count
    loaded = lab.open(model, Job())
    _, prepared = lab.prepare(body, Job(), WINDOWED)
    for n in (0, 1, len(read.plan.windows) - 1):
        window = read.plan.windows[n]
        assert window.last - window.first == length and window.first <= window.rows[0] < window.rows[1]
        alone = capture(loaded.model, window_input(prepared, read.plan, n), {}, Job()).attention(1).weights(1)
        row = (window.rows[0] + window.rows[1]) // 2
        ours = read.attentions[1].weights(1, (row, row + 1))[0]
        torch.testing.assert_close(ours[window.first : window.last], alone[row - window.first].double())
        assert float(ours.sum()) == pytest.approx(1.0, abs=1e-6)
    rows = [window.rows for window in read.plan.windows]
    assert rows[0][0] == 0 and rows[-1][1] == count and all(a[1] == b[0] for a, b in pairwise(rows))


def test_a_map_by_windows_is_the_pooled_weights(lab: Lab) -> None:
    body, read = read_windowed(lab, "shakespeare", "To be, or not to be, that is the question. " * 40)
    count = len(read.tokens)
    every = read.attentions[0].weights(1, (0, count))
    found = long.map(lab, body | {"head": 1, "shape": [20, 20], "rows": [300, 400], "keys": [200, 300]}, Job())
    wanted = every[300:400, 200:300].view(20, 5, 20, 5).sum(-1).mean(1)
    torch.testing.assert_close(found["map"], wanted)
    torch.testing.assert_close(found["received"], every[300:400, 200:300].mean(0).view(20, 5).mean(-1))
    best = found["links"][0].tolist()
    assert float(found["link_weights"][0]) == pytest.approx(float(every[best[0], best[1]]))
    assert bool(found["masked"][0, -1]) is bool((every[300:305, 295:300] == 0).all())
    row = long.row(lab, body | {"head": 1, "query": 350, "top": 4}, Job())
    torch.testing.assert_close(row["weights"], every[350].topk(4).values)


def test_a_text_within_the_training_length_has_no_windows(lab: Lab) -> None:
    assert read_windowed(lab, "shakespeare", "To be, or not to be.")[1].plan is None
    assert read_windowed(lab, "recall", "To be, or not to be. " * 99)[1].plan is None


def test_special_tokens_are_in_every_window() -> None:
    tokens = [Token("[CLS]", special=True), *(Token(str(n)) for n in range(20)), Token("[SEP]", special=True)]
    plan = plan_windows(tokens, 8, causal=False)
    for n in range(len(plan.windows)):
        at = plan.positions(n).tolist()
        assert (at[0], at[-1]) == (0, 21) and len(at) == 8 and at == sorted(set(at))
    assert [plan.owner(row) for row in (0, 21)] == [0, len(plan.windows) - 1]
    middle = plan.windows[2]
    before, after = middle.rows[0] - middle.first, middle.last - middle.rows[1]
    assert abs(before - after) <= 1, "rows are taken from the middle"


def test_windows_tell_their_progress_and_can_be_stopped(lab: Lab) -> None:
    body, read = read_windowed(lab, "shakespeare", "All the world's a stage, and all the men merely players. " * 60)
    assert read.plan is not None

    class Stopping(Job):
        def report(self, done: int, total: int, message: Any = "") -> None:
            if done == 3:
                self.cancel()
            super().report(done, total, message)

    job = Stopping()
    with pytest.raises(Cancelled):
        long.map(lab, body, job)
    assert (job.done, job.total) == (2, len(read.plan.windows)) and "windows" in job.message["en"]  # type: ignore


def test_a_very_long_text_is_sampled_by_windows(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long, "MAX_EXACT", 1000)
    monkeypatch.setattr(long, "SAMPLE", 500)
    body, read = read_windowed(lab, "shakespeare", "If music be the food of love, play on; " * 200)
    found = long.map(lab, body | {"shape": [4, 16]}, Job())
    assert found["of"] == len(read.tokens) > 1000 > found["visited"]
    torch.testing.assert_close(found["map"].sum(-1), torch.ones(4, dtype=torch.float64))
    exact = long.map(lab, body | {"shape": [4, 16], "exact": True}, Job())
    assert exact["visited"] == exact["of"]


def test_advice_never_leads_back_to_itself() -> None:
    """The page Long is named only where it takes more, and windows only where the text is not yet read by them."""
    for limits in (LONG, WINDOWED):
        for most in (limits.characters, limits.tokens):
            assert "Long text" not in limit_hint(most, limits)
    assert "windows" in limit_hint(LONG.tokens, LONG) and "windows" not in limit_hint(WINDOWED.tokens, WINDOWED)
    assert "Long text" in limit_hint(SHORT.tokens, SHORT)


@pytest.mark.parametrize("name", ["verses", "course"])
def test_the_sample_is_a_long_text_in_the_models_language(lab: Lab, name: str) -> None:
    chinese = long.sample(lab, {"name": name, "language": "zh"}, Job())["text"]
    assert len(chinese) > 1000 and sum("一" <= letter <= "鿿" for letter in chinese) > len(chinese) / 2
    english = long.sample(lab, {"name": name, "language": "en"}, Job())["text"]
    assert len(english) > 4000 and english.isascii() == (name == "verses")


def test_verses_grow_by_a_line() -> None:
    house, days = long_texts.house_that_jack_built(), long_texts.twelve_days_of_christmas()
    assert len(house) == 11 and len(days) == 12
    for before, after in pairwise(house):
        assert after.endswith(before.removeprefix("This is ")) and len(after) > len(before)
    assert days[1].endswith("two turtle doves, and a partridge in a pear tree.")
    assert all(gift in days[-1] for gift in long_texts.GIFTS)


@pytest.mark.parametrize("ask", [{"language": ["en"]}, {"language": "fr"}, {"name": "nothing"}])
def test_samples_that_are_not_there(lab: Lab, ask: dict[str, Any]) -> None:
    with pytest.raises(rg.BadInput, match="it must be"):
        long.sample(lab, ask, Job())
