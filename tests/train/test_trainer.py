"""The loop: stopped and resumed to the same bits, saved whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import regard as rg
from regard.errors import Unsupported
from regard.settings import Training
from regard.tasks.task import Scores
from regard.train import trainer
from regard.train.checkpoints import CheckpointStore, read_state, read_tensors
from regard.train.trainer import InterruptHandler, Trainer, make_accelerator

from .toy import Toy, examples, model

HOW = Training(
    epochs=None, steps=12, batch_tokens=60, accumulate=2, warmup=3, evaluate_every=3, save_every=3, device="cpu"
)


def run(folder: Path, training: Training, tell=lambda event: None, made=None) -> dict[str, torch.Tensor]:
    """The weights after a run."""
    made = model() if made is None else made
    Trainer(Toy(), made, examples(70), examples(30, 1), training, folder, lambda model, scores: None, tell).fit()
    return {name: x.clone() for name, x in made.state_dict().items()}


def assert_same_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    for name, x in a.items():
        assert torch.equal(x, b[name]), name


def interrupt_at(step: int):
    """Presses Ctrl-C after that step."""

    def tell(event) -> None:
        if event.name == "step" and event.state.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    return tell


def test_a_capture_that_fails_leaves_no_gradients(tmp_path: Path) -> None:
    """The update that is then made without a CUDA graph is the one of a run that never had one."""
    how = replace(HOW, accumulate=1)
    expected, made = run(tmp_path / "a", how), model()
    trainer = Trainer(Toy(), made, examples(70), examples(30, 1), how, tmp_path / "b", lambda model, scores: None)

    def fail(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        for parameter in made.parameters():
            parameter.grad = torch.full_like(parameter, 1e3)
        raise Unsupported("The step cannot be captured.")

    trainer.cuda_graph = fail  # type: ignore[assignment]
    with pytest.warns(UserWarning, match="continues without cuda_graph"):
        trainer.fit()
    assert_same_bits(made.state_dict(), expected)


@pytest.mark.parametrize(
    "more",
    [{}, {"ema": 0.9}, {"average_checkpoints": 3}, {"schedule": "cosine", "label_smoothing": 0.1}, {"batch_size": 7}],
    ids=str,
)
@pytest.mark.parametrize("step", [4, 9])
def test_stopped_and_resumed_to_the_same_bits(tmp_path: Path, more: dict, step: int) -> None:
    """Weights, the optimizer's memory, averages and generators, whether or not a checkpoint was due."""
    how = replace(HOW, **more)
    expected = run(tmp_path / "whole", how)
    run(tmp_path / "cut", how, interrupt_at(step))
    found = CheckpointStore(tmp_path / "cut" / "checkpoints").latest()
    assert found is not None and found[0]["step"] == step
    assert_same_bits(expected, run(tmp_path / "cut", how, made=model(seed=7)))
    a, b = (CheckpointStore(tmp_path / name / "checkpoints").latest() for name in ("whole", "cut"))
    assert a is not None and b is not None
    for file in sorted(a[1].glob("*.safetensors")):
        assert_same_bits(read_tensors(file), read_tensors(b[1] / file.name))
    assert {**a[0], "seconds": 0} == {**b[0], "seconds": 0}


def test_broken_checkpoint_is_passed_over(tmp_path: Path) -> None:
    expected = run(tmp_path, HOW)
    newest = CheckpointStore(tmp_path / "checkpoints").folders()[-1]
    weights = newest / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    assert read_state(newest) is None
    events = []
    assert_same_bits(expected, run(tmp_path, HOW, events.append, made=model(seed=5)))
    assert next(event.name for event in events) == "resumed" and events[0].values == {}


def test_full_disk_leaves_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, replace(HOW, steps=6))
    before = CheckpointStore(tmp_path / "checkpoints").latest()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("regard.train.checkpoints.write_tensors", full)
    with pytest.raises(rg.BadInput, match=r"No space left.*free some disk space"):
        run(tmp_path, HOW)
    monkeypatch.undo()
    assert CheckpointStore(tmp_path / "checkpoints").latest() == before


