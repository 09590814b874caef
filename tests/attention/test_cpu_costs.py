"""The choice between torch's fused kernel, products of all pairs and the tiles of a mask, on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import regard as rg
from regard.attention.backends import sdpa


@pytest.mark.parametrize(
    "tokens, parts, backend",
    [
        (4, {}, "sdpa"),
        (64, {}, "dense"),
        (2048, {}, "sdpa"),
        (64, {"mask": rg.Window(8, 8)}, "sdpa"),
        (2048, {"mask": rg.Window(8, 8)}, "blockwise"),
        (128, {"position": rg.Alibi(), "mask": rg.Causal()}, "dense"),
        (2048, {"position": rg.Alibi(), "mask": rg.Causal()}, "blockwise"),
        (1500, {"mask": rg.Lengths(torch.tensor([1400]))}, "sdpa"),
        (1500, {"mask": rg.Lengths(torch.tensor([100]))}, "blockwise"),
        (1500, {"mask": rg.Documents(torch.arange(1500)[None] // 60)}, "blockwise"),
        (200, {"mask": rg.Documents(torch.arange(200)[None] // 60)}, "dense"),
        (12, {"score": rg.Additive(torch.ones(2, 16))}, "dense"),
        (600, {"score": rg.Additive(torch.ones(2, 16))}, "blockwise"),
    ],
)
def test_auto_takes_what_costs_less(tokens: int, parts: dict[str, Any], backend: str) -> None:
    """Tiles where they leave out much of many pairs, all weights for few pairs; the result is the same."""
    q, k, v = torch.randn(3, 1, 2, tokens, 16)
    assert rg.plan(q, k, v, **parts).backend == backend
    expected = rg.attend(q, k, v, **parts, backend="reference")
    torch.testing.assert_close(rg.attend(q, k, v, **parts), expected, atol=1e-5, rtol=1e-5)


def test_few_large_tensors_are_kept() -> None:
    """Calls of many sizes keep no more than a few large tensors, and give the same when theirs was dropped."""
    q, k, v = torch.randn(3, 1, 2, 300, 16)
    outputs = [rg.attend(*(x[:, :, -n:] for x in (q, k, v)), position=rg.Alibi()) for n in range(290, 301)]
    assert len(sdpa.LARGE_TENSORS.values) <= sdpa.LARGE_TENSORS.limit
    again = [rg.attend(*(x[:, :, -n:] for x in (q, k, v)), position=rg.Alibi()) for n in range(290, 301)]
    assert all(torch.equal(x, y) for x, y in zip(outputs, again, strict=True))


def test_a_constant_mask_is_found_by_identity_only_while_it_lives() -> None:
    x = torch.randn(3, 1, 1, 6, 4)
    for width in range(40):  # each mask may get the id of the one before
        mask = rg.Causal() & rg.Window(width % 5)
        expected = rg.attend(*x, mask=mask, backend="reference")
        torch.testing.assert_close(rg.attend(*x, mask=mask), expected)
        torch.testing.assert_close(rg.attend(*x, mask=mask), expected)
        del mask


class Doubled(rg.Dot):
    """A score of a user's own, which lowers to other queries."""

    def similarity(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return super().similarity(2 * q, k)

    def lower(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
        return 2 * q, k, self.factor(q.shape[-1])


def test_dense_asks_a_score_of_a_users_own_how_it_is_lowered() -> None:
    q, k, v = torch.randn(3, 1, 2, 48, 16)
    expected = rg.attend(q, k, v, score=Doubled(), backend="reference")
    for _ in range(2):  # the second call is a warm one
        torch.testing.assert_close(rg.attend(q, k, v, score=Doubled(), backend="dense"), expected)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_every_batch_has_a_new_mask(dropout: float) -> None:
    """A plan for masks of the same shapes holds for each of them, with its dropout."""
    q, k, v = torch.randn(3, 2, 3, 64, 8)
    for lengths in ([64, 5], [64, 5], [7, 64], [0, 9]):
        parts: dict[str, Any] = {"mask": rg.Lengths(torch.tensor(lengths)), "dropout": dropout}
        assert rg.plan(q, k, v, **parts).backend == "dense"
        outputs = [
            rg.attend(q, k, v, **parts, generator=torch.Generator().manual_seed(3), backend=backend)
            for backend in ("auto", "auto", "reference")
        ]
        torch.testing.assert_close(outputs[0], outputs[2])
        assert torch.equal(outputs[0], outputs[1])
