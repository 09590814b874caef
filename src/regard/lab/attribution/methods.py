"""Five attributions of one prediction to the units of its input: four from the weights, and ablation.

Weights show where heads attend, not why the model predicted what it did. Beside them stand the norms of the values that
they carry (value), their product through the layers (rollout), their gradient (gradient × attention), and the measured
effect of ablating each unit; and the predictions of a model whose weights are uniform, shuffled or silent. An
attribution that does not apply to an attention is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NotRequired, TypedDict

import torch
from torch import Tensor, nn

from ...errors import BadInput
from ...models.dual_encoder import DualEncoderModel, find_end
from ...models.heads import ClassificationHead
from ...models.model import SequenceModel
from ...nn.explain import gradient_times_attention, output_projection, value_norms, weights_of
from ...nn.hooks.attentions import find_attentions
from ...nn.hooks.edit import HeadEdit, edit
from ...nn.hooks.watch import Views, watch
from ...tasks.metrics.rank_correlation import rank_correlation
from ..inspect.capture import POOL
from .ablation import Progress
from .target import AttributionTarget

METHODS = ("raw", "value", "rollout", "gradient", "effect")
CHANGES = ("silent", "uniform", "shuffle", "mean")
"""What can replace a head's weights."""
RESIDUAL = 0.5
"""The share of a token that the residual connection keeps in each layer of a rollout."""


class PredictionChange(TypedDict):
    """The score of another prediction, how far it is from the model's own, and its most probable label."""

    score: float
    change: float
    cosine: NotRequired[float]
    probability: NotRequired[float]
    top: NotRequired[int]
    top_probability: NotRequired[float]
    distance: float


@dataclass(frozen=True)
class AttributionPass:
    """A watched forward and backward pass, and the attributions computed from it."""

    views: Views
    target: AttributionTarget
    readout: Tensor
    """How much the prediction depends on each token's last hidden state, `[tokens]`; sums to one."""
    decoder_readout: Tensor | None = None
    """The same of each token of the decoder, `[targets]`; None where there is none."""

    @property
    def names(self) -> list[str]:
        return list(self.views)

    def heads(self, name: str) -> int:
        return self.views[name].lse.shape[1]

    def reads_input(self, name: str) -> bool:
        """Whether an attention's keys are the tokens of the input."""
        return self.target.sides(name)[1] == self.target.side and self.views[name].keys == self.target.tokens

    def default_attention(self) -> int:
        """The index of the last attention whose keys are the input's tokens, a decoder's before others."""
        reading = [n for n, name in enumerate(self.names) if self.reads_input(name)]
        cross = [n for n in reading if self.target.sides(self.names[n])[0] == "target"]
        return (cross or reading or [len(self.names) - 1])[-1]

    def row(self, name: str, cells: Tensor) -> Tensor | None:
        """The rows of cells `[queries, keys]`, averaged by the readout, `[units]`."""
        if not self.reads_input(name):
            return None
        side, queries = self.target.sides(name)[0], cells.shape[0]
        readout = self.decoder_readout if side == "target" else None if side == POOL else self.readout
        row = cells.mean(0) if readout is None or queries != len(readout) else readout.to(cells.dtype) @ cells
        return self.target.units.pool(row)

    def raw(self, name: str, head: int | None) -> Tensor | None:
        """The weights, `[units]`; the mean over heads unless one is given."""
        return self.row(name, select_head(weights_of(self.views, name)[0], head))

    def value(self, name: str, head: int | None) -> Tensor | None:
        """‖weight · value · W_O‖, `[units]`."""
        return self.row(name, select_head(self.norms(name)[0], head)) if self.reads_input(name) else None

    def norms(self, name: str) -> Tensor:
        """The value norms of one attention, `[batch, heads, queries, keys]`."""
        record = self.views.records[name][-1]
        single = Views(self.views.model, self.views.names)
        single.add(name, record)
        projections = None
        try:
            output_projection(self.views.model, name)
        except BadInput:  # pooling by attention concatenates its heads without a projection
            assert record.values is not None
            projections = {name: torch.eye(record.values.shape[1] * record.values.shape[3])}
        return value_norms(single, projections)[name]

    def rollout(self, name: str) -> Tensor | None:
        """Attention rollout from each unit through the layers up to this one, `[units]`.

        Each layer keeps half of a token and adds half of the mean of its heads: self-attention of the input's tokens
        and of the decoder's, and cross-attention. Of a decoder's prediction, the rest of a sum of one is in the
        decoder's own tokens.
        """
        target = self.target
        flow = torch.eye(target.tokens)
        count = 0 if self.decoder_readout is None else len(self.decoder_readout)
        own, cross = torch.eye(count), torch.zeros(count, target.tokens)
        layers = self.names if target.sides(name)[0] == POOL else self.names[: self.names.index(name) + 1]
        for layer in layers:
            mean, sides = weights_of(self.views, layer)[0].mean(0).float(), target.sides(layer)
            if sides == (target.side, target.side) and mean.shape == flow.shape:
                flow = add_residual(mean) @ flow
            elif sides == ("target", "target") and mean.shape == own.shape:
                own, cross = add_residual(mean) @ own, add_residual(mean) @ cross
            elif sides == ("target", target.side) and mean.shape == cross.shape:
                own, cross = RESIDUAL * own, RESIDUAL * cross + (1 - RESIDUAL) * mean @ flow
        if target.sides(name)[0] != "target" or self.decoder_readout is None:
            return target.units.pool(self.readout @ flow)
        row = self.decoder_readout @ cross
        return target.units.pool(row) if bool(row.any()) else None

    def gradient(self, name: str, head: int | None) -> Tensor | None:
        """Σ over queries of weight · ∂score/∂weight, `[units]`; summed over heads unless one is given."""
        if not self.reads_input(name):
            return None
        units = self.target.units
        if all(self.views.records[layer][-1].gradient is None for layer in self.names):
            return torch.zeros(units.count)
        products = gradient_times_attention(self.views).get(name)
        if products is None:
            return torch.zeros(units.count)
        return units.pool((products[0].sum(0) if head is None else products[0][head]).sum(0))