def test_late_reports_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU an update is reported while the next one runs; the reports and their order are the same."""
    lines: dict[str, list[tuple]] = {"at once": [], "late": []}
    for name, reports in lines.items():
        monkeypatch.setattr(trainer, "runs_asynchronously", lambda _, late=name == "late": late)
        run(
            tmp_path / name,
            HOW,
            lambda e, reports=reports: reports.append((e.name, e.state.step, e.values.get("loss"))),
        )
    assert lines["late"] == lines["at once"] and [step for name, step, _ in lines["late"] if name == "step"][-1] == 12


def test_runs_of_one_process_may_have_other_precisions(tmp_path: Path) -> None:
    plain = run(tmp_path / "a", replace(HOW, steps=2))
    half = run(tmp_path / "b", replace(HOW, steps=2, precision="bf16"))
    assert any(not torch.equal(x, half[name]) for name, x in plain.items())
    assert_same_bits(plain, run(tmp_path / "c", replace(HOW, steps=2)))


def test_learns(tmp_path: Path) -> None:
    scores = []
    how = replace(HOW, steps=60, accumulate=1, batch_tokens=300, learning_rate=1e-2)
    how = replace(how, schedule="constant", evaluate_every=60)
    made = model(dropout=0.0)
    Trainer(
        Toy(), made, examples(300), examples(100, 1), how, tmp_path, lambda model, found: scores.append(found)
    ).fit()
    assert scores[-1].metrics["accuracy"] > 0.85
    assert (
        json.loads((CheckpointStore(tmp_path / "checkpoints").folders()[-1] / "state.json").read_text())["step"] == 60
    )


def test_patience_ends_a_run(tmp_path: Path) -> None:
    how = replace(HOW, steps=1000, learning_rate=1e-9, patience=2, evaluate_every=5)
    state = Trainer(Toy(), model(), examples(50), examples(20, 1), how, tmp_path, lambda m, s: None).fit()
    assert state.step == 20


def test_a_press_that_is_heard_twice_is_one() -> None:
    """A launcher passes Ctrl-C on to processes that the terminal has told already; a later one breaks off."""
    with InterruptHandler() as stop:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal == signal.SIGINT
        stop.since -= 2
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGUSR1"])
def test_every_stop_signal_saves(tmp_path: Path, name: str) -> None:
    number = getattr(signal, name)
    events = []

    def tell(event) -> None:
        events.append(event)
        if event.name == "step" and event.state.step == 4:
            os.kill(os.getpid(), number)

    run(tmp_path, HOW, tell)
    latest = CheckpointStore(tmp_path / "checkpoints").latest()
    assert latest is not None and latest[0]["step"] == 4
    assert events[-1].name == "stopped" and events[-1].values["signal"] == number


class SlowToy(Toy):
    """Its evaluation takes long; it presses Ctrl-C during the second one."""

    evaluations = 0

    def evaluate(self, model, examples):
        SlowToy.evaluations += 1
        if SlowToy.evaluations == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        return super().evaluate(model, examples)


@pytest.mark.parametrize("more", [{}, {"average_checkpoints": 2}, {"ema": 0.9}], ids=str)
def test_stopped_during_an_evaluation(tmp_path: Path, more: dict) -> None:
    """The evaluation is broken off at once and made when the run resumes: the same bits and the same best score."""
    SlowToy.evaluations = 5  # no signal
    how, states, weights = replace(HOW, **more), [], []
    for folder, pieces in (("whole", 1), ("cut", 2)):
        for piece in range(pieces):
            SlowToy.evaluations = 0 if (folder, piece) == ("cut", 0) else 5
            made, started = model(seed=piece), time.monotonic()
            state = Trainer(
                SlowToy(), made, examples(70), examples(30, 1), how, tmp_path / folder, lambda m, s: None
            ).fit()
            assert time.monotonic() - started < 50
            if (folder, piece) == ("cut", 0):
                assert state.step == 6 and state.evaluation_due
        states.append(state)
        weights.append(made.state_dict())
    assert_same_bits(*weights)
    assert replace(states[0], seconds=0) == replace(states[1], seconds=0)


def test_checkpoints_by_time(tmp_path: Path) -> None:
    saved = []
    how = replace(HOW, save_every=1000, evaluate_every=1000, save_minutes=1e-6, steps=4)
    run(tmp_path, how, lambda event: saved.append(event.state.step) if event.name == "saved" else None)
    assert saved[:4] == [1, 2, 3, 4]


def test_killed_before_the_last_evaluation(tmp_path: Path) -> None:
    """The last step has its checkpoint, and its evaluation is made when the run resumes."""

    class Killed(Exception):
        pass

    def kill(event) -> None:
        if event.name == "saved" and event.state.step == 12:
            raise Killed

    how = replace(HOW, save_every=4, evaluate_every=5)
    with pytest.raises(Killed):
        run(tmp_path, how, kill)
    events: list[tuple[str, int]] = []
    run(tmp_path, how, lambda event: events.append((event.name, event.state.step)), made=model(seed=5))
    assert [(name, step) for name, step in events if name == "score"] == [("score", 12)]


class Tied(Toy):
    """Every evaluation has the same accuracy; the losses fall, then rise."""

    losses = iter(())

    def evaluate(self, model, examples):
        return Scores({"accuracy": 0.0, "loss": next(self.losses)}, "accuracy")


def test_of_equal_scores_the_lower_loss_is_kept(tmp_path: Path) -> None:
    task, kept = Tied(), []
    task.losses = iter([5.0, 3.0, 4.0, 6.0])
    Trainer(
        task, model(), examples(70), examples(30, 1), HOW, tmp_path, lambda m, s: kept.append(s.metrics["loss"])
    ).fit()
    assert kept == [5.0, 3.0]


def test_the_minutes_include_the_last_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update takes a second, an evaluation ten: a run of 40 seconds ends with its last evaluation, not before it."""
    clock = [0.0]
    monkeypatch.setattr(trainer.time, "monotonic", lambda: clock[0])

    class Slow(Toy):
        def loss(self, model, batch, smoothing=0.0):
            clock[0] += 1.0 * model.training
            return super().loss(model, batch, smoothing)

        def evaluate(self, model, examples):
            clock[0] += 10.0
            return super().evaluate(model, examples)

    how = replace(HOW, accumulate=1, steps=10**6, minutes=40 / 60, evaluate_every=5, save_every=10**6)
    state = Trainer(Slow(), model(), examples(70), examples(30, 1), how, tmp_path, lambda m, s: None).fit()
    assert (state.step, state.seconds) == (11, 41.0)


