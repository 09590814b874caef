"""Pairs of texts and ranked candidates: from files to scores and results."""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random

import pytest
import torch
from sklearn.metrics import ndcg_score
from typer.testing import CliRunner, Result

from regard import BadInput
from regard.cli import app
from regard.data.annotations.pairs import LabelledPair, read_pairs, read_rankings
from regard.tasks.architecture import Architecture
from regard.tasks.metrics.ranking import normalized_gain, ranking_scores
from regard.tasks.texts.pair_inputs import pair_of
from regard.tasks.texts.pairs import PairsSettings, TextPairs
from regard.tasks.texts.rank import Rank, RankSettings
from regard.train.run import open_run

SMALL = ["--set", "dim=32", "--set", "layers=1", "--set", "heads=2"]
WORDS = ["apple", "bird", "cloud", "door", "egg", "fish", "gate", "hat", "ice", "jar", "kite", "lamp"]


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def same_words(count: int, seed: int = 0) -> list[LabelledPair]:
    """Whether two texts have a word in common: neither of them tells."""
    rng, pairs = Random(seed), []
    for n in range(count):
        words = rng.sample(WORDS, 6)
        second = [*words[:1], *words[3:5]] if n % 2 else words[3:]
        pairs.append(LabelledPair(" ".join(words[:3]), " ".join(rng.sample(second, 3)), "yes" if n % 2 else "no"))
    return pairs


def write(path: Path, pairs: list[LabelledPair], header: str = "sentence1\tsentence2\tlabel") -> Path:
    path.write_text("\n".join([header, *(f"{p.first}\t{p.second}\t{p.label}" for p in pairs)]) + "\n")
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    train = write(folder / "train.tsv", same_words(400))
    command = ["train", "pairs", "--train", train, "--out", folder / "run", "--steps", "120", "--set", "warmup=10"]
    result = call(*command, "--set", "learning_rate=0.005", "--set", "symmetric=true", *SMALL)
    assert result.exit_code == 0, result.output
    return folder / "run"


def test_both_texts_are_read_together(run: Path, tmp_path: Path) -> None:
    test = write(tmp_path / "test.tsv", same_words(100, seed=1))
    scores = json.loads(call("evaluate", run, "--data", test, "--json").stdout)
    assert scores["metrics"]["accuracy"] > 0.9
    out = tmp_path / "out.csv"
    assert call("predict", run, "--data", test, "--out", out).exit_code == 0
    lines = out.read_text().splitlines()
    assert lines[0].startswith("sentence1,sentence2,label,") and len(lines) == 101
    one, other = (
        json.loads(call("predict", run, text, "--json").stdout)[0]
        for text in ("egg fish hat\tegg ice jar", '{"first": "egg ice jar", "second": "egg fish hat"}')
    )
    assert one["label"] == "yes" and one["probability"] == pytest.approx(other["probability"], abs=1e-3)  # symmetric


@pytest.mark.parametrize("header", ["left\tright", "nr\tleft\tright\tsame", ""])
def test_pairs_of_a_table_without_usual_names(run: Path, tmp_path: Path, header: str) -> None:
    pairs = [f"we see {a.first} today\twe see {a.second} today" for a in same_words(12, seed=2)]
    rows = [f"{n}\t{pair}\t{n % 2}" if "nr" in header else pair for n, pair in enumerate(pairs)]
    (tmp_path / "new.tsv").write_text("\n".join([header, *rows][not header :]) + "\n")
    done = call("predict", run, "--data", tmp_path / "new.tsv", "--json")
    assert done.exit_code == 0, done.output
    assert [row["input"] for row in json.loads(done.stdout)] == pairs


def test_what_is_no_pair_is_refused(run: Path, tmp_path: Path) -> None:
    result = call("predict", run, "only one text")
    assert result.exit_code == 1 and "reads pairs of texts" in result.output
    with pytest.raises(BadInput, match="keys a, b; wanted two texts"):
        pair_of({"a": "x", "b": "y"})
    (tmp_path / "bad.tsv").write_text(
        "sentence1\tsentence2\tscore\na\tb\t1.5\nc\td\tn/a\ne\t\t2\n" + "g\th\t2.5\n" * 20
    )
    reading = read_pairs([tmp_path / "bad.tsv"])
    assert [str(fault).removeprefix(f"{tmp_path}/") for fault in reading.faults] == [
        "bad.tsv:3:5: the label (column 'score') is 'n/a'; wanted a number.",
        "bad.tsv:4:3: the second text (column 'sentence2') is empty.",
    ]


