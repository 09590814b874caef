"""Masks: definitions, states of tiles, combinations, printing and equality."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import regard as rg
from regard.attention.backends.blockwise.schedule import merge_heads
from regard.attention.parts.mask import ALL, MIXED, NONE, And, Not, Or, PairGrid, Tiling
from regard.attention.parts.masks import blocks

from .. import pairwise_reference
from ..memory_tracking import LargestAllocation
from ..random_calls import KINDS, Parity, RandomCalls, Reach, Stripes

SHAPES = [(1, 1), (1, 9), (9, 1), (7, 7), (13, 29), (29, 13), (53, 53)]
TILES = [(1, 1), (2, 3), (16, 8), (8, 64)]
# Everything else answers exactly. A user's mask has no tiles of its own; Documents uses each run's least and greatest
# id only; a combination cannot see that two halves that are mixed exclude each other.
INEXACT = ("parity", "stripes", "reach", "documents", "longformer", "bigbird", "prefix_lm")


def expand_pairs(pairs: Tensor, grid: PairGrid) -> Tensor:
    """A mask's answer with every dimension there."""
    return pairs.expand(grid.batch, grid.heads, grid.queries, grid.keys)


def true_tiles(pairs: Tensor, rows: int, columns: int) -> Tensor:
    """What the tiles of these pairs are, by looking at each."""
    split = [[tile for tile in line.split(columns, dim=-1)] for line in pairs.split(rows, dim=-2)]
    three = [
        [torch.where(x.all(-1).all(-1), ALL, torch.where(x.any(-1).any(-1), MIXED, NONE)) for x in line]
        for line in split
    ]
    return torch.stack([torch.stack(line, dim=-1) for line in three], dim=-2)


def assert_tiles(mask: rg.Mask, grid: PairGrid, rows: int, columns: int, exact: bool) -> None:
    """Assert the law of tiles: NONE and ALL are exact; a mask with exact tiles has MIXED for mixed tiles only."""
    three = mask.tiles(Tiling(grid, rows, columns))
    pairs = expand_pairs(mask.permits(*grid.indices(), grid), grid)
    want = true_tiles(pairs, rows, columns)
    assert three.dtype == torch.int8 and three.dim() == 4, f"{mask}: {three.dtype} {list(three.shape)}"
    assert three.shape[0] in (1, grid.batch) and three.shape[1] in (1, grid.heads), f"{mask}: {list(three.shape)}"
    assert three.shape[2:] == want.shape[2:], f"{mask}: {list(three.shape)}"
    got = three.expand_as(want)
    label = f"{mask} on {grid.queries} × {grid.keys} in tiles of {rows} × {columns}"
    assert bool((got[got == NONE] == want[got == NONE]).all()), f"{label}: a NONE has a pair"
    assert bool((got[got == ALL] == want[got == ALL]).all()), f"{label}: an ALL lacks a pair"
    assert not exact or bool((got == want).all()), f"{label}: a MIXED is not mixed"
    down, across = (torch.arange(n).flip(0)[::2] for n in three.shape[2:])
    some = mask.tiles(Tiling(grid, rows, columns, down, across))
    assert torch.equal(some, three[:, :, down][..., across]), f"{label}: some of the tiles differ from all of them"


@pytest.mark.parametrize("kind", KINDS)
def test_tiles_agree_with_pairs(kind: str) -> None:
    for number, (queries, keys) in enumerate(SHAPES * 2):
        grid = PairGrid(queries, keys, batch=2, heads=3)
        mask = RandomCalls(f"{kind} {number}").primitive(grid, kind)
        for rows, columns in TILES:
            assert_tiles(mask, grid, rows, columns, exact=kind not in INEXACT)


@pytest.mark.parametrize("number", range(100))
def test_tiles_of_combinations_agree_with_pairs(number: int) -> None:
    draw = RandomCalls(f"tiles {number}")
    grid = PairGrid(*draw.rng.choice(SHAPES), batch=draw.rng.choice([1, 2]), heads=draw.rng.choice([1, 3]))
    mask = draw.tree(grid, depth=4)
    for _ in range(3):
        assert_tiles(mask, grid, draw.rng.randrange(1, 40), draw.rng.randrange(1, 40), exact=False)


