"""How long a character model takes to a known loss: our recipe, beside the plain loop that one writes over torch.

    python -m regard.bench.char_gpt --text input.txt --out char-gpt.json

Both train 6 layers of 384 on the first nine tenths of tiny Shakespeare, 64 rows of 256 characters an update, in bf16
and compiled, and are scored over the whole last tenth in windows of 256. The plain loop is nanoGPT's: its model, its
settings, its schedule over 5,000 updates. Ours is the recipe shakespeare-char with the changes of `SHORT`. The clock
runs while they learn: not while torch compiles (the first updates), nor while they are scored.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import machine
from regard.settings import Training
from regard.tasks.architecture import Architecture
from regard.tasks.lm import Lm, windowed_losses
from regard.train.commands import settled_all
from regard.train.loop import Event, train
from regard.train.recipes import find_recipe

GOAL = 1.4697
SHORT = {"steps": 800, "rate": 2e-3, "ema": 0.99, "dropout": 0.1, "attention_dropout": 0.1}
"""What is other than in the recipe, which takes its time for the best loss: few updates leave no time to overfit."""

UNTIMED = 10
"""Updates before the clock starts: in these torch compiles."""

Curve = list[tuple[int, float, float]]
"""(updates, seconds, loss on the last tenth) of each evaluation."""


class Clock:
    """Seconds of learning: from event to event, but for what ends in an evaluation or a checkpoint."""

    def __init__(self) -> None:
        self.seconds, self.last = 0.0, time.perf_counter()

    def tick(self, counts: bool) -> None:
        now = time.perf_counter()
        self.seconds += now - self.last if counts else 0.0
        self.last = now


def ours(text: Path, changes: dict[str, Any]) -> Curve:
    """The recipe shakespeare-char, by the loop of `regard train`."""
    base = (Lm.Settings(), Lm.ARCHITECTURE, Lm.TRAINING)
    settings, architecture, how = settled_all(base, {**find_recipe("shakespeare-char").settings, **changes})
    learned, held = Lm.split(Lm.read([text], settings), 0.1)
    task = Lm.prepare(learned.examples, settings)
    torch.manual_seed(how.seed)
    clock, curve = Clock(), []

    def tell(event: Event) -> None:
        clock.tick(event.kind == "step" and event.place.step > UNTIMED)
        if event.kind == "score":
            curve.append((event.place.step, clock.seconds, event.values["loss"]))

    with tempfile.TemporaryDirectory() as folder:
        model = task.config(architecture).build()
        train(task, model, learned.examples, held.examples, how, Path(folder), lambda model, scores: None, tell)
    return curve


class PlainBlock(nn.Module):
    """A block as nanoGPT has it: norm, causal attention, norm, four times wider GELU; no biases."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norms = nn.ModuleList(nn.LayerNorm(dim, bias=False) for _ in range(2))
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.up, self.down = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(4 * dim, dim, bias=False)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in self.qkv(self.norms[0](x)).chunk(3, -1)
        )
        y = functional.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout * self.training, is_causal=True)
        x = x + self.drop(self.out(y.transpose(1, 2).flatten(2)))
        return x + self.drop(self.down(functional.gelu(self.up(self.norms[1](x)))))