def add_residual(weights: Tensor) -> Tensor:
    """Half of a token itself and half of its weights; rows sum to one, also those of dead queries."""
    mixed = RESIDUAL * torch.eye(len(weights), dtype=weights.dtype) + (1 - RESIDUAL) * weights
    return mixed / mixed.sum(-1, keepdim=True)


def select_head(cells: Tensor, head: int | None) -> Tensor:
    """One head of cells `[heads, …]`, or the mean over heads."""
    return cells.mean(0) if head is None else cells[head]


def run_pass(target: AttributionTarget) -> AttributionPass:
    """A watched forward and backward pass. Parameters get no gradient."""
    target.check_memory()
    with torch.enable_grad(), watch(target.model, weights=True) as views, capture_outputs(target.model) as outputs:
        score = target.score(target.predict(target.inputs, target.positions(1)))[0]
        gradients = torch.autograd.grad(score, list(outputs.values()), allow_unused=True)
    for name, gradient in zip(outputs, gradients, strict=True):
        views.records[name][-1].gradient = gradient
    queries = [views[name].queries for name in views if target.sides(name)[0] == "target"]
    decoder_readout = None
    if queries:
        uniform = torch.full((queries[-1],), 1 / queries[-1])
        decoder_readout = uniform if target.position is None else one_hot_row(target.position, queries[-1])
    return AttributionPass(views, target, input_readout(target, views, decoder_readout), decoder_readout)


