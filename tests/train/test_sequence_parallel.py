"""Processes that share the tokens of each batch: the same losses as one process, and checkpoints of the same form."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import regard as rg
from regard.data.tagged import Tagged
from regard.data.text import Document, LabelledText
from regard.settings import Training
from regard.tasks import find_task
from regard.tasks.architecture import Architecture
from regard.train.checkpoints import CheckpointStore, read_tensors
from regard.train.processes.sequence_parallel import SequenceParallel, check_processes, check_support
from regard.train.trainer import Trainer, TrainEvent

HERE = Path(__file__).parents[2]
TRAINING = Training(
    epochs=None, steps=3, batch_tokens=90, accumulate=2, warmup=1, learning_rate=1e-2, device="cpu", evaluate_every=9
)
TINY = Architecture(dim=16, layers=2, heads=2, dropout=0.0, activation="gelu")
FSDP = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"} | {
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "Block",
}


def words(count: int, draw: random.Random) -> list[str]:
    return [draw.choice(["cat", "sat", "on", "the", "mat", "dog"]) for _ in range(count)]


def documents() -> list[Document]:
    draw = random.Random(0)
    return [Document(" ".join(words(draw.randint(3, 40), draw)) + "\n", "a.txt") for _ in range(20)]


def tagged() -> list[Tagged]:
    draw = random.Random(1)
    rows = [words(draw.choice([1, 17, 23, 31]), draw) for _ in range(24)]
    return [Tagged(tuple(row), tuple("D" if word == "the" else "N" for word in row)) for row in rows]


def labelled() -> list[LabelledText]:
    draw = random.Random(2)
    rows = [words(draw.randint(9, 33), draw) for _ in range(24)]
    return [LabelledText(" ".join(row), "yes" if row.count("cat") > row.count("dog") else "no") for row in rows]


LM = {"unit": "words", "context": 37}
TEXTS = {"nb_linear": 0, "word_dropout": 0.0, "unit": "words"}
TAGS = {"rare_word_dropout": 0.0}
CASES: dict[str, tuple[str, Callable[[], list[Any]], dict[str, Any], Architecture]] = {
    "learned positions": ("lm", documents, LM, replace(TINY, positions="learned")),
    "rotary window": ("lm", documents, LM, replace(TINY, positions="none", position="Rotary()", mask="Window(7)")),
    "alibi": ("lm", documents, LM, replace(TINY, positions="none", position="Alibi()", norm="rms", gated=True)),
    "learned parts": ("lm", documents, LM, replace(TINY, position="LearnedBias(reach=9)", sink="LearnedSink()")),
    "packed": ("lm", documents, {**LM, "document_mask": True}, replace(TINY, mask="Window(9)")),
    "tag": ("tag", tagged, TAGS, replace(TINY, attention_dropout=0.0)),
    "longformer tag": ("tag", tagged, TAGS, replace(TINY, model="longformer", window=4)),
    "longformer": ("classify", labelled, {**TEXTS, "pool": "first"}, replace(TINY, model="longformer", window=4)),
    "bigbird": ("classify", labelled, {**TEXTS, "pool": "mean"}, replace(TINY, model="bigbird", block_size=4)),
    "attention pooling": ("classify", labelled, {**TEXTS, "pool": "attention"}, TINY),
    "pooler": ("classify", labelled, {**TEXTS, "pool": "pooler"}, TINY),
    "last": ("classify", labelled, {**TEXTS, "pool": "last"}, TINY),
    "n-grams": ("classify", labelled, {**TEXTS, "pool": "mean", "nb_linear": 500}, TINY),
}
ALSO_FSDP = ("packed", "longformer")


def run(name: str, folder: Path, training: Training = TRAINING) -> list[float]:
    """The losses of a run, which are also written where its checkpoints are."""
    task_name, examples, settings, architecture = CASES[name]
    kind, losses = find_task(task_name), []
    task = kind.prepare(examples(), kind.Settings(**settings))
    torch.manual_seed(0)
    model = task.config(architecture).build()

    def on_event(event: TrainEvent) -> None:
        if event.name == "step":
            losses.append(event.values["loss"])

    folder.mkdir(parents=True, exist_ok=True)
    data = examples()
    Trainer(task, model, data, data[:3], training, folder, lambda m, s: None, on_event).fit()
    if losses:
        (folder / "losses.json").write_text(json.dumps(losses))
    return losses


def every_case(folder: Path) -> None:
    """What the processes of one launch do here."""
    sharded = replace(TRAINING, sequence_parallel=2)
    for name in CASES:
        run(name, folder / name, replace(sharded, gradient_checkpointing=name == "packed"))
    run("rotary window", folder / "resumed", replace(sharded, steps=4))
    refusals = "\n".join(refuse(sharded))
    (folder / f"refusals-{os.environ['RANK']}.txt").write_text(refusals)


def refuse(training: Training) -> Iterator[str]:
    """What each process says to inputs that do not fit; none may wait for another."""
    from accelerate import Accelerator

    kind, rank = find_task("lm"), int(os.environ["RANK"])
    task = kind.prepare(documents(), kind.Settings(**LM))
    model = task.config(TINY).build()
    sequence = SequenceParallel(task, model, training, Accelerator(cpu=True))
    tokens = torch.ones(1, 8, dtype=torch.long)
    layout = rg.shard(rg.Causal(), 8, sequence.group)
    own, lstm = layout.split(tokens, 1), task.config(replace(TINY, model="lstm")).build()

    def differ() -> None:
        with sequence.shard({"tokens": tokens + rank, "labels": tokens}):
            pass

    calls = {
        "batches": differ,
        "tokens": lambda: model(tokens=tokens),
        "labels": lambda: model(tokens=own, labels=own),
        "cache": lambda: model(tokens=own, cache=rg.nn.Cache()),
        "model": lambda: lstm(tokens=own),
    }
    for name, call in calls.items():
        try:
            with layout if name != "batches" else nullcontext():
                call()
        except rg.RegardError as error:
            yield f"{name}: {error}"


def fsdp_cases(folder: Path) -> None:
    """Two groups of two, data × sequence, whose weights all four share."""
    for name in ALSO_FSDP:
        run(name, folder / f"{name} fsdp", replace(TRAINING, sequence_parallel=2))


def launch(function: str, folder: Path, processes: int, environment: dict[str, str]) -> None:
    """Have so many processes call a function of this file with the folder."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path;"
        f"from tests.train.test_sequence_parallel import {function}; {function}(Path(sys.argv[2]))"
    )
    (folder / "launched.py").write_text(code)
    launched = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={processes}", "--standalone"]
    done = subprocess.run(
        [*launched, str(folder / "launched.py"), str(HERE), str(folder)],
        env={**os.environ, **environment, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes have left, four with FSDP, and one process beside them."""
    folder = tmp_path_factory.mktemp("sequence")
    for name in CASES:
        run(name, folder / "one" / name)
    run("rotary window", folder / "one" / "resumed", replace(TRAINING, steps=4))
    run("rotary window", folder / "resumed", replace(TRAINING, steps=2))
    launch("every_case", folder, 2, {})
    launch("fsdp_cases", folder, 4, FSDP)
    return folder


def read_losses(folder: Path) -> torch.Tensor:
    return torch.tensor(json.loads((folder / "losses.json").read_text()))


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    latest = CheckpointStore(folder / "checkpoints").latest()
    assert latest is not None
    return read_tensors(latest[1] / "model.safetensors")


def assert_alike(folder: Path, one: Path) -> None:
    expected = read_losses(one)
    torch.testing.assert_close(read_losses(folder), expected, rtol=2e-5, atol=1e-6)
    weights = read_weights(folder)
    for name, x in read_weights(one).items():
        # Adam divides a gradient by its size: the rounding of one that should be zero becomes a part of a step
        torch.testing.assert_close(weights[name], x, rtol=1e-3, atol=5e-3, msg=name)


@pytest.mark.parametrize("name", CASES)
def test_losses_and_weights_are_those_of_one_process(folders: Path, name: str) -> None:
    assert_alike(folders / name, folders / "one" / name)


@pytest.mark.parametrize("name", ALSO_FSDP)
def test_with_data_parallelism_and_fsdp_too(folders: Path, name: str) -> None:
    assert_alike(folders / f"{name} fsdp", folders / "one" / name)


def test_two_processes_resume_what_one_began(folders: Path) -> None:
    expected = read_losses(folders / "one" / "resumed")
    torch.testing.assert_close(read_losses(folders / "resumed"), expected[2:], rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("rank", [0, 1])
def test_inputs_that_do_not_fit_are_refused_on_every_process(folders: Path, rank: int) -> None:
    said = dict(line.split(": ", 1) for line in (folders / f"refusals-{rank}.txt").read_text().splitlines())
    assert "different batches: [1] differ" in said["batches"]
    assert "layout.split(x, 1)" in said["tokens"] and "A model got 8 tokens" in said["tokens"]
    assert "does not take labels" in said["labels"] and "cache" in said["cache"]
    assert "mixes tokens without attention" in said["model"]


def test_packed_texts_do_not_see_each_other() -> None:
    _, examples, settings, architecture = CASES["packed"]
    kind = find_task("lm")
    task = kind.prepare(examples(), kind.Settings(**settings))
    model = task.config(architecture).build().eval()
    tokens = torch.tensor([[4, 5, task.end, 6, 7, 4]])
    other = torch.tensor([[7, 7, task.end, 6, 7, 4]])
    first, second = (model(tokens=x, **task.documents(x)).logits[:, 3:] for x in (tokens, other))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert not torch.equal(model(tokens=tokens).logits[:, 3:], model(tokens=other).logits[:, 3:])


@pytest.mark.parametrize(
    ("size", "processes", "hint"), [(2, 1, "one process runs"), (3, 4, "does not divide 4 processes")]
)
def test_processes_that_do_not_fit_are_refused(size: int, processes: int, hint: str) -> None:
    with pytest.raises(rg.BadInput, match=hint):
        check_processes(size, processes)


@pytest.mark.parametrize(
    ("name", "changes", "hint"),
    [
        ("lm", {"model": "lstm"}, "mixes tokens without attention"),
        ("lm", {"model": "cnn"}, "mixes tokens without attention"),
        ("lm", {"method": "Performer(features=4)"}, "not exact"),
        ("match", {}, "does not share out its inputs"),
    ],
)
def test_what_mixes_tokens_otherwise_is_refused(name: str, changes: dict[str, Any], hint: str) -> None:
    kind = find_task("lm")
    task = kind.prepare(documents(), kind.Settings(**LM))
    model = task.config(replace(TINY, **changes)).build()
    if name != "lm":
        task = object.__new__(find_task(name))
    with pytest.raises(rg.Unsupported, match=hint):
        check_support(task, model, replace(TRAINING, sequence_parallel=2))
