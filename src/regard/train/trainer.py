"""The training loop: updates, evaluations and checkpoints of a model.

A run that is stopped and resumed computes the same bits as a run that is not: everything random is a function of the
seed and the position in the data, or comes from a generator whose state is saved. The order of examples and the random
part of a batch come from the seed and the position, dropout from torch's generators.
"""

from __future__ import annotations

import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from ..data.batching import BatchSampler
from ..data.json_values import ParsedObject
from ..errors import BadInput, Missing, RegardError, Unsupported, explain_damage
from ..machine import fast_bfloat16
from ..models.model import Model, compile_blocks
from ..nn.block import Stack
from ..nn.experts import Experts
from ..nn.lora import is_head
from ..nn.sparse.longformer import LocalGlobal
from ..nn.sparse.shifted_windows import ShiftedWindows
from ..settings import Training
from ..tasks.task import AnyTask, Batch, Scores
from .checkpoints import CheckpointStore, read_tensors
from .cuda_graph import CudaGraphStep, to_device
from .ema import CheckpointAverage, ExponentialMovingAverage, float_tensors
from .processes.fsdp import UnshardedCopy, fsdp_plugin, full_tensor, load_full_weights, shard_like, use_fsdp_on_cpu
from .processes.liveness import Liveness
from .processes.rendezvous import restart_handlers
from .processes.sequence_parallel import SequenceParallel

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass
class TrainState:
    """Where a run stands: what a checkpoint has besides tensors. `group` counts the updates of the epoch.

    `evaluation_due` says that the evaluation of this step was broken off by a signal, and is made when the run resumes;
    `evaluated_step` is that of the last evaluation.
    """

    step: int = 0
    epoch: int = 0
    group: int = 0
    seconds: float = 0.0
    best: float | None = None
    best_loss: float | None = None
    since_best: int = 0
    evaluation_due: bool = False
    evaluated_step: int = -1


@dataclass(frozen=True)
class TrainEvent:
    """A report of a run: `name` is "step", "evaluating", "score", "saved", "resumed", "stopped" or "finished".

    `values` of "stopped" has the number of the signal, of "evaluating" the number of validation examples.
    """

    name: str
    state: TrainState
    total: int
    values: dict[str, float]
    scores: Scores | None = None


EventCallback = Callable[[TrainEvent], None]
BestCallback = Callable[[Model, Scores], None]


