"""Compiled without graph breaks, under autocast, and in every floating type."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor

import regard as rg

from .random_calls import Parity, Reach, Stripes

HEADS, DIM = 2, 4
COMPOUND = (rg.Causal() & rg.Window(9)) | rg.Global(2)
NEGATED = ~rg.Window(3) & ~rg.Dilated(1, 1, 2)  # made outside: torch's tracer takes & and | of objects, but not ~


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), requires_grad=True)


# What each call is made of, for a number of tokens: made inside the compiled function, from tensors that it is given.
PARTS: dict[str, tuple[str, Callable[..., dict[str, Any]], list[Tensor]]] = {
    "plain": ("sdpa", lambda: {}, []),
    "causal": ("sdpa", lambda: {"mask": rg.Causal()}, []),
    "Rotary in torch's kernel": ("sdpa", lambda: {"position": rg.Rotary(), "mask": rg.Causal()}, []),
    "a compound mask": ("blockwise", lambda: {"mask": COMPOUND}, []),
    "not": ("blockwise", lambda: {"mask": NEGATED}, []),
    "bigbird": ("blockwise", lambda: {"mask": rg.bigbird(4)}, []),
    "indices": ("blockwise", lambda: {"mask": rg.Global((0, 3)) | rg.Window(1)}, []),
    "a user's mask": ("blockwise", lambda: {"mask": Parity() & rg.Causal()}, []),
    "a user's mask with a field": ("blockwise", lambda: {"mask": Stripes(2)}, []),
    "a user's mask with a tensor": ("blockwise", lambda reach: {"mask": Reach(reach)}, [torch.tensor([[2, 5]] * 2)]),
    "Lengths": ("blockwise", lambda n: {"mask": rg.Causal() & rg.Lengths(n)}, [torch.tensor([5, 9])]),
    "Alibi": ("blockwise", lambda: {"position": rg.Alibi(), "mask": COMPOUND}, []),
    "Alibi's slopes": ("blockwise", lambda s: {"position": rg.Alibi(s)}, [numbers(HEADS)]),
    "Bias": ("blockwise", lambda t: {"position": rg.Bias(t, zero=3), "mask": COMPOUND}, [numbers(HEADS, 7)]),
    "T5Bias": ("blockwise", lambda t: {"position": rg.T5Bias(t)}, [numbers(HEADS, 32)]),
    "Shaw": ("blockwise", lambda t: {"position": rg.Shaw(t, zero=3), "mask": COMPOUND}, [numbers(HEADS, 7, DIM)]),
    "TransformerXL": (
        "blockwise",
        lambda r, u, w: {"position": rg.TransformerXL(r, u, w), "mask": rg.Causal()},
        [numbers(HEADS, 20, DIM), numbers(HEADS, DIM), numbers(HEADS, DIM)],
    ),
    "Rotary": ("blockwise", lambda: {"position": rg.Rotary(), "mask": COMPOUND}, []),
    "Additive": ("blockwise", lambda w: {"score": rg.Additive(w), "position": rg.Alibi()}, [numbers(HEADS, DIM)]),
    "leaky": ("blockwise", lambda w: {"score": rg.Additive(w, "leaky_relu"), "mask": COMPOUND}, [numbers(HEADS, DIM)]),
    "Bilinear": ("blockwise", lambda w: {"score": rg.Bilinear(w), "mask": COMPOUND}, [numbers(HEADS, DIM, DIM)]),
    "Cosine": ("blockwise", lambda s: {"score": rg.Cosine(s), "mask": COMPOUND}, [numbers(HEADS)]),
    "a graph": ("edges", lambda e: {"mask": rg.Edges(e)}, [torch.tensor([[0, 3, 5, 5], [1, 1, 2, 5]])]),
    "a graph, additive": (
        "edges",
        lambda e, w: {"mask": rg.Edges(e), "score": rg.Additive(w, "leaky_relu")},
        [torch.tensor([[0, 3, 5, 5], [1, 1, 2, 5]]), numbers(HEADS, DIM)],
    ),
}


@pytest.fixture(autouse=True)
def reset_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def with_gradients(function: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """The output and the gradients of all inputs that have one."""
    output = function(*inputs)
    floating = [x for x in inputs if x.requires_grad]
    flow = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    return [output.detach(), *torch.autograd.grad(output, floating, flow)]


def same_as_eager(function: Callable[..., Tensor], compiled: Callable[..., Tensor], inputs: list[Tensor]) -> None:
    """Assert that the compiled function gives what the plain one gives, forward and backward."""
    for actual, want in zip(with_gradients(compiled, inputs), with_gradients(function, inputs), strict=True):
        torch.testing.assert_close(actual, want, rtol=1e-5, atol=1e-5)


def qkv(tokens: int, keys: int | None = None, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    sizes = (tokens, keys or tokens, keys or tokens)
    return [torch.randn(2, HEADS, n, DIM).to(dtype).requires_grad_() for n in sizes]


def in_half(name: str) -> tuple[str, Callable[..., dict[str, Any]], list[Tensor]]:
    """The parts, with a backend that half precision is good enough for: torch's own may refuse what it would round."""
    backend, parts, carried = PARTS[name]
    return "auto" if backend == "sdpa" else backend, parts, carried


