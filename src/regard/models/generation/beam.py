"""Beam search: several texts of each row are continued at once, and the best finished one is returned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .decoder import Decoder
from .rules import TokenRules
from .sampling import GenerationConfig


@dataclass
class Beams:
    """Texts of each row: `tokens [batch, beams, max_new]`, their scores `[batch, beams]`, best first.

    Of running texts the score is Σ log p; of finished ones that over (new tokens)^penalty, −∞ where there is none yet.
    """

    tokens: Tensor
    scores: Tensor
    lengths: Tensor

    def select(self, index: Tensor) -> Beams:
        """Those texts of each row, `[batch, chosen]`."""
        return Beams(
            self.tokens.take_along_dim(index[..., None], 1),
            self.scores.take_along_dim(index, 1),
            self.lengths.take_along_dim(index, 1),
        )

    def best(self, beams: int) -> Beams:
        return self.select(self.scores.topk(beams).indices)

    def concat(self, other: Beams) -> Beams:
        return Beams(
            torch.cat([self.tokens, other.tokens], 1),
            torch.cat([self.scores, other.scores], 1),
            torch.cat([self.lengths, other.lengths], 1),
        )


@dataclass(frozen=True)
class BeamStep:
    """One step of a search: `grown` are the continuations that competed, best first.

    `parents` are the running texts that they continue, `ended` marks those that end, `chosen` are those that run on
    (texts of score −∞ are empty), each `[batch, …]`; `finished` are the best finished texts after the step.
    """

    new: int
    grown: Beams
    parents: Tensor
    ended: Tensor
    chosen: Tensor
    finished: Beams


def beam_search(
    decoder: Decoder,
    prompt: Tensor,
    lengths: Tensor | None,
    rules: TokenRules,
    config: GenerationConfig,
    follow: Callable[[BeamStep], None] | None = None,
) -> Beams:
    """The finished texts of each row, best first; `follow` is called with every step.

    At each step all continuations of a row's running texts compete. Of the best `beams` those that end are finished;
    the best `beams` that do not end run on. A row is closed when it has `beams` finished texts and (unless `early`) the
    best running one, ending now, would not be among them.
    """
    logits = decoder.begin(prompt, lengths)
    batch, beams = prompt.shape[0], config.beams
    tokens = torch.full((batch, beams, config.max_new), rules.fill_token, device=prompt.device)
    scores = torch.full((batch, beams), -torch.inf, device=prompt.device)
    running = Beams(tokens, scores, torch.zeros(batch, beams, dtype=torch.long, device=prompt.device))
    finished = running.select(torch.arange(beams, device=prompt.device).expand(batch, -1))
    running.scores[:, 0] = 0.0
    closed = torch.zeros(batch, 1, dtype=torch.bool, device=prompt.device)
    decoder.select(torch.arange(batch, device=prompt.device).repeat_interleave(beams))
    logits = logits.repeat_interleave(beams, 0)
    for new in range(config.max_new):
        grown, parents = expand(running, logits, rules, config, new)
        ended = (
            rules.ends(grown.tokens[:, :, new])
            if new + 1 < config.max_new
            else torch.ones_like(parents, dtype=torch.bool)
        )
        length = (new + 1) ** config.length_penalty
        finished = merge_finished(finished, grown, ended, closed, beams, length)
        unended = Beams(grown.tokens, grown.scores.masked_fill(ended, -torch.inf), grown.lengths)
        chosen = unended.scores.topk(beams).indices
        if follow is not None:
            follow(BeamStep(new, grown, parents, ended, chosen, finished))
        running, parents = unended.select(chosen), parents.take_along_dim(chosen, 1)
        closed = closed | is_closed(running, finished, length, config.early)
        if new + 1 == config.max_new or bool(closed.all()):
            break
        reorder(decoder, parents)
        logits = decoder.next(running.tokens[:, :, new].flatten())
    return finished


def expand(
    running: Beams, logits: Tensor, rules: TokenRules, config: GenerationConfig, new: int
) -> tuple[Beams, Tensor]:
    """The best continuations, enough for `beams` of them not to end, and which text each continues."""
    log_probabilities = rules.apply(logits.float().log_softmax(-1), new, config.min_new, config.max_new)
    batch, beams = running.scores.shape
    every = (running.scores[..., None] + log_probabilities.unflatten(0, (batch, beams))).flatten(1)
    scores, index = every.topk(min(beams * (1 + max(len(rules.end), 1)), every.shape[1]))
    parents, tokens = index // log_probabilities.shape[1], index % log_probabilities.shape[1]
    grown = running.select(parents)
    grown.tokens[:, :, new] = tokens
    return Beams(grown.tokens, scores, grown.lengths + 1), parents


def merge_finished(finished: Beams, grown: Beams, ended: Tensor, closed: Tensor, beams: int, length: float) -> Beams:
    """The best finished texts, including those of the best `beams` continuations that end."""
    first = torch.arange(grown.scores.shape[1], device=ended.device) < beams
    scores = (grown.scores / length).masked_fill(~(ended & first) | closed, -torch.inf)
    return finished.concat(Beams(grown.tokens, scores, grown.lengths)).best(beams)


def is_closed(running: Beams, finished: Beams, length: float, early: bool) -> Tensor:
    """Whether the search of a row is over, `[batch, 1]`."""
    worst = finished.scores[:, -1:]
    full = worst > -torch.inf
    return full if early else full & (running.scores[:, :1] / length <= worst)


def reorder(decoder: Decoder, parents: Tensor) -> None:
    """Let the decoder continue with the texts that were chosen."""
    batch, beams = parents.shape
    same = torch.arange(beams, device=parents.device)
    if not bool((parents == same).all()):
        decoder.select((parents + torch.arange(batch, device=parents.device)[:, None] * beams).flatten())