class Trainer:
    """Trains a model until its settings end the run, from the last checkpoint in `folder` where there is one.

    `on_best` is called with the model, which has the evaluated weights, when the score on the validation data is the
    best so far. `on_event` is called after each update, evaluation and checkpoint in the main process, and in every
    process when a signal has stopped the run.
    """

    def __init__(
        self,
        task: AnyTask,
        model: Model,
        examples: Sequence[object],
        validation: Sequence[object],
        training: Training,
        folder: Path,
        on_best: BestCallback,
        on_event: EventCallback = lambda event: None,
    ) -> None:
        self.task, self.examples, self.validation, self.training = task, examples, validation, training
        self.on_best, self.on_event, self.state = on_best, on_event, TrainState()
        self.accelerator = make_accelerator(training, model)
        shares = training.sequence_parallel > 1
        self.sequence = SequenceParallel(task, model, training, self.accelerator) if shares else None
        torch.manual_seed(training.seed + self.accelerator.process_index)
        self.module = model
        freeze_weights(model, training.freeze)
        for stack in (module for module in model.modules() if isinstance(module, Stack)):
            stack.checkpointing = training.gradient_checkpointing
        self.unsharded = UnshardedCopy(model) if self.accelerator.is_fsdp2 else None
        captures = captures_updates(training, self.accelerator)
        device = self.accelerator.device.type
        fused = device == "cuda" or (device == "cpu" and self.unsharded is None)  # one pass over weights and moments
        self.model: nn.Module
        self.model, self.optimizer = self.accelerator.prepare(model, make_optimizer(model, training, captures, fused))
        self.cuda_graph = CudaGraphStep(lambda batch: self.step([(batch, True)], batch["count"])) if captures else None
        if training.compile and (captures or self.unsharded is not None):
            compile_blocks(model)
        elif training.compile:
            self.model = cast(nn.Module, torch.compile(self.model))
        self.shares_batches = self.accelerator.num_processes > 1 and task.share_batches(examples, validation)
        sizes = task.sizes(self.epoch_examples(0))
        self.sampler = BatchSampler(
            sizes,
            tokens=training.tokens_per_batch(sizes),
            examples=training.batch_size,
            seed=training.seed,
            drop_last=task.cuts_blocks,
        )
        self.checkpoints = CheckpointStore(folder / "checkpoints")
        self.ema = ExponentialMovingAverage(training.ema) if training.ema else None
        self.average = CheckpointAverage(training.average_checkpoints) if training.average_checkpoints else None
        self.saved_step = -1
        self.evaluation_seconds, self.saved_time = 0.0, time.monotonic()
        self.interrupt = InterruptHandler()
        self.pending: tuple[TrainState, Tensor, float, float] | None = None
        self.liveness: Liveness | None = None
        self.last_time = time.monotonic()
        self.total = self.count_steps()

    def fit(self) -> TrainState:
        """Train to the end of the run, or until a signal stops it; the state where it ended.

        With several processes one that is gone or hangs ends them all with a message that names it.
        """
        processes, minutes = self.accelerator.num_processes, self.training.hang_minutes
        if processes == 1:
            with self.interrupt:
                return self.run()
        limit = None if minutes is None else 60 * minutes
        self.liveness = Liveness(self.accelerator.process_index, processes, limit)
        with self.liveness, self.interrupt:  # a launcher that ends the others leaves them time to say why
            try:
                return self.run()
            except RuntimeError as error:
                reason = self.liveness.explain(error)
                if reason is None:
                    raise
                raise RegardError(reason) from error

    def run(self) -> TrainState:
        """The updates, evaluations and checkpoints of the run."""
        self.resume()
        stopped, state, training = False, self.state, self.training
        interrupt = self.interrupt
        with ThreadPoolExecutor(1) as executor:
            if state.evaluation_due:
                self.evaluate()
                stopped = state.evaluation_due  # a signal broke it off
            if state.group and state.group == len(self.groups(state.epoch)):  # saved at the end of an epoch
                state.epoch, state.group = state.epoch + 1, 0
            while not self.over() and not stopped:
                groups = self.groups(state.epoch)
                next_batches = executor.submit(self.batches, groups, state.group)
                while state.group < len(groups) and not self.over() and not stopped:
                    batches = next_batches.result()
                    if state.group + 1 < len(groups):
                        next_batches = executor.submit(self.batches, groups, state.group + 1)
                    self.update(batches)
                    epoch_ended = state.group == len(groups)
                    if self.due(training.evaluate_every, epoch_ended):
                        self.evaluate()
                    stopped, late = self.sum_flags(interrupt.signal > 0, self.save_is_late())
                    if self.due(training.save_every, epoch_ended) or late:
                        self.save()
                if state.group == len(groups):
                    state.epoch, state.group = state.epoch + 1, 0
            self.finish(stopped)
        return state

    def epoch_examples(self, epoch: int) -> Sequence[object]:
        """The examples of an epoch, cut again for each where a task trains on running text."""
        return self.task.epoch_examples(self.examples, Random(f"{self.training.seed} {epoch}"))

    def groups(self, epoch: int) -> list[list[list[int]]]:
        """The batches of an epoch, by update."""
        batches, size = self.sampler.batches(epoch), self.training.accumulate
        return [batches[n : n + size] for n in range(0, len(batches), size)]

    def count_steps(self) -> int:
        """The number of updates of the run by `steps` and `epochs`; 10⁹ if neither is set."""
        limits = [self.training.steps] if self.training.steps else []
        if self.training.epochs:
            limits.append(self.training.epochs * len(self.groups(0)))
        return min(limits) if limits else 10**9

    def batches(self, groups: list[list[list[int]]], group: int) -> list[tuple[Batch, bool]]:
        """This process's batches of an update, and whether they count: a process without a batch gets a spare one."""
        every, accelerator = list(enumerate(groups[group])), self.accelerator
        index, count = accelerator.process_index, accelerator.num_processes
        if self.sequence is not None:
            index, count = self.sequence.data_index, self.sequence.data_size
        mine = every if self.shares_batches else every[index::count]
        return [(self.batch(group, k, numbers), bool(mine)) for k, numbers in mine or every[:1]]

    def batch(self, group: int, k: int, numbers: list[int]) -> Batch:
        """A batch; its random part is a function of its position in the order."""
        rng = Random(f"{self.training.seed} {self.state.epoch} {group} {k}")
        examples = self.epoch_examples(self.state.epoch)
        batch = self.task.batch([examples[n] for n in numbers], rng)
        return batch if self.cuda_graph is None else self.task.pad_for_cuda_graph(batch)

    def update(self, batches: list[tuple[Batch, bool]]) -> None:
        """One step of the optimizer over the update's batches, the loss a mean over all their labels."""
        self.model.train()
        first = self.sequence is None or self.sequence.rank == 0  # of those that have the same batches
        count = self.sum_processes(sum(self.task.count(batch) for batch, counts in batches if counts and first))
        elapsed = self.state.seconds / (60 * self.training.minutes) if self.training.minutes else 0.0
        rate = self.training.learning_rate_at(self.state.step, self.total, elapsed)
        for group in self.optimizer.param_groups:
            own = rate * group["rate_factor"]
            group["lr"] = group["lr"].fill_(own) if isinstance(group["lr"], Tensor) else own
        result = self.run_step(batches, torch.tensor(max(count, 1.0)))
        if self.ema is not None:
            self.ema.update(self.module, self.state.step)
        self.state.step += 1
        self.state.group += 1
        self.report_step()
        self.pending = replace(self.state), result, count, rate
        if not runs_asynchronously(self.accelerator):
            self.report_step()

    def report_step(self) -> None:
        """Report the last update. On a GPU its numbers are read while the next update runs, so that it never waits."""
        if self.pending is None:
            return
        state, (total, norm), count, rate = self.pending
        self.pending = None
        mean = self.sum_processes(total) / max(count, 1.0)
        self.state.seconds += self.lap_seconds()
        state.seconds = self.state.seconds
        if mean != mean:
            raise BadInput(
                f"The loss is not a number at step {state.step}. Look for NaN or inf in the data, or lower "
                f"learning_rate (now {rate:g}) or raise warmup, and train into another --out."
            )
        values = {"loss": mean, "rate": rate, "norm": float(norm), "labels": count}
        self.report("step", values, state=state)

    def run_step(self, batches: list[tuple[Batch, bool]], count: Tensor) -> Tensor:
        """The result of `step`, replayed from a CUDA graph where it can be captured."""
        if self.cuda_graph is not None:
            try:
                return self.cuda_graph({**batches[0][0], "count": count})
            except Unsupported as error:
                warnings.warn(f"{error} The run continues without cuda_graph.", stacklevel=2)
                self.cuda_graph = None
                self.optimizer.zero_grad()  # a capture that failed may leave gradients that were never computed
        return self.step(batches, count)

    def step(self, batches: Sequence[tuple[Batch, bool]], count: Tensor) -> Tensor:
        """The update itself: (sum of the losses, norm of the gradient), `[2]`, on the device.

        It may be captured in a CUDA graph, so it never reads a number back from the GPU.
        """
        accelerator, device = self.accelerator, self.accelerator.device
        total, share = torch.zeros((), device=device), accelerator.num_processes / count.to(device)
        for n, (batch, counts) in enumerate(batches):
            given = {name: x for name, x in batch.items() if name != "count"}
            sync = nullcontext() if n + 1 == len(batches) else accelerator.no_sync(self.model)
            with sync, self.shard(given) as (own, weight):
                moved = {name: to_device(x, device) for name, x in own.items()}
                with accelerator.autocast():
                    loss = self.task.loss(self.model, moved, self.training.label_smoothing) * (counts * weight)
                accelerator.backward(loss * share)
            total += loss.detach()
        norm = accelerator.clip_grad_norm_(self.model.parameters(), self.training.max_grad_norm or float("inf"))
        self.optimizer.step()
        self.optimizer.zero_grad()
        return torch.stack([total, torch.as_tensor(0.0 if norm is None else full_tensor(norm), device=device)])

    def shard(self, batch: Batch) -> AbstractContextManager[tuple[Batch, float]]:
        """This process's tokens of a batch, and the weight of its loss."""
        return nullcontext((batch, 1.0)) if self.sequence is None else self.sequence.shard(batch)

    def sum_processes(self, value: float | Tensor) -> float:
        """The sum of a number over all processes."""
        if self.accelerator.num_processes == 1:
            return float(value)
        value = torch.as_tensor(value, dtype=torch.float32, device=self.accelerator.device)
        return float(cast(Tensor, self.accelerator.reduce(value, "sum")))

    def sum_flags(self, first: bool, second: bool) -> tuple[bool, bool]:
        """Whether any process has each of two flags; one exchange for both."""
        total = int(self.sum_processes(float(first + 1024 * second)))
        return total % 1024 > 0, total >= 1024

    def greatest_signal(self) -> int:
        """The number of the signal that this process got, or the greatest of those that the processes got."""
        own = torch.tensor([self.interrupt.signal], device=self.accelerator.device)
        return int(cast(Tensor, self.accelerator.gather(own)).max())

    def save_is_late(self) -> bool:
        """Whether the last checkpoint is older than `save_minutes`, by the clock of the main process."""
        limit = self.training.save_minutes
        return bool(limit) and self.accelerator.is_main_process and time.monotonic() - self.saved_time > 60 * limit

    def lap_seconds(self) -> float:
        """Seconds since the last call, or since the start; with `minutes`, the mean over all processes."""
        before, self.last_time = self.last_time, time.monotonic()
        seconds = self.last_time - before
        return self.sum_processes(seconds) / self.accelerator.num_processes if self.training.minutes else seconds

    def due(self, every: int | None, epoch_ended: bool) -> bool:
        """Whether an action that runs every `every` steps, or by default once an epoch, runs now."""
        return epoch_ended if every is None else self.state.step % every == 0

    def over(self) -> bool:
        """Whether the run has reached its end. The minutes include a last evaluation as long as the longest so far."""
        needed = self.state.seconds + self.evaluation_seconds * (self.state.evaluated_step != self.state.step)
        out_of_time = self.training.minutes is not None and needed >= 60 * self.training.minutes
        out_of_patience = self.training.patience is not None and self.state.since_best > self.training.patience
        return self.state.step >= self.total or out_of_time or out_of_patience

    def evaluate(self) -> None:
        """Score the weights, or their average, on the validation data; save them if they are the best.

        Of equal scores the one with the lower loss is better.
        """
        self.report_step()
        self.report("evaluating", {"examples": len(self.validation)})
        before = self.state.seconds
        with self.plain_model() as model:
            if self.average is not None and not self.state.evaluation_due:
                self.average.add(model)
            self.state.evaluation_due = True
            average = self.average or self.ema
            with average.swap_into(model) if average is not None else nullcontext(), torch.no_grad():
                model.eval()
                try:
                    with self.interrupt.raising() if self.accelerator.num_processes == 1 else nullcontext():
                        scores = self.task.validate(model, self.validation)
                except EvaluationStopped:
                    return
                main = self.accelerator.is_main_process
                # the main process decides for all
                value, loss = (self.sum_processes(number if main else 0.0) for number in (scores.value, scores.loss))
                better = self.is_better(value, loss)
                if better and main:
                    self.on_best(model, scores)
        if better:
            self.state.best, self.state.best_loss = value, loss
        self.state.since_best = 0 if better else self.state.since_best + 1
        self.state.seconds += self.lap_seconds()
        self.evaluation_seconds = max(self.evaluation_seconds, self.state.seconds - before)
        self.state.evaluated_step, self.state.evaluation_due = self.state.step, False
        self.report("score", scores.metrics, scores)

    def is_better(self, value: float, loss: float) -> bool:
        """Whether a score, or of equal scores the loss, is better than the best so far."""
        best, best_loss = self.state.best, self.state.best_loss
        return best is None or value > best or (value == best and best_loss is not None and loss < best_loss)

    def plain_model(self) -> AbstractContextManager[Model]:
        """While open, the model with full tensors, also where the weights are sharded."""
        if self.unsharded is None:
            return nullcontext(self.module)
        return self.unsharded.gather_from(self.module, self.accelerator.device)

    def save(self) -> None:
        """Write a checkpoint."""
        self.report_step()
        optimizer, random = optimizer_tensors(self.module, self.optimizer), random_states(self.accelerator)
        tensors = {"model": self.gather(self.module.state_dict()), "optimizer": self.gather(optimizer), **random}
        tensors |= {} if self.ema is None else {"ema": self.gather(self.ema.average)}
        if self.average is not None:
            tensors |= {f"average-{n}": weights for n, weights in enumerate(self.average.weights)}
        if self.accelerator.is_main_process:
            self.checkpoints.save(self.state.step, asdict(self.state), tensors)
        self.accelerator.wait_for_everyone()
        self.saved_step, self.saved_time = self.state.step, time.monotonic()
        self.report("saved")

    def gather(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Full tensors, in the process that writes them."""
        if self.unsharded is None:
            return dict(tensors)
        gathered = ((name, full_tensor(x)) for name, x in tensors.items())  # one by one: a process has room for few
        return {name: x.cpu() for name, x in gathered if self.accelerator.is_main_process}

    def resume(self) -> None:
        """Load the newest complete checkpoint, if there is one."""
        if self.accelerator.is_main_process:
            self.checkpoints.remove_partial()
        latest = self.checkpoints.latest()
        if latest is None:
            return
        with explain_damage(latest[1]):
            self.load_checkpoint(*latest)
        self.saved_step = self.state.step
        if "evaluated_step" not in latest[0] and not self.state.evaluation_due:  # of an earlier version
            self.state.evaluated_step = self.state.step
        self.report("resumed")

    def load_checkpoint(self, saved: ParsedObject, folder: Path) -> None:
        """Take state, weights and random states from a checkpoint."""
        for name, value in asdict(self.state).items():
            setattr(self.state, name, saved.get(name, value))  # older checkpoints lack newer fields
        load_full_weights(self.module, read_tensors(folder / "model.safetensors"))
        load_optimizer(self.module, self.optimizer, read_tensors(folder / "optimizer.safetensors"))
        set_random_states(self.accelerator, folder)
        if self.ema is not None:
            average, weights = read_tensors(folder / "ema.safetensors"), float_tensors(self.module)
            self.ema.average = {name: shard_like(x, weights[name]) for name, x in average.items()}
        if self.average is not None:
            count = len(list(folder.glob("average-*.safetensors")))
            self.average.weights = [read_tensors(folder / f"average-{n}.safetensors") for n in range(count)]

    def finish(self, stopped: bool) -> None:
        """The last evaluation and checkpoint; a run that was stopped is saved without evaluating it."""
        self.report_step()
        if not stopped and self.state.evaluated_step != self.state.step:
            self.evaluate()
            stopped = self.state.evaluation_due
        if self.saved_step != self.state.step or not stopped:
            self.save()
        if stopped:
            self.report("stopped", {"signal": float(self.greatest_signal())})
        else:
            self.report("finished")

    def report(
        self,
        name: str,
        values: dict[str, float] | None = None,
        scores: Scores | None = None,
        state: TrainState | None = None,
    ) -> None:
        """Call `on_event`, in the main process; for "stopped" in every process, which ends with the signal's status."""
        if self.liveness is not None:
            self.liveness.advance()
        if self.accelerator.is_main_process or name == "stopped":
            self.on_event(TrainEvent(name, state or self.state, self.total, values or {}, scores))


STOP_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
"""Signals that end a run after its current update, with a checkpoint; where the system has them."""


class EvaluationStopped(Exception):
    """A signal came during an evaluation."""


class InterruptHandler:
    """While open, the stop signals request an end after the current update; a second signal interrupts the run.

    Launchers forward a signal that the terminal has already sent to every process: signals within a second are one.
    `signal` is the number of the first, 0 before.
    """

    signal = 0
    since = 0.0
    raises = False

    def __enter__(self) -> InterruptHandler:
        numbers = [getattr(signal, name) for name in STOP_SIGNALS if hasattr(signal, name)]
        try:
            self.before = {number: signal.signal(number, self.request) for number in numbers}
        except ValueError:  # not in the main thread, where signals cannot be caught
            self.before = {}
        return self

    def request(self, number: int, frame: object) -> None:
        if self.signal and time.monotonic() - self.since > 1.0:
            raise KeyboardInterrupt
        if not self.signal:
            self.signal, self.since = number, time.monotonic()
            if self.raises:
                raise EvaluationStopped

    @contextmanager
    def raising(self) -> Iterator[None]:
        """While open, a first signal raises `EvaluationStopped` at once, as does one that came before."""
        if self.signal:
            raise EvaluationStopped
        self.raises = True
        try:
            yield
        finally:
            self.raises = False

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


def make_accelerator(training: Training, model: nn.Module) -> Accelerator:
    """The accelerator for the device, the precision and the launched processes.

    Global projections of Longformer and experts may get no token of an update, for which DDP must look.
    """
    try:
        from accelerate import Accelerator, DistributedDataParallelKwargs
        from accelerate.state import AcceleratorState
    except ImportError:
        raise Missing('Training needs accelerate: pip install "regard[train]".') from None
    if training.device == "cuda" and not torch.cuda.is_available():
        raise Unsupported("device is cuda, but torch finds no CUDA device. Give --device cpu or auto.")
    cpu = training.device == "cpu" or (training.device == "auto" and not torch.cuda.is_available())
    if cpu and training.precision == "fp16":
        raise Unsupported("precision is fp16, which needs a GPU. Give precision=bf16 or precision=no.")
    precision = training.precision
    if precision == "auto":
        precision = "bf16" if fast_bfloat16("cpu" if cpu else "cuda") else "no"
    if AcceleratorState._shared_state.get("_mixed_precision", precision) != precision:
        AcceleratorState._reset_state()  # otherwise the first run of a process decides for all
    plugin, handlers = fsdp_plugin(), restart_handlers()
    if any(isinstance(module, LocalGlobal | Experts) for module in model.modules()):
        handlers.append(DistributedDataParallelKwargs(find_unused_parameters=True))
    accelerator = Accelerator(mixed_precision=precision, cpu=cpu, fsdp_plugin=plugin, kwargs_handlers=handlers)
    use_fsdp_on_cpu(accelerator, plugin)
    return accelerator


def runs_asynchronously(accelerator: Accelerator) -> bool:
    """Whether the device computes while the host continues."""
    return accelerator.device.type != "cpu"


def captures_updates(training: Training, accelerator: Accelerator) -> bool:
    """Whether updates are captured as CUDA graphs: if `cuda_graph` is set and one GPU computes a whole update once."""
    wanted = training.cuda_graph and accelerator.device.type == "cuda" and training.precision != "fp16"
    alone = accelerator.num_processes == 1 and not accelerator.is_fsdp2
    return wanted and alone and training.accumulate == 1 and not training.gradient_checkpointing


def make_optimizer(
    model: nn.Module, training: Training, capturable: bool = False, fused: bool = False
) -> torch.optim.Optimizer:
    """Adam with weight decay of matrices, not of vectors (norms, biases).

    If `capturable`, its learning rate is a tensor, so that a CUDA graph reads the rate of each update.
    """
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups.setdefault((parameter.dim() <= 1, rate_factor(model, name, training)), []).append(parameter)
    if not groups:
        raise BadInput("Every weight is frozen, so there is nothing to train. Freeze fewer layers, or use LoRA.")
    return torch.optim.Adam(
        [
            {
                "params": group,
                "weight_decay": 0.0 if vectors else training.weight_decay,
                "rate_factor": factor,
                "lr": torch.tensor(training.learning_rate, device="cuda") if capturable else training.learning_rate,
            }
            for (vectors, factor), group in sorted(groups.items(), key=lambda item: item[0])
        ],
        betas=training.betas,
        decoupled_weight_decay=training.decay == "weights",
        capturable=capturable,
        fused=fused or None,
    )


def rate_factor(model: nn.Module, name: str, training: Training) -> float:
    """The share of the learning rate that a parameter is trained with, by its depth and whether it is the head's."""
    if is_head(name):
        return (training.head_learning_rate or training.learning_rate) / training.learning_rate
    if training.layer_decay == 1.0:
        return 1.0
    layer, layers = layer_of(model, name)
    return training.layer_decay ** (layers - layer)


def layer_of(model: nn.Module, name: str) -> tuple[int, int]:
    """(layer of a parameter, layers of its stack): embeddings are layer 0, and what follows the blocks is the last."""
    before, separator, after = name.partition("blocks.")
    if not separator:
        stacks = [module for module in model.modules() if isinstance(module, Stack | ShiftedWindows)]
        layers = max((len(stack.blocks) for stack in stacks), default=0)
        return (0 if ".embed." in f".{name}" or "_embed." in name else layers), layers
    blocks = model.get_submodule(f"{before}blocks")
    return 1 + int(after.split(".")[0]), len(list(blocks.children()))


def freeze_weights(model: nn.Module, freeze: str) -> None:
    """Stop the training of embeddings, of the embeddings and a number of layers, or of everything but the head."""
    if freeze == "none":
        return
    for name, parameter in model.named_parameters():
        layer, layers = layer_of(model, name)
        last = {"embeddings": 0, "all": layers}.get(freeze, int(freeze) if freeze.isdecimal() else 0)
        if layer <= last and not is_head(name) and "lora_" not in name:
            parameter.requires_grad_(False)


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state of each parameter, by the parameter's name."""
    states = optimizer.state
    return {
        f"{name}/{key}": torch.as_tensor(value)
        for name, parameter in model.named_parameters()
        for key, value in states.get(parameter, {}).items()
    }


def load_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """The reverse of `optimizer_tensors`."""
    parameters = dict(model.named_parameters())
    for path, value in tensors.items():
        owner, _, key = path.rpartition("/")
        parameter = parameters[owner]
        on_cpu = key == "step" and not any(optimizer.param_groups[0][name] for name in ("capturable", "fused"))
        if value.dim() == 0:
            optimizer.state[parameter][key] = value.to("cpu" if on_cpu else parameter.device)
        else:
            optimizer.state[parameter][key] = shard_like(value, parameter)


def random_states(accelerator: Accelerator) -> dict[str, dict[str, Tensor]]:
    """The states of torch's generators, of every process."""
    own = {"cpu": torch.get_rng_state()}
    if accelerator.device.type == "cuda":
        own["cuda"] = torch.cuda.get_rng_state(accelerator.device)
    if accelerator.num_processes == 1:
        return {"random-0": own}
    from accelerate.utils import gather_object

    return {f"random-{n}": state for n, state in enumerate(gather_object([own]))}


def set_random_states(accelerator: Accelerator, folder: Path) -> None:
    """Restore the states that `random_states` saved for this process."""
    path = folder / f"random-{accelerator.process_index}.safetensors"
    if not path.is_file():
        return
    own = read_tensors(path)
    torch.set_rng_state(own["cpu"])
    if "cuda" in own and accelerator.device.type == "cuda":
        torch.cuda.set_rng_state(own["cuda"], accelerator.device)