def test_sorted_documents_are_exact() -> None:
    grid = PairGrid(53, 53, batch=2)
    ids = torch.randint(0, 5, (2, 53)).sort(dim=1).values
    for rows, columns in [(1, 1), (4, 4), (16, 8)]:
        assert_tiles(rg.Documents(ids), grid, rows, columns, exact=True)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("random_blocks", "bigbird")])
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (6, 6), (5, 11), (11, 5)], ids=str)
def test_definitions(kind: str, shape: tuple[int, int]) -> None:
    grid = PairGrid(*shape, batch=2, heads=2)
    for number in range(4):
        mask = RandomCalls(f"{kind} {shape} {number}").primitive(grid, kind)
        got = expand_pairs(mask.permits(*grid.indices(), grid), grid)
        assert torch.equal(got, pairwise_reference.allowed_pairs(mask, grid)), f"{mask} on {shape}"


@pytest.mark.parametrize("number", range(40))
def test_definitions_of_combinations(number: int) -> None:
    draw = RandomCalls(f"definition {number}")
    grid = PairGrid(*draw.rng.choice([(3, 3), (2, 7), (7, 2)]), batch=2, heads=2)
    mask = draw.tree(grid, depth=3)
    got = expand_pairs(mask.permits(*grid.indices(), grid), grid)
    want = pairwise_reference.allowed_pairs(mask, grid) if "RandomBlocks" not in repr(mask) else got
    assert torch.equal(got, want), f"{mask}"


def rows_of(mask: rg.Mask, queries: int, keys: int) -> list[str]:
    return ["".join(".x"[int(x)] for x in line) for line in mask.dense(queries, keys).reshape(queries, keys)]


def test_small_masks() -> None:
    """The definitions as a reader would draw them."""
    assert rows_of(rg.Causal(), 3, 5) == ["xxx..", "xxxx.", "xxxxx"]
    assert rows_of(rg.Causal(), 5, 3) == ["...", "...", "x..", "xx.", "xxx"]
    assert rows_of(rg.Window(1), 4, 4) == ["x...", "xx..", ".xx.", "..xx"]
    assert rows_of(rg.Window(0, 2), 3, 4) == [".xxx", "..xx", "...x"]
    assert rows_of(rg.Dilated(1, 1, 2), 5, 5) == ["x.x..", ".x.x.", "x.x.x", ".x.x.", "..x.x"]
    assert rows_of(rg.Global(1), 3, 3) == ["xxx", "x..", "x.."]
    assert rows_of(rg.Global(1), 2, 4) == ["x...", "x..."]
    assert rows_of(rg.Global((2,)), 3, 3) == ["..x", "..x", "xxx"]
    assert rows_of(rg.Global(torch.tensor([[False, True, False]])), 3, 3) == [".x.", "xxx", ".x."]
    assert rows_of(rg.Blocks(torch.tensor([[True, False], [False, True]]), 2), 3, 4) == ["xx..", "xx..", "..xx"]
    assert rows_of(rg.Lengths(torch.tensor([2]), torch.tensor([1])), 2, 3) == ["xx.", "..."]
    assert rows_of(rg.Documents(torch.tensor([[0, 0, 1, -1]])), 4, 4) == ["xx..", "xx..", "..x.", "...."]
    assert rows_of(rg.Documents(torch.tensor([[0, 0, 1]])), 2, 3) == ["xx.", "..x"]
    assert rows_of(rg.Documents(torch.tensor([[0, 1]]), torch.tensor([[1, 0, 1]])), 3, 2) == [".x", "x.", ".x"]
    assert rows_of(rg.Edges(torch.tensor([[0, 2, 2], [1, 0, 0]])), 2, 3) == ["..x", "x.."]
    assert rows_of(rg.NearBlocks(2, 0), 4, 4) == ["xx..", "xx..", "..xx", "..xx"]
    assert rows_of(rg.Causal() & rg.Chunked(2), 3, 5) == ["..x..", "..xx.", "....x"]
    assert rows_of(rg.Causal() | rg.Prefix(2), 4, 4) == ["xx..", "xx..", "xxx.", "xxxx"]
    assert rows_of(rg.Prefix(torch.tensor([1])), 2, 3) == ["x..", "x.."]
    assert rows_of(rg.Tree((-1, -1, 0, 2)), 4, 5) == ["xx...", "x.x..", "xx.x.", "xx.xx"]
    assert rows_of(rg.Causal() & rg.Tree((-1, 0)), 3, 3) == ["x..", "xx.", "xxx"]
    assert rows_of(rg.Causal() & rg.Window(1) | rg.Global(1), 4, 4) == ["xxxx", "xx..", "xxx.", "x.xx"]
    assert rows_of(~rg.Causal(), 2, 3) == ["..x", "..."]


