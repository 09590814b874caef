"""Ablation: the model runs again without each unit of its input, and the change of the score is measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from ...attention.parts.masks import Pairs
from ...errors import BadInput
from ...models.model import Model
from ...nn.attention import intersect
from ...nn.hooks.attentions import find_attentions, read_call
from .target import AttributionTarget

MAX_TOKENS = 4096
"""Tokens of a batch of ablated inputs."""

Ablation = Literal["replace", "delete", "hide", "blank", "quiet", "drop"]
Progress = Callable[[int, int], None]


def ablation_methods(target: AttributionTarget) -> list[Ablation]:
    """The ablations that are possible, the default first: a token whose own tag is explained should stay in place."""
    if target.input_name == "images":
        return ["blank", "hide"]
    if target.input_name == "sound":
        return ["quiet", "hide"]
    methods: list[Ablation] = ["delete"] if target.tokens > 1 else []
    if fill_token(target) is not None:
        methods.insert(0 if target.prediction_type in ("tag", "word") else 1, "replace")
    return [*methods, "hide"]


def ablate(target: AttributionTarget, method: Ablation, progress: Progress = lambda done, total: None) -> Tensor:
    """score − score without each unit, `[units]`; NaN where the unit cannot be ablated.

    `replace` puts the vocabulary's mask (or unknown) token there, `delete` removes the token and shifts the others,
    `blank` sets pixels to the mean of all images, `quiet` sets frames to the quietest one; `hide` keeps the unit and
    masks it in every head.
    """
    methods = ablation_methods(target)
    if method not in methods:
        raise BadInput(f"The ablation is {method!r}; here it must be {' or '.join(methods)}.")
    count = target.units.count
    scores, step = [], max(1, MAX_TOKENS // target.tokens)
    for begin in range(0, count, step):
        progress(begin, count)
        scores.append(ablated_scores(target, torch.arange(begin, min(begin + step, count)), method))
    effect = target.initial_score - torch.cat(scores)
    if method == "delete" and target.prediction_type in ("tag", "word"):
        effect[target.position] = math.nan
    if method == "blank" and target.units.first:
        effect[: target.units.first] = math.nan  # a class token has no pixels
    return effect


@torch.no_grad()
def ablated_scores(target: AttributionTarget, units: Tensor, method: Ablation) -> Tensor:
    """The scores `[rows]` of inputs without one unit each, `units [rows]`."""
    inputs = {name: x.expand(len(units), *x.shape[1:]) for name, x in target.inputs.items()}
    positions = target.positions(len(units))
    if method == "hide":
        with hide_units(target, units):
            return target.score(target.predict(inputs, positions))
    change = {"replace": replace_tokens, "blank": blank_pixels, "quiet": silence_frames}.get(method)
    if change is None:
        return target.score(target.predict(*delete_tokens(target, inputs, units, positions)))
    changed = {target.input_name: change(target, inputs[target.input_name], units)}
    return target.score(target.predict(inputs | changed, positions))


def replace_tokens(target: AttributionTarget, tokens: Tensor, units: Tensor) -> Tensor:
    tokens, fill = tokens.clone(), fill_token(target)
    assert fill is not None
    tokens[torch.arange(len(units)), units] = fill
    return tokens


def blank_pixels(target: AttributionTarget, images: Tensor, removed: Tensor) -> Tensor:
    """The images, each without the pixels of one block of cells: zero is the mean of normalized images."""
    images, units = images.clone(), target.units
    for row, unit in enumerate(removed.tolist()):
        for cell in (units.of[units.first :] == unit).nonzero().flatten().tolist():
            top, left = cell // units.columns * units.cell[0], cell % units.columns * units.cell[1]
            images[row, :, top : top + units.cell[0], left : left + units.cell[1]] = 0.0
    return images


def silence_frames(target: AttributionTarget, sound: Tensor, removed: Tensor) -> Tensor:
    """The recordings, each with the frames of one stretch of time replaced by its quietest frame."""
    sound, units = sound.clone(), target.units
    of = units.of.repeat_interleave(units.frames)[: sound.shape[1]]
    for row, unit in enumerate(removed.tolist()):
        sound[row, : len(of)][of == unit] = sound[row, units.quietest].clone()
    return sound


def delete_tokens(
    target: AttributionTarget, inputs: dict[str, Tensor], units: Tensor, positions: Tensor | None
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Inputs with one token fewer, and the positions that are explained in them."""
    keep = torch.arange(target.tokens - 1) + (torch.arange(target.tokens - 1) >= units[:, None])  # [rows, tokens − 1]
    rows = torch.arange(len(units))[:, None]
    per_token = {target.input_name, "segments", "global_tokens"}
    inputs = {name: x[rows, keep] if name in per_token else x for name, x in inputs.items()}
    if "lengths" in inputs:
        inputs["lengths"] = inputs["lengths"] - 1
    if positions is not None and not target.decodes:
        before = units <= positions if target.prediction_type == "next" else units < positions
        positions = (positions - before.long()).clamp(0, target.tokens - 2)
    return inputs, positions


@contextmanager
def hide_units(target: AttributionTarget, units: Tensor) -> Iterator[None]:
    """While open, each row's unit is masked in every attention to the input."""
    visible = Pairs((target.units.of != units[:, None])[:, None, None])  # [rows, 1, 1, keys]

    def add_mask(
        attend: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[Tensor, ...], dict[str, object]]:
        call = read_call(args, kwargs)
        if call.k.shape[2] == target.tokens:
            kwargs = kwargs | {"mask": intersect(call.parts.mask, visible)}
        return args, kwargs

    handles = [
        attend.register_forward_pre_hook(add_mask, with_kwargs=True)
        for name, attend in find_attentions(target.model).items()
        if target.sides(name)[1] == target.side
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def fill_token(target: AttributionTarget) -> Tensor | None:
    """The token that replaces others: mask or unknown; for words with features, an unknown word without any."""
    tokens = target.inputs[target.input_name]
    if tokens.is_floating_point():
        return None
    if tokens.dim() == 3:
        fill = torch.zeros_like(tokens[0, 0])
        fill[0] = 1
        return fill
    tokenizer = target.model.tokenizer if isinstance(target.model, Model) else None
    ids = () if tokenizer is None else (tokenizer.mask, tokenizer.unknown)
    return next((torch.tensor(number) for number in ids if number is not None), None)
