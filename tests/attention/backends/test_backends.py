"""Every backend against the reference, over thousands of random combinations of parts."""

import pytest
import torch

import regard as rg
from regard.attention.backends import BACKENDS, choose_backend, edge_positions
from regard.attention.backends.blockwise import schedule, tile

from ..oracle import Case, assert_backends_agree
from ..random_calls import KINDS, RandomCalls

CHUNKS, EACH = 40, 55
DTYPES = [torch.float64] * 6 + [torch.float32] * 2 + [torch.float16, torch.bfloat16]


def backends_for(case: Case) -> list[str]:
    """Every backend that has no reason against the case, the one that `auto` takes by that name."""
    call = case.call()
    chosen = choose_backend(call, "auto").name
    # Triton's interpreter would take hours over these; its kernels have files of their own.
    elsewhere = {"reference", "triton"}
    able = [
        name for name, module in BACKENDS.items() if module.unsupported_reason(call) is None and name not in elsewhere
    ]
    return ["auto" if name == chosen else name for name in able]


def shrink_limits(monkeypatch: pytest.MonkeyPatch, features: int) -> None:
    """Limits so small that every tile, every step over features and every group of edges is cut."""
    monkeypatch.setattr(schedule, "ELEMENTS", 1)
    monkeypatch.setattr(tile, "FEATURES", features)
    monkeypatch.setattr(edge_positions, "FEATURES", features)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_backends_agree(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if chunk % 2:
        shrink_limits(monkeypatch, features=100)
    for number in range(chunk * EACH, (chunk + 1) * EACH):
        draw = RandomCalls(number)
        case = draw.case(*draw.sizes(), DTYPES[number % len(DTYPES)])
        assert_backends_agree(case, *backends_for(case))


@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize("shape", [(300, 500), (129, 64), (1, 700), (500, 260)], ids=str)
def test_backends_agree_over_many_tiles(shape: tuple[int, int], number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if number % 3:
        shrink_limits(monkeypatch, features=20_000)
    draw = RandomCalls(f"{shape} {number}")
    case = draw.case(*shape, DTYPES[number % len(DTYPES)], small=True)
    assert_backends_agree(case, *backends_for(case))


@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("kind", KINDS)
def test_every_mask_over_many_tiles(kind: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if number:
        shrink_limits(monkeypatch, features=20_000)
    draw = RandomCalls(f"{kind} {number}")
    case = draw.case(150, 290, torch.float64, kind, small=True)
    assert_backends_agree(case, *backends_for(case))


@pytest.mark.parametrize("number", range(120))
def test_graphs(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if number % 2:
        shrink_limits(monkeypatch, features=100)
    draw = RandomCalls(f"graph {number}")
    case = draw.case(*draw.sizes(), DTYPES[number % len(DTYPES)], "edges")
    assert_backends_agree(case, "edges", *([] if case.edges is not None else ["blockwise"]))


@pytest.mark.parametrize("chunk", range(4))
def test_caps_sinks_and_biases_by_pair(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if chunk % 2:
        shrink_limits(monkeypatch, features=100)
    for number in range(chunk * 15, (chunk + 1) * 15):
        draw = RandomCalls(f"others {number}")
        mask = "edges" if number % 5 == 0 else "any"
        case = draw.case(*draw.sizes(), DTYPES[number % len(DTYPES)], mask, others=True)
        assert_backends_agree(case, *backends_for(case))


def test_random_calls_reach_every_part_and_backend() -> None:
    """The combinations above hold every score, position, mask and backend."""
    seen: set[str] = set()
    for number in range(500):
        draw = RandomCalls(number)
        case = draw.case(*draw.sizes(), DTYPES[number % len(DTYPES)])
        seen |= {type(part).__name__ for part in (case.score, case.position, case.mask)}
        seen |= {choose_backend(case.call(), "auto").name, *backends_for(case)}
    expected = (
        "Dot Bilinear Cosine Additive Rotary Alibi Bias T5Bias Shaw TransformerXL NoneType Everything Causal Window"
    )
    expected += (
        " Dilated Global RandomBlocks NearBlocks Blocks Lengths Documents Edges Pairs And Or Not Parity Stripes Reach"
        " Chunked Prefix Tree Disentangled AxialRotary"
    )
    assert set(expected.split()) | {"edges", "sdpa", "blockwise"} <= seen


@pytest.mark.parametrize("scale", [-0.7, 0.0])
@pytest.mark.parametrize("score", [rg.Dot, rg.Cosine])
def test_causal_scores_with_any_scale(score: type, scale: float) -> None:
    """torch's kernels mask before they scale, and −∞ times a number below zero is not −∞."""
    q, k, v = (torch.randn(1, 2, 9, 8) for _ in range(3))
    parts = {"score": score(scale), "mask": rg.Causal()}
    expected = rg.attend(q, k, v, **parts, backend="reference")
    for backend in ("sdpa", "auto", "auto"):  # the second call of a kind is a warm one
        torch.testing.assert_close(rg.attend(q, k, v, **parts, backend=backend), expected)


def test_gradients_of_few_bfloat16_keys_on_a_cpu_are_rounded_once() -> None:
    """torch's kernel computes them in float32, which takes a fifth of the time there."""
    q, k, v = (torch.randn(2, 3, 9, 8).bfloat16().requires_grad_() for _ in range(3))
    lengths = rg.Lengths(torch.tensor([9, 4]))
    for _ in range(2):  # the second call of a kind is a warm one
        output = rg.attend(q, k, v, mask=lengths, backend="sdpa")
        wide = [x.detach().float().requires_grad_() for x in (q, k, v)]
        expected = rg.attend(*wide, mask=lengths, backend="sdpa")
        assert torch.equal(output, expected.bfloat16())
        gradient = torch.randn_like(output)
        expected.backward(gradient.float())
        for x, y in zip(torch.autograd.grad(output, (q, k, v), gradient), wide, strict=True):
            assert torch.equal(x, y.grad.bfloat16())