def test_weights_have_the_mode_of_new_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        CheckpointStore(tmp_path).save(1, {"step": 1}, {"model": {"x": torch.ones(3)}})
    finally:
        os.umask(before)
    assert (tmp_path / "step-00000001" / "model.safetensors").stat().st_mode & 0o777 == 0o640


def test_a_checkpoint_of_zeros_is_passed_over(tmp_path: Path) -> None:
    """After a power cut a file may have its size and nothing in it."""
    store = CheckpointStore(tmp_path)
    for step in (1, 2):
        store.save(step, {"step": step}, {"model": {"x": torch.ones(3)}})
    last = tmp_path / "step-00000002" / "model.safetensors"
    last.write_bytes(bytes(last.stat().st_size))
    with pytest.warns(UserWarning, match="damaged"):
        found = store.latest()
    assert found is not None and found[0]["step"] == 1


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    """At twenty places of the newest checkpoint: it is skipped, and the one before is used."""
    store = CheckpointStore(tmp_path)
    for step in (1, 2):
        store.save(step, {"step": step}, {"model": {"x": torch.randn(200)}})
    for name in ("model.safetensors", "state.json"):
        file = tmp_path / "step-00000002" / name
        whole = file.read_bytes()
        for n in range(20):
            damaged = bytearray(whole)
            damaged[n * len(whole) // 20] ^= 1 << n % 8
            file.write_bytes(damaged)
            with pytest.warns(UserWarning, match="damaged"):
                latest = store.latest()
            assert latest is not None and latest[0]["step"] == 1
        file.write_bytes(whole)
    latest = store.latest()
    assert latest is not None and latest[0]["step"] == 2


def test_a_checkpoint_of_another_model_is_refused_with_its_folder(tmp_path: Path) -> None:
    """Its hashes are right, but its tensors are those of another model."""
    state = {"step": 3, "epoch": 0, "group": 0}
    CheckpointStore(tmp_path / "checkpoints").save(3, state, {"model": {"x": torch.ones(3)}, "optimizer": {}})
    with pytest.raises(rg.BadInput, match=r"step-00000003 has contents that cannot be used"):
        run(tmp_path, replace(HOW, steps=2))


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "checkpoints" / ".writing-00000003"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    run(tmp_path, replace(HOW, steps=2))
    assert not left.exists()


@pytest.mark.parametrize("fast, precision", [(True, "bf16"), (False, "no"), (True, "bf16")])
def test_auto_precision_is_what_the_device_computes_fast(
    monkeypatch: pytest.MonkeyPatch, fast: bool, precision: str
) -> None:
    """Also in a process whose last run had another precision."""
    monkeypatch.setattr(trainer, "fast_bfloat16", lambda device: fast)
    assert make_accelerator(Training(device="cpu", precision="auto"), model()).mixed_precision == precision
    assert make_accelerator(Training(device="cpu"), model()).mixed_precision == "no"


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(rg.Unsupported, match="no CUDA device"):
        make_accelerator(Training(device="cuda"), model())
    with pytest.raises(rg.Unsupported, match="fp16"):
        make_accelerator(Training(precision="fp16"), model())
