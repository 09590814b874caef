"""Five readings of one answer, unit by unit: four that look at weights, and one that removes units and measures.

Weights say where heads looked, not why the model answered. So beside them stand what they carry (value norms), where
they lead through the layers (rollout), what they were worth to this answer (gradient × attention), and what happens to
the answer when a unit is taken away (`removing`); and the answers of a model whose weights are made uniform, shuffled
or silent. A reading that says nothing of the input is None.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import BadInput
from ...experiments.toolkit.metrics import rank_correlation
from ...models.dual_encoder import DualEncoderModel, find_end
from ...nn.explain import gradient_times_attention, output_projection, value_norms, weights_of
from ...nn.hooks.attentions import find_attentions
from ...nn.hooks.edit import edit
from ...nn.hooks.watch import Views, watch
from ..inspect.capture import POOL
from .ablation import Tell
from .target import Asked

READINGS = ("raw", "value", "rollout", "gradient", "effect")
CHANGES = ("silent", "uniform", "shuffle", "mean")
"""What a head can be given in place of its weights."""
RESIDUAL = 0.5
"""What a token keeps of itself in each layer that is rolled out."""


@dataclass(frozen=True)
class Look:
    """What one pass of the model, forward and backward, has shown."""

    seen: Views
    asked: Asked
    read: Tensor
    """How much the answer is read off each token of the input, `[tokens]`; sums to one."""
    written: Tensor | None = None
    """How much it is read off each token of the decoder, `[targets]`; None where there is none."""

    @property
    def names(self) -> list[str]:
        return list(self.seen)

    def heads(self, name: str) -> int:
        return self.seen[name].lse.shape[1]

    def about_input(self, name: str) -> bool:
        """Whether an attention's keys are the tokens of the input: only then it says something of them."""
        return self.asked.sides(name)[1] == self.asked.side and self.seen[name].keys == self.asked.tokens

    def usual(self) -> int:
        """The number of the last attention that says something of the input, those of a decoder before others."""
        found = [n for n, name in enumerate(self.names) if self.about_input(name)]
        across = [n for n in found if self.asked.sides(self.names[n])[0] == "target"]
        return (across or found or [len(self.names) - 1])[-1]

    def row(self, name: str, cells: Tensor) -> Tensor | None:
        """The rows of cells `[queries, keys]` that the answer is read off, `[units]`."""
        if not self.about_input(name):
            return None
        side, queries = self.asked.sides(name)[0], cells.shape[0]
        read = self.written if side == "target" else None if side == POOL else self.read
        row = cells.mean(0) if read is None or queries != len(read) else read.to(cells.dtype) @ cells
        return self.asked.units.pooled(row)

    def raw(self, name: str, head: int | None) -> Tensor | None:
        """The weights, `[units]`; the mean over heads unless one is given."""
        return self.row(name, chosen(weights_of(self.seen, name)[0], head))

    def value(self, name: str, head: int | None) -> Tensor | None:
        """‖weight · value · W_O‖, `[units]`."""
        return self.row(name, chosen(self.norms(name)[0], head)) if self.about_input(name) else None

    def norms(self, name: str) -> Tensor:
        one = Views(self.seen.model, self.seen.names)
        one.add(name, self.seen.records[name][-1])
        try:
            output_projection(self.seen.model, name)
            given = None
        except BadInput:  # pooling by attention mixes heads by nothing but their order
            width = one.records[name][-1].values.shape[1] * one.records[name][-1].values.shape[3]  # type: ignore[union-attr]
            given = {name: torch.eye(width)}
        return value_norms(one, given)[name]

    def rollout(self, name: str) -> Tensor | None:
        """What flows from each unit through the layers up to this one, `[units]`.

        Each layer keeps half of what a token has and adds half of what its heads bring on average: to the input's
        tokens of themselves, to a decoder's tokens of themselves and of the input. Of an answer that a decoder gives,
        what is missing from a sum of one is in the decoder's own tokens.
        """
        flow = torch.eye(self.asked.tokens)
        count = 0 if self.written is None else len(self.written)
        own, across = torch.eye(count), torch.zeros(count, self.asked.tokens)
        inside = self.names if self.asked.sides(name)[0] == POOL else self.names[: self.names.index(name) + 1]
        for one in inside:
            mean, sides = weights_of(self.seen, one)[0].mean(0).float(), self.asked.sides(one)
            if sides == (self.asked.side,) * 2 and mean.shape == flow.shape:
                flow = mixing(mean) @ flow
            elif sides == ("target", "target") and mean.shape == own.shape:
                own, across = mixing(mean) @ own, mixing(mean) @ across
            elif sides == ("target", self.asked.side) and mean.shape == across.shape:
                own, across = RESIDUAL * own, RESIDUAL * across + (1 - RESIDUAL) * mean @ flow
        if self.asked.sides(name)[0] != "target" or self.written is None:
            return self.asked.units.pooled(self.read @ flow)
        row = self.written @ across
        return self.asked.units.pooled(row) if bool(row.any()) else None

    def gradient(self, name: str, head: int | None) -> Tensor | None:
        """Σ over queries of weight · ∂score/∂weight, `[units]`; summed over heads unless one is given."""
        if not self.about_input(name):
            return None
        if all(self.seen.records[one][-1].gradient is None for one in self.names):
            return torch.zeros(self.asked.units.count)
        found = gradient_times_attention(self.seen).get(name)
        if found is None:
            return torch.zeros(self.asked.units.count)
        return self.asked.units.pooled((found[0].sum(0) if head is None else found[0][head]).sum(0))