class Plain(nn.Module):
    """nanoGPT's model: tokens and places, blocks, a norm, and the tokens' matrix again."""

    def __init__(self, words: int, a: Architecture, context: int, dropout: float) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, a.dim), nn.Embedding(context, a.dim)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(PlainBlock(a.dim, a.heads, dropout) for _ in range(a.layers))
        self.norm = nn.LayerNorm(a.dim, bias=False)
        self.head = nn.Linear(a.dim, words, bias=False)
        self.head.weight = self.tokens.weight
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                scale = math.sqrt(2 * a.layers) if name.endswith(("out.weight", "down.weight")) else 1.0
                nn.init.normal_(weight, std=0.02 / scale)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.drop(self.tokens(tokens) + self.places.weight[: tokens.shape[1]])
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Answer:
    """The plain model as our evaluation calls one."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.logits = model, torch.empty(0)

    def __call__(self, tokens: Tensor) -> Answer:
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=tokens.is_cuda):
            self.logits = self.model(tokens)
        return self


def plain(text: Path, changes: dict[str, Any], steps: int, every: int, device: str) -> Curve:
    """nanoGPT's loop with its settings for this text, to the goal or to the end.

    The rate falls over 5,000 updates whatever `steps` is.
    """
    how = Training(steps=steps, rate=1e-3, warmup=100, schedule="cosine", floor=0.1, betas=(0.9, 0.99), epochs=None)
    base = (Lm.Settings(), Lm.ARCHITECTURE, Training())
    settings, a, recipe = settled_all(base, {**find_recipe("shakespeare-char").settings, **changes})
    learned, held = Lm.split(Lm.read([text], settings), 0.1)
    task, context = Lm.prepare(learned.examples, settings), settings.context
    numbers, tail = (task.numbers(one.examples).to(device) for one in (learned, held))
    torch.manual_seed(recipe.seed)
    model = Plain(task.tokenizer.size, a, context, dropout=0.2).to(device)
    matrices, vectors = ([p for p in model.parameters() if (p.dim() > 1) == one] for one in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=how.rate, betas=how.betas, fused=device == "cuda")
    fast = torch.compile(model) if recipe.compile else model
    rows, within = max(1, recipe.batch_tokens // context), torch.arange(context + 1, device=device)
    clock, curve = Clock(), []
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = how.rate_at(step - 1, 5000)
        block = numbers[torch.randint(len(numbers) - context, (rows, 1), device=device) + within]
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = fast(block[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), block[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step == UNTIMED or step % every == 0:
            wait(device)
            clock.tick(step > UNTIMED)
        if step % every == 0:
            model.eval()
            with torch.no_grad():
                curve.append((step, clock.seconds, score(model, tail, context)))
            model.train()
            clock.tick(False)
            if curve[-1][-1] <= GOAL:
                break
    return curve


def score(model: nn.Module, tail: Tensor, context: int) -> float:
    """Nats a character over the last tenth, as the task scores it."""
    return float(windowed_losses(Answer(model), tail.roll(1), context, context).double().mean())


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def reached(curve: Curve, goal: float) -> tuple[int, float] | None:
    """The updates and seconds after which the loss was first at the goal; None where it never was.

    >>> reached([(250, 2.0, 1.6), (500, 4.0, 1.46)], 1.47)
    (500, 4.0)
    """
    return next(((step, seconds) for step, seconds, loss in curve if loss <= goal), None)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("char-gpt.json"))
    parser.add_argument("--steps", type=int, default=5000, help="most updates of the plain loop")
    parser.add_argument("--every", type=int, default=100, help="updates between evaluations")
    parser.add_argument("--set", action="append", default=[], help="a setting of both, name=value")
    given = parser.parse_args(words)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    fast = {"compile": device == "cuda", "record": device == "cuda"}
    changes = {**fast, **SHORT, "evaluate_every": given.every, "save_every": 10**9}
    changes |= dict(pair.split("=", 1) for pair in given.set)
    curves = {"regard": ours(given.text, changes)}
    curves["plain loop"] = plain(given.text, changes, given.steps, given.every, device)
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    now = datetime.now(UTC).isoformat(timespec="seconds")
    found = {"goal": GOAL, "device": where, "date": now, "versions": machine.versions(), "curves": curves}
    found["reached"] = {name: reached(curve, GOAL) for name, curve in curves.items()}
    given.out.write_text(json.dumps(found, indent=1) + "\n", "utf8")
    for name, curve in curves.items():
        speed = curve[-1][0] / max(curve[-1][1], 1e-9)
        print(
            f"{name}: {speed:.1f} updates/s, best {min(loss for *_, loss in curve):.4f}, {GOAL} after",
            found["reached"][name],
        )


if __name__ == "__main__":
    main()
