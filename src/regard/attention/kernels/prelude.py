"""Device functions that the kernels of every family share: constants, indices, loads and stores, masks, dropout.

Names in kernels: `p_` pointer, `o_` offsets, `m_` mask, `b_` block of values, `i_` index of a program or tile; sizes in
capitals are compiled in. A tensor x `[batch, heads, tokens, head_dim]` has the strides `stride_xb`, `stride_xh` and
`stride_xn` in its first three axes; the last axis is contiguous. Scores are in base 2: exp(s) = 2^(s · LOG2E).
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportReturnType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton import knobs

INLINE_PTX = tl.constexpr(not knobs.runtime.interpret and torch.version.hip is None)
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
MAX_INIT = tl.constexpr(-1.0e30)  # start of a running maximum: finite, so that it can be subtracted from itself
MASKED = tl.constexpr(-3.0e30)  # score of a masked pair, so far below MAX_INIT that its weight is 0
LOWEST = tl.constexpr(-3.0e38)  # below every score


@triton.jit
def split_index(i_bh, heads):
    """(batch, head) of an index over both, int64."""
    return (i_bh // heads).to(tl.int64), (i_bh % heads).to(tl.int64)


@triton.jit
def group_index(i_group, i_instance, heads, BY_BATCH: tl.constexpr, BY_HEAD: tl.constexpr):
    """(batch, head) of a program, from the mask group of its tiles and its index among the programs of that group."""
    if BY_BATCH and BY_HEAD:
        i_b, i_h = i_group // heads, i_group % heads
    elif BY_BATCH:
        i_b, i_h = i_group, i_instance
    elif BY_HEAD:
        i_b, i_h = i_instance, i_group
    else:
        i_b, i_h = i_instance // heads, i_instance % heads
    return i_b, i_h


@triton.jit
def head_pointer(p_x, i_b, i_h, stride_b, stride_h):
    """The first token of a head."""
    return p_x + i_b.to(tl.int64) * stride_b + i_h.to(tl.int64) * stride_h


@triton.jit
def load_rows(p_x, o_n, stride_n, D: tl.constexpr, BD: tl.constexpr):
    """Rows o_n of x `[tokens, D]` as `[rows, BD]`, zeros beyond D; every row must exist."""
    o_d = tl.arange(0, BD)
    p_rows = p_x + o_n[:, None] * stride_n + o_d[None, :]
    return tl.load(p_rows) if D == BD else tl.load(p_rows, mask=(o_d < D)[None, :], other=0.0)


@triton.jit
def load_rows_masked(p_x, o_n, m_n, stride_n, D: tl.constexpr, BD: tl.constexpr):
    """Rows o_n of x `[tokens, D]` as `[rows, BD]`, zeros beyond D and where m_n is false."""
    o_d = tl.arange(0, BD)
    p_rows = p_x + o_n.to(tl.int64)[:, None] * stride_n + o_d[None, :]
    return tl.load(p_rows, mask=m_n[:, None] & (o_d < D)[None, :], other=0.0)


@triton.jit
def load_span(p_x, first, stride_n, tokens, SPAN: tl.constexpr, D, BD: tl.constexpr, PADDED: tl.constexpr):
    """Tokens first … of x as `[SPAN, BD]`: zeros beyond the last token and, where the head is PADDED, beyond D."""
    o_n = tl.arange(0, SPAN)
    o_d = tl.arange(0, BD)
    m_x = (first + o_n < tokens)[:, None]
    if PADDED:
        m_x = m_x & (o_d < D)[None, :]
    p_rows = p_x + tl.cast(first, tl.int64) * stride_n + o_n[:, None] * stride_n + o_d[None, :]
    return tl.load(p_rows, mask=m_x, other=0.0)


@triton.jit
def load_span_transposed(p_x, first, stride_n, tokens, SPAN: tl.constexpr, D, BD: tl.constexpr, PADDED: tl.constexpr):
    """The same tokens as `[BD, SPAN]`."""
    o_n = tl.arange(0, SPAN)
    o_d = tl.arange(0, BD)
    m_x = (first + o_n < tokens)[None, :]
    if PADDED:
        m_x = m_x & (o_d < D)[:, None]
    p_columns = p_x + tl.cast(first, tl.int64) * stride_n + o_n[None, :] * stride_n + o_d[:, None]
    return tl.load(p_columns, mask=m_x, other=0.0)


@triton.jit
def store_rows(p_x, o_n, b_x, tokens, D: tl.constexpr, BD: tl.constexpr):
    """Store `[rows, BD]` as rows o_n < tokens of a contiguous x `[tokens, D]`."""
    o_d = tl.arange(0, BD)
    m_x = (o_n < tokens)[:, None] & (o_d < D)[None, :]
    tl.store(p_x + o_n[:, None] * D + o_d[None, :], b_x.to(p_x.dtype.element_ty), mask=m_x)


@triton.jit
def per_query(b_x, TRANSPOSED: tl.constexpr):
    """A value per query, to broadcast along the keys of a tile."""
    return b_x[None, :] if TRANSPOSED else b_x[:, None]


@triton.jit
def key_order(SIZE: tl.constexpr, BY_THREAD: tl.constexpr):
    """The key of each column of a tile of SIZE keys: as they come, or BY_THREAD.

    In the result of a product of tensor cores thread t of four has the columns 2t, 2t + 1, 2t + 8, 2t + 9, … of a row.
    BY_THREAD they are keys that follow each other in memory, eight of 32, so that what is stored by pair is loaded into
    the registers where it is needed.
    """
    o_n = tl.arange(0, SIZE)
    if BY_THREAD:
        o_n = o_n // 32 * 32 + o_n % 8 // 2 * 8 + o_n % 32 // 8 * 2 + o_n % 2
    return o_n


@triton.jit
def load_mask(
    p_packed, i_bits, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TRANSPOSED: tl.constexpr,
    BY_THREAD: tl.constexpr = False,
):  # fmt: skip
    """The bits of a mixed tile as booleans, `[ROWS, COLUMNS]`, or `[COLUMNS, ROWS]`; columns in their `key_order`."""
    WORDS: tl.constexpr = COLUMNS // 32
    p_words = p_packed + i_bits.to(tl.int64) * (ROWS * WORDS) + tl.arange(0, ROWS) * WORDS
    o_column = key_order(COLUMNS, BY_THREAD)
    o_column = o_column[:, None] if TRANSPOSED else o_column[None, :]
    b_word = per_query(tl.load(p_words), TRANSPOSED)
    # One word per row, selected by the column: a load per pair would cost as much as the matrix product.
    for x in tl.static_range(1, WORDS):
        b_word = tl.where(o_column // 32 == x, per_query(tl.load(p_words + x), TRANSPOSED), b_word)
    return ((b_word >> (o_column % 32)) & 1) != 0


@triton.jit
def murmur3_mix(x):
    """Murmur3's finaliser over uint32."""
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def hash_head(p_seed, i_b, i_h):
    """The hash of (seed, batch, head)."""
    x = murmur3_mix(tl.load(p_seed).to(tl.uint32))
    x = murmur3_mix(x ^ i_b.to(tl.uint32))
    return murmur3_mix(x ^ i_h.to(tl.uint32))


