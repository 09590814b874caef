"""Whole models on a GPU: one step of training, beside the model that others wrote with the same weights."""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

import regard as rg
from regard import machine
from regard.bench import training
from regard.bench.measure import WrongNumbers, gpu_memory
from regard.bench.result import Result, Row, quantity
from regard.models.model import compile_parts
from regard.train.cuda_graph import Recorded

Batch = dict[str, Tensor]
Loss = Callable[[Any, Batch], Tensor]
Step = Callable[[], Tensor]


@dataclass(frozen=True)
class Side:
    """A model, a batch as it takes it, and the loss of that batch."""

    module: nn.Module
    batch: Batch
    loss: Loss


@dataclass(frozen=True)
class Model:
    """One model: the two sides, and how much faster ours should be than the better of theirs, eager and compiled.

    `parts` says whether ours is compiled part by part before its step is recorded; `whole` whether theirs is compiled
    too. What is named in `fixed` stays the same for the whole of a recording.
    """

    work: str
    sides: Callable[..., tuple[Side, Side]]
    sizes: dict[str, int]
    small: dict[str, int]
    goal: float
    peer: str = "transformers"
    parts: bool = True
    whole: bool = True
    fixed: tuple[str, ...] = ()


def hidden_loss(model: Any, batch: Batch) -> Tensor:
    """A loss that depends on every output, and on where it stands: the norms before it hide a mean or a square."""
    output = model(**batch)
    hidden = output.hidden if hasattr(output, "hidden") else output.last_hidden_state
    weight = torch.arange(hidden.shape[1] * hidden.shape[2], device=hidden.device).sin().view(hidden.shape[1:])
    return (hidden.float() * weight).sum() / hidden.shape[0] / hidden.shape[1]


def own_loss(model: Any, batch: Batch) -> Tensor:
    return model(**batch).loss


def encoder(kind: str, inputs: Callable[..., tuple[Batch, Batch]], loss: Loss = hidden_loss, **settings: Any):
    """The sides of a model that transformers has, dropout left out so that both compute the same."""

    def make(**sizes: int) -> tuple[Side, Side]:
        import transformers

        config = getattr(transformers, f"{kind}Config")(**settings)
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "resid_pdrop", "embd_pdrop", "attn_pdrop"):
            if hasattr(config, name):
                setattr(config, name, 0.0)
        name = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}Model"
        more = {} if kind == "GPT2" else {"add_pooling_layer": False}
        theirs = getattr(transformers, name)(config, **more)
        mine, yours = inputs(**sizes)
        return Side(copied(theirs), mine, loss), Side(theirs, yours, loss)

    return make


def copied(theirs: Any) -> nn.Module:
    """Our model with their weights, through a folder as they save it."""
    with TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return rg.load(folder)


def translator(pairs: int, words: int, width: int) -> tuple[Side, Side]:
    """The sides of a small translator: ours, and what one writes over torch.nn.Transformer."""
    ours, theirs = training.translators(words, width)
    batch = training.batch_of(pairs, words)
    return Side(ours, batch, training.our_loss), Side(theirs, batch, training.their_loss)


def text(batch: int, tokens: int, vocabulary: int = 1000, labels: bool = False, first: bool = False):
    """Tokens for ours and for theirs; with `first` the first one is global."""
    x = torch.randint(5, vocabulary, (batch, tokens))
    ours, theirs = {"tokens": x}, {"input_ids": x}
    if labels:
        ours, theirs = {**ours, "labels": x}, {**theirs, "labels": x}
    if first:
        chosen = torch.zeros_like(x, dtype=torch.bool)
        chosen[:, 0] = True
        ours = {**ours, "global_tokens": chosen}
        theirs = {**theirs, "global_attention_mask": chosen.long(), "attention_mask": torch.ones_like(x)}
    return ours, theirs


def pictures(batch: int, size: int):
    x = torch.randn(batch, 3, size, size)
    return {"images": x}, {"pixel_values": x}


GRAPHS = ", CUDA graphs"
MODELS = (
    Model("BERT-base", encoder("Bert", text), {"batch": 32, "tokens": 512}, {"batch": 2, "tokens": 64}, 1.2),
    Model("ViT-B/16", encoder("ViT", pictures), {"batch": 64, "size": 224}, {"batch": 2, "size": 224}, 1.2),
    Model(
        "GPT-2 small with its loss",
        encoder("GPT2", lambda batch, tokens: text(batch, tokens, labels=True), own_loss),
        {"batch": 16, "tokens": 1024},
        {"batch": 2, "tokens": 64},
        1.2,
    ),
    Model(
        "Longformer-base",
        encoder(
            "Longformer",
            lambda batch, tokens: text(batch, tokens, first=True),
            max_position_embeddings=16386,
            attention_window=512,
            vocab_size=50265,
        ),
        {"batch": 1, "tokens": 16384},
        {"batch": 1, "tokens": 1024},
        8.0,
        whole=False,
        fixed=("global_tokens",),
    ),
    Model(
        "BigBird-base",
        encoder("BigBird", text, max_position_embeddings=16384),
        {"batch": 1, "tokens": 16384},
        {"batch": 1, "tokens": 2048},
        10.0,
        whole=False,
    ),
    Model(
        "small translator, 4 + 4 layers",
        translator,
        {"pairs": 256, "words": 8000, "width": 128},
        {"pairs": 8, "words": 101, "width": 32},
        2.0,
        peer="nn.Transformer",
        parts=False,
    ),
)