@pytest.mark.parametrize("name", PARTS)
def test_compiled_without_breaks(name: str) -> None:
    backend, parts, carried = PARTS[name]

    def function(q: Tensor, k: Tensor, v: Tensor, *tensors: Tensor) -> Tensor:
        return rg.attend(q * 1.5, k, v, **parts(*tensors), backend=backend) + 1.0

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    same_as_eager(function, compiled, [*qkv(11), *carried])


@pytest.mark.parametrize("name", ["causal", "Bias", "TransformerXL", "a user's mask with a tensor", "a graph"])
def test_compiled_again_for_another_length(name: str) -> None:
    _, parts, carried = PARTS[name]
    function = lambda q, k, v, *tensors: rg.attend(q, k, v, **parts(*tensors))  # noqa: E731
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for tokens in (11, 17):
        same_as_eager(function, compiled, [*qkv(tokens), *carried])


# What depends on the number of tokens, beside the shapes: the place of distance 0 among all distances.
VARYING = ["plain", "a compound mask", "Alibi", "T5Bias", "Shaw", "Lengths", "Additive"]


def test_parts_are_made_in_a_compiled_graph() -> None:
    def scale(x: Tensor) -> Tensor:
        parts = rg.Parts(mask=rg.Causal())
        return x * (2.0 if parts.score == rg.Dot() else 3.0)

    assert torch.compile(scale, fullgraph=True, backend="eager")(torch.ones(2)).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("name", VARYING)
def test_compiled_once_for_all_lengths(name: str) -> None:
    """With lengths marked as varying, new ones reuse the graph: a text that grows does not compile at every token."""
    _, parts, carried = PARTS[name]
    count = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    function = lambda q, k, v, *tensors: rg.attend(q, k, v, **parts(*tensors))  # noqa: E731
    compiled = torch.compile(function, fullgraph=True, backend=count, dynamic=True)
    same_as_eager(function, compiled, [*qkv(11), *carried])
    once = count.frame_count
    for tokens in (17, 40):
        same_as_eager(function, compiled, [*qkv(tokens), *carried])
    assert count.frame_count == once, "another length was compiled again"


def test_compiled_for_other_lengths_of_queries_and_keys() -> None:
    function = lambda q, k, v: rg.attend(q, k, v, mask=COMPOUND, position=rg.Alibi())  # noqa: E731
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for queries, keys in ((11, 11), (3, 12), (9, 5)):
        same_as_eager(function, compiled, qkv(queries, keys))


def test_masks_made_outside_outlive_nothing() -> None:
    """The compiled graph keeps what it needs of a mask; another mask of the same kind is not mistaken for it."""
    function = lambda q, k, v, mask: rg.attend(q, k, v, mask=mask, backend="blockwise")  # noqa: E731
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for n in (2, 7):
        for make in (
            lambda n=n: rg.Window(n),
            lambda n=n: rg.Lengths(torch.tensor([n, n + 1])),
            lambda n=n: Stripes(n),
        ):
            inputs = qkv(11)
            torch.testing.assert_close(compiled(*inputs, make()), function(*inputs, make()))


