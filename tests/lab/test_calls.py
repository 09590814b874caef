"""Long texts, mechanisms, inputs, the library and files: the answers themselves, without a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import regard as rg
from regard.lab.api import heads, long, mechanisms
from regard.lab.builtin.meanings import Meanings, words_in
from regard.lab.builtin.recall import recall
from regard.lab.inputs.prepared import Limits
from regard.lab.inputs.text import drawn, need_text, tag_input
from regard.lab.lab import Kept, Lab
from regard.lab.library import Library, Unknown
from regard.lab.server.app import find_call
from regard.lab.server.export import modules, page_for
from regard.lab.server.jobs import Busy, Job, Work
from regard.lab.server.wire import pack, to_json, unpack

from .conftest import SENTENCE

LINE = "The owl sat in the oak.\n猫坐在垫子上。\n"
POEM = f"{LINE}The more he saw the less he spoke.\n{LINE}"


def long_ask(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "input": {"text": POEM}, **more}


def test_recall_finds_what_stood_there_before() -> None:
    text = POEM.replace("\n", " ")
    found = recall(text).attention(0)
    second = text.index("The owl", 10)
    weights = found.weights(0)
    for n in range(second + 4, second + 20):  # what came after the same letters, a line and more ago
        assert int(weights[n].argmax()) in (
            n - second + 1,
            *(i + 1 for i in range(n) if text[i - 3 : i + 1] == text[n - 3 : n + 1]),
        )
    again = text.rindex("垫")
    assert int(found.weights(1)[again, :again].argmax()) == text.index("垫")
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(text), dtype=weights.dtype))


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
    text = (long.sample(lab, {"characters": 60_000}, Job())["text"] * 2)[:100_000]
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
        ({"mask": "__import__('os').system('true')"}, "not the line of a part"),
        ({"mask": "Window(before=(1).__class__)"}, "no plain number"),
        ({"mask": "Window(behind=3)"}, "behind"),
        ({"mask": "Window(before=99999999)"}, "numbers up to"),
        ({"score": "Dott()"}, "Did you mean Dot"),
        ({"score": "Dot(" * 200}, "at most 400"),
        ({"position": "Rotary(factor=2.0)"}, "base and dim"),
        ({"sizes": {"heads": 0}}, "heads"),
        ({"sizes": {"queries": 131_072, "heads": 64, "head_dim": 256}}, "numbers in q"),
        ({"score": "Additive()", "position": "Shaw(reach=8)"}, "goes with Dot"),
    ],
)
def test_lines_that_make_no_part_are_told(ask: dict[str, Any], words: str) -> None:
    with pytest.raises(rg.RegardError, match=words):
        mechanisms.plan(None, ask, Job())  # type: ignore[arg-type]


def test_a_method_says_what_it_cannot_do() -> None:
    found = mechanisms.plan(None, {"method": "Nystrom(landmarks=8)", "mask": "Causal()"}, Job())  # type: ignore[arg-type]
    assert "cannot keep to the mask" in found["refused"]


def test_fruit_is_apple_and_banana() -> None:
    for asked, entries in (("fruit", None), ("水果", {"苹果": 10, "香蕉": 5, "椅子": 2})):
        found = mechanisms.dictionary(None, {"asked": asked, "entries": entries}, Job())  # type: ignore[arg-type]
        torch.testing.assert_close(found["weights"], torch.tensor([0.6, 0.4, 0.0]), atol=1e-4, rtol=0)
        assert found["answer"] == pytest.approx(8.0, abs=1e-3) and found["hard"]["value"] == 10
    word = mechanisms.dictionary(None, {"asked": "chair"}, Job())  # type: ignore[arg-type]
    assert word["answer"] == pytest.approx(2.0, abs=1e-3)


def test_order_matters_to_the_second_head_alone() -> None:
    model = Meanings()
    there, back = (model(**model.prepare(text).arguments).hidden[0] for text in ("猫追狗", "狗追猫"))
    torch.testing.assert_close(there[:, :5], back.flip(0)[:, :5])
    torch.testing.assert_close(there[:, 5:], back.flip(0)[:, 5:])  # distances are the same both ways
    one, other = (model(**model.prepare(text).arguments).hidden[0] for text in ("猫追狗跑", "猫狗追跑"))
    torch.testing.assert_close(one[0, :5], other[0, :5])
    assert (one[0, 5:] - other[0, 5:]).abs().max() > 1e-3


def test_words_keep_their_places() -> None:
    text = "猫坐在垫子, don't 垫x"
    for word, start, end in words_in(text):
        assert text[start:end] == word
    assert [word for word, _, _ in words_in(text)] == ["猫", "坐在", "垫子", ",", "don't", "垫", "x"]


def test_pieces_of_one_character_are_a_group(lab: Lab) -> None:
    found = heads.run(lab, {"model": "llama", "input": {"text": "cat 猫鱼"}}, Job())["tokens"]["source"]
    groups = [token["group"] for token in found]
    pieces = [n for n, token in enumerate(found) if token["text"] == "鱼"]  # in no training text: bytes
    assert len(pieces) == 3 and {groups[n] for n in pieces} == {pieces[0]}
    assert [token.text for token in drawn("鱼a", [(0, 1), (0, 1), (1, 2)], ["x", "y", "z"], [False] * 3)] == [
        "鱼",
        "鱼",
        "a",
    ]


def test_a_tagger_reads_words_as_treebanks_part_them() -> None:
    class Task:
        tags = ("X",)

        def batch(self, examples: Any) -> dict[str, Any]:
            self.words = examples[0].words
            return {"tokens": torch.zeros(1)}

    task = Task()
    prepared = tag_input(task, "It didn't, well-known.")
    assert task.words == ("It", "did", "n't", ",", "well-known", ".")
    assert [(one.start, one.end) for one in prepared.tokens["source"]][1:3] == [(3, 6), (6, 9)]


def test_texts_have_limits() -> None:
    with pytest.raises(rg.BadInput, match="recall"):
        need_text({"text": "abc"}, Limits(2, 2))


def test_links_out_of_a_folder_are_not_followed(lab_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(lab_folder)
    (tmp_path / "own").mkdir()
    assert not [name for name, one in Library([tmp_path], shipped=False).entries().items() if one.path]
    with pytest.raises(rg.BadInput, match="no folder"):
        Library([tmp_path / "nowhere"])
    with pytest.raises(Unknown, match="bert"):
        Library([lab_folder]).entry("out/bert")


def test_shipped_models_open_and_agree_with_themselves(lab: Lab) -> None:
    shipped = [one for one in lab.library.entries().values() if one.source == "shipped" and one.path is not None]
    for one in shipped:
        assert one.kind in ("text", "pair", "image", "sound", "graph") and one.layers and one.heads, one
        if one.kind in ("text", "pair"):
            found = heads.run(lab, {"model": one.name, "input": {"text": "The cat sat."}}, Job())
        elif one.examples():
            found = heads.run(lab, {"model": one.name, "input": {"example": one.examples()[0]}}, Job())
        else:
            continue
        assert found["difference"]["largest"] < 1e-4, one.name
        assert found["prediction"]["items"], one.name


def test_packs_and_json_say_what_they_were_given() -> None:
    held = {
        "a": torch.arange(3, dtype=torch.uint8),
        "b": [torch.rand(2, 3).double(), {"c": torch.tensor(True)}],
        "d": float("nan"),
    }
    found = unpack(pack(held))
    assert torch.equal(found["a"], held["a"]) and found["d"] is None
    assert torch.equal(found["b"][0], held["b"][0].float()) and bool(found["b"][1]["c"])  # type: ignore[index]
    assert unpack(pack({"x": torch.zeros(0, 4)}))["x"].shape == (0, 4)
    assert json.loads(to_json({"x": float("inf"), "y": [1, "猫"]})) == {"x": None, "y": [1, "猫"]}


def test_the_last_is_always_kept() -> None:
    kept: Kept[str] = Kept(4, len)
    for name in ("aa", "bb", "cc", "toolong"):
        kept.put(name, name)
        assert kept.get(name) == name
    assert kept.get("cc") is None and kept.taken == 7


def test_work_is_bounded_and_forgets() -> None:
    work = Work(running=1, waiting=1)
    jobs = [Job("a"), Job("b")]
    hold = [work.start(job, lambda job: job.stopped.wait(20) and "done") for job in jobs]
    with pytest.raises(Busy, match="Ask again"):
        work.start(Job("c"), lambda job: None)
    for job in jobs:
        job.cancel()
    assert hold[0].result(20) == "done"
    work.close()


def test_a_saved_view_holds_its_modules_and_answers(lab: Lab) -> None:
    body = {"model": "meanings", "input": {"text": "</script>猫追狗"}}
    asks = [{"path": "heads/run", "body": body}, {"path": "mechanisms/choices", "body": {}}]
    page = page_for(lab, {"state": {"page": "heads"}, "asks": asks}, Job())
    assert "http://" not in page.replace("http://www.w3.org", "") and 'src="/static' not in page
    held = page.split('id="recorded">')[1].split("</script>")[0]
    kept = json.loads(held)
    assert [one["path"] for one in kept["answers"]] == ["heads/run", "mechanisms/choices"]
    assert kept["answers"][0]["body"] == body and "pack" in kept["answers"][0] and "json" in kept["answers"][1]
    assert all(f'"{name}"' in page for name in modules())
    for wrong in ({"path": "heads"}, {"path": "os/system"}, {"path": "heads/run", "body": 3}, "x"):
        with pytest.raises(rg.BadInput):
            page_for(lab, {"state": {}, "asks": [wrong]}, Job())


def test_calls_are_found_by_their_names_alone() -> None:
    assert find_call("heads", "run") is heads.run
    for page, call in (("heads", "__init__"), ("..", "run"), ("capture", "capture")):
        with pytest.raises(Unknown):
            find_call(page, call)


def test_a_sentence_is_read_whole(lab: Lab) -> None:
    tokens = heads.run(lab, {"model": "bert", "input": {"text": SENTENCE}}, Job())["tokens"]["source"]
    assert [token["special"] for token in tokens][:2] == [True, False] and tokens[-1]["special"]
    for token in tokens[1:-1]:
        assert SENTENCE[token["start"] : token["end"]] == token["text"]
