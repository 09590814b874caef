"""Five readings of one prediction, token by token: four that look at weights, and one that removes tokens and measures.

Weights say where heads looked, not why the model answered. So beside them stand what they carry (value norms), where
they lead through the layers (rollout), what they were worth to this answer (gradient × attention), and what happens to
the answer when a token is taken away; and the answers of a model whose weights are made uniform, shuffled or silent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..attention.errors import BadInput
from ..attention.masks import Pairs
from ..experiments.comparing import rank_correlation
from ..models.heads import VocabularyHead
from ..models.model import PairModel
from ..nn.attention import both
from ..nn.attentions import arguments, attentions
from ..nn.edit import edit
from ..nn.explain import gradient_times_attention, output_projection, rollout, value_norms, weights_of
from ..nn.watch import Seen, watch

READINGS = ("raw", "value", "rollout", "gradient", "effect")
CHANGES = ("silent", "uniform", "shuffle", "mean")
"""What a head can be given in place of its weights."""
MOST_TOKENS = 256
"""Every token is removed once, so work grows with the square of their number."""
ROWS = 4096
"""Tokens computed at once while removing."""

Removal = Literal["replace", "delete", "hide"]
Tell = Callable[[int, int], None]


@dataclass(frozen=True)
class Question:
    """Which number of a model's answer is asked about.

    `place` is the token whose tag, or whose next token, is predicted (None: the whole input); `label` the class, tag or
    token whose probability counts (None: what the model answers itself). A model without a head answers with a
    vector, the mean of its tokens' last states, and has neither.
    """

    place: int | None = None
    label: int | None = None


class Asked:
    """A model, one input `[1, tokens, …]` and a question; `score` is the number that the readings are about.

    score = ln p(label)              of a model with a head
    score = vector · v0 / ‖v0‖²      of one without: how much is left of its answer v0, 1 before any change
    """

    def __init__(self, model: Any, inputs: dict[str, Tensor], question: Question | None = None) -> None:
        self.reads = need_reader(model, inputs)
        question = question or Question()
        self.model, self.inputs, self.tokens = model, inputs, inputs[self.reads].shape[1]
        self.kind = kind_of(model)
        self.place = place_asked(self.kind, question.place, self.tokens)
        with torch.no_grad():
            self.before = self.answers(inputs, self.places(1))[0]
        self.label = self.label_asked(question.label)

    def label_asked(self, label: int | None) -> int | None:
        if self.kind == "vector":
            return None
        label = int(self.before.argmax()) if label is None else label
        if not 0 <= label < len(self.before):
            raise BadInput(f"There is no label {label}: the model has {len(self.before)}, 0 … {len(self.before) - 1}.")
        return label

    def places(self, batch: int) -> Tensor | None:
        """The place that is asked about, for each row of a batch."""
        device = self.inputs[self.reads].device
        return None if self.place is None else torch.full((batch,), self.place, device=device)

    def answers(self, inputs: dict[str, Tensor], places: Tensor | None) -> Tensor:
        """ln p of every label `[batch, labels]`, or the vectors `[batch, dim]`, of inputs of one length."""
        output = self.model(**inputs)
        if self.kind == "vector":
            return output.hidden.float().mean(1)
        logits = output.logits
        if places is not None:
            logits = logits[torch.arange(len(places), device=places.device), places]
        return logits.float().log_softmax(-1)

    def score(self, answers: Tensor) -> Tensor:
        """`[batch]` of answers `[batch, …]`."""
        if self.label is None:
            return answers @ self.before / self.before.square().sum()
        return answers[:, self.label]

    def now(self) -> float:
        """The score before any change."""
        return float(self.score(self.before[None])[0])

    @cached_property
    def heads(self) -> dict[str, int]:
        """The number of heads of each attention that the model calls, in the order of the calls."""
        with torch.no_grad(), watch(self.model) as seen:
            self.answers(self.inputs, self.places(1))
        return {name: view.lse.shape[1] for name, view in seen.items()}


def kind_of(model: Any) -> str:
    """What a model answers: "class" of the whole, "tag" of each token, "next" token, "word" at each, or a "vector"."""
    if getattr(model, "head", None) is None:
        return "vector"
    if isinstance(model.head, VocabularyHead):
        return "next" if model.causal else "word"
    return "tag" if model.head.config.per_token else "class"


def place_asked(kind: str, place: int | None, tokens: int) -> int | None:
    """The place that is asked about: the last token, where the next one is read, unless given."""
    if kind in ("class", "vector"):
        return None
    place = tokens - 1 if place is None and kind == "next" else place or 0
    if not 0 <= place < tokens:
        raise BadInput(f"There is no token {place}: the input has {tokens}, 0 … {tokens - 1}.")
    return place


def need_reader(model: Any, inputs: dict[str, Tensor]) -> str:
    """The argument that holds the tokens; raises for models and inputs that cannot be read token by token."""
    if isinstance(model, PairModel):
        raise BadInput("This model writes a text for a text. The page Alignment follows it as it writes.")
    reads = next((name for name in ("tokens", "meanings") if name in inputs), None)
    if reads is None:
        raise BadInput("Only a model that reads text can be read here. Choose one: an encoder, a tagger, a decoder.")
    tokens = inputs[reads].shape[1]
    if tokens > MOST_TOKENS:
        raise BadInput(
            f"The text has {tokens} tokens; each is removed once to measure its effect, so {MOST_TOKENS} are the most. "
            "Give a shorter one."
        )
    return reads


@dataclass(frozen=True)
class Look:
    """What one pass of the model, forward and backward, has shown."""

    seen: Seen
    asked: Asked
    read: Tensor
    """How much the answer is read off each token, `[tokens]`; sums to one."""

    @property
    def names(self) -> list[str]:
        return list(self.seen)

    def heads(self, name: str) -> int:
        return self.seen[name].lse.shape[1]

    def row(self, name: str, cells: Tensor) -> Tensor:
        """The rows of cells `[queries, keys]` that the answer is read off, `[keys]`."""
        if cells.shape[1] != self.asked.tokens:
            raise BadInput(
                f"{name} looks at {cells.shape[1]} keys and the text has {self.asked.tokens} tokens, so it "
                "says nothing of single tokens. Choose another layer."
            )
        if cells.shape[0] != self.asked.tokens:
            return cells.mean(0)
        return self.read.to(cells.dtype) @ cells

    def raw(self, name: str, head: int | None) -> Tensor:
        """The weights, `[tokens]`; the mean over heads unless one is given."""
        return self.row(name, chosen(weights_of(self.seen, name)[0], head))

    def value(self, name: str, head: int | None) -> Tensor:
        """‖weight · value · W_O‖, `[tokens]`."""
        return self.row(name, chosen(self.norms(name)[0], head))

    def norms(self, name: str) -> Tensor:
        one = Seen(self.seen.model, self.seen.names)
        one.add(name, self.seen.records[name][-1])
        try:
            output_projection(self.seen.model, name)
            given = None
        except BadInput:  # pooling by attention mixes heads by nothing but their order
            width = one.records[name][-1].values.shape[1] * one.records[name][-1].values.shape[3]  # type: ignore[union-attr]
            given = {name: torch.eye(width)}
        return value_norms(one, given)[name]

    def rollout(self, name: str) -> Tensor:
        """What flows from each token through the layers up to this one, `[tokens]`."""
        square = [one for one in self.names if self.seen[one].queries == self.seen[one].keys == self.asked.tokens]
        upto = square[: square.index(name) + 1] if name in square else square
        return self.read @ rollout(self.seen, upto)[0].to(self.read.dtype)

    def gradient(self, name: str, head: int | None) -> Tensor:
        """Σ over queries of weight · ∂score/∂weight, `[tokens]`; summed over heads unless one is given."""
        found = gradient_times_attention(self.seen).get(name)
        if found is None:
            return torch.zeros(self.asked.tokens)
        return (found[0].sum(0) if head is None else found[0][head]).sum(0)


def chosen(cells: Tensor, head: int | None) -> Tensor:
    """`[queries, keys]` of cells `[heads, queries, keys]`."""
    return cells.mean(0) if head is None else cells[head]


def look(asked: Asked) -> Look:
    """One forward and backward pass, watched. Parameters get no gradient."""
    with torch.enable_grad(), watch(asked.model, weights=True) as seen, leaf(asked) as start:
        score = asked.score(asked.answers(asked.inputs | start, asked.places(1)))[0]
        torch.autograd.grad(score, list(start.values()))
    return Look(seen, asked, read_off(asked, seen))


@contextmanager
def leaf(asked: Asked) -> Iterator[dict[str, Tensor]]:
    """While open, what the embedding gives (or the input, where there is none) is where gradients begin."""
    if asked.inputs[asked.reads].is_floating_point():
        yield {asked.reads: asked.inputs[asked.reads].detach().requires_grad_()}
        return
    found: dict[str, Tensor] = {}

    def begin(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        found["embedded"] = output.detach().requires_grad_()
        return found["embedded"]

    handle = asked.model.embed.register_forward_hook(begin)
    try:
        yield found
    finally:
        handle.remove()


def read_off(asked: Asked, seen: Seen) -> Tensor:
    """How much the answer is read off each token, `[tokens]`: the token asked about, the first, or all alike."""
    if asked.place is not None:
        return one_at(asked.place, asked.tokens)
    how = "mean" if asked.kind == "vector" else asked.model.head.config.pool
    if how == "mean":
        return torch.full((asked.tokens,), 1 / asked.tokens)
    if how == "attention":
        return weights_of(seen, list(seen)[-1])[0].mean(0)[0].float()
    return one_at(asked.tokens - 1 if how == "last" else 0, asked.tokens)


def one_at(place: int, tokens: int) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(place), tokens).float()


def removed(asked: Asked, how: Removal, tell: Tell = lambda done, of: None) -> Tensor:
    """score − score without each token, `[tokens]`; not a number for the token asked about where it would be gone.

    `replace` puts the vocabulary's mask (or unknown) token there, `delete` leaves the token out and the others move up,
    `hide` keeps it and lets no head look at it.
    """
    if how not in ways_to_remove(asked):
        raise BadInput(f"Tokens are to be removed by {how!r}; here it must be {' or '.join(ways_to_remove(asked))}.")
    scores, step = [], max(1, ROWS // asked.tokens)
    for begin in range(0, asked.tokens, step):
        tell(begin, asked.tokens)
        scores.append(scored(asked, torch.arange(begin, min(begin + step, asked.tokens)), how))
    effect = asked.now() - torch.cat(scores)
    if how == "delete" and asked.kind in ("tag", "word"):
        effect[asked.place] = math.nan
    return effect


@torch.no_grad()
def scored(asked: Asked, gone: Tensor, how: Removal) -> Tensor:
    """The scores of inputs `[rows]`, each of which lacks one token, `gone [rows]`."""
    inputs = {name: x.expand(len(gone), *x.shape[1:]) for name, x in asked.inputs.items()}
    places = asked.places(len(gone))
    if how == "hide":
        with hiding(asked.model, gone, asked.tokens):
            return asked.score(asked.answers(inputs, places))
    if how == "replace":
        tokens = inputs[asked.reads].clone()
        tokens[torch.arange(len(gone)), gone] = filling(asked)  # type: ignore[assignment]
        return asked.score(asked.answers(inputs | {asked.reads: tokens}, places))
    keep = torch.arange(asked.tokens - 1) + (torch.arange(asked.tokens - 1) >= gone[:, None])  # [rows, tokens − 1]
    rows = torch.arange(len(gone))[:, None]
    inputs = {name: x[rows, keep] if x.shape[1:2] == (asked.tokens,) else x for name, x in inputs.items()}
    if "lengths" in inputs:
        inputs["lengths"] = inputs["lengths"] - 1
    if places is not None:
        before = gone <= places if asked.kind == "next" else gone < places
        places = (places - before.long()).clamp(0, asked.tokens - 2)
    return asked.score(asked.answers(inputs, places))


@contextmanager
def hiding(model: nn.Module, gone: Tensor, tokens: int) -> Iterator[None]:
    """While open, no head that looks at the tokens looks at the one that each row of the batch lacks."""
    seen = Pairs((torch.arange(tokens) != gone[:, None])[:, None, None])  # [rows, 1, 1, keys]

    def hide(attend: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        q, k, v, parts = arguments(*args, **kwargs)
        return (q, k, v), parts | ({"mask": both(parts.get("mask"), seen)} if k.shape[2] == tokens else {})

    handles = [one.register_forward_pre_hook(hide, with_kwargs=True) for one in attentions(model).values()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def filling(asked: Asked) -> Tensor | None:
    """What stands for a token that is not told: mask or unknown; of a word with letters, an unknown one without any."""
    tokens, tokenizer = asked.inputs[asked.reads], getattr(asked.model, "tokenizer", None)
    if tokens.dim() == 3 and not tokens.is_floating_point():
        fill = torch.zeros_like(tokens[0, 0])
        fill[0] = 1
        return fill
    numbers = () if tokenizer is None else (tokenizer.mask, tokenizer.unknown)
    return next((torch.tensor(number) for number in numbers if number is not None), None)


def ways_to_remove(asked: Asked) -> list[Removal]:
    """The removals that are possible, the usual one first: where a token itself is asked about, it should stay."""
    ways: list[Removal] = ["delete"] if asked.tokens > 1 else []
    if filling(asked) is not None:
        ways.insert(0 if asked.kind in ("tag", "word") else 1, "replace")
    return [*ways, "hide"]


def correlations(readings: dict[str, Tensor], signed: bool = False) -> dict[str, dict[str, float]]:
    """Spearman's rank correlation of each two readings over the tokens that both know; by size unless `signed`."""
    found: dict[str, dict[str, float]] = {}
    for a, x in readings.items():
        for b, y in readings.items():
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

    `distance` is ½ Σ |p − p'| over all labels (0 equal, 1 nothing in common), or of vectors 1 − their cosine.
    """
    score = float(asked.score(after[None])[0])
    found: dict[str, Any] = {"score": score, "change": score - asked.now()}
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