@contextmanager
def capture_outputs(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """While open, stores the output of each attention's last call, as a tensor that requires a gradient."""
    outputs: dict[str, Tensor] = {}

    def recorder(name: str) -> Callable[..., None]:
        def hook(attend: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            outputs[name] = output if output.requires_grad else output.requires_grad_()

        return hook

    attends = find_attentions(model)
    handles = [attend.register_forward_hook(recorder(name), prepend=True) for name, attend in attends.items()]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def input_readout(target: AttributionTarget, views: Views, decoder_readout: Tensor | None) -> Tensor:
    """How much the prediction depends on each token of the input, `[tokens]`.

    The position that is explained, the pooled token, or all alike; of a decoder, its mean cross-attention.
    """
    uniform = torch.full((target.tokens,), 1 / target.tokens)
    if decoder_readout is not None:
        cross = [name for name in views if target.sides(name) == ("target", target.side)]
        rows = [decoder_readout @ weights_of(views, name)[0].mean(0).float() for name in cross]
        return torch.stack(rows).mean(0) if rows else uniform
    if target.position is not None:
        return one_hot_row(target.position, target.tokens)
    if isinstance(target.model, DualEncoderModel):
        return tower_readout(target, target.model)
    head = target.model.head if isinstance(target.model, SequenceModel) else None
    pool = head.config.pool if isinstance(head, ClassificationHead) and target.prediction_type != "vector" else "mean"
    if pool == "mean":
        return uniform
    if pool == "attention":
        return weights_of(views, list(views)[-1])[0].mean(0)[0].float()
    return one_hot_row(target.tokens - 1 if pool == "last" else 0, target.tokens)


def tower_readout(target: AttributionTarget, model: DualEncoderModel) -> Tensor:
    """The token that a tower of a dual encoder pools."""
    tower = model.image if target.side == "image" else model.text
    assert tower is not None
    if tower.end == "mean":
        return torch.full((target.tokens,), 1 / target.tokens)
    if tower.end is None:
        return one_hot_row(0, target.tokens)
    end = find_end(target.inputs[target.input_name], target.inputs.get("lengths"), tower.end)
    return one_hot_row(int(end[0]), target.tokens)


def one_hot_row(position: int, tokens: int) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(position), tokens).float()


def rank_correlations(
    attributions: dict[str, Tensor | None], signed: bool = False
) -> dict[str, dict[str, float | None]]:
    """Spearman's rank correlation of each two attributions over the units that both have; by size unless `signed`.

    None where one of the two is.
    """
    correlations: dict[str, dict[str, float | None]] = {}
    for a, x in attributions.items():
        for b, y in attributions.items():
            if x is None or y is None:
                correlations.setdefault(a, {})[b] = None
                continue
            known = ~(x.isnan() | y.isnan())
            pair = [z[known] if signed else z[known].abs() for z in (x.double(), y.double())]
            correlations.setdefault(a, {})[b] = rank_correlation(*pair)
    return correlations


def edit_all_heads(target: AttributionTarget, change: HeadEdit) -> dict[str, dict[int, HeadEdit]]:
    """The same change for all heads."""
    return {name: dict.fromkeys(range(heads), change) for name, heads in target.heads.items()}


@torch.no_grad()
def predict_edited(target: AttributionTarget, changes: Mapping[str, Mapping[int, HeadEdit]], seed: int = 0) -> Tensor:
    """The prediction of the model with changed heads: ln p `[labels]` or the vector `[dim]`."""
    edits = {name: {h: find_edit(change) for h, change in heads.items()} for name, heads in changes.items()}
    with edit(target.model, edits, generator=torch.Generator().manual_seed(seed)):
        return target.predict(target.inputs, target.positions(1))[0]


def find_edit(change: HeadEdit) -> HeadEdit:
    """The change of that name as `regard.edit` takes it."""
    if isinstance(change, str) and change not in CHANGES:
        raise BadInput(f"The change is {change!r}; it must be one of {', '.join(CHANGES)}.")
    return mean_row if change == "mean" else change


def mean_row(weights: Tensor) -> Tensor:
    """Every query's weights as the mean over queries, so that the head's output is the same everywhere.

    Where no query attends to a later key, the mean over the queries so far.

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


def compare_prediction(target: AttributionTarget, after: Tensor) -> PredictionChange:
    """The score of another prediction, and its distance from the model's own.

    `distance` is ½ Σ |p − p'| over all labels (0 equal, 1 disjoint), of vectors 1 − their cosine, of numbers their
    difference.
    """
    score = float(target.score(after[None])[0])
    change = score - target.initial_score
    if target.prediction_type == "number":
        return {"score": score, "change": change, "distance": abs(change)}
    if target.label is None:
        cosine = float(torch.cosine_similarity(after, target.prediction, dim=0))
        return {"score": score, "change": change, "cosine": cosine, "distance": 1 - cosine}
    top = int(after.argmax())
    return {
        "score": score,
        "change": change,
        "probability": math.exp(score),
        "top": top,
        "top_probability": float(after[top].exp()),
        "distance": float((after.exp() - target.prediction.exp()).abs().sum() / 2),
    }


def head_effects(
    target: AttributionTarget, change: str, seed: int = 0, progress: Progress = lambda done, total: None
) -> Tensor:
    """The change of the score when one head alone is changed, `[attentions, heads]`; NaN where there is no head."""
    heads = target.heads
    effects = torch.full((len(heads), max(heads.values())), math.nan)
    done, total = 0, sum(heads.values())
    for n, (name, count) in enumerate(heads.items()):
        for head in range(count):
            progress(done, total)
            after = predict_edited(target, {name: {head: change}}, seed)
            effects[n, head] = compare_prediction(target, after)["change"]
            done += 1
    return effects
