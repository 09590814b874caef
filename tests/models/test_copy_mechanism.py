"""Copying: the votes by hand, their gradients, the same text with and without a cache, and what it is for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import regard as rg
from regard.models.config import EncoderDecoderConfig
from regard.models.copy_mechanism import CopyMechanism, add_copy_logits
from regard.models.families.transformer import transformer
from regard.models.generation.generate import generate_tokens

WORDS = 13


def small(**changes) -> EncoderDecoderConfig:
    from dataclasses import replace

    config = transformer(layers=1, dim=16, heads=2, vocabulary=WORDS, padding=0, start=1, dropout=0.0)
    return replace(config, copy=True, **changes)


def make_inputs() -> dict[str, torch.Tensor]:
    tokens = torch.tensor([[5, 7, 5, 3, 7], [4, 4, 0, 0, 0], [2, 9, 11, 0, 0]])
    return {"tokens": tokens, "lengths": torch.tensor([5, 2, 3])}


def by_hand(logits: torch.Tensor, scores: torch.Tensor, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    rows = []
    for b in range(len(tokens)):
        chances = logits[b].exp()
        for i in range(int(lengths[b])):
            one = torch.nn.functional.one_hot(tokens[b, i], WORDS).to(logits)
            chances = chances + scores[b, :, i, None].exp() * one
        rows.append(chances.log())
    return torch.stack(rows)


def test_every_word_of_the_source_votes_for_itself() -> None:
    torch.manual_seed(0)
    copying = CopyMechanism(8).double()
    copying.scores = lambda hidden, encoded: scores  # type: ignore[method-assign]
    read = make_inputs()
    logits = torch.randn(3, 4, WORDS, dtype=torch.float64, requires_grad=True)
    scores = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    actual = add_copy_logits(logits, *copying.copy_logits(logits, logits, read["lengths"], read["tokens"]))
    wanted = by_hand(logits, scores, **read)
    torch.testing.assert_close(actual, wanted)
    above = torch.randn_like(wanted)
    ours = torch.autograd.grad(actual, (logits, scores), above)
    theirs = torch.autograd.grad(wanted, (logits, scores), above)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_places_know_the_one_before() -> None:
    torch.manual_seed(0)
    copying, hidden, encoded = CopyMechanism(8), torch.randn(1, 2, 8), torch.randn(1, 3, 8)
    keys = encoded[0] @ copying.key.weight.T
    keys[1:] += encoded[0, :-1] @ copying.before.weight.T
    wanted = copying.query(hidden[0]) @ keys.T / 8**0.5
    torch.testing.assert_close(copying.scores(hidden, encoded)[0], wanted)


def test_an_empty_source_votes_for_nothing() -> None:
    torch.manual_seed(0)
    logits, tokens = torch.randn(1, 2, WORDS), torch.tensor([[3, 4]])
    hidden = torch.randn(1, 2, 8, requires_grad=True)
    actual = add_copy_logits(logits, *CopyMechanism(8).copy_logits(hidden, hidden, torch.tensor([0]), tokens))
    torch.testing.assert_close(actual, logits)
    actual.sum().backward()
    assert hidden.grad is not None and bool(hidden.grad.isfinite().all())


@pytest.mark.parametrize("beams", [1, 3])
def test_a_cache_changes_nothing(beams: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = small().build().eval()
    with torch.no_grad():
        model.copying.query.weight.mul_(4.0)
    how = {**make_inputs(), "beams": beams, "max_new": 6, "end": 2}
    kept, anew = (generate_tokens(model, **how, cache=cache) for cache in (True, False))
    assert torch.equal(kept.tokens, anew.tokens)
    model.save(tmp_path)
    assert torch.equal(rg.load(tmp_path).generate(**how), kept.tokens)


def test_wanted_targets_have_the_logits_of_all() -> None:
    torch.manual_seed(0)
    model = small().build().eval()
    targets = torch.randint(1, WORDS, (3, 4))
    every = model(**make_inputs(), targets=targets).logits
    wanted = torch.rand(3, 4) < 0.5
    torch.testing.assert_close(model(**make_inputs(), targets=targets, wanted=wanted).logits, every[wanted])
    numbers = wanted.flatten().nonzero().squeeze(1)
    torch.testing.assert_close(model(**make_inputs(), targets=targets, wanted=numbers).logits, every[wanted])


def test_copying_is_learned_for_words_never_said() -> None:
    """Say the words after the mark: half the words are never among the answers while it learns."""
    from dataclasses import replace

    words, draw = 60, torch.Generator().manual_seed(0)

    def draw_examples(low: int, high: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.randint(low, high, (rows, 8), generator=draw)
        mark = torch.randint(1, 5, (rows,), generator=draw)
        tokens[torch.arange(rows), mark] = 3
        return tokens, tokens.gather(1, mark[:, None] + torch.arange(1, 4))

    right = {}
    for copies in (False, True):
        torch.manual_seed(0)
        config = transformer(
            layers=1, dim=32, heads=2, vocabulary=words, padding=0, start=1, dropout=0.0, pre_norm=True
        )
        model = replace(config, copy=copies).build()
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(150):
            tokens, labels = draw_examples(4, 30, 64)
            loss = model(tokens=tokens, labels=labels).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        tokens, labels = draw_examples(30, words, 200)
        generated = model.generate(tokens=tokens, max_new=3)[:, 1:]
        right[copies] = float((generated == labels).float().mean())
    assert right[True] > 0.4 > 0.05 > right[False], right


@pytest.mark.parametrize("changes", [{"head": None}, {"decoder_embed": transformer(vocabulary=9, dim=16).embed}])
def test_what_has_no_common_words_is_refused(changes) -> None:
    with pytest.raises(rg.BadInput, match="one vocabulary"):
        small(**changes).build()
