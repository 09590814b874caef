"""Device functions for explicit places: parts by distance where neither rows nor keys stand one after another.

Places come as int32 `[batch or 1, queries + keys]`. A tile's distances lie anywhere, so it visits the entries of a
table between the least and the greatest that its own pairs have: two blocks of them where tokens stand in order, more
where they do not. Sums over pairs of equal distance are sums over keys of equal place first, a product with zeros and
ones, and then over the diagonals of (place of a query, place of a key): nothing is added in an order that could change.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportReturnType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from .prelude import add_product, load_mask, load_rows


@triton.jit
def allowed_pairs(p_packed, i_bits, B: tl.constexpr):
    """The pairs that a tile allows, `[B, B]`."""
    m_pairs = tl.full([B, B], 1, tl.int1)
    if i_bits >= 0:
        m_pairs = load_mask(p_packed, i_bits, B, B, False)
    return m_pairs


@triton.jit
def distances_of(b_own, b_other, BY_KEY: tl.constexpr):
    """i − j of (own, other), where own tokens are queries, or keys."""
    return b_other[None, :] - b_own[:, None] if BY_KEY else b_own[:, None] - b_other[None, :]


@triton.jit
def bounds(x, m_x, NONE: tl.constexpr):
    """The least and the greatest of x `[B, B]` where m_x holds; NONE and −NONE where it holds nowhere."""
    return tl.min(tl.min(tl.where(m_x, x, NONE), 1), 0), tl.max(tl.max(tl.where(m_x, x, -NONE), 1), 0)


@triton.jit
def placed_scores(
    b_x, p_table, b_own, b_other, m_pairs, zero, entries,
    B: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BY_KEY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """b_x[own] · table[clamp(i − j + zero)], `[own, other]`, for tokens b_x that are queries, or keys."""
    b_entry = tl.minimum(tl.maximum(distances_of(b_own, b_other, BY_KEY) + zero, 0), entries - 1)
    first, last = bounds(b_entry, m_pairs, 1 << 30)
    b_s = tl.zeros([B, B], tl.float32)
    for x in range(first, last + 1, B):
        o_x = tl.minimum(x + tl.arange(0, B), entries - 1)
        b_products = tl.dot(b_x, tl.trans(load_rows(p_table, o_x, D, D, BD)), input_precision=PRECISION)
        b_s += tl.where((b_entry >= x) & (b_entry < x + B), tl.gather(b_products, (b_entry - x) & (B - 1), 1), 0.0)
    return b_s


@triton.jit
def sum_by_place(b_ds, b_other, y, TYPE: tl.constexpr, B: tl.constexpr, EXACT: tl.constexpr, PRECISION: tl.constexpr):
    """Σ ds over the other tokens at place y + c, `[own, c]`, by a product in a type (see `add_product`)."""
    b_hot = (b_other[:, None] - y == tl.arange(0, B)[None, :]).to(TYPE)
    return add_product(tl.zeros([b_ds.shape[0], B], tl.float32), b_ds, b_hot, EXACT, PRECISION)


@triton.jit
def by_entry(b_sums, b_own, y, x, zero, entries, B: tl.constexpr, BY_KEY: tl.constexpr):
    """Sums by place as sums by entry x + c of the table, `[own, c]`; none at its two ends (see `end_sums`)."""
    o_e = x + tl.arange(0, B)
    o_y = b_own[:, None] + (o_e - zero - y if BY_KEY else zero - o_e - y)[None, :]
    m_e = (o_y >= 0) & (o_y < B) & ((o_e > 0) & (o_e < entries - 1))[None, :]
    return tl.where(m_e, tl.gather(b_sums, o_y & (B - 1), 1), 0.0)


@triton.jit
def end_sums(b_ds, b_own, b_other, zero, entries, BY_KEY: tl.constexpr):
    """Σ ds over the pairs that the first entry of the table serves, and the last one; the first alone if it is both."""
    b_at = distances_of(b_own, b_other, BY_KEY) + zero
    b_low = tl.sum(tl.where(b_at <= 0, b_ds.to(tl.float32), 0.0), 1)
    b_high = tl.sum(tl.where((b_at >= entries - 1) & (b_at > 0), b_ds.to(tl.float32), 0.0), 1)
    return b_low, b_high


@triton.jit
def add_placed_rows(
    b_out, b_ds, p_table, b_own, b_other, zero, entries,
    B: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BY_KEY: tl.constexpr, EXACT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """b_out[own] + Σ over other tokens of ds · table[clamp(i − j + zero)]; the adjoint of `placed_scores` for b_x."""
    b_at, m_live = distances_of(b_own, b_other, BY_KEY) + zero, b_ds != 0
    b_low, b_high = end_sums(b_ds, b_own, b_other, zero, entries, BY_KEY)
    o_d = tl.arange(0, BD)
    b_out += b_low[:, None] * tl.load(p_table + o_d, mask=o_d < D, other=0.0).to(tl.float32)[None, :]
    p_last = p_table + (entries - 1) * D + o_d
    b_out += b_high[:, None] * tl.load(p_last, mask=o_d < D, other=0.0).to(tl.float32)[None, :]
    m_live = m_live & (b_at > 0) & (b_at < entries - 1)
    first, last = bounds(b_at, m_live, 1 << 30)
    place, last_place = bounds(tl.broadcast_to(b_other[None, :], [B, B]), m_live, 1 << 30)
    for y in range(place, last_place + 1, B):
        b_sums = sum_by_place(b_ds, b_other, y, p_table.dtype.element_ty, B, EXACT, PRECISION)
        for x in range(first, last + 1, B):
            o_x = tl.minimum(x + tl.arange(0, B), entries - 1)
            b_band = by_entry(b_sums, b_own, y, x, zero, entries, B, BY_KEY)
            b_out = add_product(b_out, b_band, load_rows(p_table, o_x, D, D, BD), EXACT, PRECISION)
    return b_out


@triton.jit
def add_by_entry(p_sums, b_ds, b_i, b_j, zero, entries, BM: tl.constexpr, B: tl.constexpr):
    """Add Σ ds over the pairs of each entry of a table to `p_sums [entries]`, which no other program writes.

    ds `[BM, B]` is float32 and summed as such.
    """
    b_at, m_live = distances_of(b_i, b_j, False) + zero, b_ds != 0
    b_low, b_high = end_sums(b_ds, b_i, b_j, zero, entries, False)
    tl.debug_barrier()  # the last tile's sums may be those of other threads
    tl.store(p_sums, tl.load(p_sums) + tl.sum(b_low, 0))
    tl.debug_barrier()
    tl.store(p_sums + entries - 1, tl.load(p_sums + entries - 1) + tl.sum(b_high, 0))
    m_live = m_live & (b_at > 0) & (b_at < entries - 1)
    first, last = bounds(b_at, m_live, 1 << 30)
    place, last_place = bounds(tl.broadcast_to(b_j[None, :], [BM, B]), m_live, 1 << 30)
    for y in range(place, last_place + 1, B):
        b_sums = sum_by_place(b_ds, b_j, y, tl.float32, B, False, "tf32x3")
        for x in range(first, last + 1, B):
            o_x = x + tl.arange(0, B)
            b_sum = tl.sum(by_entry(b_sums, b_i, y, x, zero, entries, B, False), 0)
            tl.debug_barrier()
            tl.store(p_sums + o_x, tl.load(p_sums + o_x, mask=o_x <= last, other=0.0) + b_sum, mask=o_x <= last)