def run(
    quick: bool = False,
    only: str = "",
    tell: Callable[[str], None] = lambda _: None,
    save: Callable[[Result], None] = lambda _: None,
) -> Result:
    """The steps of every model, saved after each, so that a run cut short keeps what it had."""
    rows: list[Row] = []
    notes: list[str] = []
    for model in MODELS:
        if only.lower() not in model.work.lower():
            continue
        tell(model.work)
        try:
            found, how = steps_of(model, quick, tell)
            rows += found
            notes.append(f"{model.work}: {how}")
        except (WrongNumbers, torch.OutOfMemoryError, ImportError, ValueError) as error:
            notes.append(f"{model.work}: {error}")
            tell(notes[-1])
        clean()
        now = datetime.now(UTC).isoformat(timespec="seconds")
        result = Result(torch.cuda.get_device_name(), now, 1, quick, machine.versions(), tuple(rows), tuple(notes))
        save(result)
    return result


def clean() -> None:
    """Forgets compiled functions and gives memory back."""
    gc.collect()
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()


def steps_of(model: Model, quick: bool, tell: Callable[[str], None]) -> tuple[list[Row], str]:
    """Rows of time and memory of a step, ours beside each way of theirs; and what each way took, in words.

    The goal stands beside the better of theirs, eager and compiled.
    """
    sizes = model.small if quick else model.sizes
    torch.manual_seed(0)
    ours, theirs = (on_gpu(side) for side in model.sides(**sizes))
    same_loss(ours, theirs)
    found: dict[str, tuple[float, float]] = {}
    for name, make in ways(model, ours, theirs, quick):
        try:
            found[name] = measured(make())
        except Exception as error:  # one way out of memory, or not to be compiled: the others are still measured
            tell(f"  {name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
            continue
        finally:
            clean()
        tell(f"  {name}: {found[name][0] * 1e3:.1f} ms, {found[name][1] / 1e9:.1f} GB")
    own = {name: cost for name, cost in found.items() if name.startswith("Regard")}
    peers = {name: cost for name, cost in found.items() if name not in own}
    if not own or not peers:
        raise WrongNumbers("one of the two could not be run; there is nothing to compare.")
    spent, room = own[min(own, key=lambda name: own[name][0])]
    best = min((name for name in peers if GRAPHS not in name), key=lambda name: peers[name][0])
    shape = " ".join(f"{name[0].upper()}{size}" for name, size in sizes.items())
    work, goal = f"{model.work}, a step of training", None if quick else model.goal
    rows = [
        Row(work, shape, "time", spent, peer, cost[0], goal if peer == best else None) for peer, cost in peers.items()
    ]
    words = "; ".join(f"{name} {quantity(cost[0], 'time')}" for name, cost in found.items())
    return [*rows, Row(work, shape, "memory", room, best, peers[best][1])], words


def on_gpu(side: Side) -> Side:
    """The same side, learning on the GPU."""
    return Side(side.module.cuda().train(), {name: x.cuda() for name, x in side.batch.items()}, side.loss)


def ways(model: Model, ours: Side, theirs: Side, quick: bool) -> Iterator[tuple[str, Callable[[], Step]]]:
    """The ways in which a step is made, by name. Ours is compiled in place, last of all."""
    yield "Regard", lambda: plain(ours)
    yield model.peer, lambda: plain(theirs)
    if model.whole and not quick:
        yield f"{model.peer}, compiled", lambda: plain(theirs, mode="default")
        yield f"{model.peer}, compiled{GRAPHS}", lambda: plain(theirs, mode="reduce-overhead")
    yield "Regard, recorded", lambda: recorded(ours, model.fixed)
    if model.parts and model.whole and not quick:
        yield "Regard, compiled and recorded", lambda: recorded(ours, model.fixed, compiled=True)
    if model.parts and not quick:
        yield "Regard, compiled in parts and recorded", lambda: recorded(compile_side(ours), model.fixed)


def compile_side(side: Side) -> Side:
    compile_parts(side.module)
    return side


def same_loss(ours: Side, theirs: Side) -> None:
    """Raises `WrongNumbers` unless both give the same loss."""
    with torch.no_grad():
        a, b = (float(side.loss(side.module, side.batch)) for side in (ours, theirs))
    if not abs(a - b) <= 1e-3 * max(abs(b), 0.05):
        raise WrongNumbers(f"the loss is {a:.6g}, theirs {b:.6g}; it is not measured.")


def update(side: Side, called: Any, **options: Any) -> Callable[[Batch], Tensor]:
    """One step of a batch: forward, backward, AdamW."""
    optimizer = torch.optim.AdamW(side.module.parameters(), lr=1e-5, fused=True, **options)

    def once(batch: Batch) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            found = side.loss(called, batch)
        found.backward()
        optimizer.step()
        optimizer.zero_grad()
        return found

    return once


def plain(side: Side, mode: str | None = None) -> Step:
    """The step as one writes it, with the model compiled where a mode is given."""
    once = update(side, side.module if mode is None else torch.compile(side.module, mode=mode))
    return lambda: once(side.batch)


def recorded(side: Side, fixed: tuple[str, ...], compiled: bool = False) -> Step:
    """The step recorded, and repeated by the GPU."""
    called = torch.compile(side.module) if compiled else side.module
    repeated = Recorded(update(side, called, capturable=True), fixed=fixed)
    return lambda: repeated(side.batch)


def measured(once: Step, warm: int = 4, count: int = 10) -> tuple[float, float]:
    """Median seconds of a step, and its peak bytes while it is not yet recorded: what a graph has is its own."""
    for _ in range(2):
        once()
    peak = gpu_memory(once)
    for _ in range(warm):
        once()
    spent = []
    for _ in range(count):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        once()
        end.record()
        torch.cuda.synchronize()
        spent.append(start.elapsed_time(end) / 1e3)
    return median(spent), peak
