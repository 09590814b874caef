"""Rotary embeddings over several axes beside those of Qwen2-VL and Qwen3-VL, and their laws."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers.models.qwen2_vl.modeling_qwen2_vl import (
    Qwen2VLRotaryEmbedding,
    Qwen2VLVisionRotaryEmbedding,
    apply_rotary_pos_emb,
)
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

import regard as rg
from regard.nn.parts.parse import parse_position

HEADS, DIM = 2, 12


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def qwen_angles(embedding: type[nn.Module], coordinates: Tensor, sections: list[int]) -> list[Tensor]:
    """Cosines and sines of M-RoPE, `[batch, tokens, head_dim]` each: its order of pairs, in float64."""
    module = embedding.__new__(embedding)
    nn.Module.__init__(module)
    module.mrope_section, dim = sections, 2 * sum(sections)  # type: ignore[assignment]
    angle = coordinates.permute(2, 0, 1)[..., None].double() * 100.0 ** -(torch.arange(0, dim, 2).double() / dim)
    return [module.recomposition_frequencies(x) for x in (angle.cos(), angle.sin())]  # type: ignore[operator]


@pytest.mark.parametrize("backend", ["reference", "blockwise", "sdpa"])
def test_sections_are_qwen2_vls(backend: str) -> None:
    q, k, v = numbers(2, HEADS, 7, DIM), numbers(2, HEADS, 7, DIM), numbers(2, HEADS, 7, 5)
    at, sections = torch.randint(0, 30, (2, 7, 3)), [1, 2, 3]
    turned = apply_rotary_pos_emb(q, k, *qwen_angles(Qwen2VLRotaryEmbedding, at, sections))
    want = torch.nn.functional.scaled_dot_product_attention(*turned, v)
    part = rg.AxialRotary(at, base=100.0, sections=tuple(sections))
    actual = rg.attend(q, k, v, position=part, backend=backend)
    torch.testing.assert_close(actual, want, rtol=1e-11, atol=1e-11)
    flow = torch.randn_like(want)
    for a, b in zip(*(torch.autograd.grad(x, [q, k, v], flow) for x in (actual, want)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_interleaved_sections_are_qwen3_vls() -> None:
    x, at = torch.randn(1, HEADS, 5, 32, dtype=torch.float64), torch.randint(0, 9, (1, 5, 3))
    for sections in ([6, 5, 5], [8, 4, 4], [4, 8, 4]):
        want, _ = apply_rotary_pos_emb(x, x, *qwen_angles(Qwen3VLTextRotaryEmbedding, at, sections))
        part = rg.AxialRotary(at, base=100.0, sections=tuple(sections), interleaved=True)
        torch.testing.assert_close(part.transform(x, x)[0], want)


def test_a_grid_is_qwen2_vls_vision() -> None:
    x, cells = (
        torch.randn(1, HEADS, 12, DIM, dtype=torch.float64),
        torch.cartesian_prod(torch.arange(3), torch.arange(4)),
    )
    angle = cells[..., None].double() * 10000.0 ** -(torch.arange(0, DIM // 2, 2).double() / (DIM // 2))
    turns = [Qwen2VLVisionRotaryEmbedding.recomposition_frequencies(None, y) for y in (angle.cos(), angle.sin())]  # type: ignore[arg-type]
    want, _ = apply_rotary_pos_emb(x, x, *(y[None] for y in turns))
    torch.testing.assert_close(rg.AxialRotary((3, 4)).transform(x, x)[1], want)


def test_one_axis_is_rotary() -> None:
    q, k, v = numbers(1, HEADS, 4, DIM), numbers(1, HEADS, 9, DIM), numbers(1, HEADS, 9, 5)
    want = rg.attend(q, k, v, position=rg.Rotary(), mask=rg.Causal())
    parts = [
        rg.AxialRotary((9,)),
        rg.AxialRotary(torch.arange(9)[:, None]),
        rg.AxialRotary(torch.arange(9)[:, None], sections=(6,)),
        rg.AxialRotary(torch.arange(9)[None, :, None], torch.arange(5, 9)[:, None]),
        rg.AxialRotary(
            torch.arange(9.0)[:, None] + 0.5, torch.arange(5.0, 9.0)[:, None] + 0.5
        ),  # only differences count
    ]
    for part in parts:
        torch.testing.assert_close(rg.attend(q, k, v, position=part, mask=rg.Causal()), want)


def test_a_grid_shifts_and_its_axes_are_equal() -> None:
    """Moving every token by the same steps changes nothing; transposing the image permutes the tokens."""
    q, k = numbers(1, HEADS, 12, DIM), numbers(1, HEADS, 12, DIM)
    cells = torch.cartesian_prod(torch.arange(3), torch.arange(4))
    want = rg.look(q, k, position=rg.AxialRotary((3, 4)), weights=True).weights
    moved = rg.AxialRotary(cells + torch.tensor([5, -2]))
    torch.testing.assert_close(rg.look(q, k, position=moved, weights=True).weights, want)
    swapped = rg.look(*(swap_axes(x) for x in (q, k)), position=rg.AxialRotary(cells.flip(1)), weights=True).weights
    torch.testing.assert_close(swapped, want)


def swap_axes(x: Tensor) -> Tensor:
    """The pairs of the first axis in the place of the second's."""
    return x.unflatten(-1, (2, 2, DIM // 4)).flip(-2).flatten(-3)


@pytest.mark.parametrize("name", ["window", "causal"])
def test_masks_and_places_are_their_own_matter(name: str) -> None:
    """Places move the mask and not the coordinates; no key is cut off; decoding reads the last queries' coordinates."""
    x, at = numbers(1, HEADS, 10, DIM), torch.randint(0, 9, (10, 2))
    mask = {"window": rg.Window(2), "causal": rg.Causal()}[name]
    whole = rg.attend(x, x, x, position=rg.AxialRotary(at), mask=mask)
    one = rg.attend(x[:, :, 9:], x, x, position=rg.AxialRotary(at), mask=mask)
    torch.testing.assert_close(one, whole[:, :, 9:])
    torch.testing.assert_close(
        rg.attend(x, x, x, position=rg.AxialRotary(at), mask=mask, places=rg.Places(torch.arange(7, 17))), whole
    )
    assert rg.plan(x[:, :, 9:], x, x, position=rg.AxialRotary(at), mask=mask).backend


def test_coordinates_have_gradients() -> None:
    q, k, v = numbers(1, HEADS, 3, 8), numbers(1, HEADS, 5, 8), numbers(1, HEADS, 5, 2)
    keys, queries = numbers(5, 2), numbers(3, 2)
    assert torch.autograd.gradcheck(
        lambda a, b: rg.attend(q, k, v, position=rg.AxialRotary(a, b), backend="blockwise"),
        (keys, queries),
        check_undefined_grad=False,
    )


def test_layers_take_it_as_text_and_for_each_call() -> None:
    assert parse_position("AxialRotary((2, 3), base=100.0)") == rg.AxialRotary((2, 3), base=100.0)
    part = rg.AxialRotary((2, 3))
    assert eval(repr(part), vars(rg)) == part
    stack = rg.nn.Stack(rg.nn.StackConfig(dim=24, layers=2, heads=2, position="AxialRotary((2, 3))")).eval()
    with rg.watch(stack, weights=True) as views:
        y = stack(torch.randn(2, 6, 24))
    assert y.shape == (2, 6, 24) and len(views) == 2
    layer, x = rg.nn.MultiHeadAttention(24, 2).eval(), torch.randn(1, 6, 24)
    assert not torch.allclose(layer(x, position=part), layer(x))


def test_compiled() -> None:
    x, at = torch.randn(1, HEADS, 6, DIM), torch.randint(0, 5, (6, 2))
    compiled = torch.compile(
        lambda x, at: rg.attend(x, x, x, position=rg.AxialRotary(at)), fullgraph=True, backend="aot_eager"
    )
    torch.testing.assert_close(compiled(x, at), rg.attend(x, x, x, position=rg.AxialRotary(at)))


X = torch.zeros(2, 1, 6, 8)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: rg.AxialRotary((0, 3)), "a size of AxialRotary's grid is 0"),
        (lambda: rg.AxialRotary(torch.zeros(5)), r"keys has shape \[5\]"),
        (lambda: rg.AxialRotary((2, 3), torch.zeros(6, 3)), "its keys have 2 axes"),
        (lambda: rg.AxialRotary((2, 3), base=-1.0), "must be a positive number"),
        (lambda: rg.AxialRotary((2, 3), sections=(1, 2, 3)), "each of 2 axes"),
        (lambda: rg.AxialRotary((2, 3), interleaved=True), "give sections"),
        (lambda: rg.attend(X, X, X, position=rg.AxialRotary((1, 2, 3))), "a multiple of 6"),
        (lambda: rg.attend(X, X, X, position=rg.AxialRotary((2, 3), sections=(1, 2))), "have 3 pairs; 4 turn"),
        (lambda: rg.attend(X, X, X, position=rg.AxialRotary((2, 4))), "coordinates of 8 tokens"),
        (lambda: rg.attend(X, X, X, position=rg.AxialRotary(torch.zeros(3, 6, 2))), "of 3 rows"),
        (lambda: rg.attend(X, X[:, :, :4], X[:, :, :4], position=rg.AxialRotary((2, 2))), "need their own"),
    ],
)
def test_refusals(call, words: str) -> None:
    with pytest.raises(rg.BadInput, match=words):
        call()


def test_it_needs_a_dot_product() -> None:
    with pytest.raises(rg.Unsupported, match="needs the score Dot"):
        rg.attend(X, X, X, score=rg.Cosine(2.0), position=rg.AxialRotary((2, 3)))
