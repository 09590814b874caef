"""Whole models on a GPU: one step of training, beside transformers' model with the same weights."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

import regard as rg
from regard import machine
from regard.bench.measure import WrongNumbers, gpu_memory
from regard.bench.result import Result, Row

Step = Callable[[], Tensor]


@dataclass(frozen=True)
class Model:
    """One model: theirs, how both are called, and how much faster ours should be than the better of theirs."""

    work: str
    make: Callable[..., Any]
    inputs: Callable[..., tuple[dict[str, Tensor], dict[str, Tensor]]]
    loss: Callable[[Any], Tensor]
    sizes: dict[str, int]
    small: dict[str, int]
    goal: float
    compiled: bool = True


def hidden_loss(output: Any) -> Tensor:
    """A loss that depends on every output, and on where it stands: the norms before it hide a mean or a square."""
    hidden = output.hidden if hasattr(output, "hidden") else output.last_hidden_state
    weight = torch.arange(hidden.shape[1] * hidden.shape[2], device=hidden.device).sin().view(hidden.shape[1:])
    return (hidden.float() * weight).sum() / hidden.shape[0] / hidden.shape[1]


def own_loss(output: Any) -> Tensor:
    return output.loss


def encoder(kind: str, **settings: Any) -> Callable[..., Any]:
    """A maker of transformers' model of a kind, dropout left out so that both compute the same."""

    def make() -> nn.Module:
        import transformers

        config = getattr(transformers, f"{kind}Config")(**settings)
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "resid_pdrop", "embd_pdrop", "attn_pdrop"):
            if hasattr(config, name):
                setattr(config, name, 0.0)
        name = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}Model"
        more = {"add_pooling_layer": False} if kind in ("Bert", "ViT", "Longformer", "BigBird") else {}
        return getattr(transformers, name)(config, **more)

    return make


def text(batch: int, tokens: int, vocabulary: int = 1000, labels: bool = False, first: bool = False):
    """Tokens for ours and for theirs; with `first` the first one is global."""
    x = torch.randint(5, vocabulary, (batch, tokens), device="cuda")
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
    x = torch.randn(batch, 3, size, size, device="cuda")
    return {"images": x}, {"pixel_values": x}


MODELS = (
    Model(
        "BERT-base", encoder("Bert"), text, hidden_loss, {"batch": 32, "tokens": 512}, {"batch": 2, "tokens": 64}, 1.2
    ),
    Model(
        "ViT-B/16", encoder("ViT"), pictures, hidden_loss, {"batch": 64, "size": 224}, {"batch": 2, "size": 224}, 1.2
    ),
    Model(
        "GPT-2 small with its loss",
        encoder("GPT2"),
        lambda batch, tokens: text(batch, tokens, labels=True),
        own_loss,
        {"batch": 16, "tokens": 1024},
        {"batch": 2, "tokens": 64},
        1.2,
    ),
    Model(
        "Longformer-base",
        encoder("Longformer", max_position_embeddings=16386, attention_window=512, vocab_size=50265),
        lambda batch, tokens: text(batch, tokens, first=True),
        hidden_loss,
        {"batch": 1, "tokens": 16384},
        {"batch": 1, "tokens": 1024},
        8.0,
        compiled=False,
    ),
    Model(
        "BigBird-base",
        encoder("BigBird", max_position_embeddings=16384),
        text,
        hidden_loss,
        {"batch": 1, "tokens": 16384},
        {"batch": 1, "tokens": 2048},
        10.0,
        compiled=False,
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
            rows += steps_of(model, quick, tell)
        except (WrongNumbers, torch.OutOfMemoryError, ImportError, ValueError) as error:
            notes.append(f"{model.work}: {error}")
            tell(notes[-1])
        gc.collect()
        torch.cuda.empty_cache()
        now = datetime.now(UTC).isoformat(timespec="seconds")
        found = Result(torch.cuda.get_device_name(), now, 1, quick, machine.versions(), tuple(rows), tuple(notes))
        save(found)
    return found


def steps_of(model: Model, quick: bool, tell: Callable[[str], None]) -> list[Row]:
    """Time and memory of a step, ours beside the better of theirs, eager and compiled."""
    sizes = model.small if quick else model.sizes
    torch.manual_seed(0)
    theirs = model.make().cuda().train()
    ours = copied(theirs).cuda().train()
    mine, yours = model.inputs(**sizes)
    same_loss(model, ours, theirs, mine, yours)
    found: dict[str, tuple[float, float]] = {}
    makers: dict[str, Callable[[], Step]] = {
        "ours": lambda: step(ours, mine, model.loss),
        "theirs": lambda: step(theirs, yours, model.loss),
    }
    if model.compiled and not quick:
        makers["ours, compiled"] = lambda: step(ours, mine, model.loss, compiled=True)
        makers["theirs, compiled"] = lambda: step(theirs, yours, model.loss, compiled=True)
    for name, make in makers.items():
        try:
            found[name] = measured(make())
        except Exception as error:  # one side out of memory, or not to be compiled: the others are still measured
            tell(f"  {name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
            continue
        tell(f"  {name}: {found[name][0] * 1e3:.1f} ms, {found[name][1] / 1e9:.1f} GB")
        gc.collect()
    if not any(name.startswith("ours") for name in found) or not any(name.startswith("theirs") for name in found):
        raise WrongNumbers("one of the two could not be run; there is nothing to compare.")
    best = min((name for name in found if name.startswith("ours")), key=lambda name: found[name][0])
    peer = min((name for name in found if name.startswith("theirs")), key=lambda name: found[name][0])
    label = peer.replace("theirs", "transformers")
    shape = " ".join(f"{name[0].upper()}{size}" for name, size in sizes.items())
    goal = None if quick else model.goal
    return [
        Row(f"{model.work}, a step of training", shape, "time", found[best][0], label, found[peer][0], goal),
        Row(f"{model.work}, a step of training", shape, "memory", found[best][1], label, found[peer][1]),
    ]


def copied(theirs: Any) -> nn.Module:
    """Our model with their weights, through a folder as they save it."""
    with TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return rg.load(folder)


def same_loss(model: Model, ours: nn.Module, theirs: nn.Module, mine: dict, yours: dict) -> None:
    """Raises `WrongNumbers` unless both give the same loss."""
    with torch.no_grad():
        a, b = float(model.loss(ours(**mine))), float(model.loss(theirs(**yours)))
    if not abs(a - b) <= 1e-3 * max(abs(b), 0.05):
        raise WrongNumbers(f"the loss is {a:.6g}, theirs {b:.6g}; it is not measured.")


def step(model: nn.Module, inputs: dict[str, Tensor], loss: Callable[[Any], Tensor], compiled: bool = False) -> Step:
    """One step: forward, backward, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    called = torch.compile(model) if compiled else model

    def once() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            found = loss(called(**inputs))
        found.backward()
        optimizer.step()
        optimizer.zero_grad()
        return found

    return once


def measured(once: Step, warm: int = 4, count: int = 10) -> tuple[float, float]:
    """Median seconds and peak bytes of a step."""
    for _ in range(warm):
        once()
    peak = gpu_memory(once)
    spent = []
    for _ in range(count):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        once()
        end.record()
        torch.cuda.synchronize()
        spent.append(start.elapsed_time(end) / 1e3)
    return median(spent), peak
