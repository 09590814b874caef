"""The training loop: one update after another, stopped and resumed to the same bits.

Everything random is a function of (seed, place) or of a generator that is saved: the order of examples and what is
drawn for a batch come from the seed and the place in the order, dropout from torch's generators.
"""

from __future__ import annotations

import signal
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from ..data.order import Order
from ..errors import BadInput, Missing, Unsupported
from ..models.model import compile_blocks
from ..settings import Training
from ..tasks.task import Scores, Task
from .checkpoints import Store, read_tensors
from .cuda_graph import Recorded, sent
from .ema import Averages, Ema, floating
from .fsdp import Twin, load_weights, part_of, part_on_processors, plugin, whole


@dataclass
class Place:
    """Where a run stands: what is saved besides tensors."""

    step: int = 0
    epoch: int = 0
    group: int = 0
    seconds: float = 0.0
    best: float | None = None
    since_best: int = 0


@dataclass(frozen=True)
class Event:
    """What a run tells while it goes on: `kind` is "step", "score", "saved", "resumed" or "stopped"."""

    kind: str
    place: Place
    total: int
    values: dict[str, float]
    scores: Scores | None = None


def train(
    task: Task,
    model: nn.Module,
    examples: Sequence[Any],
    dev: Sequence[Any],
    training: Training,
    folder: Path,
    keep: Callable[[nn.Module, Scores], None],
    tell: Callable[[Event], None] = lambda event: None,
) -> Place:
    """Train a model until the settings say that it is enough, from the folder's last checkpoint where there is one.

    `keep` is called with the model (holding the weights that were evaluated) whenever dev's score is the best so far.
    """
    run = Run(task, model, examples, dev, training, folder, keep, tell)
    run.resume()
    stopped = False
    with Interruptible() as stop, ThreadPoolExecutor(1) as ahead:
        while not run.over() and not stopped:
            groups = run.groups(run.place.epoch)
            coming = ahead.submit(run.batches, groups, run.place.group)
            while run.place.group < len(groups) and not run.over() and not stopped:
                ready = coming.result()
                if run.place.group + 1 < len(groups):
                    coming = ahead.submit(run.batches, groups, run.place.group + 1)
                run.update(ready)
                last = run.place.group == len(groups)
                if run.due(training.evaluate_every, last):
                    run.evaluate()
                if run.due(training.save_every, last):
                    run.save()
                stopped = run.any(stop.asked)
            if run.place.group == len(groups):
                run.place.epoch, run.place.group = run.place.epoch + 1, 0
        run.finish(stopped)
    return run.place