def mixing(weights: Tensor) -> Tensor:
    """Half of a token itself and half of what it looks at; rows sum to one, also where it looks at nothing."""
    mixed = RESIDUAL * torch.eye(len(weights), dtype=weights.dtype) + (1 - RESIDUAL) * weights
    return mixed / mixed.sum(-1, keepdim=True)


def chosen(cells: Tensor, head: int | None) -> Tensor:
    """`[queries, keys]` of cells `[heads, queries, keys]`."""
    return cells.mean(0) if head is None else cells[head]


def look(asked: Asked) -> Look:
    """One forward and backward pass, watched. Parameters get no gradient."""
    asked.need_room()
    with torch.enable_grad(), watch(asked.model, weights=True) as seen, keeping_outputs(asked.model) as outputs:
        score = asked.score(asked.answers(asked.inputs, asked.places(1)))[0]
        found = torch.autograd.grad(score, list(outputs.values()), allow_unused=True)
    for name, gradient in zip(outputs, found, strict=True):
        seen.records[name][-1].gradient = gradient
    written = written_off(asked, seen)
    return Look(seen, asked, read_off(asked, seen, written), written)


@contextmanager
def keeping_outputs(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """While open, the output of each attention's last call is kept, and a gradient can be asked for it."""
    kept: dict[str, Tensor] = {}

    def keeper(name: str) -> Any:
        def keep(attend: nn.Module, args: tuple, output: Tensor) -> None:
            kept[name] = output if output.requires_grad else output.requires_grad_()

        return keep

    handles = [one.register_forward_hook(keeper(name), prepend=True) for name, one in find_attentions(model).items()]
    try:
        yield kept
    finally:
        for handle in handles:
            handle.remove()


def written_off(asked: Asked, seen: Views) -> Tensor | None:
    """How much the answer is read off each of the decoder's tokens, `[targets]`: the one asked about, or all alike."""
    counts = [seen[name].queries for name in seen if asked.sides(name)[0] == "target"]
    if not counts:
        return None
    return torch.full((counts[-1],), 1 / counts[-1]) if asked.place is None else one_at(asked.place, counts[-1])


def read_off(asked: Asked, seen: Views, written: Tensor | None) -> Tensor:
    """How much the answer is read off each token of the input, `[tokens]`.

    The token asked about, the first, or all alike; of a decoder, what its heads take of each on average.
    """
    if written is not None:
        across = [name for name in seen if asked.sides(name) == ("target", asked.side)]
        rows = [written @ weights_of(seen, name)[0].mean(0).float() for name in across]
        return torch.stack(rows).mean(0) if rows else torch.full((asked.tokens,), 1 / asked.tokens)
    if asked.place is not None:
        return one_at(asked.place, asked.tokens)
    if isinstance(asked.model, DualEncoderModel):
        return tower_read(asked)
    how = "mean" if asked.kind == "vector" else asked.model.head.config.pool
    if how == "mean":
        return torch.full((asked.tokens,), 1 / asked.tokens)
    if how == "attention":
        return weights_of(seen, list(seen)[-1])[0].mean(0)[0].float()
    return one_at(asked.tokens - 1 if how == "last" else 0, asked.tokens)


def tower_read(asked: Asked) -> Tensor:
    """Which token stands for all in a tower."""
    tower = asked.model.image if asked.side == "image" else asked.model.text
    if tower.end == "mean":
        return torch.full((asked.tokens,), 1 / asked.tokens)
    if tower.end is None:
        return one_at(0, asked.tokens)
    return one_at(int(find_end(asked.inputs[asked.reads], asked.inputs.get("lengths"), tower.end)[0]), asked.tokens)


def one_at(place: int, tokens: int) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(place), tokens).float()


