"""What an answer is without each unit of its input: the model is really run without it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...attention.parts.masks import Pairs
from ...errors import BadInput
from ...nn.attention import intersect
from ...nn.hooks.attentions import call_arguments, find_attentions
from .target import Asked

ROWS = 4096
"""Tokens computed at once while removing."""

Removal = Literal["replace", "delete", "hide", "blank", "quiet", "drop"]
Tell = Callable[[int, int], None]


def ways_to_remove(asked: Asked) -> list[Removal]:
    """The removals that are possible, the usual one first: where a token itself is asked about, it should stay."""
    if asked.reads == "images":
        return ["blank", "hide"]
    if asked.reads == "sound":
        return ["quiet", "hide"]
    ways: list[Removal] = ["delete"] if asked.tokens > 1 else []
    if filling(asked) is not None:
        ways.insert(0 if asked.kind in ("tag", "word") else 1, "replace")
    return [*ways, "hide"]


def removed(asked: Asked, how: Removal, tell: Tell = lambda done, of: None) -> Tensor:
    """score − score without each unit, `[units]`; not a number for the one asked about where it would be gone.

    `replace` puts the vocabulary's mask (or unknown) token there, `delete` leaves the token out and the others move up,
    `blank` makes pixels as bright as the mean of all pictures, `quiet` frames as quiet as the quietest; `hide` keeps
    the unit and lets no head look at it.
    """
    if how not in ways_to_remove(asked):
        raise BadInput(f"The ablation is {how!r}; here it must be {' or '.join(ways_to_remove(asked))}.")
    count = asked.units.count
    scores, step = [], max(1, ROWS // asked.tokens)
    for begin in range(0, count, step):
        tell(begin, count)
        scores.append(scored(asked, torch.arange(begin, min(begin + step, count)), how))
    effect = asked.now() - torch.cat(scores)
    if how == "delete" and asked.kind in ("tag", "word"):
        effect[asked.place] = math.nan
    if how == "blank" and asked.units.first:
        effect[: asked.units.first] = math.nan  # a class token has no pixels
    return effect


@torch.no_grad()
def scored(asked: Asked, gone: Tensor, how: Removal) -> Tensor:
    """The scores of inputs `[rows]`, each of which lacks one unit, `gone [rows]`."""
    inputs = {name: x.expand(len(gone), *x.shape[1:]) for name, x in asked.inputs.items()}
    places = asked.places(len(gone))
    if how == "hide":
        with hiding(asked, gone):
            return asked.score(asked.answers(inputs, places))
    changed = {"replace": replaced, "blank": blanked, "quiet": quieted}.get(how)
    if changed is not None:
        return asked.score(asked.answers(inputs | {asked.reads: changed(asked, inputs[asked.reads], gone)}, places))
    return asked.score(asked.answers(*deleted(asked, inputs, gone, places)))


def replaced(asked: Asked, tokens: Tensor, gone: Tensor) -> Tensor:
    tokens = tokens.clone()
    tokens[torch.arange(len(gone)), gone] = filling(asked)  # type: ignore[assignment]
    return tokens


def blanked(asked: Asked, images: Tensor, gone: Tensor) -> Tensor:
    """The pictures, each without the pixels of one block of cells: zero is the mean that pictures are read with."""
    images, units = images.clone(), asked.units
    for row, unit in enumerate(gone.tolist()):
        for cell in (units.of[units.first :] == unit).nonzero().flatten().tolist():
            top, left = cell // units.columns * units.cell[0], cell % units.columns * units.cell[1]
            images[row, :, top : top + units.cell[0], left : left + units.cell[1]] = 0.0
    return images


def quieted(asked: Asked, sound: Tensor, gone: Tensor) -> Tensor:
    """The recordings, each with the frames of one stretch of time made as its quietest frame is."""
    sound, units = sound.clone(), asked.units
    of = units.of.repeat_interleave(units.frames)[: sound.shape[1]]
    for row, unit in enumerate(gone.tolist()):
        sound[row, : len(of)][of == unit] = sound[row, units.quietest].clone()
    return sound


def deleted(
    asked: Asked, inputs: dict[str, Any], gone: Tensor, places: Tensor | None
) -> tuple[dict[str, Any], Tensor | None]:
    """Inputs with one token fewer, and where in them the place is that is asked about."""
    keep = torch.arange(asked.tokens - 1) + (torch.arange(asked.tokens - 1) >= gone[:, None])  # [rows, tokens − 1]
    rows = torch.arange(len(gone))[:, None]
    beside = {asked.reads, "segments", "global_tokens"}
    inputs = {name: x[rows, keep] if name in beside else x for name, x in inputs.items()}
    if "lengths" in inputs:
        inputs["lengths"] = inputs["lengths"] - 1
    if places is not None and not asked.decodes:
        before = gone <= places if asked.kind == "next" else gone < places
        places = (places - before.long()).clamp(0, asked.tokens - 2)
    return inputs, places


@contextmanager
def hiding(asked: Asked, gone: Tensor) -> Iterator[None]:
    """While open, no head that looks at the input looks at the unit that each row of the batch lacks."""
    seen = Pairs((asked.units.of != gone[:, None])[:, None, None])  # [rows, 1, 1, keys]

    def hide(attend: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        q, k, v, parts = call_arguments(*args, **kwargs)
        return (q, k, v), parts | ({"mask": intersect(parts.get("mask"), seen)} if k.shape[2] == asked.tokens else {})

    found = [one for name, one in find_attentions(asked.model).items() if asked.sides(name)[1] == asked.side]
    handles = [one.register_forward_pre_hook(hide, with_kwargs=True) for one in found]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def filling(asked: Asked) -> Tensor | None:
    """What stands for a token that is not told: mask or unknown; of a word with letters, an unknown one without any."""
    tokens, tokenizer = asked.inputs[asked.reads], getattr(asked.model, "tokenizer", None)
    if tokens.is_floating_point():
        return None
    if tokens.dim() == 3:
        fill = torch.zeros_like(tokens[0, 0])
        fill[0] = 1
        return fill
    numbers = () if tokenizer is None else (tokenizer.mask, tokenizer.unknown)
    return next((torch.tensor(number) for number in numbers if number is not None), None)
