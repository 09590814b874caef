"""Cross-entropy against torch's, values and gradients; in its kernels where Triton can run them."""

import pytest
import torch
from torch.nn import functional

from regard.nn.cross_entropy import IGNORED, cross_entropy, runs_fused

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = [(1, 1), (5, 7), (13, 101), (3, 8191), (2, 8193)]


@pytest.fixture(autouse=True)
def in_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU the kernels run in Triton's interpreter, where tests have it, and only here."""
    monkeypatch.setattr("regard.nn.cross_entropy.interpreting", lambda: False)


def compare(rows: int, words: int, device: str, dtype: torch.dtype, tolerance: float) -> None:
    """Raises unless loss and gradient are those of torch in float64."""
    torch.manual_seed(rows)
    logits = (3 * torch.randn(rows, words, device=device)).to(dtype).requires_grad_()
    labels = torch.randint(words, (rows,), device=device)
    labels[::3] = IGNORED
    actual = cross_entropy(logits, labels)
    (grad,) = torch.autograd.grad(2.5 * actual, logits)
    exact = logits.detach().double().requires_grad_()
    wanted = functional.cross_entropy(exact, labels, ignore_index=IGNORED, reduction="sum")
    (want,) = torch.autograd.grad(2.5 * wanted, exact)
    assert actual.dtype == torch.float32 and grad.dtype == dtype
    torch.testing.assert_close(actual.double(), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grad.double(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rows, words", SIZES)
def test_equals_torch(rows: int, words: int) -> None:
    compare(rows, words, DEVICE, torch.float32, 1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows, words", [*SIZES, (300, 50257)])
def test_kernels_equal_torch(rows: int, words: int, dtype: torch.dtype) -> None:
    assert runs_fused(torch.empty(rows, words, dtype=dtype, device="cuda"))
    compare(rows, words, "cuda", dtype, 1e-5 if dtype == torch.float32 else 1e-2)


def test_columns_beyond_the_words_do_not_count() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(6, 13, device=DEVICE), torch.tensor([0, 4, 10, IGNORED, 2, 7], device=DEVICE)
    more = torch.cat([logits, torch.full((6, 3), torch.nan, device=DEVICE)], 1).requires_grad_()
    actual = cross_entropy(more, labels, 13)
    torch.testing.assert_close(actual, functional.cross_entropy(logits, labels, reduction="sum"))
    (grad,) = torch.autograd.grad(actual, more)
    wanted = torch.autograd.functional.jacobian(lambda x: cross_entropy(x, labels), logits)
    torch.testing.assert_close(grad[:, :13], wanted)
    assert not grad[:, 13:].any()


def test_a_label_beyond_the_vocabulary_makes_no_number() -> None:
    assert cross_entropy(torch.zeros(2, 3, device=DEVICE), torch.tensor([1, 3], device=DEVICE)).isnan()


def test_what_kernels_do_not_read_torch_computes() -> None:
    logits, labels = torch.randn(4, 5, dtype=torch.float64), torch.tensor([0, 4, IGNORED, 2])
    assert not runs_fused(logits)
    wanted = functional.cross_entropy(logits.float(), labels, reduction="sum")
    assert torch.equal(cross_entropy(logits, labels), wanted)


def test_every_row_ignored_is_zero() -> None:
    logits = torch.randn(3, 5, requires_grad=True)
    actual = cross_entropy(logits, torch.full((3,), IGNORED))
    actual.backward()
    assert actual == 0 and not logits.grad.any()  # type: ignore[union-attr]
