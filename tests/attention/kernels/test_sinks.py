"""The sink's gradient beside torch's kernels, as a kernel of ours sums it."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

pytest.importorskip("triton")

from regard.attention.backends import sinks as formula
from regard.attention.call import LoweredCall
from regard.attention.kernels import sinks
from regard.attention.parts.masks import Everything

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("layout", ["by head", "by token"])
@pytest.mark.parametrize("dim", [8, 24])
def test_the_gradient_is_that_of_the_formula(dim: int, layout: str) -> None:
    g = torch.Generator().manual_seed(0)
    output, grad = (torch.randn(2, 3, 197, dim, generator=g).to(DEVICE) for _ in range(2))
    lse, logits = torch.randn(2, 3, 197, generator=g).to(DEVICE), torch.randn(3, generator=g).to(DEVICE)
    lse[0, 1, 100] = -torch.inf
    grad = grad.half() if layout == "by head" else grad.half().transpose(1, 2).contiguous().transpose(1, 2)
    q = grad.new_empty(2, 3, 197, dim)
    p = LoweredCall(q, q, q, Everything(), sink=logits)
    expected = formula.sink_gradient(p, grad.double(), output.double(), lse.double())
    got, rounded = sinks.sink_gradient(p, grad, output, lse)
    again, _ = sinks.sink_gradient(p, grad, output, lse)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-4)
    assert torch.equal(rounded, output.half()) and torch.equal(got, again)