class Run:
    """The pieces of a run, and what one update, one evaluation, one checkpoint is."""

    def __init__(self, task, model, examples, dev, training, folder, keep, tell) -> None:
        self.task, self.examples, self.dev, self.training = task, examples, dev, training
        self.keep, self.tell, self.place = keep, tell, Place()
        self.accelerator = accelerator_for(training)
        torch.manual_seed(training.seed + self.accelerator.process_index)
        self.bare, self.twin = model, Twin(model) if self.accelerator.is_fsdp2 else None
        records = recordable(training, self.accelerator)
        fused = self.accelerator.device.type == "cuda"
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer_of(model, training, records, fused))
        self.recorded = Recorded(lambda given: self.learn([(given, True)], given["count"])) if records else None
        if training.compile and (records or self.twin is not None):
            compile_blocks(model)
        elif training.compile:
            self.model = torch.compile(self.model)
        sizes = task.sizes(self.cut(0))
        self.order = Order(
            sizes,
            tokens=training.tokens_of_a_batch(sizes),
            examples=training.batch_size,
            seed=training.seed,
            alike=task.cuts_blocks,
        )
        self.store = Store(folder / "checkpoints")
        self.ema = Ema(training.ema) if training.ema else None
        self.averages = Averages(training.average) if training.average else None
        self.evaluated, self.saved = -1, -1
        self.untold: tuple[Place, Tensor, float, float] | None = None
        self.asked = time.monotonic()
        self.total = self.all_steps()

    def cut(self, epoch: int) -> Sequence[Any]:
        """The examples of an epoch, cut anew for each where a task learns from running text."""
        return self.task.epoch_examples(self.examples, Random(f"{self.training.seed} {epoch}"))

    def groups(self, epoch: int) -> list[list[list[int]]]:
        """The batches of an epoch, by update."""
        batches, size = self.order.epoch(epoch), self.training.accumulate
        return [batches[n : n + size] for n in range(0, len(batches), size)]

    def all_steps(self) -> int:
        """How many updates the run will have, as far as steps and epochs tell."""
        ends = [self.training.steps] if self.training.steps else []
        if self.training.epochs:
            ends.append(self.training.epochs * len(self.groups(0)))
        return min(ends) if ends else 10**9

    def batches(self, groups: list[list[list[int]]], group: int) -> list[tuple[dict[str, Tensor], bool]]:
        """This process's batches of an update. Where there are fewer than processes, one that does not count."""
        every = list(enumerate(groups[group]))
        mine = every[self.accelerator.process_index :: self.accelerator.num_processes]
        return [(self.batch(group, k, numbers), bool(mine)) for k, numbers in mine or every[:1]]

    def batch(self, group: int, k: int, numbers: list[int]) -> dict[str, Tensor]:
        """A batch, what is random about it drawn from its place in the order."""
        draw = Random(f"{self.training.seed} {self.place.epoch} {group} {k}")
        examples = self.cut(self.place.epoch)
        batch = self.task.batch([examples[n] for n in numbers], draw)
        return batch if self.recorded is None else self.task.pad_for_cuda_graph(batch)

    def update(self, batches: list[tuple[dict[str, Tensor], bool]]) -> None:
        """One step of the optimizer over the update's batches, the loss a mean over all their labels."""
        self.model.train()
        count = self.summed(sum(self.task.count(batch) for batch, counts in batches if counts))
        spent = self.place.seconds / (60 * self.training.minutes) if self.training.minutes else 0.0
        rate = self.training.rate_at(self.place.step, self.total, spent)
        for group in self.optimizer.param_groups:
            group["lr"] = group["lr"].fill_(rate) if isinstance(group["lr"], Tensor) else rate
        found = self.learned(batches, torch.tensor(max(count, 1.0)))
        if self.ema is not None:
            self.ema.update(self.bare, self.place.step)
        self.place.step += 1
        self.place.group += 1
        self.told()
        self.untold = replace(self.place), found, count, rate
        if not works_by_itself(self.accelerator):
            self.told()

    def told(self) -> None:
        """Tell of the last update. A GPU's numbers are read when it has the next to do, so that it need not wait."""
        if self.untold is None:
            return
        place, (total, norm), count, rate = self.untold
        self.untold = None
        mean = self.summed(total) / max(count, 1.0)
        self.place.seconds += self.since()
        place.seconds = self.place.seconds
        if mean != mean:
            raise BadInput(
                f"The loss is not a number at step {place.step}. Look for such numbers in the data, or lower the rate "
                f"(now {rate:g}) or raise warmup, and train into another --out."
            )
        self.say("step", place=place, loss=mean, rate=rate, norm=float(norm), labels=count)

    def learned(self, batches: list[tuple[dict[str, Tensor], bool]], count: Tensor) -> Tensor:
        """What `learn` gives, recorded where it can be."""
        if self.recorded is not None:
            try:
                return self.recorded({**batches[0][0], "count": count})
            except Unsupported as error:
                warnings.warn(f"{error} The run goes on without `record`.", stacklevel=2)
                self.recorded = None
        return self.learn(batches, count)

    def learn(self, batches: Sequence[tuple[dict[str, Tensor], bool]], count: Tensor) -> Tensor:
        """The update itself: (sum of the losses, norm of the gradient), `[2]`, on the device.

        A GPU may repeat it by itself, so it never waits to see a number.
        """
        accelerator, device = self.accelerator, self.accelerator.device
        total, share = torch.zeros((), device=device), accelerator.num_processes / count.to(device)
        for n, (batch, counts) in enumerate(batches):
            moved = {name: sent(x, device) for name, x in batch.items() if name != "count"}
            with nullcontext() if n + 1 == len(batches) else accelerator.no_sync(self.model):
                with accelerator.autocast():
                    loss = self.task.loss(self.model, moved, self.training.label_smoothing) * counts
                accelerator.backward(loss * share)
            total += loss.detach()
        norm = accelerator.clip_grad_norm_(self.model.parameters(), self.training.clip or float("inf"))
        self.optimizer.step()
        self.optimizer.zero_grad()
        return torch.stack([total, torch.as_tensor(0.0 if norm is None else whole(norm), device=device)])

    def summed(self, value: float | Tensor) -> float:
        """The sum of a number over all processes."""
        if self.accelerator.num_processes == 1:
            return float(value)
        value = torch.as_tensor(value, dtype=torch.float32, device=self.accelerator.device)
        return float(self.accelerator.reduce(value, "sum"))

    def since(self) -> float:
        """Seconds since this was last asked, or since the run began; where the clock ends it, all processes agree."""
        before, self.asked = self.asked, time.monotonic()
        spent = self.asked - before
        return self.summed(spent) / self.accelerator.num_processes if self.training.minutes else spent

    def due(self, every: int | None, epoch_ended: bool) -> bool:
        return epoch_ended if every is None else self.place.step % every == 0

    def over(self) -> bool:
        """Whether the run has come to its end."""
        spent = self.training.minutes is not None and self.place.seconds >= 60 * self.training.minutes
        bored = self.training.patience is not None and self.place.since_best > self.training.patience
        return self.place.step >= self.total or spent or bored

    def evaluate(self) -> None:
        """Score the weights on dev (their average, where one is kept), and keep the best."""
        self.told()
        with self.plain() as model:
            if self.averages is not None:
                self.averages.add(model)
            held = self.averages or self.ema
            with held.lent_to(model) if held is not None else nullcontext(), torch.no_grad():
                model.eval()
                scores = self.task.evaluate(model, self.dev)
                value = self.first_says(scores.value)
                better = self.place.best is None or value > self.place.best
                if better and self.accelerator.is_main_process:
                    self.keep(model, scores)
        self.place.best = value if better else self.place.best
        self.place.since_best = 0 if better else self.place.since_best + 1
        self.place.seconds += self.since()
        self.evaluated = self.place.step
        self.say("score", scores, **scores.metrics)

    def plain(self) -> AbstractContextManager[nn.Module]:
        """While open, the model with tensors as any model has them."""
        return nullcontext(self.bare) if self.twin is None else self.twin.of(self.bare, self.accelerator.device)

    def any(self, here: bool) -> bool:
        """Whether it is so in any process."""
        return self.summed(float(here)) > 0

    def first_says(self, value: float) -> float:
        """The first process's number, so that all take the same way from here."""
        return self.summed(value if self.accelerator.is_main_process else 0.0)

    def save(self) -> None:
        """Write a checkpoint."""
        self.told()
        optimizer, random = optimizer_tensors(self.bare, self.optimizer), random_states(self.accelerator)
        tensors = {"model": self.written(self.bare.state_dict()), "optimizer": self.written(optimizer), **random}
        tensors |= {} if self.ema is None else {"ema": self.written(self.ema.kept)}
        if self.averages is not None:
            tensors |= {f"average-{n}": kept for n, kept in enumerate(self.averages.kept)}
        if self.accelerator.is_main_process:
            self.store.save(self.place.step, asdict(self.place), tensors)
        self.accelerator.wait_for_everyone()
        self.saved = self.place.step
        self.say("saved")

    def written(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors, in the process that writes them."""
        if self.twin is None:
            return dict(tensors)
        gathered = ((name, whole(x)) for name, x in tensors.items())  # one by one: a process has room for few
        return {name: x.cpu() for name, x in gathered if self.accelerator.is_main_process}

    def resume(self) -> None:
        """Go on from the newest whole checkpoint."""
        found = self.store.latest()
        if found is None:
            return
        state, folder = found
        self.place = Place(**{name: state[name] for name in asdict(Place())})
        load_weights(self.bare, read_tensors(folder / "model.safetensors"))
        load_optimizer(self.bare, self.optimizer, read_tensors(folder / "optimizer.safetensors"))
        set_random_states(self.accelerator, folder)
        if self.ema is not None:
            kept, now = read_tensors(folder / "ema.safetensors"), floating(self.bare)
            self.ema.kept = {name: part_of(x, now[name]) for name, x in kept.items()}
        if self.averages is not None:
            count = len(list(folder.glob("average-*.safetensors")))
            self.averages.kept = [read_tensors(folder / f"average-{n}.safetensors") for n in range(count)]
        self.evaluated = self.saved = self.place.step
        self.say("resumed")

    def finish(self, stopped: bool) -> None:
        """What is still due at the end: a last evaluation, a last checkpoint."""
        self.told()
        if not stopped and self.evaluated != self.place.step:
            self.evaluate()
        if self.saved != self.place.step or not stopped:
            self.save()
        self.say("stopped" if stopped else "finished")

    def say(self, kind: str, scores: Scores | None = None, place: Place | None = None, **values: float) -> None:
        if self.accelerator.is_main_process:
            self.tell(Event(kind, place or self.place, self.total, values, scores))


class Interruptible:
    """While open, Ctrl-C asks for an end after the current update; a second one breaks it off.

    Launchers pass on what the terminal has already told every process: within a second it is the same press.
    """

    asked = False
    since = 0.0

    def __enter__(self) -> Interruptible:
        try:
            self.before = signal.signal(signal.SIGINT, self.ask)
        except ValueError:  # not in the main thread, where signals cannot be caught
            self.before = None
        return self

    def ask(self, *_: Any) -> None:
        if self.asked and time.monotonic() - self.since > 1.0:
            raise KeyboardInterrupt
        if not self.asked:
            self.asked, self.since = True, time.monotonic()

    def __exit__(self, *_: Any) -> None:
        if self.before is not None:
            signal.signal(signal.SIGINT, self.before)


def accelerator_for(training: Training) -> Any:
    try:
        from accelerate import Accelerator
    except ImportError:
        raise Missing('Training needs accelerate: pip install "regard[train]".') from None
    if training.device == "cuda" and not torch.cuda.is_available():
        raise Unsupported("device is cuda, but torch finds no GPU here. Give --device cpu, or auto.")
    cpu = training.device == "cpu" or (training.device == "auto" and not torch.cuda.is_available())
    if cpu and training.precision == "fp16":
        raise Unsupported("precision is fp16, which a CPU does not learn in. Give precision=bf16 or precision=no.")
    parting = plugin()
    accelerator = Accelerator(mixed_precision=training.precision, cpu=cpu, fsdp_plugin=parting)
    part_on_processors(accelerator, parting)
    return accelerator


def works_by_itself(accelerator: Any) -> bool:
    """Whether the device goes on while the host does something else."""
    return accelerator.device.type != "cpu"


def recordable(training: Training, accelerator: Any) -> bool:
    """Whether updates are recorded: where that is wanted and one GPU does all of an update."""
    wanted = training.record and accelerator.device.type == "cuda" and training.precision != "fp16"
    alone = accelerator.num_processes == 1 and not accelerator.is_fsdp2
    return wanted and alone and training.accumulate == 1


def optimizer_of(
    model: nn.Module, training: Training, recorded: bool = False, fused: bool = False
) -> torch.optim.Optimizer:
    """Adam, one kernel where `fused`. If recorded, it reads its rate from a tensor, where each update finds its own."""
    return torch.optim.Adam(
        decayed(model, training.weight_decay),
        lr=torch.tensor(training.rate, device="cuda") if recorded else training.rate,
        betas=training.betas,
        decoupled_weight_decay=training.decay == "weights",
        capturable=recorded,
        fused=fused or None,
    )


def decayed(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameters in two groups: matrices shrink, vectors (norms, biases) do not."""
    learned = [p for p in model.parameters() if p.requires_grad]
    matrices, vectors = [p for p in learned if p.dim() > 1], [p for p in learned if p.dim() <= 1]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]


