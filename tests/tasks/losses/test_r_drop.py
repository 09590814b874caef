"""The loss of asking twice: its formula, and the kernel beside it."""

from __future__ import annotations

import os

import pytest
import torch
from torch.nn import functional

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

pytest.importorskip("triton")

from regard.tasks.losses import r_drop
from regard.tasks.losses.r_drop import FusedRDrop, r_drop_loss, r_drop_reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def draw_logits(labels: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(labels * classes)
    logits = 2 * torch.randn(2 * labels, classes, dtype=torch.float64, device=DEVICE)
    return logits, torch.randint(classes, (labels,), device=DEVICE)


def test_the_formula_by_torchs_own_divergence() -> None:
    logits, labels = draw_logits(7, 11)
    p, q = logits.log_softmax(-1).chunk(2)
    right = sum(functional.nll_loss(one, labels, reduction="sum") for one in (p, q)) / 2
    even = sum(-one.mean(-1).sum() for one in (p, q)) / 2
    apart = sum(functional.kl_div(b, a, log_target=True, reduction="sum") for a, b in ((p, q), (q, p)))
    torch.testing.assert_close(r_drop_reference(logits, labels, 0.2, 3.0), 0.8 * right + 0.2 * even + 3.0 / 4 * apart)


@pytest.mark.parametrize(("labels", "classes"), [(1, 2), (5, 53), (3, 128)])
@pytest.mark.parametrize(("smoothing", "weight"), [(0.0, 1.0), (0.1, 5.0)])
def test_the_kernel_is_the_formula(labels: int, classes: int, smoothing: float, weight: float) -> None:
    """Loss and gradient beside float64, under a factor as training has one."""
    exact, gold = draw_logits(labels, classes)
    single = exact.float().requires_grad_()
    exact.requires_grad_()
    want, found = (
        r_drop_reference(exact, gold, smoothing, weight) / 7,
        FusedRDrop.apply(single, gold, smoothing, weight) / 7,
    )
    torch.testing.assert_close(found.double(), want, rtol=1e-5, atol=1e-5)
    want.backward()
    found.backward()
    torch.testing.assert_close(single.grad.double(), exact.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("way", [r_drop_reference, lambda *given: FusedRDrop.apply(*given)], ids=["formula", "kernel"])
def test_labels_that_do_not_count_change_nothing(way) -> None:
    """Loss and gradient are those of the other labels alone."""
    logits, labels = draw_logits(6, 13)
    some = torch.tensor([0, 2, 3, 5], device=DEVICE)
    both = torch.cat([some, some + 6])
    every, few = logits.float().requires_grad_(), logits[both].float().requires_grad_()
    hidden = torch.full_like(labels, -100).index_copy(0, some, labels[some])
    found, want = way(every, hidden, 0.1, 3.0), way(few, labels[some], 0.1, 3.0)
    torch.testing.assert_close(found, want)
    found.backward()
    want.backward()
    torch.testing.assert_close(every.grad, torch.zeros_like(every).index_copy(0, both, few.grad))


def test_too_many_classes_go_without_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = draw_logits(3, 20)
    monkeypatch.setattr(r_drop, "WIDEST", 10)
    logits = logits.float()
    torch.testing.assert_close(r_drop_loss(logits, labels, 0.1, 2.0), r_drop_reference(logits, labels, 0.1, 2.0))


@pytest.mark.gpu
def test_on_a_gpu_at_a_vocabularys_size() -> None:
    logits, labels = draw_logits(300, 9876)
    for dtype, close in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
        rough = logits.detach().to(dtype).requires_grad_()
        exact = rough.detach().double().requires_grad_()
        want, found = r_drop_reference(exact, labels, 0.1, 5.0), r_drop_loss(rough, labels, 0.1, 5.0)
        torch.testing.assert_close(found.double(), want, rtol=1e-4, atol=0.0)
        want.backward()
        found.backward()
        assert (rough.grad.double() - exact.grad).norm() <= close * exact.grad.norm()