def test_compiled_dropout_keeps_its_rate_and_its_gradient() -> None:
    """The compiled call draws its own seed, and backward drops what forward dropped."""
    q, k = torch.zeros(1, 1, 60, 1), torch.zeros(1, 1, 80, 1)
    v = torch.eye(80).view(1, 1, 80, 80).requires_grad_()
    function = lambda v: rg.attend(q, k, v, dropout=0.5, backend="blockwise")  # noqa: E731
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    output = compiled(v)
    (gradient,) = torch.autograd.grad(output.sum(), v)
    torch.testing.assert_close(gradient[0, 0, :, 0], output.detach()[0, 0].sum(0))
    assert abs(float((output > 0).float().mean()) - 0.5) < 5 * (0.25 / output.numel()) ** 0.5
    assert not torch.equal(output, compiled(v))


@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="needs a C++ compiler")
def test_compiled_by_inductor() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        return rg.attend(q.sin(), k, v, mask=COMPOUND, position=rg.Bias(table, zero=3), backend="blockwise").cos()

    compiled = torch.compile(function, fullgraph=True)
    same_as_eager(function, compiled, [*qkv(19), numbers(HEADS, 7)])


@pytest.mark.parametrize("name", PARTS)
def test_under_autocast(name: str) -> None:
    """float32 in, bfloat16 out, near the float32 answer; gradients in float32."""
    backend, parts, carried = in_half(name)
    inputs = qkv(11)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = rg.attend(*inputs, **parts(*carried), backend=backend)
    assert output.dtype == torch.bfloat16
    floating = [*inputs, *(x for x in carried if x.requires_grad)]
    gradients = torch.autograd.grad(output.float().sum(), floating)
    assert all(g.dtype == torch.float32 and bool(g.isfinite().all()) for g in gradients)
    want = rg.attend(*inputs, **parts(*carried), backend=backend)
    torch.testing.assert_close(output.float(), want, rtol=0.1, atol=0.1)


def test_autocast_is_of_no_concern_to_float64() -> None:
    inputs = qkv(11, dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert rg.attend(*inputs).dtype == torch.float64
        assert rg.look(*inputs[:2]).lse.dtype == torch.float64


def test_compiled_under_autocast() -> None:
    function = lambda q, k, v: rg.attend(q, k, v, mask=COMPOUND, position=rg.Alibi())  # noqa: E731
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    inputs = qkv(11)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = compiled(*inputs), function(*inputs)
    want = function(*(x.detach().bfloat16().double() for x in inputs))
    for output in outputs:  # two backends: each within two roundings of the exact output
        assert output.dtype == torch.bfloat16
        torch.testing.assert_close(output.double(), want, rtol=2**-8, atol=2**-8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", PARTS)
def test_every_floating_type(name: str, dtype: torch.dtype) -> None:
    """The output has the type of q, k, v, whatever that of the parts' tensors; each gradient has its tensor's."""
    backend, parts, carried = in_half(name)
    inputs = qkv(11, dtype=dtype)
    output = rg.attend(*inputs, **parts(*carried), backend=backend)
    assert output.dtype == dtype and bool(output.isfinite().all())
    floating = [*inputs, *(x for x in carried if x.requires_grad)]
    gradients = torch.autograd.grad(output.sum(), floating)
    assert all(g.dtype == x.dtype and bool(g.isfinite().all()) for g, x in zip(gradients, floating, strict=True))


def test_registered_with_torch() -> None:
    """The operators pass torch's own checks of what an operator must tell about itself."""
    from regard.attention.backends.custom_op import to_arguments
    from regard.attention.call import lower

    weight, table = numbers(HEADS, DIM), numbers(HEADS, 7)
    q, k, v = qkv(5)
    call = rg.attention.call.make_call(q, k, v, score=rg.Additive(weight), position=rg.Bias(table), mask=rg.Causal())
    problem = lower(call)
    torch.library.opcheck(
        torch.ops.regard.blockwise.default,
        to_arguments(problem),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )


def test_checkpointed() -> None:
    """A block that is run again in backward gives the same gradients, dropout included."""
    from torch.utils.checkpoint import checkpoint

    inputs = qkv(11)
    function = lambda q, k, v: rg.attend(q, k, v, mask=COMPOUND & Stripes(2), dropout=0.3)  # noqa: E731
    torch.manual_seed(3)
    want = torch.autograd.grad(function(*inputs).sum(), inputs)
    torch.manual_seed(3)
    actual = torch.autograd.grad(checkpoint(function, *inputs, use_reentrant=False).sum(), inputs)
    assert all(torch.equal(a, b) for a, b in zip(actual, want, strict=True))