def test_dense_of_masks_that_differ_by_batch_or_head() -> None:
    assert rg.Causal().dense(3, 4).shape == (3, 4)
    assert rg.Lengths(torch.tensor([1, 2])).dense(3, 4).shape == (2, 1, 3, 4)
    assert Reach(torch.ones(2, 3, dtype=torch.int64)).dense(3, 4).shape == (2, 3, 3, 4)
    assert (rg.Causal() & rg.Lengths(torch.tensor([1, 2]))).dense(3, 4).shape == (2, 1, 3, 4)
    assert Stripes(1).dense(2, 3).tolist() == [[True, False, True]] * 2


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8], ids=str)
def test_whole_numbers_of_any_size(dtype: torch.dtype) -> None:
    grid = PairGrid(9, 9, batch=2)
    ids = torch.randint(0, 3, (2, 9)).sort(dim=1).values
    for small, large in (
        (rg.Documents(ids.to(dtype)), rg.Documents(ids)),
        (rg.Lengths(torch.tensor([4, 9], dtype=dtype)), rg.Lengths(torch.tensor([4, 9]))),
        (rg.Global(torch.tensor([1, 8], dtype=dtype)), rg.Global(torch.tensor([1, 8]))),
    ):
        assert torch.equal(small.dense(9, 9), large.dense(9, 9))
        assert_tiles(small, grid, 4, 2, exact=True)
    q = torch.randn(2, 2, 9, 4)
    assert torch.equal(rg.attend(q, q, q, mask=rg.Documents(ids.to(dtype))), rg.attend(q, q, q, mask=rg.Documents(ids)))


def test_edges_of_either_integer() -> None:
    edges = torch.tensor([[0, 1, 1], [2, 0, 0]])
    assert torch.equal(rg.Edges(edges.int()).dense(3, 2), rg.Edges(edges).dense(3, 2))


def test_one_graph_for_several_sizes() -> None:
    """A graph's cached order belongs to the sizes it was made for."""
    graph = rg.Edges(torch.tensor([[0, 1], [1, 2]]))
    for queries, keys in [(3, 2), (3, 5), (7, 2), (3, 2)]:
        assert int(graph.dense(queries, keys).sum()) == 2 and graph.dense(queries, keys)[2, 1]


def test_indices_of_tokens_in_any_form() -> None:
    forms = [(1, 3), [1, 3], range(1, 4, 2), torch.tensor([1, 3]), torch.tensor([3, 1, 1])]
    pictures = [rg.Global(form).dense(5, 5) for form in forms]  # type: ignore[arg-type]
    assert all(torch.equal(picture, pictures[0]) for picture in pictures)
    assert torch.equal(rg.Global(3).dense(5, 5), rg.Global((0, 1, 2)).dense(5, 5))