def correlations(readings: dict[str, Tensor | None], signed: bool = False) -> dict[str, dict[str, float | None]]:
    """Spearman's rank correlation of each two readings over the units that both know; by size unless `signed`.

    None where one of the two is.
    """
    found: dict[str, dict[str, float | None]] = {}
    for a, x in readings.items():
        for b, y in readings.items():
            if x is None or y is None:
                found.setdefault(a, {})[b] = None
                continue
            known = ~(x.isnan() | y.isnan())
            pair = [z[known] if signed else z[known].abs() for z in (x.double(), y.double())]
            found.setdefault(a, {})[b] = rank_correlation(*pair)
    return found


def every_head(asked: Asked, change: Any) -> dict[str, dict[int, Any]]:
    """The same change for all heads."""
    return {name: dict.fromkeys(range(heads), change) for name, heads in asked.heads.items()}


@torch.no_grad()
def edited(asked: Asked, changes: dict[str, dict[int, Any]], seed: int = 0) -> Tensor:
    """The answer of the model with changed heads: ln p `[labels]` or the vector `[dim]`."""
    made: dict[Any, Any] = {name: {h: named_change(how) for h, how in heads.items()} for name, heads in changes.items()}
    with edit(asked.model, made, generator=torch.Generator().manual_seed(seed)):
        return asked.answers(asked.inputs, asked.places(1))[0]


def named_change(how: Any) -> Any:
    """The change of that name as `regard.edit` takes it."""
    if isinstance(how, str) and how not in CHANGES:
        raise BadInput(f"The change is {how!r}; it must be one of {', '.join(CHANGES)}.")
    return mean_row if how == "mean" else how


def mean_row(weights: Tensor) -> Tensor:
    """Every query's weights as the mean over queries, so that the head says the same everywhere.

    Where no query sees a later key, the mean over the queries so far.

    >>> mean_row(torch.tensor([[[1.0, 0.0], [0.5, 0.5]]])).tolist()
    [[[1.0, 0.0], [0.75, 0.25]]]
    >>> mean_row(torch.tensor([[[0.0, 1.0], [0.5, 0.5]]])).tolist()
    [[[0.25, 0.75], [0.25, 0.75]]]
    """
    queries, keys = weights.shape[1:]
    causal = queries == keys and queries > 1 and not bool(weights.triu(1).any())
    if causal:
        return weights.cumsum(1) / torch.arange(1, queries + 1, dtype=weights.dtype, device=weights.device)[:, None]
    return weights.mean(1, keepdim=True).expand_as(weights)


def compared(asked: Asked, after: Tensor) -> dict[str, Any]:
    """What another answer says, and how far it is from the model's own.

    `distance` is ½ Σ |p − p'| over all labels (0 equal, 1 nothing in common), of vectors 1 − their cosine, of numbers
    their difference.
    """
    score = float(asked.score(after[None])[0])
    found: dict[str, Any] = {"score": score, "change": score - asked.now()}
    if asked.kind == "number":
        return found | {"distance": abs(found["change"])}
    if asked.label is None:
        cosine = float(torch.cosine_similarity(after, asked.before, dim=0))
        return found | {"cosine": cosine, "distance": 1 - cosine}
    top = int(after.argmax())
    return found | {
        "probability": math.exp(score),
        "top": top,
        "top_probability": float(after[top].exp()),
        "distance": float((after.exp() - asked.before.exp()).abs().sum() / 2),
    }


def each_head(asked: Asked, how: str, seed: int = 0, tell: Tell = lambda done, of: None) -> Tensor:
    """The change of the score when one head alone is changed, `[attentions, heads]`; not a number where none is."""
    heads = asked.heads
    found = torch.full((len(heads), max(heads.values())), math.nan)
    done, total = 0, sum(heads.values())
    for n, (name, count) in enumerate(heads.items()):
        for head in range(count):
            tell(done, total)
            found[n, head] = compared(asked, edited(asked, {name: {head: how}}, seed))["change"]
            done += 1
    return found