def test_similarity_is_a_number() -> None:
    pairs = [LabelledPair(p.first, p.second, f"{n / 7:.2f}") for n, p in enumerate(same_words(40))]
    task = TextPairs.prepare(pairs, PairsSettings())
    assert task.target.kind == "number" and "regression" in task.choices(pairs)[0]
    model = task.config(Architecture(dim=16, layers=1, heads=2)).build().eval()
    assert {"RMSE", "Spearman", "R2"} <= task.evaluate(model, pairs).metrics.keys()
    again = TextPairs.from_dict(json.loads(json.dumps(task.as_dict())), task.settings, task.tokenizer)
    torch.testing.assert_close(again.logits(model, pairs), task.logits(model, pairs))


def test_segments_say_which_words_both_have() -> None:
    task = TextPairs.prepare(same_words(20), PairsSettings())
    batch = task.batch([LabelledPair("egg fish", "fish hat", "yes")])
    assert batch["segments"].tolist() == [[0, 0, 2, 0, 3, 1, 1]]
    assert batch["lengths"].tolist() == [7]


def test_ranks_are_scored_by_definition() -> None:
    rng = Random(0)
    for _ in range(20):
        relevance = [rng.randint(0, 3) for _ in range(6)] + [1]
        scores = rng.sample(range(100), 7)
        order = [r for _, r in sorted(zip(scores, relevance, strict=True), reverse=True)]
        assert normalized_gain(order) == pytest.approx(ndcg_score([relevance], [scores]))
        assert normalized_gain(order, 3) == pytest.approx(ndcg_score([relevance], [scores], k=3))
    metrics = ranking_scores([[(0.5, 1.0), (0.5, 0.0)], [(0.1, 0.0)], [(0.9, 2.0), (0.2, 0.0)]])
    assert metrics["MRR"] == pytest.approx((1 / 2 + 1) / 2)  # ties count against the model, empty queries not at all


def ranking_lines(count: int, seed: int) -> list[str]:
    rng, lines = Random(seed), []
    for _ in range(count):
        words = rng.sample(WORDS, 8)
        near = [f"{words[0]} {words[4]}"]
        far = [f"{words[5]} {words[6]}", f"{words[6]} {words[7]}"]
        lines.append(json.dumps({"query": " ".join(words[:3]), "positive": near, "negative": far}))
    return lines


def test_candidates_are_ranked(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("\n".join(ranking_lines(150, 0)))
    (tmp_path / "test.jsonl").write_text("\n".join(ranking_lines(40, 1)))
    command = ["train", "rank", "--train", tmp_path / "train.jsonl", "--out", tmp_path / "run", "--steps", "120"]
    result = call(*command, "--set", "learning_rate=0.005", "--set", "warmup=10", *SMALL)
    assert result.exit_code == 0, result.output
    scores = json.loads(call("evaluate", tmp_path / "run", "--data", tmp_path / "test.jsonl", "--json").stdout)
    assert scores["metrics"]["MRR"] > 0.8 and scores["main"] == "nDCG" and scores["queries"] == 40
    given = json.dumps({"query": "egg fish hat", "candidates": ["ice jar", "egg door"]})
    (ranking,) = json.loads(call("predict", tmp_path / "run", given, "--json").stdout)
    assert [one["text"] for one in ranking["candidates"]] == ["egg door", "ice jar"]
    task = open_run(tmp_path / "run")[0]
    row = {"query": "a b", "positive": "c d", "negatives": '["e f", "g h"]'}  # a row as the training data may have it
    assert isinstance(task, Rank) and task.query_of(row) == ("a b", ["c d", "e f", "g h"])


def test_rankings_are_read_from_rows_and_lists(tmp_path: Path) -> None:
    (tmp_path / "rows.tsv").write_text("query\tcandidate\trelevance\na b\tc d\t2\na b\te f\t0\n")
    (tmp_path / "lists.jsonl").write_text('{"query": "a b", "candidates": ["c d", "e f"], "relevance": [2, 0]}\n')
    (tmp_path / "bad.jsonl").write_text('{"query": "a b", "candidates": ["c d", "e f"], "relevance": [2]}\n')
    expected = (LabelledPair("a b", "c d", "2"), LabelledPair("a b", "e f", "0"))
    assert read_rankings([tmp_path / "rows.tsv"]).strict().examples == expected
    assert read_rankings([tmp_path / "lists.jsonl"]).strict().examples == expected
    assert "wanted a number for each of the 2 candidates" in str(read_rankings([tmp_path / "bad.jsonl"]).faults[0])
    reading = read_rankings([tmp_path / "rows.tsv"])
    task = Rank.prepare(reading.examples, RankSettings())
    assert task.relevance(torch.tensor([[0.0, 100.0], [0.0, 0.0]])) == pytest.approx([2.0, 1.0])
    assert not math.isnan(task.relevance(torch.zeros(1, 2))[0])
