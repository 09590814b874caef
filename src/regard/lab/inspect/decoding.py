"""A text followed while a model writes it: every step of the search, every continuation that competed, and what became
of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...errors import BadInput
from ...models.generation.beam import Beams, BeamStep, beam_search
from ...models.generation.generate import Decoding, evaluation_mode, prepare_decoding
from ...models.generation.rules import TokenRules
from ..server.jobs import Job

MOST_BEAMS = 8


@torch.no_grad()
def trace_search(
    model: Any,
    inputs: dict[str, Tensor],
    *,
    beams: int,
    length_penalty: float,
    most: int,
    job: Job,
    rules: TokenRules | None = None,
) -> dict[str, Any]:
    """The search for a text for one input, step by step; `rules` say what it begins and ends with, if not the model's.

    `steps[t]` lists the continuations that competed for token t, best first: `token`, `parent` (which of the texts that
    ran on after step t − 1 it continues), `score` (Σ ln p), `chance` (ln p of the token alone), and `fate`: "runs"
    (with its number `slot` among those that run on), "ends", or "dropped". `finished` are the texts to choose from,
    best first by score / tokens^length_penalty, each with `tokens`.
    """
    if not 1 <= beams <= MOST_BEAMS:
        raise BadInput(f"{beams} beams were requested; it must be 1 to {MOST_BEAMS}.")
    ends = {} if rules is None else {"start": rules.start, "end": rules.end, "pad": rules.fill_token}
    task = prepare_decoding(
        model, **inputs, max_new=most, beams=beams, length_penalty=length_penalty, early=beams == 1, **ends
    )  # a single beam that has ended is the answer
    running = [0.0]
    steps: list[list[dict[str, Any]]] = []

    def follow(step: BeamStep) -> None:
        nonlocal running
        job.report(step.new + 1, most)
        steps.append(competed(step, running, beams))
        running = step.grown.select(step.chosen).scores[0].tolist()

    with evaluation_mode(model):
        found = beam_search(task.decoder, task.prompt, task.lengths, task.rules, task.config, follow)
    return {"start": task.prompt[0].tolist(), "steps": steps, "finished": finished(found, task)}


def competed(step: BeamStep, running: list[float], beams: int) -> list[dict[str, Any]]:
    """The continuations of one step and what became of each."""
    slots = {int(place): slot for slot, place in enumerate(step.chosen[0])}
    columns = (step.grown.tokens[0, :, step.new], step.parents[0], step.grown.scores[0], step.ended[0])
    listed = []
    for place, (token, parent, score, ended) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        if score == -torch.inf:
            continue
        fate = ("ends" if place < beams else "dropped") if ended else "runs" if place in slots else "dropped"
        one = {"token": token, "parent": parent, "score": score, "chance": score - running[parent], "fate": fate}
        listed.append(one | ({"slot": slots[place]} if fate == "runs" else {}))
    return listed


def finished(found: Beams, task: Decoding) -> list[dict[str, Any]]:
    """The texts to choose from, best first."""
    return [
        {"tokens": tokens[:length], "score": score, "ended": tokens[length - 1] in task.rules.end}
        for tokens, length, score in zip(
            found.tokens[0].tolist(), found.lengths[0].tolist(), found.scores[0].tolist(), strict=True
        )
        if score > -torch.inf
    ]
