"""Beam search step by step: every candidate of every step, and whether it runs on, ends or is dropped."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

import torch
from torch import Tensor

from ...errors import BadInput
from ...models.generation.beam import Beams, BeamStep, beam_search
from ...models.generation.generate import Decoding, evaluation_mode, prepare_decoding
from ...models.generation.rules import TokenRules
from ...models.model import Model
from ..server.jobs import Job

MAX_BEAMS = 8


class Candidate(TypedDict):
    """A token that a beam may continue with: `score` is Σ ln p, `log_prob` ln p of the token alone."""

    token: int
    parent: int
    score: float
    log_prob: float
    status: Literal["runs", "ends", "dropped"]
    slot: NotRequired[int]


class Hypothesis(TypedDict):
    """A finished text; `ended` is False where it was cut at the most tokens."""

    tokens: list[int]
    score: float
    ended: bool


class SearchTrace(TypedDict):
    """A beam search: the tokens that it starts with, the candidates of each step, and the hypotheses, best first."""

    start: list[int]
    steps: list[list[Candidate]]
    finished: list[Hypothesis]


@torch.no_grad()
def trace_search(
    model: Model,
    inputs: dict[str, Tensor],
    *,
    beams: int,
    length_penalty: float,
    max_new: int,
    job: Job,
    rules: TokenRules | None = None,
) -> SearchTrace:
    """The beam search for one input, step by step; `rules` replace the model's own start, end and padding tokens.

    `steps[t]` lists the candidates for token t, best first: `token`, `parent` (the beam after step t − 1 that it
    continues), `score` (Σ ln p), `log_prob` (ln p of the token alone), and `status`: "runs" (with its `slot` among the
    beams), "ends", or "dropped". `finished` are the hypotheses, best first by score / tokens^length_penalty, each with
    its `tokens`.
    """
    if not 1 <= beams <= MAX_BEAMS:
        raise BadInput(f"{beams} beams were requested; it must be 1 to {MAX_BEAMS}.")
    ends = {} if rules is None else {"start": rules.start, "end": rules.end, "pad": rules.fill_token}
    decoding = prepare_decoding(
        model, **inputs, max_new=max_new, beams=beams, length_penalty=length_penalty, early=beams == 1, **ends
    )  # a single beam that has ended is the result
    running = [0.0]
    steps: list[list[Candidate]] = []

    def record_step(step: BeamStep) -> None:
        nonlocal running
        job.report(step.new + 1, max_new)
        steps.append(list_candidates(step, running, beams))
        running = step.grown.select(step.chosen).scores[0].tolist()

    with evaluation_mode(model):
        hypotheses = beam_search(
            decoding.decoder, decoding.prompt, decoding.lengths, decoding.rules, decoding.config, record_step
        )
    finished = list_hypotheses(hypotheses, decoding)
    return {"start": decoding.prompt[0].tolist(), "steps": steps, "finished": finished}


def list_candidates(step: BeamStep, running: list[float], beams: int) -> list[Candidate]:
    """The candidates of one step and the status of each."""
    slots = {int(place): slot for slot, place in enumerate(step.chosen[0])}
    columns = (step.grown.tokens[0, :, step.new], step.parents[0], step.grown.scores[0], step.ended[0])
    listed: list[Candidate] = []
    for place, (token, parent, score, ended) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        if score == -torch.inf:
            continue
        status = ("ends" if place < beams else "dropped") if ended else "runs" if place in slots else "dropped"
        candidate: Candidate = {
            "token": token,
            "parent": parent,
            "score": score,
            "log_prob": score - running[parent],
            "status": status,
        }
        if status == "runs":
            candidate["slot"] = slots[place]
        listed.append(candidate)
    return listed


def list_hypotheses(beams: Beams, decoding: Decoding) -> list[Hypothesis]:
    """The finished hypotheses, best first."""
    return [
        {"tokens": tokens[:length], "score": score, "ended": tokens[length - 1] in decoding.rules.end}
        for tokens, length, score in zip(
            beams.tokens[0].tolist(), beams.lengths[0].tolist(), beams.scores[0].tolist(), strict=True
        )
        if score > -torch.inf
    ]
