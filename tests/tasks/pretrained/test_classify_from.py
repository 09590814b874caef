"""`regard train classify --from`: the encoder and the tokenizer of a checkpoint, and a new head."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import regard as rg
from regard.cli import app
from regard.lab.inputs.prepare import prepare
from regard.tasks.pretrained.pretrained import open_checkpoint, resolve_checkpoint
from regard.train.commands import train_from_files
from regard.train.run import RunConfig, open_run


def config(folder: Path, table: Path, **changes: Any) -> RunConfig:
    given = {"checkpoint": str(folder), "epochs": 2, "batch_size": 8, "device": "cpu", **changes}
    return RunConfig.from_changes("classify", given, train=[table])


@pytest.fixture(scope="module")
def run(bert_folder: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    train_from_files(config(bert_folder, table, learning_rate=3e-3, layer_decay=1.0, epochs=4), out)
    return out


def test_model_starts_with_the_weights_of_the_checkpoint(bert_folder: Path, table: Path) -> None:
    made = config(bert_folder, table)
    task = made.prepare(made.task.read(made.train, made.settings).examples)
    model = task.config(made.architecture).build()
    task.initialize(model)
    before = rg.load(bert_folder)
    for name, weight in before.state_dict().items():
        if not name.startswith("pooler"):
            assert torch.equal(model.state_dict()[name], weight), name
    batch = task.batch([task.inputs.example_of("the old cat is here")])  # type: ignore[attr-defined]
    inputs = before.tokenizer(["the old cat is here"]).inputs
    assert torch.equal(batch["tokens"], inputs["tokens"])
    torch.testing.assert_close(
        model.eval()(**{k: v for k, v in batch.items() if k != "labels"}).hidden, before(**inputs).hidden
    )


def test_run_learns_and_opens_again(run: Path) -> None:
    scores = json.loads((run / "scores.json").read_text())
    assert scores["metrics"]["accuracy"] == 1.0
    written = json.loads((run / "run.json").read_text())
    assert (written["architecture"]["dim"], written["architecture"]["layers"]) == (32, 2)
    task, model, _ = open_run(run)
    result = task.predict(model, ["the small dog is there", "the big zinc is there"])
    assert [row.to_dict()["label"] for row in result] == ["animal", "metal"]
    assert rg.load(run).tokenizer.pieces([2])  # the tokenizer is saved with the model
    shown = prepare(model, task, "text", {"text": "the small dog is there"}, lambda fields: b"")  # type: ignore[arg-type, return-value]
    with torch.no_grad():
        assert shown.read_output(model(**shown.arguments))["items"][0]["label"] == "animal"


def test_opened_run_can_be_pickled_and_copied(run: Path) -> None:
    predictor, text = rg.open(run), "the small dog is there"
    expected = predictor.predict(text)
    for twin in (pickle.loads(pickle.dumps(predictor)), copy.deepcopy(predictor)):
        assert twin.predict(text) == expected


def test_opened_run_embeds(run: Path, bert_folder: Path) -> None:
    vectors = rg.open(run).embed(["the small dog is there", "the big cat is here", "the big zinc is here"])
    assert vectors.shape == (3, 32) and float(vectors[0] @ vectors[1]) > float(vectors[0] @ vectors[2])
    encoder = rg.open(bert_folder)
    assert encoder.embed("the small dog is there").shape == (32,)
    with pytest.raises(rg.Unsupported, match="without a task to predict"):
        encoder.predict("the small dog is there")


def test_run_with_the_pooler_is_read_by_transformers(bert_folder: Path, table: Path, run: Path, tmp_path: Path) -> None:
    """Mean pooling has no counterpart there, which is said."""
    transformers = pytest.importorskip("transformers")
    train_from_files(config(bert_folder, table, pool="pooler", steps=2), tmp_path / "run")
    model = rg.open(tmp_path / "run")
    model.save(tmp_path / "saved", format="huggingface")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved").eval()
    encoded = model.model.tokenizer(["the small dog is there"])
    with torch.no_grad():
        ours = model.model(**encoded.inputs).logits
        torch.testing.assert_close(theirs(encoded.tokens).logits, ours, rtol=1e-4, atol=1e-5)
    assert theirs.config.id2label == {0: "animal", 1: "metal"}
    with pytest.raises(rg.Unsupported, match="A run with pool=pooler has their head"):
        rg.open(run).save(tmp_path / "other", format="huggingface")


def test_several_models_start_from_a_checkpoint_beside_ngrams(bert_folder: Path, table: Path, tmp_path: Path) -> None:
    """Padding for CUDA graphs keeps the rows of three models in their order; the run predicts what it did."""
    made = config(bert_folder, table, ensemble=3, learning_rate=3e-3, layer_decay=1.0)
    examples = made.task.read(made.train, made.settings).examples
    task = made.prepare(examples)
    batch = task.batch(examples[:11], Random(0))
    padded = task.pad_for_cuda_graph(batch)
    assert len(padded["tokens"]) == 96 and torch.equal(
        padded["tokens"][:33, : batch["tokens"].shape[1]], batch["tokens"]
    )
    train_from_files(made, tmp_path / "run")
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert scores["metrics"]["accuracy"] == 1.0 and "n-gram weight" in scores
    task, model, _ = open_run(tmp_path / "run")
    assert len(model.members) == 3 and model.beside is not None  # type: ignore[arg-type]
    heads = [member.head.out.weight for member in model.members]  # type: ignore[union-attr]
    assert not torch.equal(heads[0], heads[1])
    result = task.predict(model, ["the small dog is there", "the big zinc is there"])
    assert [row.to_dict()["label"] for row in result] == ["animal", "metal"]


def test_checkpoint_is_no_run(bert_folder: Path) -> None:
    done = CliRunner().invoke(app, ["predict", str(bert_folder), "the small dog is there"])
    assert done.exit_code == 1 and "It is a checkpoint: rg.open and `regard serve` predict with it" in done.output


def test_new_run_starts_from_a_run(run: Path, table: Path) -> None:
    made = config(run, table)
    assert made.pretrained is not None and made.pretrained.task is not None
    task = made.prepare(made.task.read(made.train, made.settings).examples)
    model = task.config(made.architecture).build()
    task.initialize(model)
    before = rg.load(run).state_dict()
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items() if not name.startswith("head."))


def test_resumed_run_has_the_same_bits(bert_folder: Path, table: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train_from_files(config(bert_folder, table, steps=8, epochs=None, layer_decay=0.5), whole)
    train_from_files(config(bert_folder, table, steps=4, epochs=None, layer_decay=0.5, schedule="constant"), parts)
    reference = tmp_path / "reference"
    train_from_files(config(bert_folder, table, steps=8, epochs=None, layer_decay=0.5, schedule="constant"), reference)
    train_from_files(config(bert_folder, table, steps=8, epochs=None, layer_decay=0.5, schedule="constant"), parts)
    states = [rg.load(folder).state_dict() for folder in (reference, parts)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_sizes_come_from_the_checkpoint(bert_folder: Path, table: Path) -> None:
    with pytest.raises(rg.BadInput, match="dim is given by the checkpoint"):
        config(bert_folder, table, dim=64)


def test_folder_with_pickles_alone_is_refused(tmp_path: Path, table: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(rg.BadInput, match="a pickle, which can run any code"):
        open_checkpoint(tmp_path)


def test_name_that_is_no_folder_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(rg.BadInput, match=r"does not exist\. Give the folder of a checkpoint"):
        resolve_checkpoint("no-such-folder")

    def offline(*_: Any, **__: Any) -> str:
        raise OSError("Network is unreachable")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(rg.BadInput, match="could not be downloaded from the Hub: Network is unreachable"):
        resolve_checkpoint("owner/name")


def test_checkpoint_of_another_modality_is_refused(bert_folder: Path) -> None:
    with pytest.raises(rg.BadInput, match="does not read images"):
        open_checkpoint(bert_folder).encoder("images")


def test_missing_tokenizer_is_named(bert_folder: Path) -> None:
    pretrained = open_checkpoint(bert_folder)
    pretrained.model.tokenizer = None
    with pytest.raises(rg.BadInput, match="has no tokenizer"):
        pretrained.texts(16)


@pytest.mark.parametrize(("freeze", "trained"), [("embeddings", 2), ("1", 1), ("all", 0)])
def test_freezing(bert_folder: Path, table: Path, tmp_path: Path, freeze: str, trained: int) -> None:
    train_from_files(config(bert_folder, table, steps=2, epochs=None, freeze=freeze), tmp_path)
    before, after = rg.load(bert_folder).state_dict(), rg.load(tmp_path).state_dict()
    assert torch.equal(before["embed.tokens.weight"], after["embed.tokens.weight"])
    changed = [not torch.equal(before[n], after[n]) for n in (f"stack.blocks.{k}.attention.q.weight" for k in (0, 1))]
    assert sum(changed) == trained and changed == sorted(changed)


def test_gradient_checkpointing_gives_the_same_bits(bert_folder: Path, table: Path, tmp_path: Path) -> None:
    for name, on in (("a", False), ("b", True)):
        train_from_files(config(bert_folder, table, steps=3, epochs=None, gradient_checkpointing=on), tmp_path / name)
    states = [rg.load(tmp_path / name).state_dict() for name in "ab"]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_lora_run_is_saved_merged_with_its_adapter(bert_folder: Path, table: Path, tmp_path: Path) -> None:
    train_from_files(config(bert_folder, table, lora_rank=4, lora_targets=("q", "v"), epochs=1), tmp_path)
    before, after = rg.load(bert_folder).state_dict(), rg.load(tmp_path).state_dict()
    changed = {name for name in after if name in before and not torch.equal(before[name], after[name])}
    assert changed == {f"stack.blocks.{n}.attention.{name}.weight" for n in (0, 1) for name in "qv"}
    adapted = open_checkpoint(tmp_path / "adapter").model.state_dict()
    for name in changed:
        torch.testing.assert_close(adapted[name], after[name])
    task, model, _ = open_run(tmp_path)
    assert len(task.predict(model, ["the small dog is there"])) == 1


def test_commands_of_a_run_from_a_checkpoint(bert_folder: Path, table: Path, tmp_path: Path) -> None:
    out, runner = str(tmp_path / "run"), CliRunner()
    train = ["train", "classify", "--from", str(bert_folder), "--train", str(table), "--out", out, "--steps", "2"]
    result = runner.invoke(app, [*train, "--device", "cpu", "--set", "freeze=1", "--json"])
    assert result.exit_code == 0, result.output
    result = runner.invoke(app, ["evaluate", out, "--data", str(table), "--json"])
    assert result.exit_code == 0 and "accuracy" in json.loads(result.stdout)["metrics"]
    result = runner.invoke(app, ["predict", out, "the old gold is here", "--json"])
    assert result.exit_code == 0 and json.loads(result.stdout)[0]["label"] in ("animal", "metal")
    result = runner.invoke(app, ["train", "classify", "--from", str(tmp_path / "nothing"), "--train", str(table)])
    assert result.exit_code != 0 and "does not exist. Give the folder of a checkpoint" in " ".join(
        result.output.split()
    )
