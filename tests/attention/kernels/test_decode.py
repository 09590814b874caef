"""The kernels for few queries over many keys, beside the formula in float64."""

from __future__ import annotations

import gc
import math
import os
import weakref
from dataclasses import replace

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

pytest.importorskip("triton")

import regard as rg
from regard.attention.backends import reference, triton
from regard.attention.call import lower, make_call
from regard.attention.kernels.decode import passes as decode
from regard.attention.kernels.launch import TileShape

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def small_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short splits, so that a few keys make several of them."""
    monkeypatch.setattr(decode, "MIN_KEYS", 32)
    if DEVICE == "cpu":
        monkeypatch.setattr(decode, "SHAPES", {size: {256: TileShape(16, 16, 4, 1)} for size in (2, 4)})


def draw(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*size).to(dtype).to(DEVICE)


def to_double(part):
    return part and replace(part, **{name: x.double() for name, x in part.tensors().items()})


def agree(q, k, v, tolerance: float = 1e-5, **options) -> None:
    call = make_call(q, k, v, **options)
    problem = lower(call)
    assert decode.covers(problem) is None
    parts = {name: to_double(getattr(call, name)) for name in ("score", "position", "sink", "bias")}
    exact = replace(call, q=q.double(), k=k.double(), v=v.double(), **parts)
    score = reference.scores(exact)
    want = reference.drop(reference.softmax(score, exact.sink), exact) @ reference.per_query_head(exact.v, exact)
    output, lse = decode.forward(problem)
    assert output.shape == want.shape and output.dtype == v.dtype and lse.dtype == torch.float32
    assert bool(output.isfinite().all())
    assert (output.double() - want).abs().max() <= tolerance * (1 + want.abs().max())
    level = score.logsumexp(-1)
    if exact.sink is not None:
        level = torch.logaddexp(level, exact.sink.head_logits(exact.q)[:, None])
    assert torch.equal(lse == -torch.inf, level == -torch.inf)
    alive = level.isfinite()
    assert not alive.any() or (lse[alive].double() - level[alive]).abs().max() <= tolerance * (
        1 + level[alive].abs().max()
    )


@pytest.mark.parametrize(
    ("heads", "queries"),
    [((1, 1), 16), ((6, 2), 1), ((6, 2), 3), ((8, 8), 1), ((8, 8), 16), ((20, 1), 1), ((20, 1), 3)],
)
def test_heads_and_queries(heads: tuple[int, int], queries: int) -> None:
    many, few = heads
    agree(draw(2, many, queries, 16), draw(2, few, 90, 16), draw(2, few, 90, 16))


MASKS = {
    "causal": rg.Causal,
    "window": lambda: rg.Window(11),
    "chunked": lambda: rg.Causal() & rg.Chunked(64),
    "prefix": lambda: rg.Causal() & rg.Window(11) | rg.Prefix(torch.tensor([41, 0], device=DEVICE)),
    "tree": lambda: rg.Tree(torch.tensor([-1, 0, 0, 1, 1], device=DEVICE)),
    "far": lambda: ~rg.Window(11) & rg.Causal(),
    "lengths": lambda: rg.Lengths(torch.tensor([41, 0], device=DEVICE)),
    "short queries": lambda: rg.Lengths(torch.tensor([90, 70], device=DEVICE), torch.tensor([2, 5], device=DEVICE)),
    "a head each": lambda: rg.Pairs(torch.rand(1, 6, 5, 90, device=DEVICE) > 0.7),
    "a batch each": lambda: rg.Pairs(torch.rand(2, 1, 5, 90, device=DEVICE) > 0.7),
    "nothing": lambda: ~rg.Causal() & rg.Causal(),
}


@pytest.mark.parametrize("mask", MASKS)
def test_every_mask(mask: str) -> None:
    agree(draw(2, 6, 5, 16), draw(2, 2, 90, 16), draw(2, 2, 90, 16), mask=MASKS[mask]())


POSITIONS = {
    "alibi": lambda: rg.Alibi(),
    "bias": lambda: rg.Bias(draw(4, 31), zero=5),
    "shaw": lambda: rg.Shaw(draw(4, 21, 24), zero=3),
    "transformer-xl": lambda: rg.TransformerXL(draw(4, 100, 24), draw(4, 24), draw(4, 24), zero=20),
    "rotary": lambda: rg.Rotary(),
}


@pytest.mark.parametrize("position", POSITIONS)
def test_every_position(position: str) -> None:
    q, k, v = draw(2, 4, 3, 24), draw(2, 2, 70, 24), draw(2, 2, 70, 24)
    agree(q, k, v, position=POSITIONS[position](), mask=rg.Causal())


@pytest.mark.parametrize("dropout", [0.3, 1.0])
def test_dropout(dropout: float) -> None:
    q, k, v = draw(2, 4, 3, 16), draw(2, 2, 70, 16), draw(2, 2, 70, 16)
    agree(q, k, v, dropout=dropout, generator=torch.Generator().manual_seed(3), mask=rg.Causal())


@pytest.mark.parametrize("dims", [(16, 48), (19, 7), (80, 33)])
@pytest.mark.parametrize("keys", [1, 33, 101])
def test_odd_sizes(dims: tuple[int, int], keys: int) -> None:
    agree(draw(1, 2, 2, dims[0]), draw(1, 1, keys, dims[0]), draw(1, 1, keys, dims[1]))


def test_scales_of_either_sign() -> None:
    q, k, v = draw(1, 2, 2, 16), draw(1, 2, 60, 16), draw(1, 2, 60, 16)
    for scale in (-1.3, 0.0, 40.0):
        agree(q, k, v, score=rg.Dot(scale=scale), tolerance=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)])
def test_half_types(dtype: torch.dtype) -> None:
    q, k, v = draw(1, 4, 2, 64, dtype=dtype), draw(1, 2, 90, 64, dtype=dtype), draw(1, 2, 90, 64, dtype=dtype)
    agree(q, k, v, tolerance=2 * torch.finfo(dtype).eps, mask=rg.Causal())
    agree(q, k, v, tolerance=2 * torch.finfo(dtype).eps, position=rg.Shaw(draw(4, 9, 64, dtype=dtype), zero=2))


def test_part_of_a_cache() -> None:
    """Keys and values are the front of a longer buffer, tokens before heads."""
    cache = draw(2, 2, 128, 2, 16)
    k, v = (x[:, :77].transpose(1, 2) for x in cache)
    agree(draw(2, 1, 4, 16).transpose(1, 2), k, v)


def test_same_bits_twice() -> None:
    problem = lower(make_call(draw(2, 4, 2, 16), draw(2, 2, 90, 16), draw(2, 2, 90, 16)))
    first, second = decode.forward(problem), decode.forward(problem)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_splits_cover_the_keys() -> None:
    for keys in (1, 31, 64, 1000, 32768, 100_003):
        for programs in (1, 8, 128, 5000):
            splits = decode.count_splits(programs, keys, 64, 132)
            tiles = math.ceil(math.ceil(keys / 64) / splits)
            assert splits >= 1 and (splits - 1) * tiles * 64 < keys <= splits * tiles * 64


def test_covers_gives_a_reason() -> None:
    x = draw(1, 1, 4, 16)
    reason = lambda *qkv, **parts: decode.covers(lower(make_call(*qkv, **parts)))  # noqa: E731
    assert "float64" in reason(x.double(), x.double(), x.double())
    assert "additive" in reason(x, x, x, score=rg.Additive(draw(1, 16)))
    assert "17 queries" in reason(draw(1, 1, 17, 16), x, x)
    assert "head_dim" in reason(x, x, draw(1, 1, 4, 300))


@pytest.mark.parametrize("position", [None, rg.Alibi()], ids=repr)
def test_a_prepared_step_is_the_general_one(position):
    """Every later call goes straight to the kernels, also with other strides and alignment."""
    call = make_call(draw(2, 6, 1, 20), draw(2, 3, 300, 20), draw(2, 3, 300, 12), position=position)
    with torch.no_grad():
        step = triton.prepare(call)
    assert step is not None
    for layout in (
        lambda x: x,
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        lambda x: x.mT.contiguous().mT,
    ):
        q, k, v = layout(draw(2, 6, 1, 20)), layout(draw(2, 3, 300, 20)), layout(draw(2, 3, 300, 12))
        expected = rg.attend(q, k, v, position=position, backend="reference")
        torch.testing.assert_close(step(q, k, v), expected, atol=1e-5, rtol=1e-4)


FIXED_PARTS = {
    "window": {"mask": rg.Causal() & rg.Window(70)},
    "chunked": {"mask": rg.Causal() & rg.Chunked(64)},
    "lengths": {"mask": rg.Lengths(torch.tensor([250, 30], device=DEVICE))},
    "table": {"position": rg.Bias(torch.linspace(-1, 1, 6 * 9, device=DEVICE).view(6, 9), zero=4)},
    "buckets": {"position": rg.T5Bias(torch.linspace(-1, 1, 6 * 32, device=DEVICE).view(6, 32))},
    "slopes": {"position": rg.Alibi(torch.linspace(0.1, 0.6, 6, device=DEVICE)), "score": rg.Dot(cap=2.0)},
    "both": {
        "mask": rg.Lengths(torch.tensor([250, 0], device=DEVICE)),
        "position": rg.T5Bias(torch.linspace(-1, 1, 6 * 32, device=DEVICE).view(6, 32)),
    },
}


@pytest.mark.parametrize("parts", FIXED_PARTS.values(), ids=FIXED_PARTS.keys())
@pytest.mark.parametrize("queries", [1, 3])
def test_masks_and_tables_are_prepared_for_steps_with_the_same_contents(parts, queries: int) -> None:
    call = make_call(draw(2, 6, queries, 20), draw(2, 3, 300, 20), draw(2, 3, 300, 12), **parts)
    with torch.no_grad():
        step = triton.prepare_fixed(call)
    assert isinstance(step, decode.DecodeStep)
    for _ in range(2):
        q, k, v = draw(2, 6, queries, 20), draw(2, 3, 300, 20), draw(2, 3, 300, 12)
        expected = rg.attend(q, k, v, backend="reference", **parts)
        torch.testing.assert_close(step(q, k, v), expected, atol=1e-5, rtol=1e-4)


def test_a_prepared_step_keeps_no_tensor_of_its_parts() -> None:
    """Else what is cached for a batch's mask would live as long as the cache."""
    table = draw(6, 32)
    mask, position = rg.Lengths(torch.tensor([250, 30], device=DEVICE)), rg.T5Bias(table)
    tensors = [weakref.ref(mask.keys), weakref.ref(table)]
    with torch.no_grad():
        call = make_call(draw(2, 6, 1, 20), draw(2, 3, 300, 20), draw(2, 3, 300, 12), mask=mask, position=position)
        step = triton.prepare_fixed(call)
    assert step is not None
    del call, mask, position, table
    gc.collect()
    assert [x() for x in tensors] == [None, None]


