"""Properties of attention that hold for all parts: normalisation, masking, caching, determinism, dropout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import regard as rg
from regard.attention.backends.blockwise import schedule
from regard.attention.call import make_call
from regard.attention.parts.mask import PairGrid

from .oracle import Case, make_leaves, random_gradient, results
from .random_calls import RandomCalls

BACKENDS = ["reference", "blockwise", "auto"]
CASES = range(25)


def random_case(name: str, number: int, **changes: Any) -> Case:
    draw = RandomCalls(f"{name} {number}")
    return replace(draw.case(*draw.sizes(), torch.float64, plain=True), **changes)


def attend(case: Case, backend: str, **changes: Any) -> Tensor:
    case = replace(case, **changes)
    generator = torch.Generator().manual_seed(case.seed)
    return rg.attend(
        case.q,
        case.k,
        case.v,
        **case.parts(),
        mask=case.mask,
        dropout=case.dropout,
        generator=generator,
        backend=backend,
    )


def assert_close(actual: Tensor, want: Tensor, tolerance: float = 1e-11) -> None:
    torch.testing.assert_close(actual, want, rtol=tolerance, atol=tolerance)


def live_rows(case: Case) -> Tensor:
    """The queries that may attend to some key, `[batch, heads, queries]`."""
    grid = PairGrid(case.q.shape[2], case.k.shape[2], *case.q.shape[:2])
    pairs = (case.mask or rg.Everything()).permits(*grid.indices(), grid)
    return pairs.expand(*case.q.shape[:3], grid.keys).any(-1)


@pytest.mark.parametrize("number", CASES)
def test_rows_sum_to_one(number: int) -> None:
    case = random_case("sum", number, dropout=0.0)
    ones = torch.ones_like(case.v)
    for backend in BACKENDS:
        assert_close(
            attend(case, backend, v=ones),
            live_rows(case)[..., None].double().expand(*case.q.shape[:3], case.v.shape[3]),
        )


@pytest.mark.parametrize("number", CASES)
def test_fully_masked_rows_are_zero_without_gradients(number: int) -> None:
    """A row with no allowed key gives zeros, and what flows into it goes nowhere."""
    case = random_case("dead", number)
    alive = live_rows(case)
    for backend in BACKENDS:
        q, k, v = (x.clone().requires_grad_() for x in (case.q, case.k, case.v))
        output = attend(case, backend, q=q, k=k, v=v)
        assert not output[~alive].any()
        into_the_dead = torch.randn_like(output).masked_fill(alive[..., None], 0.0)
        gradients = torch.autograd.grad(output, [q, k, v], into_the_dead)
        assert all(not g.any() for g in gradients)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("number", range(12))
def test_the_future_cannot_leak(number: int, backend: str) -> None:
    """Under Causal no later key or value moves an early output, neither by gradient nor in fact."""
    draw = RandomCalls(f"future {number}")
    sizes = draw.rng.choice([(53, 53), (7, 20), (150, 150)])
    case = replace(draw.case(*sizes, torch.float64, small=True, plain=True), mask=rg.Causal())
    queries, keys = case.q.shape[2], case.k.shape[2]
    cut = queries // 2
    seen = cut + keys - queries + 1  # keys that row `cut` and those before it may see
    k, v = case.k.clone().requires_grad_(), case.v.clone().requires_grad_()
    early = attend(case, backend, k=k, v=v)[:, :, : cut + 1]
    of_k, of_v = torch.autograd.grad(early.sum(), [k, v])
    assert not of_k[:, :, seen:].any() and not of_v[:, :, seen:].any()
    with torch.no_grad():
        k[:, :, seen:], v[:, :, seen:] = torch.randn_like(k[:, :, seen:]), 1e3
        assert_close(attend(case, backend, k=k, v=v)[:, :, : cut + 1], early)


@pytest.mark.parametrize("number", CASES)
def test_keys_permute_freely(number: int) -> None:
    """Without positions the order of the keys does not matter, if the mask follows it."""
    draw = RandomCalls(f"permute {number}")
    case = replace(draw.case(*draw.sizes(), torch.float64, plain=True), position=None, dropout=0.0)
    grid = PairGrid(case.q.shape[2], case.k.shape[2], *case.q.shape[:2])
    pairs = (case.mask or rg.Everything()).permits(*grid.indices(), grid)
    pairs = pairs.expand(*pairs.shape[:-2], grid.queries, grid.keys)
    order = torch.randperm(grid.keys)
    for backend in BACKENDS:
        shuffled = attend(case, backend, k=case.k[:, :, order], v=case.v[:, :, order], mask=rg.Pairs(pairs[..., order]))
        assert_close(shuffled, attend(case, backend))


@pytest.mark.parametrize("number", range(10))
def test_queries_permute_freely(number: int) -> None:
    case = random_case("permute queries", number, position=None, mask=None, dropout=0.0)
    order = torch.randperm(case.q.shape[2])
    for backend in BACKENDS:
        assert_close(attend(case, backend, q=case.q[:, :, order]), attend(case, backend)[:, :, order])


TOKENS, HEADS, DIM = 150, 2, 4
CACHED: dict[str, dict[str, Any]] = {
    "Causal": {"mask": rg.Causal()},
    "Window": {"mask": rg.Window(20)},
    "Window both ways": {"mask": rg.Window(9, 9)},
    "Dilated": {"mask": rg.Dilated(9, 0, 3)},
    "Global": {"mask": rg.Causal() & (rg.Window(5) | rg.Global((0, 140)))},
    "RandomBlocks": {"mask": rg.Causal() & rg.bigbird(8, random=2)},
    "NearBlocks": {"mask": rg.NearBlocks(16, 1)},
    "Documents": {"mask": rg.Causal() & rg.Documents(torch.arange(TOKENS)[None] // 40)},
    "Lengths": {"mask": rg.Causal() & rg.Lengths(torch.tensor([131]))},
    "Alibi": {"mask": rg.Causal(), "position": rg.Alibi()},
    "Rotary": {"mask": rg.Causal(), "position": rg.Rotary()},
    "Bias": {"mask": rg.Causal(), "position": rg.Bias(torch.randn(HEADS, 60, dtype=torch.float64))},
    "T5Bias": {"mask": rg.Causal(), "position": rg.T5Bias(torch.randn(HEADS, 32, dtype=torch.float64), False)},
    "Shaw": {"mask": rg.Causal(), "position": rg.Shaw(torch.randn(HEADS, 30, DIM, dtype=torch.float64))},
    "TransformerXL": {
        "mask": rg.Causal(),
        "position": rg.TransformerXL(
            *(torch.randn(s, dtype=torch.float64) for s in [(HEADS, 150, DIM), (HEADS, DIM), (HEADS, DIM)])
        ),
    },
    "Additive": {
        "mask": rg.Causal(),
        "score": rg.Additive(torch.randn(HEADS, DIM, dtype=torch.float64)),
        "position": rg.Alibi(),
    },
    "dropout": {"mask": rg.Causal(), "dropout": 0.3},
}


@pytest.mark.parametrize("name", CACHED)
@pytest.mark.parametrize("backend", BACKENDS)
def test_cache_equals_no_cache(name: str, backend: str) -> None:
    """The last m queries over all keys are the last m rows of the whole call."""
    q, k, v = torch.randn(3, 1, HEADS, TOKENS, DIM, dtype=torch.float64)

    def run(rows: Tensor) -> Tensor:
        return rg.attend(rows, k, v, **CACHED[name], generator=torch.Generator().manual_seed(5), backend=backend)

    whole = run(q)
    for m in (1, 53):
        assert_close(run(q[:, :, -m:]), whole[:, :, -m:])


# The others look ahead, or hold tensors of the whole length.
STEPPED = [
    name
    for name in CACHED
    if name not in ("Window both ways", "Global", "RandomBlocks", "NearBlocks", "Documents", "Lengths")
]


@pytest.mark.parametrize("name", STEPPED)
def test_a_step_at_a_time_equals_all_at_once(name: str) -> None:
    """Growing keys, one query a step: what was seen before does not depend on what comes later."""
    q, k, v = torch.randn(3, 1, HEADS, 12, DIM, dtype=torch.float64)
    run = lambda *x: rg.attend(*x, **CACHED[name], generator=torch.Generator().manual_seed(5))  # noqa: E731
    steps = [run(q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1]) for t in range(12)]
    assert_close(torch.cat(steps, dim=2), run(q, k, v))


@pytest.mark.parametrize("number", range(15))
def test_grouped_heads_equal_repeated_heads(number: int) -> None:
    case = random_case("grouped", number)
    group = case.q.shape[1] // case.k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (case.k, case.v))
    for backend in BACKENDS:
        assert_close(attend(case, backend, k=k, v=v), attend(case, backend))


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def assert_same_bits(run: Callable[[], dict[str, Tensor]], times: int = 2) -> None:
    """Assert that doing it again gives the same bits, output and every gradient."""
    first = run()
    for _ in range(times - 1):
        for name, x in run().items():
            same = torch.equal(x, first[name])
            assert same, f"{name} differs by {(x - first[name]).abs().max():.3g}"


@pytest.mark.parametrize("number", range(10))
def test_same_bits_twice(number: int) -> None:
    draw = RandomCalls(f"bits {number}")
    case = draw.case(*draw.sizes(), draw.rng.choice([torch.float32, torch.bfloat16]))
    for backend in BACKENDS:
        assert_same_bits(lambda backend=backend: results(case, backend, case.dtype, case.carried or case.dtype))


GRAPH = rg.Edges(torch.randint(2000, (2, 60_000), generator=torch.Generator().manual_seed(3)))


def large_case(name: str) -> Case:
    """Work large enough that torch shares it among threads."""
    draw = RandomCalls(f"large {name}")
    q, k, v = (draw.normal(1, 4, 2000, 8) for _ in range(3))
    case = Case(q, k, v, rg.Dot(), dtype=torch.float32)
    return {
        "blockwise, a bias": replace(case, position=rg.Bias(draw.normal(4, 9), zero=4), mask=rg.Window(300)),
        "blockwise, vectors": replace(case, position=rg.Shaw(draw.normal(4, 9, 8), zero=4), mask=rg.Window(300)),
        "blockwise, a sum": replace(case, score=rg.Additive(draw.normal(4, 8)), mask=rg.Window(50)),
        "sdpa": case,
        "edges": replace(case, mask=GRAPH),
        "edges, a sum": replace(case, score=rg.Additive(draw.normal(4, 8)), mask=GRAPH),
        "edges, a bias": replace(case, position=rg.Bias(draw.normal(4, 9), zero=4), mask=GRAPH),
        "edges, vectors": replace(case, position=rg.Shaw(draw.normal(4, 9, 8), zero=4), mask=GRAPH),
    }[name]


@pytest.mark.parametrize("name", ["blockwise, a bias", "blockwise, vectors", "blockwise, a sum", "sdpa"])
def test_same_bits_with_two_threads(name: str) -> None:
    with threads(2):
        assert_same_bits(lambda: results(large_case(name), "auto", torch.float32, torch.float32))


@pytest.mark.parametrize("name", ["edges", "edges, a sum", "edges, a bias", "edges, vectors"])
def test_same_bits_of_a_graph_with_two_threads(name: str) -> None:
    with threads(2):
        assert_same_bits(lambda: results(large_case(name), "edges", torch.float32, torch.float32), times=10)


def test_same_bits_of_a_look_with_two_threads() -> None:
    case = large_case("edges")
    q, k = case.q.float(), case.k.float()
    fields = ["lse", "entropy", "distance", "received", "map", "top_weights"]

    def run() -> dict[str, Tensor]:
        view = rg.look(q, k, mask=GRAPH, top=3, map=4)
        return {name: getattr(view, name) for name in fields}

    with threads(2):
        assert_same_bits(run, times=20)


def dropout_weights(shape: tuple[int, int, int, int], dropout: float, seed: int, backend: str = "blockwise") -> Tensor:
    """Which weights dropout kept, read off the output for equal scores and values that are the identity."""
    batch, heads, queries, keys = shape
    q, k = (
        torch.zeros(batch, heads, queries, 1, dtype=torch.float64),
        torch.zeros(batch, heads, keys, 1, dtype=torch.float64),
    )
    v = torch.eye(keys, dtype=torch.float64).expand(batch, heads, keys, keys)
    return rg.attend(q, k, v, dropout=dropout, generator=torch.Generator().manual_seed(seed), backend=backend) * keys


@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.9])
def test_dropout_is_the_same_on_every_backend(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    want = dropout_weights((2, 3, 40, 300), dropout, 7, "reference")
    assert_close(dropout_weights((2, 3, 40, 300), dropout, 7), want)
    monkeypatch.setattr(schedule, "ELEMENTS", 1)
    assert_close(dropout_weights((2, 3, 40, 300), dropout, 7), want)
    assert set((want * (1 - dropout)).round(decimals=6).unique().tolist()) == {0.0, 1.0}


def test_dropout_along_edges_is_that_of_the_pairs() -> None:
    q, k, v = torch.randn(3, 2, 3, 12, 4, dtype=torch.float64)
    graph = rg.Edges(torch.randint(12, (2, 40)))

    def run(backend: str) -> Tensor:
        return rg.attend(q, k, v, mask=graph, dropout=0.4, generator=torch.Generator().manual_seed(2), backend=backend)

    assert_close(run("edges"), run("reference"))
    assert_close(run("blockwise"), run("reference"))


def test_dropout_depends_on_the_seed_alone() -> None:
    shape = (1, 2, 30, 40)
    torch.manual_seed(1)
    first = dropout_weights(shape, 0.5, seed=3)
    torch.manual_seed(2)
    assert torch.equal(first, dropout_weights(shape, 0.5, seed=3))
    assert not torch.equal(first, dropout_weights(shape, 0.5, seed=4))


def test_dropout_without_a_generator_follows_torch() -> None:
    q, k, v = torch.randn(3, 1, 2, 30, 4)
    run = lambda: rg.attend(q, k, v, dropout=0.5)  # noqa: E731
    torch.manual_seed(5)
    first, second = run(), run()
    torch.manual_seed(5)
    assert torch.equal(first, run()) and not torch.equal(first, second)


def test_dropout_differs_by_batch_head_and_row() -> None:
    """Bits of any two rows, heads or rows of the batch agree about half the time."""
    drop = dropout_weights((3, 3, 64, 256), 0.5, seed=11) > 0
    rows = drop.flatten(0, 2).double() * 2 - 1
    alike = (rows @ rows.mT / 256).fill_diagonal_(0.0)
    # Means of 256 signs: standard deviation 1/16; six of them cover 165,600 pairs.
    assert alike.abs().max() < 6 / 16
    columns = drop.movedim(-1, 0).flatten(1).double() * 2 - 1
    alike = (columns @ columns.mT / columns.shape[1]).fill_diagonal_(0.0)
    assert alike.abs().max() < 6 / 24  # means of 576 signs


@pytest.mark.parametrize("dropout", [0.05, 0.1, 0.5, 0.9])
def test_dropout_keeps_its_rate_and_its_expectation(dropout: float) -> None:
    actual = dropout_weights((4, 4, 200, 200), dropout, seed=1)
    rate = float((actual > 0).double().mean())
    deviation = (dropout * (1 - dropout) / actual.numel()) ** 0.5
    assert abs(rate - (1 - dropout)) < 5 * deviation
    assert abs(float(actual.mean()) - 1) < 5 * deviation / (1 - dropout)


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_of_everything_gives_zeros(backend: str) -> None:
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 2, 3, 20, 4))
    output = rg.attend(q, k, v, dropout=1.0, mask=rg.Causal(), backend=backend)
    assert not output.any()
    assert all(not g.any() for g in torch.autograd.grad(output.sum(), [q, k, v]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_dropout_draws_nothing(backend: str) -> None:
    q, k, v = torch.randn(3, 1, 2, 9, 4)
    state = torch.get_rng_state()
    generator = torch.Generator().manual_seed(3)
    before = generator.get_state()
    rg.attend(q, k, v, dropout=0.0, generator=generator, backend=backend)
    assert torch.equal(state, torch.get_rng_state()) and torch.equal(before, generator.get_state())


def test_attend_leaves_its_arguments_alone() -> None:
    for number in range(30):
        case = random_case("untouched", number)
        call = make_call(case.q, case.k, case.v, **case.parts(), mask=case.mask)
        given = [
            case.q,
            case.k,
            case.v,
            *call.mask.tensors(),
            *(x for part in case.parts().values() for x in part.tensors().values()),
        ]
        copies = [x.clone() for x in given]
        for backend in BACKENDS:
            results(case, backend, torch.float64, torch.float64)
            attend(case, backend)
        assert all(torch.equal(x, y) for x, y in zip(given, copies, strict=True)), str(case)


@pytest.mark.parametrize("number", range(8))
def test_gradients_can_be_computed_one_at_a_time(number: int) -> None:
    """What needs a gradient does not change what it is, and what needs none gets none."""
    case = random_case("one at a time", number)
    for backend in BACKENDS:
        every = results(case, backend, torch.float64, torch.float64)
        leaves, parts = make_leaves(case, torch.float64, torch.float64)
        for name, leaf in leaves.items():
            for other, x in leaves.items():
                x.requires_grad_(other == name)
            generator = torch.Generator().manual_seed(case.seed)
            options = {"mask": case.mask, "dropout": case.dropout, "generator": generator, "backend": backend}
            output = rg.attend(leaves["q"], leaves["k"], leaves["v"], **parts, **options)
            (actual,) = torch.autograd.grad(output, leaf, random_gradient(output, torch.float64, case.seed))
            assert_close(actual, every[f"gradient of {name}"])


def test_explicit_default_parts_change_nothing() -> None:
    q, k, v = torch.randn(3, 1, 2, 9, 4)
    aloud = rg.attend(
        q,
        k,
        v,
        score=rg.Dot(),
        position=None,
        mask=rg.Everything(),
        method=rg.Exact(),
        dropout=0.0,
        generator=None,
        backend="auto",
    )
    assert torch.equal(rg.attend(q, k, v), aloud)


@pytest.mark.parametrize("backend", ["blockwise", "edges"])
def test_a_second_derivative_is_refused_or_right(backend: str) -> None:
    """A gradient of a gradient is either that of the formula or an error; never silently another number."""
    q, k, v = torch.randn(3, 1, 1, 4, 2, dtype=torch.float64).requires_grad_()
    graph = rg.Edges(torch.cartesian_prod(torch.arange(4), torch.arange(4)).mT.contiguous())

    def twice(backend: str) -> Tensor:
        x = q.detach().requires_grad_()
        (first,) = torch.autograd.grad(
            rg.attend(x, k, v, mask=graph, backend=backend).square().sum(), x, create_graph=True
        )
        return torch.autograd.grad(first.sum(), x)[0]

    try:
        actual = twice(backend)
    except RuntimeError:
        return
    assert_close(actual, twice("reference"))
