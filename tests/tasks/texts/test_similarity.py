"""The task `similarity`: pairs, triplets and scored pairs."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch
from typer.testing import CliRunner

import regard as rg
from regard.cli import app
from regard.data.annotations.similarity import read_similarity
from regard.models.families.bert import bert
from regard.models.tokenizers.tokenizer import Tokenizer
from regard.tasks.pretrained.embedder import Embedder
from regard.tasks.texts.similarity import cosent_loss, info_nce_sum
from regard.train.commands import train_from_files
from regard.train.run import RunConfig, open_pretrained, open_run

TOPICS = {
    "animal": ("cat", "dog", "horse", "mouse"),
    "metal": ("iron", "gold", "zinc", "copper"),
    "fruit": ("apple", "pear", "plum", "grape"),
}


def sentence(rng: Random, topic: str) -> str:
    return f"the {rng.choice(('old', 'new', 'big'))} {rng.choice(TOPICS[topic])} is {rng.choice(('here', 'there'))}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, rng = tmp_path_factory.mktemp("bert"), Random(0)
    torch.manual_seed(0)
    texts = [sentence(rng, topic) for topic in TOPICS for _ in range(40)]
    tokenizer = Tokenizer.train(texts, unit="wordpiece", size=200, lower=True)
    model = bert(layers=1, dim=32, heads=4, hidden=64, vocabulary=tokenizer.size, positions=24).build()
    torch.nn.init.normal_(model.embed.segments.weight, std=0.02)  # type: ignore[union-attr, arg-type]
    model.tokenizer = tokenizer
    model.save(path, format="huggingface")
    return path


@pytest.fixture(scope="module")
def scored_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, rng, rows = tmp_path_factory.mktemp("data") / "sts.tsv", Random(1), []
    for _ in range(160):
        topics = rng.choice(list(TOPICS)), rng.choice(list(TOPICS))
        rows.append(f"{sentence(rng, topics[0])}\t{sentence(rng, topics[1])}\t{5.0 if topics[0] == topics[1] else 1.0}")
    path.write_text("sentence1\tsentence2\tscore\n" + "\n".join(rows) + "\n", "utf8")
    return path


def config(folder: Path, data: Path, **changes: object) -> RunConfig:
    given = {"checkpoint": str(folder), "device": "cpu", "learning_rate": 3e-3, "batch_size": 32, **changes}
    return RunConfig.from_changes("similarity", given, train=[data])


def test_data_are_checked_with_a_checkpoint(folder: Path, scored_file: Path) -> None:
    arguments = ["check", str(scored_file), "--task", "similarity", "--from", str(folder)]
    assert "scored pairs  160" in CliRunner().invoke(app, arguments).output


def test_scored_pairs_are_learned_and_the_run_embeds(folder: Path, scored_file: Path, tmp_path: Path) -> None:
    made = config(folder, scored_file, epochs=8)
    train_from_files(made, tmp_path)
    task, model, _ = open_run(tmp_path)
    examples = task.read([scored_file], task.settings).examples
    before = made.prepare(examples)
    old = before.config(made.architecture).build()
    before.initialize(old)
    scores = task.evaluate(model, examples)
    assert scores.metrics["spearman"] > 0.8 > before.evaluate(old.eval(), examples).metrics["spearman"]
    alike, unlike = task.predict(
        model, ["the old cat is here\tthe new dog is there", "the old cat is here\tthe big gold is here"]
    )
    assert alike.value > unlike.value  # type: ignore[attr-defined]
    vectors = Embedder.from_pretrained(open_pretrained(tmp_path)).embed(["the old cat is here", "the new dog is there"])
    assert float(vectors[0] @ vectors[1]) == pytest.approx(alike.value, abs=1e-5)  # type: ignore[attr-defined]


def test_rows_of_a_table_are_predicted(folder: Path, scored_file: Path, tmp_path: Path) -> None:
    train_from_files(config(folder, scored_file, steps=1, epochs=None), tmp_path / "run")
    command = ["predict", str(tmp_path / "run"), "--data", str(scored_file), "--out", str(tmp_path / "out.csv")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 161


def test_triplets_and_pairs_are_read_and_trained(folder: Path, tmp_path: Path) -> None:
    rng, path = Random(2), tmp_path / "triplets.csv"
    rows = []
    for _ in range(64):
        topic, other = rng.sample(list(TOPICS), 2)
        rows.append(",".join((sentence(rng, topic), sentence(rng, topic), sentence(rng, other))))
    path.write_text("anchor,positive,negative\n" + "\n".join(rows) + "\n", "utf8")
    example = read_similarity([path]).examples[0]
    assert example.negative and example.score is None
    train_from_files(config(folder, path, epochs=2), tmp_path / "run")
    assert (tmp_path / "run" / "scores.json").is_file()


def test_loss_ignores_copies_of_the_right_text() -> None:
    torch.manual_seed(0)
    firsts, others = (torch.nn.functional.normalize(torch.randn(3, 5), dim=-1) for _ in range(2))
    others[1] = others[0]
    alike = torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 1]]).bool()
    loss = info_nce_sum(firsts, others, alike, 0.1)
    logits = firsts @ others.t() / 0.1
    rows = [logits[0, [0, 2]], logits[1, [1, 2]], logits[2, [2, 0, 1]]]
    columns = [logits[[0, 2], 0], logits[[1, 2], 1], logits[[2, 0, 1], 2]]
    expected = sum(-x.log_softmax(0)[0] for x in rows) + sum(-x.log_softmax(0)[0] for x in columns)
    torch.testing.assert_close(loss, expected / 2)


def test_cosent_loss_by_its_formula() -> None:
    cosines, scores = torch.tensor([0.3, -0.2, 0.9]), torch.tensor([2.0, 1.0, 1.0])
    expected = torch.log(1 + sum(torch.exp(20 * (cosines[i] - cosines[0])) for i in (1, 2)))
    torch.testing.assert_close(cosent_loss(cosines, scores), expected)


def test_new_model_is_refused(scored_file: Path, tmp_path: Path) -> None:
    with pytest.raises(rg.BadInput, match="Give one: --from CHECKPOINT"):
        train_from_files(RunConfig.from_changes("similarity", {}, train=[scored_file]), tmp_path)
