"""Explicit places of queries and keys: laws that hold whatever backend runs the call, tiles, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import regard as rg
from regard.attention.backends.blockwise import schedule
from regard.attention.parts.mask import ALL, NONE, PairGrid, Tiling

from .oracle import assert_backends_agree
from .random_calls import RandomCalls
from .test_errors import assert_refused, tensors

DOUBLE = torch.float64
HEADS, DIM = 2, 4


def numbers(*size: int) -> Tensor:
    return torch.randn(*size, dtype=DOUBLE)


POSITIONS: dict[str, rg.Position | None] = {
    "none": None,
    "rotary": rg.Rotary(),
    "alibi": rg.Alibi(),
    "learned slopes": rg.Alibi(numbers(HEADS)),
    "bias": rg.Bias(numbers(HEADS, 9), 4),
    "t5": rg.T5Bias(numbers(HEADS, 8), max_distance=20),
    "shaw": rg.Shaw(numbers(HEADS, 9, DIM), 4),
    "disentangled": rg.Disentangled(numbers(HEADS, 16, DIM), numbers(HEADS, 16, DIM), 40),
    "transformer-xl": rg.TransformerXL(numbers(HEADS, 30, DIM), numbers(HEADS, DIM), numbers(HEADS, DIM)),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_packed_sequences_are_as_alone(name: str) -> None:
    """Two sequences in one row, each counted from 0, give what each gives in a call of its own."""
    x, position = numbers(1, HEADS, 12, DIM), POSITIONS[name]
    places = rg.Places(torch.cat([torch.arange(7), torch.arange(5)]))
    mask = rg.Documents(torch.tensor([[0] * 7 + [1] * 5])) & rg.Causal() & rg.Window(4)
    packed = rg.attend(x, x, x, position=position, mask=mask, places=places)
    for part in (slice(0, 7), slice(7, 12)):
        own = x[:, :, part]
        alone = rg.attend(own, own, own, position=position, mask=rg.Causal() & rg.Window(4))
        torch.testing.assert_close(packed[:, :, part], alone)


@pytest.mark.parametrize("name", POSITIONS)
def test_keys_and_queries_permute_freely_with_their_places(name: str) -> None:
    q, k, v = numbers(2, HEADS, 5, DIM), numbers(2, HEADS, 9, DIM), numbers(2, HEADS, 9, 3)
    mask = rg.Causal() & (
        rg.Window(3) | rg.Global(2) | rg.Dilated(2, 0, 4) | rg.NearBlocks(2, 0) | rg.RandomBlocks(2, 1)
    )
    mask = mask & (rg.Chunked(6) | rg.Prefix(3))
    parts: dict[str, Any] = {"position": POSITIONS[name], "mask": mask}
    places = torch.stack([torch.arange(9), torch.arange(9) + 2])  # the second row is padded on the left
    own = places[:, 4:]
    straight = rg.attend(q, k, v, **parts, places=rg.Places(places))
    if name != "none":
        torch.testing.assert_close(straight[:1], rg.attend(q[:1], k[:1], v[:1], **parts))
    rows, keys = torch.randperm(5), torch.randperm(9)
    moved = rg.Places(places[:, keys], own[:, rows])
    torch.testing.assert_close(
        rg.attend(q[:, :, rows], k[:, :, keys], v[:, :, keys], **parts, places=moved), straight[:, :, rows]
    )


def test_drafts_in_a_tree_share_places() -> None:
    """Two drafts of one token each after the same prefix: each is as if it were alone."""
    q, k = numbers(1, HEADS, 2, DIM), numbers(1, HEADS, 7, DIM)  # 5 cached keys, drafts a and b
    tree = torch.ones(1, 1, 2, 7, dtype=torch.bool)
    tree[..., 0, 6] = tree[..., 1, 5] = False
    places = rg.Places(torch.tensor([0, 1, 2, 3, 4, 5, 5]))
    both = rg.attend(q, k, k, position=rg.Rotary(), mask=rg.Causal() & rg.Pairs(tree), places=places)
    for draft, keys in ((0, [0, 1, 2, 3, 4, 5]), (1, [0, 1, 2, 3, 4, 6])):
        alone = rg.attend(q[:, :, draft : draft + 1], k[:, :, keys], k[:, :, keys], position=rg.Rotary())
        torch.testing.assert_close(both[:, :, draft : draft + 1], alone)


@pytest.mark.parametrize("number", range(12))
def test_backends_agree_at_places(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = RandomCalls(f"places {number}")
    dtype = DOUBLE if number % 3 else torch.float32
    sizes = draw.sizes() if number < 9 else draw.rng.choice([(150, 290), (140, 65), (1, 300)])
    if number % 2:
        monkeypatch.setattr(schedule, "ELEMENTS", 1)
    case = draw.case(*sizes, dtype, small=number >= 9, others=number % 4 == 0, places=True)
    assert_backends_agree(case, "blockwise", "auto")


@pytest.mark.parametrize("number", range(8))
def test_tiles_at_places_agree_with_the_predicate(number: int) -> None:
    draw = RandomCalls(f"placed tiles {number}")
    grid = PairGrid(45, 70, batch=2, heads=2)
    mask = draw.places(grid).place(draw.tree(grid))
    states = mask.tiles(Tiling(grid, 8, 16))
    pairs = mask.permits(*grid.indices(), grid).expand(2, 2, 45, 70)
    for r, c in torch.cartesian_prod(*(torch.arange(n) for n in states.shape[-2:])).tolist():
        tile = pairs[..., 8 * r : 8 * r + 8, 16 * c : 16 * c + 16].flatten(2)
        state = states[..., r, c].expand(2, 2)
        assert bool((tile.all(-1) | (state != ALL)).all()) and bool((~tile.any(-1) | (state != NONE)).all())


def test_sorted_places_skip_tiles() -> None:
    """Bounds of each tile, not of the whole: a window over sorted places visits few tiles."""
    x = torch.zeros(1, 1, 2048, 8)
    places = rg.Places(torch.arange(2048) + 1000)
    plan = rg.plan(x, x, x, mask=rg.Causal() & rg.Window(63), position=rg.Rotary(), places=places)
    assert plan.tiles < 0.15, plan
    assert "Places" in plan.description


def test_new_places_of_the_same_shape_are_not_the_old_ones() -> None:
    x = torch.randn(1, HEADS, 6, DIM)
    for places in (torch.arange(6), torch.tensor([0, 1, 2, 0, 1, 2]), torch.arange(6).flip(0)):
        for position in (rg.Alibi(), rg.Rotary(), None):
            parts: dict[str, Any] = {"position": position, "mask": rg.Causal(), "places": rg.Places(places)}
            torch.testing.assert_close(rg.attend(x, x, x, **parts), rg.attend(x, x, x, **parts, backend="reference"))


def test_look_measures_the_distance_between_places() -> None:
    x, places = numbers(2, HEADS, 6, DIM), torch.tensor([[0, 1, 2, 0, 1, 2], [5, 4, 3, 2, 1, 0]])
    for mask in (rg.Everything(), rg.Edges(torch.tensor([[0, 4], [5, 5]]))):
        view = rg.look(x, x, mask=mask, places=rg.Places(places), weights=True)
        distance = (places[:, None, :, None] - places[:, None, None]).abs()
        torch.testing.assert_close(view.distance, (view.weights * distance).sum(-1))


WRONG: dict[str, tuple[dict[str, Any], list[str]]] = {
    "of six keys": ({"places": rg.Places(torch.arange(6))}, ["Places' keys", "[6]", "[2, 7]"]),
    "of three rows": ({"places": rg.Places(torch.zeros(3, 7, dtype=torch.int64))}, ["[3, 7]", "[2, 7]"]),
    "of four queries": ({"places": rg.Places(torch.arange(7), torch.arange(4))}, ["queries", "[4]", "[2, 5]"]),
    "a tensor": ({"places": torch.arange(7)}, ["places", "regard.Places"]),
    "elsewhere": ({"places": rg.Places(torch.zeros(7, dtype=torch.int64, device="meta"))}, ["Places", "meta"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_places_are_refused(name: str) -> None:
    given, words = WRONG[name]
    assert_refused(rg.BadInput, words, lambda: rg.attend(**tensors(), **given))


def test_places_are_whole_numbers_and_exact() -> None:
    assert_refused(rg.BadInput, ["Places' keys", "torch.float32"], lambda: rg.Places(torch.zeros(7)))
    given: dict[str, Any] = {"places": rg.Places(torch.arange(7)), "method": rg.Nystrom(2)}
    assert_refused(rg.Unsupported, ["Nystrom", "places"], lambda: rg.attend(**tensors(), **given))
    many = {"q": torch.randn(2, 4, 9, 6), "places": rg.Places(torch.arange(7))}
    assert_refused(rg.BadInput, ["9 queries", "7 keys"], lambda: rg.attend(**tensors(**many)))


def test_places_pass_through_compiled_graphs() -> None:
    x, places = torch.randn(1, HEADS, 6, DIM), torch.tensor([0, 1, 2, 0, 1, 2])

    def attend(x: Tensor, places: Tensor) -> Tensor:
        return rg.attend(x, x, x, position=rg.Rotary(), mask=rg.Causal(), places=rg.Places(places))

    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, places), attend(x, places))
    torch.testing.assert_close(compiled(x, places.flip(0)), attend(x, places.flip(0)))
