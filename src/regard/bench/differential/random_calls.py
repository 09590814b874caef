"""Random parts and calls, determined by a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import regard as rg
from regard.attention.parts.mask import PairGrid
from regard.bench.differential.oracle import Case

SIZES = (1, 2, 7, 53)


class Parity(rg.Mask):
    """A user's own mask with nothing but `allow`."""

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return (i + j) % 2 == 0


class Stripes(rg.Mask):
    """A user's own mask with a plain constructor and an answer that reads the key alone."""

    def __init__(self, width: int):
        self.width = width

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return j // self.width % 2 == 0


@dataclass(frozen=True, eq=False, repr=False)
class Reach(rg.Mask):
    """A user's own mask that differs by batch and by head, `reach [batch, heads]`."""

    reach: Tensor

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return (i - j).abs() <= self.reach[:, :, None, None]


class RandomCalls:
    """Random choices, all of them decided by one seed."""

    def __init__(self, seed: int | str):
        self.rng = random.Random(f"regard {seed}")
        self.generator = torch.Generator().manual_seed(self.rng.randrange(2**31))

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def whole(self, low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=self.generator)

    def boolean(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator) < self.rng.choice([0.1, 0.5, 0.9])

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def primitive(self, grid: PairGrid, kind: str | None = None) -> rg.Mask:
        """A mask of one kind; every kind that the library has, and three that a user wrote."""
        kind = kind or self.rng.choice(KINDS)
        return getattr(self, f"mask_{kind}")(grid)

    def tree(self, grid: PairGrid, depth: int = 3) -> rg.Mask:
        """A random combination by `&`, `|`, `~`."""
        if depth == 0 or self.chance(0.3):
            return self.primitive(grid)
        how = self.rng.choice("&|~")
        if how == "~":
            return ~self.tree(grid, depth - 1)
        left, right = self.tree(grid, depth - 1), self.tree(grid, depth - 1)
        return left & right if how == "&" else left | right

    def mask(self, grid: PairGrid) -> rg.Mask | None:
        """None, one kind, or a combination."""
        return self.rng.choice(
            [lambda: None, lambda: self.primitive(grid), lambda: self.primitive(grid), lambda: self.tree(grid)]
        )()

    def mask_everything(self, grid: PairGrid) -> rg.Mask:
        return rg.Everything()

    def mask_causal(self, grid: PairGrid) -> rg.Mask:
        return rg.Causal()

    def mask_window(self, grid: PairGrid) -> rg.Mask:
        return rg.Window(self.rng.choice([0, 1, 5, 100]), self.rng.choice([0, 0, 1, 9]))

    def mask_dilated(self, grid: PairGrid) -> rg.Mask:
        return rg.Dilated(self.rng.randrange(4), self.rng.randrange(4), self.rng.randrange(1, 5))

    def mask_global(self, grid: PairGrid) -> rg.Mask:
        some = sorted(self.rng.sample(range(grid.keys), min(grid.keys, self.rng.randrange(4))))
        how = self.rng.randrange(4)
        if how == 0:
            return rg.Global(self.rng.choice([0, 1, 4, 200]))
        if how == 1:
            return rg.Global(tuple(some))
        return rg.Global(torch.tensor(some, dtype=torch.int64) if how == 2 else self.boolean(grid.batch, grid.keys))

    def mask_random_blocks(self, grid: PairGrid) -> rg.Mask:
        return rg.RandomBlocks(self.rng.choice([1, 3, 16]), self.rng.randrange(4), self.rng.randrange(1000))

    def mask_near_blocks(self, grid: PairGrid) -> rg.Mask:
        return rg.NearBlocks(self.rng.choice([1, 3, 16]), self.rng.randrange(3))

    def mask_blocks(self, grid: PairGrid) -> rg.Mask:
        block = self.rng.choice([1, 4, 16])
        front = self.rng.choice([(), (grid.heads,), (1,), (grid.batch, grid.heads), (grid.batch, 1)])
        return rg.Blocks(self.boolean(*front, -(-grid.queries // block), -(-grid.keys // block)), block)

    def mask_lengths(self, grid: PairGrid) -> rg.Mask:
        queries = self.whole(0, grid.queries + 2, grid.batch) if self.chance(0.3) else None
        return rg.Lengths(self.whole(0, grid.keys + 2, grid.batch), queries)

    def mask_documents(self, grid: PairGrid) -> rg.Mask:
        ids = self.whole(-1, 4, grid.batch, grid.keys)
        ids = ids.sort(dim=1).values if self.chance(0.5) else ids
        if grid.queries > grid.keys or self.chance(0.3):
            return rg.Documents(ids, self.whole(-1, 4, grid.batch, grid.queries))
        return rg.Documents(ids)

    def mask_edges(self, grid: PairGrid) -> rg.Mask:
        count = self.rng.choice([0, 1, grid.queries, 3 * max(grid.queries, grid.keys)])
        return rg.Edges(torch.stack([self.whole(0, grid.keys, count), self.whole(0, grid.queries, count)]))

    def mask_pairs(self, grid: PairGrid) -> rg.Mask:
        full = (grid.batch, grid.heads, grid.queries, grid.keys)
        shape = [size if self.chance(0.7) else 1 for size in full]
        return rg.Pairs(self.boolean(*shape[self.rng.choice([0, 1, 2]) :]))

    def mask_chunked(self, grid: PairGrid) -> rg.Mask:
        return rg.Chunked(self.rng.choice([1, 3, 16, 64]))

    def mask_prefix(self, grid: PairGrid) -> rg.Mask:
        lengths = self.whole(0, grid.keys + 2, grid.batch) if self.chance(0.5) else self.rng.randrange(grid.keys + 2)
        return rg.Prefix(lengths)

    def mask_prefix_lm(self, grid: PairGrid) -> rg.Mask:
        return rg.Causal() | self.mask_prefix(grid)

    def mask_tree(self, grid: PairGrid) -> rg.Mask:
        nodes = self.rng.randrange(min(grid.keys, 70) + 1)
        parents = [[self.rng.randrange(-1, node) for node in range(nodes)] for _ in range(grid.batch)]
        form = self.rng.randrange(3)
        whole = torch.tensor(parents, dtype=torch.int64).view(grid.batch, nodes)
        return rg.Tree([tuple(parents[0]), whole[0], whole][form])

    def mask_parity(self, grid: PairGrid) -> rg.Mask:
        return Parity()

    def mask_stripes(self, grid: PairGrid) -> rg.Mask:
        return Stripes(self.rng.randrange(1, 5))

    def mask_reach(self, grid: PairGrid) -> rg.Mask:
        return Reach(self.whole(0, 10, grid.batch, grid.heads))

    def mask_longformer(self, grid: PairGrid) -> rg.Mask:
        return rg.longformer(
            self.rng.choice([2, 8]), self.rng.randrange(3), causal=self.chance(0.5), step=self.rng.choice([1, 2])
        )

    def mask_bigbird(self, grid: PairGrid) -> rg.Mask:
        return rg.bigbird(self.rng.choice([2, 8]), random=self.rng.randrange(3), seed=self.rng.randrange(100))

    def score(self, heads: int, dim: int, key_dim: int | None = None) -> rg.Score:
        """Any score; Bilinear alone when keys differ in size from queries."""
        if key_dim is not None and key_dim != dim:
            return rg.Bilinear(self.normal(heads, dim, key_dim) / dim)
        weight = self.normal(heads, dim)
        scores = [
            lambda: rg.Dot(),
            lambda: rg.Dot(scale=self.rng.choice([0.3, -0.7, 1.0, 0])),
            lambda: rg.Bilinear(self.normal(heads, dim, dim) / dim),
            lambda: rg.Additive(weight),
            lambda: rg.Additive(weight, activation="leaky_relu"),
            lambda: rg.Additive(weight, activation="leaky_relu", slope=0.01),
        ]
        cosines = [
            lambda: rg.Cosine(self.rng.choice([1, 4.0, -2.5])),
            lambda: rg.Cosine(self.normal(*self.rng.choice([(), (heads,)])) * 3),
        ]
        # In one dimension a cosine is a sign: its gradient is nothing but rounding.
        return self.rng.choice(scores + (cosines if dim > 1 else []))()

    def position(self, heads: int, dim: int, tokens: int, dot: bool) -> rg.Position | None:
        """Any position that goes with the score."""
        count = self.rng.choice([1, 2, 7, 2 * tokens])
        zero = self.rng.choice([0, count // 2, count - 1, -3, count + 5])
        numbers = [
            lambda: None,
            lambda: rg.Alibi(),
            lambda: rg.Alibi(self.normal(heads) * 4 / tokens),
            lambda: rg.Bias(self.normal(heads, count), zero),
            lambda: rg.T5Bias(
                self.normal(heads, self.rng.choice([4, 9, 32])), self.chance(0.5), self.rng.choice([20, 128])
            ),
        ]
        vectors = [
            lambda: rg.Shaw(self.normal(heads, count, dim), zero),
            lambda: rg.TransformerXL(
                self.normal(heads, count, dim), self.normal(heads, dim), self.normal(heads, dim), zero
            ),
            lambda: self.draw_disentangled(heads, dim),
        ]
        turns = [
            lambda: rg.Rotary(self.rng.choice([10000.0, 100.0]), self.rng.choice([None, 2]) if dim % 2 == 0 else 2)
        ]
        return self.rng.choice(numbers + (vectors + (turns if dim > 1 else []) if dot else []))()

    def draw_disentangled(self, heads: int, dim: int) -> rg.Disentangled:
        """Both terms or one of them, with a bucket for each distance or logarithmic ones."""
        half = self.rng.choice([2, 5, 16, 40])
        keys, queries = (self.normal(heads, 2 * half, dim) for _ in range(2))
        pair = self.rng.choice([(keys, queries), (keys, queries), (keys, None), (None, queries)])
        return rg.Disentangled(*pair, self.rng.choice([None, half // 2 + 2, 64]))

    def draw_axial_rotary(self, grid: PairGrid, dim: int) -> rg.AxialRotary:
        """A grid, or coordinates on one to three axes, the queries' own or the last keys'; equal sections or not."""
        dim, axes = dim // 2 * 2, self.rng.choice([1, 2, 3])
        rows = self.rng.choice([n for n in range(1, grid.keys + 1) if grid.keys % n == 0])
        if dim % 4 == 0 and grid.queries <= grid.keys and self.chance(0.3):
            return rg.AxialRotary((rows, grid.keys // rows), None, 100.0, dim)
        draw = lambda tokens: self.whole(-5, 20, self.rng.choice([1, grid.batch]), tokens, axes)  # noqa: E731
        keys, own = draw(grid.keys), draw(grid.queries)
        cuts = sorted(self.rng.randrange(dim // 2 + 1) for _ in range(axes - 1))
        sections = tuple(b - a for a, b in zip([0, *cuts], [*cuts, dim // 2], strict=True))
        queries = own if grid.queries > grid.keys or self.chance(0.5) else None
        if dim % (2 * axes) == 0 and self.chance(0.5):
            return rg.AxialRotary(keys, queries, 100.0, dim)
        return rg.AxialRotary(keys, queries, 100.0, dim, sections, self.chance(0.5))

    def sizes(self) -> tuple[int, int]:
        return self.rng.choice(SIZES), self.rng.choice(SIZES)

    def case(
        self,
        queries: int,
        keys: int,
        dtype: torch.dtype,
        mask: str = "any",
        small: bool = False,
        others: bool = False,
        places: bool = False,
        plain: bool = False,
    ) -> Case:
        """A whole call; `mask` names its kind; `small` keeps other sizes small.

        With `others` it has at least one of a cap, a sink and a bias by pair, and with `places` it has places; without
        them some calls have these, or features of edges, unless `plain`.
        """
        batch, kv_heads, group = self.rng.choice([1, 1, 2, 3]), self.rng.choice([1, 2]), self.rng.choice([1, 1, 2, 3])
        batch, kv_heads, group = (
            (min(size, 2) for size in (batch, kv_heads, group)) if small else (batch, kv_heads, group)
        )
        heads, dim = kv_heads * group, self.rng.choice([2, 3, 8] if small else [1, 2, 3, 8, 8, 16, 33])
        key_dim = self.rng.choice([dim, dim, dim, dim, 5])
        score = self.score(heads, dim, key_dim)
        position = self.position(heads, dim, max(queries, keys), isinstance(score, rg.Dot))
        grid = PairGrid(queries, keys, batch, heads)
        if isinstance(position, rg.Rotary) and self.chance(0.5):
            position = self.draw_axial_rotary(grid, dim)
        rare = self.others(grid) if others or (not plain and self.chance(0.4)) else {}
        rare |= {"places": self.places(grid)} if places or (not plain and self.chance(0.2)) else {}
        score = replace(score, cap=rare.pop("cap", None))  # type: ignore[type-var]
        half, value_dim = dtype in (torch.float16, torch.bfloat16), self.rng.choice([1, 5, 8, dim])
        drawn = self.mask(grid) if mask == "any" else self.primitive(grid, mask)
        if isinstance(drawn, rg.Edges) and not plain and self.chance(0.5):
            drawn = rg.Edges(drawn.edge_index.unique(dim=1)[:, self.rng.choice([slice(None), slice(None, None, 2)])])
            rare |= {"edges": self.edge_features(grid, drawn, key_dim, value_dim, score, position)}
        return Case(
            self.normal(batch, heads, queries, dim),
            self.normal(batch, kv_heads, keys, key_dim),
            self.normal(batch, kv_heads, keys, value_dim),
            score,
            position,
            drawn,
            dropout=self.rng.choice([0.0, 0.0, 0.0, 0.3, 0.9]),
            dtype=dtype,
            carried=torch.float32 if half and self.chance(0.5) else None,
            layout=self.rng.choice(["plain", "by token", "by feature"]),
            seed=self.rng.randrange(1000),
            **rare,
        )

    def places(self, grid: PairGrid) -> rg.Places:
        """Places in any order, some of them shared; the queries' own, or those of the last keys."""
        most = max(grid.queries, grid.keys) + 5
        draw = lambda tokens: self.whole(0, most, self.rng.choice([1, grid.batch]), tokens)  # noqa: E731
        keys = draw(grid.keys).sort(1).values if self.chance(0.5) else draw(grid.keys)
        keys = keys[0] if self.chance(0.2) else keys
        return rg.Places(keys, draw(grid.queries) if grid.queries > grid.keys or self.chance(0.5) else None)

    def edge_features(
        self,
        grid: PairGrid,
        graph: rg.Edges,
        key_dim: int,
        value_dim: int,
        score: rg.Score,
        position: rg.Position | None,
    ) -> rg.EdgeFeatures:
        """Numbers and vectors of the edges; their keys not with parts that change keys."""
        edges = graph.edge_index.shape[1]
        front = lambda: [size if self.chance(0.6) else 1 for size in (grid.batch, grid.heads)]  # noqa: E731
        fields = {
            "bias": lambda: self.normal(*front(), edges),
            "keys": lambda: self.normal(*front(), edges, key_dim),
            "values": lambda: self.normal(*front(), edges, value_dim),
        }
        if isinstance(score, rg.Cosine) or (position is not None and position.rotates):
            del fields["keys"]
        chosen = self.rng.sample(sorted(fields), self.rng.randrange(1, len(fields) + 1))
        return rg.EdgeFeatures(**{name: fields[name]() for name in sorted(chosen)})

    def others(self, grid: PairGrid) -> dict[str, Any]:
        """At least one of a cap, a sink and a bias by pair, whose sizes broadcast in any dimension."""
        full = (grid.batch, grid.heads, grid.queries, grid.keys)
        shape = [size if self.chance(0.7) else 1 for size in full]
        sinks = [rg.Sink(), rg.Sink(-1.5), rg.Sink(self.normal(grid.heads) * 2)]
        all_others: dict[str, Any] = {
            "cap": self.rng.choice([0.5, 2.0, 50.0]),
            "sink": self.rng.choice(sinks),
            "bias": rg.PairBias(self.normal(*shape[self.rng.choice([0, 0, 1, 2]) :])),
        }
        chosen = self.rng.sample(sorted(all_others), self.rng.randrange(1, 4))
        return {name: all_others[name] for name in sorted(chosen)}


KINDS = [name.removeprefix("mask_") for name in vars(RandomCalls) if name.startswith("mask_")]