@triton.jit
def hash_rows(p_seed, i_b, i_h, o_i):
    """The hash of (seed, batch, head, i) for queries at positions o_i, as `dropout.row_keys` in 32 bits."""
    return murmur3_mix(hash_head(p_seed, i_b, i_h) ^ o_i.to(tl.uint32))


@triton.jit
def dropout_mask(b_hash, o_j, threshold, TRANSPOSED: tl.constexpr):
    """Whether dropout keeps each weight of a tile, from `hash_rows` and the keys' positions."""
    b_key = o_j.to(tl.uint32) * 0x9E3779B1
    x = murmur3_mix(per_query(b_hash, TRANSPOSED) ^ (b_key[:, None] if TRANSPOSED else b_key[None, :]))
    return (x & 0x7FFFFFFF).to(tl.int32) >= threshold


@triton.jit
def load_rel_bias(
    p_line, o_x, length, BM: tl.constexpr, BN: tl.constexpr, TRANSPOSED: tl.constexpr, PAIRS: tl.constexpr
):
    """The distance bias of a tile whose corner is at entry o_x of the line, to start its matrix product from.

    The line is stored in four copies, each one entry further right than the last: row r reads copy r % 4, where its
    columns start at a multiple of four and neighbours load together. Four reversed copies serve transposed tiles.
    PAIRS loads two entries at once. It is valid only where the result starts a product of tensor cores, in whose layout
    a thread holds pairs of neighbours.
    """
    if TRANSPOSED:
        o_down, o_right = tl.arange(0, BN), tl.arange(0, BM)
        p_line += 5 * length - o_x
    else:
        o_down, o_right = tl.arange(0, BM), tl.arange(0, BN)
        p_line += o_x
    p_bias = p_line + ((o_down % 4) * length - o_down // 4 * 4)[:, None] + o_right[None, :]
    if PAIRS and INLINE_PTX:
        # An ordinary load gets a layout of its own and goes through shared memory to the product's.
        b_bias = tl.inline_asm_elementwise(
            "ld.global.nc.v2.f32 {$0, $1}, [$2];", "=f,=f,l,l", [p_bias.to(tl.int64)], tl.float32, is_pure=True, pack=2
        )
    else:
        b_bias = tl.load(p_bias)
    return b_bias


@triton.jit
def rel_bias_tile(
    p_rel_bias, i_h, o_x, origin, offset, length, inv_scale,
    BM: tl.constexpr, BN: tl.constexpr, TRANSPOSED: tl.constexpr, PAIRS: tl.constexpr, REL_BIAS: tl.constexpr,
):  # fmt: skip
    """The distance bias of a tile whose corner has j − row = o_x: a table's (REL_BIAS 1) or −slope·|i − j| / scale."""
    if REL_BIAS == 1:
        return load_rel_bias(p_rel_bias + i_h * 8 * length, origin + o_x, length, BM, BN, TRANSPOSED, PAIRS)
    else:
        # Rows and columns become float32 before they meet: a conversion takes as long as an exponential. Places are
        # whole numbers, exact up to 2^24.
        b_row = (o_x - offset + per_query(-tl.arange(0, BM), TRANSPOSED)).to(tl.float32)
        b_distance = b_row + per_query(tl.arange(0, BN), not TRANSPOSED).to(tl.float32)
        return -(tl.load(p_rel_bias + i_h) * inv_scale) * tl.abs(b_distance)


@triton.jit
def tanh(x):
    """tanh to a few ulps, also near zero, where 1 − e^−2x would lose its digits."""
    b_square = x * x
    b_series = 1.0 + b_square * (-1 / 3 + b_square * (2 / 15 + b_square * (-17 / 315 + b_square * (62 / 2835))))
    b_e = tl.exp2(tl.abs(x) * (-2.0 * LOG2E))
    b_far = (1.0 - b_e) / (1.0 + b_e)
    return tl.where(tl.abs(x) < 0.25, x * b_series, tl.where(x < 0, -b_far, b_far))


@triton.jit
def pair_bias_tile(
    p_pairs, i_b, i_h, i_m, i_n, queries, keys, stride_pb, stride_ph, stride_pm, stride_pn,
    BM: tl.constexpr, BN: tl.constexpr, TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """The bias by pair of the tile whose corner is at (i_m, i_n); the last row and key stand for those beyond them."""
    o_m = tl.minimum(i_m + tl.arange(0, BM), queries - 1).to(tl.int64) * stride_pm
    p_pairs = head_pointer(p_pairs, i_b, i_h, stride_pb, stride_ph) + per_query(o_m, TRANSPOSED)
    o_n = i_n + tl.arange(0, BN)
    if i_n + BN <= keys:  # neighbours in memory are then known to be, and loaded together
        b_pairs = tl.load(p_pairs + per_query(o_n.to(tl.int64) * stride_pn, not TRANSPOSED))
    else:
        o_n = tl.minimum(o_n, keys - 1)
        b_pairs = tl.load(p_pairs + per_query(o_n.to(tl.int64) * stride_pn, not TRANSPOSED))
    return b_pairs.to(tl.float32)


@triton.jit
def query_places(p_places, i_b, o_m, queries, stride_places):
    """The places of queries o_m; the last one's beyond it."""
    return tl.load(p_places + i_b * stride_places + tl.minimum(o_m, queries - 1))


@triton.jit
def key_places(p_places, i_b, o_n, queries, keys, stride_places):
    """The places of keys o_n; the last one's beyond it."""
    return tl.load(p_places + i_b * stride_places + queries + tl.minimum(o_n, keys - 1))


@triton.jit
def placed_bias(p_bias, i_h, b_i, b_j, zero, entries, scale, TRANSPOSED: tl.constexpr, SLOPES: tl.constexpr):
    """scale · table[head, clamp(i − j + zero)] of a tile at explicit places, or −scale · slope · |i − j|."""
    b_distance = per_query(b_i, TRANSPOSED) - per_query(b_j, not TRANSPOSED)
    if SLOPES:
        return -(tl.load(p_bias + i_h) * scale) * tl.abs(b_distance).to(tl.float32)
    else:
        o_t = tl.minimum(tl.maximum(b_distance + zero, 0), entries - 1)
        return tl.load(p_bias + i_h * entries + o_t).to(tl.float32) * scale


@triton.jit
def add_after_product(
    b_s, p_rel_bias, p_pairs, p_places, i_b, i_h, i_m, i_n, queries, keys,
    stride_pb, stride_ph, stride_pm, stride_pn, stride_places, origin, length, inv_scale, cap,
    BM: tl.constexpr, BN: tl.constexpr, TRANSPOSED: tl.constexpr, REL_BIAS: tl.constexpr, CAP: tl.constexpr,
    PAIR_BIAS: tl.constexpr, PLACED_BIAS: tl.constexpr,
):  # fmt: skip
    """Scores in units of the scale from the product of a tile, and the derivative of their cap:

        cap · tanh(s / cap) + rel_bias + pair_bias,   1 − tanh²

    Without a cap the product has started from rel_bias, unless it is that of explicit places: PLACED_BIAS 1 reads a
    table of `length` entries with distance 0 at `origin`, 2 computes it from slopes.
    """
    b_slope = 1.0
    if CAP:
        b_tanh = tanh(b_s * (1.0 / cap))
        b_slope = 1.0 - b_tanh * b_tanh
        b_s = b_tanh * cap
        if REL_BIAS:
            b_s += rel_bias_tile(
                p_rel_bias,
                i_h,
                i_n - i_m,
                origin,
                keys - queries,
                length,
                inv_scale,
                BM,
                BN,
                TRANSPOSED,
                False,
                REL_BIAS,
            )
    if PLACED_BIAS:
        b_i = query_places(p_places, i_b, i_m + tl.arange(0, BM), queries, stride_places)
        b_j = key_places(p_places, i_b, i_n + tl.arange(0, BN), queries, keys, stride_places)
        b_s += placed_bias(p_rel_bias, i_h, b_i, b_j, origin, length, inv_scale, TRANSPOSED, PLACED_BIAS == 2)
    if PAIR_BIAS:
        b_s += inv_scale * pair_bias_tile(
            p_pairs, i_b, i_h, i_m, i_n, queries, keys, stride_pb, stride_ph, stride_pm, stride_pn, BM, BN, TRANSPOSED
        )
    return b_s, b_slope


@triton.jit
def round_to(b_x, dtype: tl.constexpr):
    """Values rounded to a type, as float32."""
    if INLINE_PTX and dtype == tl.bfloat16:
        # Two by two, as for the operand of a product: alone each takes as long as an exponential.
        b_x = tl.inline_asm_elementwise(
            "{ .reg .b32 t; cvt.rn.bf16x2.f32 t, $3, $2; shl.b32 $0, t, 16; and.b32 $1, t, 0xffff0000; }",
            "=f,=f,f,f", [b_x], tl.float32, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        b_x = b_x.to(dtype).to(tl.float32)
    return b_x


@triton.jit
def add_product(b_sum, b_ds, b_x, EXACT: tl.constexpr, PRECISION: tl.constexpr):
    """b_sum + ds · x with ds rounded to the type of x; EXACT adds the product of what rounding leaves."""
    b_sum = tl.dot(b_ds.to(b_x.dtype), b_x, b_sum, input_precision=PRECISION)
    if EXACT:
        b_sum = tl.dot((b_ds - round_to(b_ds, b_x.dtype)).to(b_x.dtype), b_x, b_sum)
    return b_sum


@triton.jit
def add_sink(p_sink, i_h, b_m, b_l):
    """(α, m, l) with the logit of a head in the running maximum and sum, in base 2; α rescales what was summed."""
    sink = tl.load(p_sink + i_h).to(tl.float32) * LOG2E
    b_new_m = tl.maximum(b_m, sink)
    b_alpha = tl.exp2(b_m - b_new_m)
    return b_alpha, b_new_m, b_l * b_alpha + tl.exp2(sink - b_new_m)


@triton.jit
def shear(b_low, b_high, B: tl.constexpr):
    """Relative scores of a tile: column c of row r is entry c − r of [b_low | b_high], whose first entry is −B."""
    o_r, o_c = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    # Each row's columns are a rotation of what it takes from either half: one selection and one permutation.
    return tl.gather(tl.where(o_c < B - o_r, b_high, b_low), (o_c - o_r) & (B - 1), 1)


@triton.jit
def shear_keys(b_low, b_high, B: tl.constexpr):
    """The same for keys: column c of row r is entry c − r of row c of [b_low | b_high], whose rows are keys."""
    o_c, o_r = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    return tl.trans(tl.gather(tl.where(o_r <= o_c, b_high, b_low), (o_c - o_r) & (B - 1), 1))


@triton.jit
def unshear_keys(b_ds, B: tl.constexpr):
    """The adjoint of `shear_keys`: (for the low half, for the high half), rows are keys."""
    o_c, o_x = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    b_rotated = tl.gather(tl.trans(b_ds), (o_c - o_x) & (B - 1), 1)
    return tl.where(o_x <= o_c, 0.0, b_rotated), tl.where(o_x <= o_c, b_rotated, 0.0)


@triton.jit
def key_scores(b_k, p_high, B: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr):
    """Products of a tile's keys with their vectors by distance; `p_high` is the vector of the tile's corner."""
    o_n = tl.arange(0, B)
    b_high = tl.dot(b_k, tl.trans(load_rows(p_high, o_n, D, D, BD)), input_precision=PRECISION)
    b_low = tl.dot(b_k, tl.trans(load_rows(p_high - B * D, o_n, D, D, BD)), input_precision=PRECISION)
    return shear_keys(b_low, b_high, B)


@triton.jit
def unshear(b_ds, B: tl.constexpr):
    """The adjoint of `shear`: (for the low half, for the high half)."""
    o_r, o_c = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    b_rotated = tl.gather(b_ds, (o_c + o_r) & (B - 1), 1)
    m_high = o_c < B - o_r
    return tl.where(m_high, 0.0, b_rotated), tl.where(m_high, b_rotated, 0.0)