def test_calls_that_need_more_are_not_prepared():
    q, k = draw(1, 2, 1, 16).requires_grad_(), draw(1, 2, 40, 16)
    assert triton.prepare(make_call(q, k, k)) is None  # gradients
    with torch.no_grad():
        assert triton.prepare(make_call(q, k, k, mask=rg.Lengths(torch.tensor([30], device=DEVICE)))) is None
        assert triton.prepare(make_call(q, k, k, position=rg.Alibi(torch.tensor([0.5, 0.1], device=DEVICE)))) is None
        assert not isinstance(triton.prepare(make_call(k, k, k)), decode.DecodeStep)  # too many queries
        assert triton.prepare_fixed(make_call(q, k, k, position=rg.Rotary())) is None  # other q and k each time
    learned = rg.Alibi(torch.tensor([0.5, 0.1], device=DEVICE, requires_grad=True))
    assert triton.prepare_fixed(make_call(q.detach(), k, k, position=learned)) is None


@pytest.mark.parametrize("shape", [(2, 6, 3, 90), (1, 1, 1, 90), (3, 1)], ids=str)
def test_caps_sinks_and_biases_by_pair(shape: tuple[int, ...]) -> None:
    q, k, v = draw(2, 6, 3, 16), draw(2, 2, 90, 16), draw(2, 2, 90, 16)
    position = rg.Alibi() if len(shape) == 2 else rg.Bias(draw(6, 9), 4)
    parts = {"score": rg.Dot(cap=1.5), "sink": rg.Sink(draw(6)), "bias": rg.PairBias(draw(*shape))}
    agree(q, k, v, **parts, position=position, mask=MASKS["far"]())