def random_rows(mask: rg.RandomBlocks, queries: int, keys: int) -> Tensor:
    """How many whole blocks of keys each query sees."""
    pairs = mask.dense(queries, keys)
    width = -(-keys // mask.block) * mask.block
    blocks = torch.nn.functional.pad(pairs, (0, width - keys)).unflatten(-1, (-1, mask.block))
    seen = blocks.any(-1)
    sizes = torch.tensor([min(mask.block, keys - start) for start in range(0, keys, mask.block)])
    assert torch.equal(blocks.sum(-1), seen * sizes), "a block is seen in part"
    return seen.sum(-1)


@pytest.mark.parametrize("shape", [(64, 64), (53, 53), (16, 53), (70, 30), (1, 40)], ids=str)
@pytest.mark.parametrize("count", [0, 1, 3, 100])
def test_random_blocks_have_the_requested_count(shape: tuple[int, int], count: int) -> None:
    for block in (1, 4, 16):
        for seed in (0, 1, 12345, 2**31, 2**40 + 7):
            actual = random_rows(rg.RandomBlocks(block, count, seed), *shape)
            assert bool((actual == min(count, -(-shape[1] // block))).all())


def test_random_blocks_are_decided_by_the_seed() -> None:
    torch.manual_seed(1)
    first = rg.RandomBlocks(4, 2, seed=7).dense(64, 64)
    torch.manual_seed(2)
    assert torch.equal(first, rg.RandomBlocks(4, 2, seed=7).dense(64, 64))
    assert not torch.equal(first, rg.RandomBlocks(4, 2, seed=8).dense(64, 64))
    assert torch.equal(rg.RandomBlocks(4, 2, seed=7).dense(8, 64), first[-8:])


def test_random_blocks_are_spread_evenly() -> None:
    """Over many seeds each block of keys is drawn about equally often by each block of queries."""
    drawn = sum(rg.RandomBlocks(1, 2, seed=seed).dense(8, 8).int() for seed in range(2000))
    # 2000 draws of 2 in 8: 500 ± 5 standard deviations of √(2000 · ¼ · ¾) = 19.4
    assert bool(((drawn - 500).abs() < 97).all()), drawn


def test_of_many_blocks_the_drawn_ones_alone_get_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same laws as of few: distinct, uniform, the same for every number of queries."""
    monkeypatch.setattr(blocks, "MANY_BLOCKS", 4)
    mask = rg.RandomBlocks(1, 3, seed=7)
    first = mask.dense(40, 40).reshape(40, 40)
    assert bool((first.sum(1) == 3).all())
    assert torch.equal(mask.dense(8, 40).reshape(8, 40), first[-8:])
    assert_tiles(rg.RandomBlocks(3, 2), PairGrid(46, 46), 7, 4, exact=True)
    drawn = sum(rg.RandomBlocks(1, 2, seed=seed).dense(8, 8).reshape(8, 8).int() for seed in range(1000))
    assert (drawn / 1000 - 0.25).abs().max() < 0.08


def test_a_global_token_that_is_named_twice_is_one() -> None:
    for tokens in ((3, 3, 9), torch.tensor([9, 3, 3])):
        for grid in (PairGrid(12, 12), PairGrid(5, 12), PairGrid(14, 12)):
            assert_tiles(rg.Global(tokens), grid, 2, 3, exact=True)


def test_recipes() -> None:
    assert rg.longformer(512) == rg.Window(256, 256) | rg.Global(1)
    assert rg.longformer(4, (0, 5), causal=True) == (rg.Window(2, 2) | rg.Global((0, 5))) & rg.Causal()
    assert rg.longformer(4, 2, step=3) == rg.Dilated(2, 2, 3) | rg.Global(2)
    pairs = rg.bigbird(4, window=3, random=1, seed=5).dense(32, 32)
    near = (torch.arange(32)[:, None] // 4 - torch.arange(32) // 4).abs() <= 1
    assert bool(pairs[near].all()) and bool(pairs[:4].all()) and bool(pairs[:, :4].all())
    assert torch.equal(pairs, (rg.NearBlocks(4, 1) | rg.RandomBlocks(4, 1, 5) | rg.Global(4)).dense(32, 32))
    assert int(rg.bigbird(4, random=0, tokens=0).dense(32, 32).sum()) == 32 * 12 - 2 * 16


PLAIN = [
    rg.Everything(),
    rg.Causal(),
    rg.Window(3),
    rg.Window(3, 4),
    rg.Dilated(1, 2, 3),
    rg.Global(4),
    rg.Global((1, 5)),
    rg.Global((1,)),
    rg.Global(()),
    rg.RandomBlocks(4, 2),
    rg.RandomBlocks(4, 2, 9),
    rg.NearBlocks(4, 1),
    rg.Chunked(4),
    rg.Prefix(3),
    rg.Causal() | rg.Prefix(3),
    rg.Tree((-1, 0, 0)),
    rg.Tree(()),
    rg.longformer(8, causal=True),
    rg.bigbird(8),
    Parity(),
    ~rg.Causal(),
    ~~rg.Causal(),
    ~(rg.Causal() & rg.Window(2)),
    ~(rg.Causal() | rg.Window(2)),
    rg.Causal() & rg.Window(2) & rg.Global(1),
    rg.Causal() & (rg.Window(2) & rg.Global(1)),
    rg.Causal() | (rg.Window(2) | rg.Global(1)),
    rg.Causal() & (rg.Window(2) | rg.Global(1)),
    (rg.Causal() & rg.Window(2)) | (rg.Global(1) & ~rg.Causal()),
    ~rg.Causal() & ~(rg.Window(1) | ~rg.Global(2)),
]
NAMES = {**vars(rg), "Parity": Parity}


def assert_prints_as_line(mask: rg.Mask) -> None:
    """Assert that the text of a mask makes an equal one."""
    again = eval(repr(mask), NAMES)
    same = again == mask
    assert same, f"{mask!r} makes another mask"
    assert hash(again) == hash(mask) and repr(again) == repr(mask)


@pytest.mark.parametrize("mask", PLAIN, ids=repr)
def test_prints_as_the_line_that_makes_it(mask: rg.Mask) -> None:
    assert_prints_as_line(mask)


@pytest.mark.parametrize("number", range(20))
def test_combinations_print_as_the_line_that_makes_them(number: int) -> None:
    draw = RandomCalls(f"repr {number}")
    mask = draw.primitive(PairGrid(8, 8), "causal")
    for _ in range(6):
        other = draw.primitive(
            PairGrid(8, 8), draw.rng.choice(["causal", "window", "dilated", "random_blocks", "parity"])
        )
        mask = draw.rng.choice(
            [lambda m, o: m & o, lambda m, o: o & m, lambda m, o: m | o, lambda m, o: o | m, lambda m, o: ~m]
        )(mask, other)
    assert_prints_as_line(mask)


TENSORS = {
    "Lengths": lambda: rg.Lengths(torch.tensor([1, 2])),
    "Documents": lambda: rg.Documents(torch.zeros(2, 9, dtype=torch.int64)),
    "Pairs": lambda: rg.Pairs(torch.ones(9, 9, dtype=torch.bool)),
    "Blocks": lambda: rg.Blocks(torch.ones(3, 3, dtype=torch.bool), 3),
    "Edges": lambda: rg.Edges(torch.tensor([[0, 1], [1, 2]])),
    "Global": lambda: rg.Global(torch.tensor([1, 2])),
    "Prefix": lambda: rg.Prefix(torch.tensor([1, 2])),
    "Tree": lambda: rg.Tree(torch.tensor([[-1, 0], [-1, -1]])),
    "Global boolean": lambda: rg.Global(torch.ones(2, 9, dtype=torch.bool)),
    "And": lambda: rg.Causal() & rg.Lengths(torch.tensor([1, 2])),
}


@pytest.mark.parametrize("name", TENSORS)
def test_masks_with_tensors_are_equal_when_these_are(name: str) -> None:
    one, two = TENSORS[name](), TENSORS[name]()
    assert one == two and hash(one) == hash(two) and one is not two
    assert one != rg.Causal() and repr(one).startswith(name.split()[0].replace("And", "Causal() & Lengths"))
    one.dense(9, 9)
    assert one == two and hash(one) == hash(two)


def test_unequal_masks() -> None:
    different = [
        *PLAIN[:17],
        *(make() for make in TENSORS.values()),
        rg.Lengths(torch.tensor([1, 3])),
        Parity(),
        Stripes(1),
        Stripes(2),
    ]
    assert all(a != b for n, a in enumerate(different) for b in different[:n])
    assert Stripes(2) == Stripes(2) and len({rg.Window(3), rg.Window(3), rg.Window(4)}) == 2
    assert rg.Causal() & rg.Window(2) != rg.Causal() | rg.Window(2)


class Holder(rg.Mask):
    """A user's mask that holds what it likes."""

    def __init__(self, thing: Any):
        self.thing = thing

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return (i - j) % 2 == 0


@dataclass
class Plain(rg.Mask):
    """A user's mask as a dataclass that is not even frozen."""

    steps: list[int]

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return (i - j) % self.steps[0] == 0


HELD = {
    "a list": lambda: Holder([1, 2]),
    "a dict": lambda: Holder({"a": 1}),
    "a function": lambda: Holder(len),
    "an array": lambda: Holder(np.arange(3)),
    "nothing": lambda: Holder(None),
    "a dataclass": lambda: Plain([2]),
}


@pytest.mark.parametrize("name", HELD)
def test_user_masks_may_have_any_fields(name: str) -> None:
    q = torch.randn(1, 2, 9, 4)
    want = rg.attend(q, q, q, mask=Parity())
    for mask in (HELD[name](), HELD[name](), HELD[name]() & rg.Everything()):
        torch.testing.assert_close(rg.attend(q, q, q, mask=mask), want)
    assert HELD[name]() == HELD[name]() and hash(HELD[name]()) == hash(HELD[name]())
    assert HELD[name]() != Holder("something else") and repr(HELD[name]())


def test_a_mask_moves_with_its_tensors() -> None:
    mask = (rg.Causal() & rg.Lengths(torch.tensor([1]), torch.tensor([2]))) | ~rg.Edges(torch.tensor([[0], [1]]))
    assert {x.device.type for x in mask.to("meta").tensors()} == {"meta"} and len(mask.to("meta").tensors()) == 3
    assert mask.to("cpu") == mask and rg.Causal().to("meta") == rg.Causal()


def test_masks_are_frozen() -> None:
    for name, value in (("before", 9), ("other", 1)):
        with pytest.raises(AttributeError):
            setattr(rg.Window(3), name, value)


@pytest.mark.parametrize("mask", [*PLAIN, *(make() for make in TENSORS.values())], ids=repr)
def test_every_mask_has_a_formula(mask: rg.Mask) -> None:
    assert isinstance(mask.formula, str)
    assert mask.formula.strip() or type(mask) is Parity
    if isinstance(mask, And | Or | Not):
        word = {And: " and ", Or: " or ", Not: "not "}[type(mask)]
        assert word in mask.formula


LONG = {
    "window and global": (rg.Causal() & rg.Window(511)) | rg.Global(4),
    "longformer": rg.longformer(512, (0, 77, 100_000)),
    "bigbird": rg.bigbird(128),
    "dilated": rg.Dilated(64, 64, 4) & ~rg.Causal(),
}


@pytest.mark.parametrize("name", LONG)
def test_tiles_of_a_long_sequence_cost_no_more_than_the_tiles(name: str) -> None:
    """131,072 tokens: 1.7 · 10¹⁰ pairs, a million tiles."""
    tokens, size = 131_072, 128
    began = time.process_time()
    with LargestAllocation() as largest:
        actual = merge_heads(LONG[name], PairGrid(tokens, tokens), size, size)
    assert time.process_time() - began < 2.0
    assert largest.elements <= 4 * 2**20
    assert actual.shape == (1, tokens // size, tokens // size)
    if name == "window and global":
        row, column = torch.arange(1024)[:, None], torch.arange(1024)
        assert torch.equal(actual[0] != NONE, (row == 0) | (column == 0) | ((column <= row) & (row - column <= 4)))
        assert bool((actual[0][(row - column >= 1) & (row - column <= 3) & (row > 0)] == ALL).all())


def test_merge_heads() -> None:
    pairs = torch.zeros(1, 3, 4, 6, dtype=torch.bool)
    pairs[0, 0, :2, :2] = pairs[0, :, :2, 2:4] = pairs[0, 1, 0, 4] = True
    assert merge_heads(rg.Pairs(pairs), PairGrid(4, 6, 1, 3), 2, 2).tolist() == [
        [[MIXED, ALL, MIXED], [NONE, NONE, NONE]]
    ]