def optimizer_tensors(model: nn.Module, optimizer: Any) -> dict[str, Tensor]:
    """The optimizer's memory of each parameter, by the parameter's name."""
    states = optimizer.state
    return {
        f"{name}/{key}": torch.as_tensor(value)
        for name, parameter in model.named_parameters()
        for key, value in states.get(parameter, {}).items()
    }


def load_optimizer(model: nn.Module, optimizer: Any, tensors: dict[str, Tensor]) -> None:
    """The reverse of `optimizer_tensors`."""
    parameters = dict(model.named_parameters())
    for name, value in tensors.items():
        parameter, key = parameters[name.rsplit("/", 1)[0]], name.rsplit("/", 1)[1]
        counts = key == "step" and not any(optimizer.param_groups[0][way] for way in ("capturable", "fused"))
        if value.dim() == 0:
            optimizer.state[parameter][key] = value.to("cpu" if counts else parameter.device)
        else:
            optimizer.state[parameter][key] = part_of(value, parameter)


def random_states(accelerator: Any) -> dict[str, dict[str, Tensor]]:
    """torch's generators of every process."""
    own = {"cpu": torch.get_rng_state()}
    if accelerator.device.type == "cuda":
        own["cuda"] = torch.cuda.get_rng_state(accelerator.device)
    if accelerator.num_processes == 1:
        return {"random-0": own}
    from accelerate.utils import gather_object

    return {f"random-{n}": state for n, state in enumerate(gather_object([own]))}


def set_random_states(accelerator: Any, folder: Path) -> None:
    path = folder / f"random-{accelerator.process_index}.safetensors"
    if not path.is_file():
        return
    own = read_tensors(path)
    torch.set_rng_state(own["cpu"])
    if "cuda" in own and accelerator.device.type == "cuda":
        torch.cuda.set_rng_state(own["cuda"], accelerator.device)