def test_rows_with_a_sink_alone() -> None:
    q, k, v = draw(2, 6, 3, 16), draw(2, 2, 90, 16), draw(2, 2, 90, 16)
    agree(q, k, v, sink=rg.Sink(0.5), mask=MASKS["nothing"]())


def test_values_may_be_narrower_than_keys() -> None:
    """One latent of keys and values for all heads, with a rotary part that only keys have."""
    latent = draw(2, 1, 90, 20)
    agree(draw(2, 12, 1, 20), latent, latent[..., :16], mask=rg.Causal())


def test_addresses_in_one_piece_of_memory_do_not_overlap() -> None:
    q, k, v = draw(2, 4, 1, 16), draw(2, 2, 300, 16), draw(2, 2, 300, 24)
    launches = decode.DecodeLaunches(lower(make_call(q, k, v)), (q, k, v, *[q] * 7), 0, False)
    started: list[tuple[object, ...]] = []

    class Recorder:
        run = True

        def __call__(self, *tensors: object) -> None:
            started.append(tensors)

    launches.start_splits = launches.merge = Recorder()  # type: ignore[assignment]
    output = launches.output_alone(q, k, v, *[q] * 7)
    splits, (*parts, sink, out, lse) = started
    assert splits[-3:] == tuple(parts) and sink is None and out is output and output.shape == (2, 4, 1, 24)
    sizes = [4 * math.prod(x) for x in (launches.acc_parts, launches.row_parts, launches.row_parts, (8,))]
    addresses = [*parts, lse]
    assert all(a + size <= b for a, size, b in zip(addresses, sizes, addresses[1:], strict=False))
    assert lse + sizes[-1] <= parts[0] + launches.bytes and not any(x % 16 for x in addresses)
