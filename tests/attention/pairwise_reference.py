"""Attention written out a second time, pair by pair from the definitions, for the tests to compare with.

Nothing here comes from the library but the parts' fields: masks answer for one (batch, head, row, key) in plain Python,
scores and positions are loops over queries and keys.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

import regard as rg
from regard.attention.parts.mask import And, Not, Or, PairGrid


def allowed_pairs(mask: rg.Mask, grid: PairGrid) -> Tensor:
    """Every pair's answer, `[batch, heads, queries, keys]`."""
    actual = torch.zeros(grid.batch, grid.heads, grid.queries, grid.keys, dtype=torch.bool)
    for b in range(grid.batch):
        for h in range(grid.heads):
            for row in range(grid.queries):
                for j in range(grid.keys):
                    actual[b, h, row, j] = pair_allowed(mask, grid, b, h, row, j)
    return actual


def pair_allowed(mask: rg.Mask, grid: PairGrid, b: int, h: int, row: int, j: int) -> bool:
    """Whether the query in this row may attend to key j: the definitions, one after the other."""
    i = row + grid.keys - grid.queries
    match mask:
        case And():
            return pair_allowed(mask.left, grid, b, h, row, j) and pair_allowed(mask.right, grid, b, h, row, j)
        case Or():
            return pair_allowed(mask.left, grid, b, h, row, j) or pair_allowed(mask.right, grid, b, h, row, j)
        case Not():
            return not pair_allowed(mask.mask, grid, b, h, row, j)
        case rg.Everything():
            return True
        case rg.Causal():
            return j <= i
        case rg.Window():
            return i - mask.before <= j <= i + mask.after
        case rg.Dilated():
            within = i - mask.before * mask.step <= j <= i + mask.after * mask.step
            return within and abs(i - j) % mask.step == 0
        case rg.Global():
            return is_global(mask.tokens, b, i) or is_global(mask.tokens, b, j)
        case rg.NearBlocks():
            return abs(math.floor(i / mask.block) - j // mask.block) <= mask.reach
        case rg.Chunked():
            return math.floor(i / mask.size) == j // mask.size
        case rg.Prefix():
            return j < int(mask.lengths[b] if isinstance(mask.lengths, Tensor) else mask.lengths)
        case rg.Tree():
            return in_tree(torch.atleast_2d(torch.as_tensor(mask.parents)), b, i, j, grid.keys)
        case rg.Blocks():
            return bool(cell(mask.layout, b, h, row // mask.block, j // mask.block))
        case rg.Lengths():
            real = mask.queries is None or row < int(mask.queries[b])
            return j < int(mask.keys[b]) and real
        case rg.Documents():
            mine = int(mask.ids[b, i] if mask.query_ids is None else mask.query_ids[b, row])
            return mine >= 0 and mine == int(mask.ids[b, j])
        case rg.Edges():
            return (j, row) in set(zip(*mask.edge_index.tolist(), strict=True))
        case rg.Pairs():
            return bool(cell(mask.allowed, b, h, row, j))
        case _:
            place = torch.tensor([[i]]), torch.tensor([[j]])
            return bool(cell(mask.allow(*place), b, h, 0, 0))


def in_tree(parents: Tensor, b: int, i: int, j: int, keys: int) -> bool:
    """Whether key j comes before the tree or lies on the way from i's node to its root."""
    own, first = parents[min(b, len(parents) - 1)].tolist(), keys - parents.shape[1]
    node = i - first
    while node >= 0 and node != j - first:
        node = own[node]
    return j < first or node >= 0


def cell(x: Tensor, *index: int) -> Tensor:
    """One entry of a tensor that broadcasts to four dimensions."""
    at = index[4 - x.dim() :]
    return x[tuple(min(place, size - 1) if size == 1 else place for place, size in zip(at, x.shape, strict=True))]


def is_global(tokens: int | tuple[int, ...] | Tensor, b: int, place: int) -> bool:
    if isinstance(tokens, int):
        return 0 <= place < tokens
    if isinstance(tokens, Tensor) and tokens.dtype == torch.bool:
        return place >= 0 and bool(tokens[b, place])
    return place in [int(token) for token in tokens]


def similarity(score: rg.Score, q: Tensor, k: Tensor, h: int) -> Tensor:
    """The score of one query and one key of head h."""
    match score:
        case rg.Dot():
            return (q * k).sum() * (len(q) ** -0.5 if score.scale is None else score.scale)
        case rg.Bilinear():
            return q @ score.weight[h] @ k
        case rg.Cosine():
            each = isinstance(score.scale, Tensor) and score.scale.dim() > 0
            scale = score.scale[h] if each else score.scale  # type: ignore[index]
            return scale * (q * k).sum() / (q.norm() * k.norm())
        case rg.Additive():
            x = q + k
            bent = x.tanh() if score.activation == "tanh" else torch.where(x > 0, x, score.slope * x)
            return (score.weight[h] * bent).sum()
    raise AssertionError(score)


def table_entry(table: Tensor, place: int) -> Tensor:
    """The entry of a table whose nearest end serves places beyond it."""
    return table[min(max(place, 0), len(table) - 1)]


def pair_score(
    call_score: rg.Score,
    position: rg.Position | None,
    q: Tensor,
    k: Tensor,
    i: int,
    j: int,
    h: int,
    heads: int,
    b: int = 0,
    offset: int = 0,
) -> Tensor:
    """similarity + position of one pair."""
    scale = (
        (len(q) ** -0.5 if call_score.scale is None else call_score.scale) if isinstance(call_score, rg.Dot) else 1.0
    )
    match position:
        case None:
            return similarity(call_score, q, k, h)
        case rg.Rotary():
            return similarity(call_score, rotate(q, i, position), rotate(k, j, position), h)
        case rg.Alibi():
            slope = alibi_slope(h, heads) if position.slopes is None else position.slopes[h]
            return similarity(call_score, q, k, h) - slope * abs(i - j)
        case rg.Bias():
            return similarity(call_score, q, k, h) + table_entry(position.table[h], i - j + position.zero)
        case rg.T5Bias():
            return similarity(call_score, q, k, h) + position.table[h, t5_bucket(j - i, position)]
        case rg.Shaw():
            return similarity(call_score, q, k, h) + scale * (q @ table_entry(position.keys[h], i - j + position.zero))
        case rg.TransformerXL():
            content = (q + position.content_bias[h]) @ k
            return scale * (
                content + (q + position.position_bias[h]) @ table_entry(position.embedding[h], i - j + position.zero)
            )
        case rg.AxialRotary():
            own = position.keys if position.queries is None else position.queries
            row = i if position.queries is None else i - offset
            turned_q = rotate_on_axes(q, coordinates(own, b, row), position)
            turned_k = rotate_on_axes(k, coordinates(position.keys, b, j), position)
            return similarity(call_score, turned_q, turned_k, h)
        case rg.Disentangled():
            return position_products(position, q, k, i - j, h) * scale
    raise AssertionError(position)


def position_products(part: rg.Disentangled, q: Tensor, k: Tensor, distance: int, h: int) -> Tensor:
    """q·k and the products with the vectors of a distance, over the root of their number."""
    products = [q @ k]
    for table, x in ((part.keys, q), (part.queries, k)):
        if table is not None:
            half = table.shape[1] // 2
            bucket = distance if part.max_distance is None else log_bucket(distance, half // 2, part.max_distance)
            products.append(x @ table_entry(table[h], bucket + half))
    return sum(products, torch.zeros(())) / math.sqrt(len(products))


def log_bucket(distance: int, mid: int, most: int) -> int:
    """DeBERTa-v2's: the distance itself up to mid, then by its logarithm."""
    far = abs(distance)
    if far <= mid:
        return distance
    return int(math.copysign(mid + math.ceil(math.log(far / mid) / math.log((most - 1) / mid) * (mid - 1)), distance))


def rotate(x: Tensor, place: int, rotary: rg.Rotary) -> Tensor:
    """Coordinates m and m + dim/2 turned together by place · base^(−2m/dim)."""
    dim = rotary.dim or len(x)
    y = x.clone()
    for m in range(dim // 2):
        angle = place * rotary.base ** (-2 * m / dim)
        a, b = x[m], x[m + dim // 2]
        y[m], y[m + dim // 2] = a * math.cos(angle) - b * math.sin(angle), b * math.cos(angle) + a * math.sin(angle)
    return y


def coordinates(x: Tensor, b: int, token: int) -> list[float]:
    x = x[None] if x.dim() == 2 else x
    return x[min(b, len(x) - 1), token].tolist()


def rotate_on_axes(x: Tensor, at: list[float], rotary: rg.AxialRotary) -> Tensor:
    """Pairs m and m + dim/2, each turned by one of the coordinates."""
    pairs, axes = (rotary.dim or len(x)) // 2, len(at)
    y = x.clone()
    for m in range(pairs):
        if rotary.sections is None:
            axis, rate = m // (pairs // axes), rotary.base ** -(m % (pairs // axes) / (pairs // axes))
        else:
            rate = rotary.base ** -(m / pairs)
            ends = [sum(rotary.sections[: n + 1]) for n in range(axes)]
            axis = next(n for n, end in enumerate(ends) if m < end)
            if rotary.interleaved:
                axis = m % axes if m // axes < rotary.sections[m % axes] else 0
        c, s, a, b = math.cos(at[axis] * rate), math.sin(at[axis] * rate), x[m], x[m + pairs]
        y[m], y[m + pairs] = a * c - b * s, b * c + a * s
    return y


def alibi_slope(h: int, heads: int) -> float:
    """The paper's slopes: powers of 2^(−8/n) for n a power of two, then every other one of twice as many."""
    n = 2 ** int(math.log2(heads))
    return 2 ** (-8 / n * (h + 1)) if h < n else 2 ** (-8 / (2 * n) * (2 * (h - n) + 1))


def t5_bucket(relative: int, part: rg.T5Bias) -> int:
    """T5's bucket of j − i."""
    buckets, start = part.table.shape[1], 0
    if part.bidirectional:
        buckets //= 2
        start = buckets if relative > 0 else 0
        far = abs(relative)
    else:
        far = max(-relative, 0)
    exact = buckets // 2
    if far < exact:
        return start + far
    wide = exact + int(math.log(far / exact) / math.log(part.max_distance / exact) * (buckets - exact))
    return start + min(wide, buckets - 1)


def weights(score: rg.Score, position: rg.Position | None, pairs: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Every weight, `[batch, heads, queries, keys]`; `pairs` are the allowed ones."""
    batch, heads, queries, _ = q.shape
    keys, group = k.shape[2], heads // k.shape[1]
    actual = torch.zeros(batch, heads, queries, keys, dtype=q.dtype)
    for b in range(batch):
        for h in range(heads):
            for row in range(queries):
                seen = [j for j in range(keys) if pairs[b, h, row, j]]
                if not seen:
                    continue
                i = row + keys - queries
                line = torch.stack(
                    [
                        pair_score(
                            score, position, q[b, h, row], k[b, h // group, j], i, j, h, heads, b, keys - queries
                        )
                        for j in seen
                    ]
                )
                grown = (line - line.max()).exp()
                actual[b, h, row, seen] = grown / grown.sum()
    return actual


def attend(weights: Tensor, v: Tensor) -> Tensor:
    """The values mixed, head h of the weights with head h // group of v."""
    group = weights.shape[1] // v.shape[1]
    return torch.stack([weights[:, h] @ v[:, h // group] for h in range(weights.shape[1])], dim=1)
