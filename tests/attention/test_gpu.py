"""What only a GPU can show: captured graphs, compiled models, no waiting for the device, no kernels made anew."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import regard as rg
from regard.attention.parts.positions.disentangled import distance_entries
from regard.bench.differential.oracle import Case, compare_backends

pytestmark = pytest.mark.gpu

HEADS, DIM = 4, 64


def draw(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*sizes, dtype=dtype, device="cuda").requires_grad_()


def qkv(tokens: int, batch: int = 2) -> list[Tensor]:
    return [draw(batch, HEADS, tokens, DIM) for _ in range(3)]


# What is learned comes first; the parts of a call are made of it, and of nothing that lives on the host.
CALLS: dict[str, tuple[Callable[[], list[Tensor]], Callable[..., dict[str, Any]]]] = {
    "window": (lambda: [], lambda: {"mask": rg.Window(40, 30)}),
    "global tokens": (lambda: [], lambda: {"mask": (rg.Causal() & rg.Window(50)) | rg.Global(2)}),
    "Alibi": (lambda: [], lambda: {"mask": rg.Causal(), "position": rg.Alibi()}),
    "Rotary": (lambda: [], lambda: {"mask": rg.Window(50), "position": rg.Rotary()}),
    "Bias": (lambda: [draw(HEADS, 99)], lambda t: {"position": rg.Bias(t, 49)}),
    "Shaw": (lambda: [draw(HEADS, 99, DIM)], lambda t: {"position": rg.Shaw(t, 49), "mask": rg.Causal()}),
    "Additive": (lambda: [draw(HEADS, DIM)], lambda w: {"score": rg.Additive(w), "mask": rg.Window(40, 30)}),
    "dropout": (lambda: [], lambda: {"mask": rg.Window(40, 30), "dropout": 0.2}),
}


def both_ways(function: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """The output and every gradient."""
    output = function(*inputs)
    return [output, *torch.autograd.grad(output, inputs, torch.ones_like(output))]


@pytest.fixture
def lengths() -> Tensor:
    return torch.tensor([150, 97], device="cuda")


def call_of(name: str) -> tuple[Callable[..., Tensor], list[Tensor]]:
    learned, parts = CALLS[name]
    return (lambda q, k, v, *rest: rg.attend(q, k, v, **parts(*rest))), [*qkv(150), *learned()]


@pytest.mark.parametrize("name", [name for name in CALLS if name != "dropout"])
def test_captured_in_a_graph(name: str) -> None:
    """Forward and backward, captured once, give on new numbers what an ordinary call gives."""
    function, inputs = call_of(name)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            both_ways(function, inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        actual = both_ways(function, inputs)
    with torch.no_grad():
        for x in inputs:
            x.copy_(torch.randn_like(x))
    graph.replay()
    for got, want in zip(actual, both_ways(function, inputs), strict=True):
        assert torch.equal(got, want)


def test_a_module_as_a_graphed_callable(lengths: Tensor) -> None:
    function = lambda q, k, v: rg.attend(q, k, v, mask=rg.Causal() & rg.Lengths(lengths))  # noqa: E731
    graphed = torch.cuda.make_graphed_callables(function, tuple(qkv(150)))
    inputs = qkv(150)
    for got, want in zip(both_ways(graphed, inputs), both_ways(function, inputs), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("name", CALLS)
def test_a_repeated_call_does_not_wait(name: str) -> None:
    function, inputs = call_of(name)
    both_ways(function, inputs)
    with not_waiting():
        both_ways(function, inputs)


def test_a_repeated_call_with_lengths_does_not_wait(lengths: Tensor) -> None:
    inputs = qkv(150)
    function = lambda q, k, v: rg.attend(q, k, v, mask=rg.Lengths(lengths, lengths))  # noqa: E731
    both_ways(function, inputs)
    with not_waiting():
        both_ways(function, inputs)


class not_waiting:
    """While open, whatever makes the host wait for the device raises."""

    def __enter__(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")

    def __exit__(self, *_: object) -> None:
        torch.cuda.set_sync_debug_mode("default")


def test_lengths_that_are_written_to_are_noticed(lengths: Tensor) -> None:
    inputs = qkv(150)
    mask = rg.Lengths(lengths)
    rg.attend(*inputs, mask=mask)
    lengths.fill_(0)
    assert not rg.attend(*inputs, mask=mask).any()


@pytest.fixture
def compiled_kernels() -> Iterator[list[str]]:
    """The names of the kernels that Triton compiles during the test."""
    import triton

    names: list[str] = []

    def note(*_: object, **about: Any) -> None:
        names.append(about["repr"])

    before, triton.knobs.runtime.jit_post_compile_hook = triton.knobs.runtime.jit_post_compile_hook, note
    yield names
    triton.knobs.runtime.jit_post_compile_hook = before


@pytest.mark.parametrize("name", CALLS)
def test_no_kernel_is_compiled_for_a_new_length(name: str, compiled_kernels: list[str]) -> None:
    learned, parts = CALLS[name]
    backend = "triton" if name in ("Alibi", "Bias", "Additive") else "auto"  # which hands the short ones over
    function = lambda q, k, v, *rest: rg.attend(q, k, v, **parts(*rest), backend=backend)  # noqa: E731
    tensors = learned()
    for tokens in (150, 64):
        both_ways(function, [*qkv(tokens), *tensors])
    del compiled_kernels[:]
    for tokens in (70, 128, 257, 1000):
        start = time.perf_counter()
        both_ways(function, [*qkv(tokens), *tensors])
        torch.cuda.synchronize()
        assert time.perf_counter() - start < 5.0
    assert not compiled_kernels


class Model(torch.nn.Module):
    """A small block around the call, as models have it."""

    def __init__(self, name: str):
        super().__init__()
        learned, self.parts = CALLS[name]
        self.into, self.out = (torch.nn.Linear(HEADS * DIM, n * HEADS * DIM) for n in (3, 1))
        self.learned = torch.nn.ParameterList([x.detach() for x in learned()])

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (HEADS, DIM)).transpose(1, 2) for y in self.into(x).chunk(3, -1))
        return x + self.out(rg.attend(q, k, v, **self.parts(*self.learned)).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("name", ["window", "Alibi", "Rotary", "Bias", "Additive"])
def test_compiled_model(name: str) -> None:
    torch._dynamo.reset()
    model = Model(name).to("cuda", torch.bfloat16)
    compiled = torch.compile(model, fullgraph=True)
    x = torch.randn(2, 150, HEADS * DIM, device="cuda", dtype=torch.bfloat16)
    results = []
    for run in (model, compiled):
        model.zero_grad()
        output = run(x)
        output.square().sum().backward()
        results.append([output.detach(), *(p.grad for p in model.parameters())])
    for got, want in zip(results[1], results[0], strict=True):
        assert (got - want).float().norm() <= 3e-2 * want.float().norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 4, 64), (4, 2, 64), (2, 2, 33), (2, 2, 512)])
@pytest.mark.parametrize("position", [None, "alibi"])
def test_rows_without_keys_are_zeros(
    heads: int, kv_heads: int, dim: int, dtype: torch.dtype, position: str | None
) -> None:
    """Whatever kernel of torch a small mask is handed to: zeros, no gradient, and no other row is touched."""
    generator = torch.Generator("cuda").manual_seed(0)
    sizes = [(2, heads, 40, dim), (2, kv_heads, 40, dim), (2, kv_heads, 40, dim)]
    inputs = [torch.randn(size, generator=generator, device="cuda", dtype=dtype).requires_grad_() for size in sizes]
    mask = rg.Lengths(torch.tensor([0, 23], device="cuda")) & rg.Pairs(torch.arange(40, device="cuda")[:, None] != 3)
    parts = {"mask": mask, "position": None if position is None else rg.Alibi()}
    want = both_ways(lambda q, k, v: rg.attend(q, k, v, **parts, backend="reference"), inputs)
    for _ in range(2):  # the first call, and one that finds its plan
        found = both_ways(lambda q, k, v: rg.attend(q, k, v, **parts), inputs)
        assert not found[0][0].any() and not found[0][1, :, 3].any() and not found[1][0].any()
        for x, y in zip(found, want, strict=True):
            tolerance = 3e-2 if dtype == torch.bfloat16 else 1e-4
            torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


REPEATED: dict[str, Callable[[], tuple[list[Tensor], dict[str, Any]]]] = {
    "window as a bias": lambda: (qkv(600, batch=4), {"mask": rg.Window(32, 32)}),
    "rows without keys": lambda: (qkv(600, batch=4), {"mask": rg.Window(10) & ~rg.Global(300)}),
    "heads that share keys, lengths": lambda: (
        [draw(2, HEADS, 60, DIM), *[draw(2, 1, 60, DIM) for _ in range(2)]],
        {"mask": rg.Lengths(torch.tensor([0, 40], device="cuda"))},
    ),
    "a table that is not learned": lambda: (
        qkv(1100, batch=8),
        {"position": rg.T5Bias(torch.randn(HEADS, 32, device="cuda", dtype=torch.bfloat16))},
    ),
    "one additive query": lambda: (
        [draw(3, HEADS, 1, 100), draw(3, HEADS, 70, 100), draw(3, HEADS, 70, 140)],
        {"score": rg.Additive(draw(HEADS, 100)), "mask": rg.Lengths(torch.tensor([0, 70, 33], device="cuda"))},
    ),
    "some additive queries": lambda: (
        [draw(3, HEADS, 21, 60), draw(3, HEADS, 70, 60), draw(3, HEADS, 70, 300)],
        {"score": rg.Additive(draw(HEADS, 60)), "mask": rg.Causal()},
    ),
    "decoding with ALiBi": lambda: (
        [draw(2, 8, 1, DIM), *[draw(2, 2, 3000, DIM) for _ in range(2)]],
        {"mask": rg.Causal(), "position": rg.Alibi()},
    ),
    "decoding with lengths": lambda: (
        [draw(2, 8, 1, DIM), *[draw(2, 2, 9000, DIM) for _ in range(2)]],
        {"mask": rg.Lengths(torch.tensor([0, 7000], device="cuda"))},
    ),
}


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("name", REPEATED)
def test_repeated_calls_give_the_same_bits_and_the_formulas_results(name: str, trains: bool) -> None:
    inputs, parts = REPEATED[name]()
    leaves = [*inputs, parts["score"].weight] if "score" in parts else inputs

    def results(backend: str) -> list[Tensor]:
        with torch.set_grad_enabled(trains):
            output = rg.attend(*inputs, **parts, backend=backend)
        if not trains:
            return [output]
        return [output, *torch.autograd.grad(output, leaves, torch.ones_like(output))]

    expected, first = results("reference"), results("auto")
    for x, y in zip(first, expected, strict=True):
        error = (x.double() - y.double()).norm() / y.double().norm().clamp_min(1e-3)
        assert float(error) < 2e-2
    for _ in range(50):
        assert all(torch.equal(x, y) for x, y in zip(results("auto"), first, strict=True))


def test_buckets_of_distances_are_those_of_a_cpu() -> None:
    """At distance max_distance − 1 the quotient of the logarithms is 1, and its ceiling must not be of more."""
    for half, most in ((20, 22), (12, 50), (128, 512), (40, 77)):
        distance = torch.arange(-2 * most, 2 * most)
        want = distance_entries(distance, 2 * half, most)
        assert torch.equal(distance_entries(distance.cuda(), 2 * half, most).cpu(), want), (half, most)


@pytest.mark.parametrize(("queries", "scale"), [(1, None), (3, None), (3, 1.0)])
def test_few_queries_of_float32_err_as_float32_does(queries: int, scale: float | None) -> None:
    """Products of three TF32 products leave that of the rests out, which shows in scores that are not scaled."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        numbers = lambda *sizes: torch.randn(*sizes, dtype=torch.float64, generator=generator)  # noqa: B023, E731
        q, k, v, table = numbers(2, 2, queries, 128), numbers(2, 2, 64, 128), numbers(2, 2, 64, 128), numbers(2, 64)
        case = Case(q, k, v, rg.Dot(scale), rg.Bias(table, 32), dtype=torch.float32, seed=seed)
        for found in compare_backends(case, ["triton"], "cuda"):
            assert found.agrees, f"seed {seed}: {found}"
