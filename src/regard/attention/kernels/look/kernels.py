"""The kernels of looking; `stats.py` says what they find together and runs them."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from ..prelude import allowed

LN2 = tl.constexpr(math.log(2.0))
LOWEST = tl.constexpr(-1.0e30)  # where a running maximum starts: finite, so that 0 · (old − new) is 0
EMPTY = tl.constexpr(-3.0e38)  # below every score that can be among the largest
NOWHERE = tl.constexpr(1 << 30)
LEAST = tl.constexpr(-(1 << 63))  # below every candidate
PLAIN = tl.constexpr(triton.knobs.runtime.interpret or torch.version.hip is not None)


@triton.jit
def features(p_x, first, token, size, SPAN: tl.constexpr, D, BD: tl.constexpr, WHOLE: tl.constexpr):
    """Tokens first … of x, `[SPAN, BD]`; zeros beyond the last, and beyond D numbers unless they are WHOLE."""
    o_t = tl.arange(0, SPAN)
    o_d = tl.arange(0, BD)
    m_x = (first + o_t < size)[:, None]
    if not WHOLE:
        m_x = m_x & (o_d < D)[None, :]
    return tl.load(p_x + tl.cast(first, tl.int64) * token + o_t[:, None] * token + o_d[None, :], mask=m_x, other=0.0)


@triton.jit
def across(p_x, first, token, size, SPAN: tl.constexpr, D, BD: tl.constexpr, WHOLE: tl.constexpr):
    """The same tokens as `[BD, SPAN]`."""
    o_t = tl.arange(0, SPAN)
    o_d = tl.arange(0, BD)
    m_x = (first + o_t < size)[None, :]
    if not WHOLE:
        m_x = m_x & (o_d < D)[:, None]
    return tl.load(p_x + tl.cast(first, tl.int64) * token + o_t[None, :] * token + o_d[:, None], mask=m_x, other=0.0)


@triton.jit
def activated(x, slope, TANH: tl.constexpr):
    if TANH:
        e = tl.exp2(tl.abs(x) * -2.8853900817779268)
        y = (1.0 - e) / (1.0 + e)
        return tl.where(x < 0, -y, y)
    return tl.where(x > 0, x, x * slope)


@triton.jit
def band(
    p_table, highest, zero, entries, left, D: tl.constexpr, BD: tl.constexpr, B: tl.constexpr, ACROSS: tl.constexpr
):  # fmt: skip
    """The table's vectors for distances highest, highest − 1, …, `[B, BD]`, or `[BD, B]` across."""
    o_x = tl.minimum(tl.maximum(highest - tl.arange(0, B) + zero, 0), entries - 1)
    o_d = tl.arange(0, BD)
    if ACROSS:
        b_x = tl.load(p_table + o_x[None, :] * D + o_d[:, None], mask=(o_d < left)[:, None], other=0.0)
    else:
        b_x = tl.load(p_table + o_x[:, None] * D + o_d[None, :], mask=(o_d < left)[None, :], other=0.0)
    return b_x


@triton.jit
def asked(
    b_asking, p_asking, p_table, first, size, token, highest, zero, entries,
    D: tl.constexpr, BD: tl.constexpr, B: tl.constexpr, BY_KEY: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """B queries' products with the vectors of distances highest, highest − 1, …, `[B, B]`; by key transposed."""
    if CHUNK > 0:
        b_x = tl.zeros([B, B], tl.float32)
        for d in range(0, D, CHUNK):
            b_t = band(p_table + d, highest, zero, entries, D - d, D, CHUNK, B, not BY_KEY)
            if BY_KEY:
                b_a = across(p_asking + d, first, token, size, B, D - d, CHUNK, D % CHUNK == 0)
                b_x = tl.dot(b_t, b_a, b_x, input_precision="ieee")
            else:
                b_a = features(p_asking + d, first, token, size, B, D - d, CHUNK, D % CHUNK == 0)
                b_x = tl.dot(b_a, b_t, b_x, input_precision="ieee")
    elif BY_KEY:
        b_a = across(p_asking, first, token, size, B, D, BD, D == BD)
        b_x = tl.dot(band(p_table, highest, zero, entries, D, D, BD, B, False), b_a, input_precision="ieee")
    else:
        b_x = tl.dot(b_asking, band(p_table, highest, zero, entries, D, D, BD, B, True), input_precision="ieee")
    return b_x


@triton.jit
def numbers(p_line, o_x):
    """The line's entries o_x."""
    if PLAIN:
        b_x = tl.load(p_line + o_x)
    else:
        # An ordinary load would be given a layout of its own and pass through shared memory on its way to the scores'.
        p_x = (p_line + o_x).to(tl.int64)
        b_x = tl.inline_asm_elementwise("ld.global.nc.f32 $0, [$1];", "=f,l", [p_x], tl.float32, is_pure=True, pack=1)
    return b_x


@triton.jit
def scores(
    b_own,
    b_asking,
    p_own,
    p_other,
    p_asking,
    p_weight,
    p_numbers,
    p_table,
    p_packed,
    own_first,
    own_size,
    own_token,
    first,
    size,
    token,
    asking_token,
    offset,
    bit,
    scale,
    forbidden,
    slope,
    origin,
    table_zero,
    table_entries,
    D: tl.constexpr,
    BD: tl.constexpr,
    OWN: tl.constexpr,
    SPAN: tl.constexpr,
    BY_KEY: tl.constexpr,
    LISTED: tl.constexpr,
    SCORE: tl.constexpr,
    NUMBERS: tl.constexpr,
    VECTORS: tl.constexpr,
    EDGE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """A tile of scores but for their factor `scale`, `[OWN, SPAN]`: rows × columns, or by key columns × rows.

    With it they are in base 2. `forbidden` stands where the mask forbids or, at an EDGE, the keys end.
    """
    o_own = tl.arange(0, OWN)
    o_other = tl.arange(0, SPAN)
    if SCORE == "dot" and CHUNK == 0:
        b_other = across(p_other, first, token, size, SPAN, D, BD, D == BD)
        s = tl.dot(b_own, b_other, input_precision="ieee")
    elif SCORE == "dot":
        s = tl.zeros([OWN, SPAN], tl.float32)
        for d in range(0, D, CHUNK):
            b_x = features(p_own + d, own_first, own_token, own_size, OWN, D - d, CHUNK, D % CHUNK == 0)
            b_y = across(p_other + d, first, token, size, SPAN, D - d, CHUNK, D % CHUNK == 0)
            s = tl.dot(b_x, b_y, s, input_precision="ieee")
    else:
        s = tl.zeros([OWN, SPAN], tl.float32)
        p_x = p_own + tl.cast(own_first, tl.int64) * own_token + o_own * own_token
        p_y = p_other + tl.cast(first, tl.int64) * token + o_other * token
        m_x = own_first + o_own < own_size
        m_y = first + o_other < size
        for d in range(D):
            b_x = tl.load(p_x + d, mask=m_x, other=0.0).to(tl.float32)
            b_y = tl.load(p_y + d, mask=m_y, other=0.0).to(tl.float32)
            s += tl.load(p_weight + d) * activated(b_x[:, None] + b_y[None, :], slope, SCORE == "tanh")
    if VECTORS:
        tl.static_assert(OWN == SPAN)
        i_row = first if BY_KEY else own_first
        rows = size if BY_KEY else own_size
        high = first + offset - own_first if BY_KEY else own_first + offset - first
        b_near = asked(
            b_asking, p_asking, p_table, i_row, rows, asking_token, high, table_zero, table_entries,
            D, BD, OWN, BY_KEY, CHUNK,
        )  # fmt: skip
        b_far = asked(
            b_asking, p_asking, p_table, i_row, rows, asking_token, high + OWN, table_zero, table_entries,
            D, BD, OWN, BY_KEY, CHUNK,
        )  # fmt: skip
        # Column c of row r is at c − r of the band: a rotation of what the row takes from either half of it.
        o_c = o_own[:, None] if BY_KEY else o_other[None, :]
        o_r = o_other[None, :] if BY_KEY else o_own[:, None]
        s += tl.gather(tl.where(o_c < OWN - o_r, b_near, b_far), (o_c - o_r) & (OWN - 1), 0 if BY_KEY else 1)
    if NUMBERS:
        if BY_KEY:
            s += numbers(p_numbers, (origin + own_first - first) + (o_own[:, None] - o_other[None, :]))
        else:
            s += numbers(p_numbers, (origin + first - own_first) + (o_other[None, :] - o_own[:, None]))
    if LISTED:  # noqa: SIM102
        if bit >= 0:
            if BY_KEY:
                s = tl.where(allowed(p_packed, bit, SPAN, OWN, True), s, forbidden)
            else:
                s = tl.where(allowed(p_packed, bit, OWN, SPAN, False), s, forbidden)
    if EDGE:
        s = tl.where((first + o_other < size)[None, :], s, forbidden)
    return s


@triton.jit
def carried(
    s, m, total, e, d, b_tops, i_column, b_place, x, scale, BN: tl.constexpr, CLASSES: tl.constexpr
):  # fmt: skip
    """The sums of `look_rows` after one more tile of scores."""
    high = tl.max(s, 1) * scale
    high_m = tl.maximum(m, high)
    t = s * scale - high_m[:, None]
    p = tl.exp2(t)
    fade = tl.exp2(m - high_m)
    apart = tl.arange(0, BN).to(tl.float32)[None, :] + (tl.cast(i_column, tl.float32) - b_place)[:, None]
    e = (e + total * (m - high_m)) * fade + tl.sum(p * t, 1)
    d = d * fade + tl.sum(p * tl.abs(apart), 1)
    total = total * fade + tl.sum(p, 1)
    if CLASSES > 1:
        b_tops = tl.where((tl.arange(0, CLASSES) == x % CLASSES)[None, :], tl.maximum(b_tops, high[:, None]), b_tops)
    return high_m, total, e, d, b_tops


@triton.jit(
    do_not_specialize=[
        "queries", "keys", "heads", "group", "tile_rows", "offset", "batch_stride", "head_stride",
        "table_zero", "table_entries", "scale", "forbidden", "slope", "top",
    ]
)  # fmt: skip
def look_rows(
    p_q, p_k, p_asking, p_weight, p_numbers, p_table, p_starts, p_tile, p_bits, p_packed,
    p_lse, p_level, p_entropy, p_distance, p_peak, p_floor,
    q_batch, q_head, q_token, k_batch, k_head, k_token, a_batch, a_head, a_token,
    queries, keys, heads, group, tile_rows, offset, batch_stride, head_stride,
    scale, forbidden, slope, origin, length, table_zero, table_entries, top,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CLASSES: tl.constexpr, LISTED: tl.constexpr,
    SCORE: tl.constexpr, NUMBERS: tl.constexpr, VECTORS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Log-sum-exp, entropy, distance and peak of BM queries, in base 2 with a running maximum m and t = s − m:

        l = Σ 2^t,   e = Σ 2^t · t,   d = Σ 2^t · |i − j|
        lse = m + log2 l,   entropy = log2 l − e / l,   distance = d / l,   peak = 1 / l

    When m grows by x, every sum fades by 2^−x, and e loses x · l first. `floor` is the top-th largest among the maxima
    of CLASSES classes of tiles: at least so many scores are no less.
    """
    i_tile = tile_rows - 1 - tl.program_id(0) % tile_rows  # the last rows have the most keys under a causal mask
    i_both = tl.program_id(0) // tile_rows
    i_b = tl.cast(i_both // heads, tl.int64)
    i_h = tl.cast(i_both % heads, tl.int64)
    i_row = i_tile * BM
    p_q += i_b * q_batch + i_h * q_head
    p_k += i_b * k_batch + (i_h // group) * k_head
    p_weight += i_h * D
    p_numbers += i_h * length
    p_table += i_h * table_entries * D
    o_row = i_row + tl.arange(0, BM)
    b_q = features(p_q, i_row, q_token, queries, BM, D, BD, D == BD) if SCORE == "dot" and CHUNK == 0 else 0
    if VECTORS:
        p_asking += i_b * a_batch + i_h * a_head
    b_asking = features(p_asking, i_row, a_token, queries, BM, D, BD, D == BD) if VECTORS and CHUNK == 0 else 0
    m = tl.full([BM], LOWEST, tl.float32)
    total = tl.zeros([BM], tl.float32)
    e = tl.zeros([BM], tl.float32)
    d = tl.zeros([BM], tl.float32)
    o_class = tl.arange(0, CLASSES)
    b_tops = tl.full([BM, CLASSES], EMPTY, tl.float32)
    b_place = (o_row + offset).to(tl.float32)
    if LISTED:
        p_starts += (i_b * batch_stride + i_h * head_stride) * (tile_rows + 1) + i_tile
        first, last = tl.load(p_starts), tl.load(p_starts + 1)
    else:
        first, last = 0, keys // BN
    for x in tl.range(first, last):
        if LISTED:
            i_column, bit = tl.load(p_tile + x) * BN, tl.load(p_bits + x)
        else:
            i_column, bit = x * BN, -1
        s = scores(
            b_q, b_asking, p_q, p_k, p_asking, p_weight, p_numbers, p_table, p_packed,
            i_row, queries, q_token, i_column, keys, k_token, a_token, offset, bit, scale, forbidden, slope,
            origin, table_zero, table_entries,
            D, BD, BM, BN, False, LISTED, SCORE, NUMBERS, VECTORS, False, CHUNK,
        )  # fmt: skip
        m, total, e, d, b_tops = carried(s, m, total, e, d, b_tops, i_column, b_place, x, scale, BN, CLASSES)
    if not LISTED and last * BN < keys:  # the rest of the keys, apart: a mask in every tile would cost a third more
        s = scores(
            b_q, b_asking, p_q, p_k, p_asking, p_weight, p_numbers, p_table, p_packed,
            i_row, queries, q_token, last * BN, keys, k_token, a_token, offset, -1, scale, forbidden, slope,
            origin, table_zero, table_entries,
            D, BD, BM, BN, False, LISTED, SCORE, NUMBERS, VECTORS, True, CHUNK,
        )  # fmt: skip
        m, total, e, d, b_tops = carried(s, m, total, e, d, b_tops, last * BN, b_place, last, scale, BN, CLASSES)
    alive = total > 0
    safe = tl.where(alive, total, 1.0)
    level = m + tl.log2(safe)
    m_row = o_row < queries
    o_out = tl.cast(i_both, tl.int64) * queries + o_row
    tl.store(p_level + o_out, tl.where(alive, level, float("inf")), mask=m_row)
    tl.store(p_lse + o_out, tl.where(alive, level * LN2, -float("inf")), mask=m_row)
    tl.store(p_entropy + o_out, tl.where(alive, tl.maximum((tl.log2(safe) - e / safe) * LN2, 0.0), 0.0), mask=m_row)
    tl.store(p_distance + o_out, tl.where(alive, d / safe, 0.0), mask=m_row)
    tl.store(p_peak + o_out, tl.where(alive, 1.0 / safe, 0.0), mask=m_row)
    if CLASSES > 1:
        for _ in range(top - 1):
            i_best = tl.argmax(b_tops, 1)
            b_tops = tl.where(o_class[None, :] == i_best[:, None], EMPTY, b_tops)
        floor = tl.max(b_tops, 1)
        tl.store(p_floor + o_out, floor, mask=m_row)


@triton.jit
def pooled(b_part, i_bucket, b_received, b_sum, at, p_cells, map_pieces, b_piece, m_piece, PIECES: tl.constexpr):
    """(received, the open bucket's sum, its number) with one more part; a new bucket closes the open one."""
    if i_bucket == at:
        b_sum += b_part
    else:
        o_piece = tl.arange(0, PIECES)
        b_cells = tl.sum(tl.where(o_piece[:, None] == b_piece[None, :], b_sum[None, :], 0.0), 1)
        p_line = p_cells + tl.cast(tl.maximum(at, 0), tl.int64) * map_pieces + o_piece
        tl.store(p_line, b_cells, mask=m_piece & (at >= 0))
        b_received += b_sum
        b_sum = b_part
        at = i_bucket
    return b_received, b_sum, at


@triton.jit(
    do_not_specialize=[
        "queries", "keys", "heads", "group", "tile_columns", "offset", "batch_stride", "head_stride",
        "table_zero", "table_entries", "scale", "forbidden", "slope", "map_rows", "map_pieces",
    ]
)  # fmt: skip
def look_columns(
    p_q, p_k, p_asking, p_weight, p_numbers, p_table, p_starts, p_tile, p_bits, p_packed,
    p_level, p_received, p_row_bucket, p_key_bucket, p_cells, p_weights,
    q_batch, q_head, q_token, k_batch, k_head, k_token, a_batch, a_head, a_token,
    queries, keys, heads, group, tile_columns, offset, batch_stride, head_stride,
    scale, forbidden, slope, origin, length, table_zero, table_entries, map_rows, map_pieces,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BUCKETS: tl.constexpr, PIECES: tl.constexpr,
    WEIGHTS: tl.constexpr, LISTED: tl.constexpr, SCORE: tl.constexpr, NUMBERS: tl.constexpr, VECTORS: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """What BN keys received, and their part of the map, with the log-sum-exp of each query known:

        p = 2^(s − lse),   received = Σ_i p,   cells[r, piece] = Σ over i of bucket r and j of the piece of p

    A tile of keys is cut into pieces by the map's buckets. Queries come in ascending order, so a bucket's sum is
    complete when the next bucket begins; a tile of queries touches BUCKETS of them
    at most (3: any number; 0: there is no map).
    """
    i_tile = tl.program_id(0) % tile_columns
    i_both = tl.program_id(0) // tile_columns
    i_b = tl.cast(i_both // heads, tl.int64)
    i_h = tl.cast(i_both % heads, tl.int64)
    i_column = i_tile * BN
    p_q += i_b * q_batch + i_h * q_head
    p_k += i_b * k_batch + (i_h // group) * k_head
    p_weight += i_h * D
    p_numbers += i_h * length
    p_table += i_h * table_entries * D
    if VECTORS:
        p_asking += i_b * a_batch + i_h * a_head
    p_level += tl.cast(i_both, tl.int64) * queries
    o_column = i_column + tl.arange(0, BN)
    o_m = tl.arange(0, BM)
    m_column = o_column < keys
    b_k = features(p_k, i_column, k_token, keys, BN, D, BD, D == BD) if SCORE == "dot" and CHUNK == 0 else 0
    b_received = tl.zeros([BN], tl.float32)
    b_sum = tl.zeros([BN], tl.float32)
    at = -1
    if BUCKETS > 0:
        o_piece = tl.arange(0, PIECES)
        i_piece = tl.load(p_key_bucket + i_column)
        m_piece = o_piece <= tl.load(p_key_bucket + tl.minimum(i_column + BN, keys) - 1) - i_piece
        b_piece = tl.load(p_key_bucket + o_column, mask=m_column, other=-1) - i_piece
        b_piece = tl.where(m_column, b_piece, -1)
        p_cells += tl.cast(i_both, tl.int64) * map_rows * map_pieces + i_piece + i_tile
    if LISTED:
        p_starts += (i_b * batch_stride + i_h * head_stride) * (tile_columns + 1) + i_tile
        first, last = tl.load(p_starts), tl.load(p_starts + 1)
    else:
        first, last = 0, tl.cdiv(queries, BM)
    for x in tl.range(first, last):
        if LISTED:
            i_row, bit = tl.load(p_tile + x) * BM, tl.load(p_bits + x)
        else:
            i_row, bit = x * BM, -1
        s = scores(
            b_k, 0, p_k, p_q, p_asking, p_weight, p_numbers, p_table, p_packed,
            i_column, keys, k_token, i_row, queries, q_token, a_token, offset, bit, scale, forbidden, slope,
            origin, table_zero, table_entries,
            D, BD, BN, BM, True, LISTED, SCORE, NUMBERS, VECTORS, False, CHUNK,
        )  # fmt: skip
        b_level = tl.load(p_level + i_row + o_m, mask=i_row + o_m < queries, other=float("inf"))
        p = tl.exp2(s * scale - b_level[None, :])
        if WEIGHTS:
            p_pairs = (
                p_weights + (tl.cast(i_both, tl.int64) * queries + i_row) * keys + o_m[None, :].to(tl.int64) * keys
            )
            tl.store(p_pairs + o_column[:, None], p, mask=m_column[:, None] & (i_row + o_m < queries)[None, :])
        if BUCKETS == 0:
            b_received += tl.sum(p, 1)
        else:
            i_first = tl.load(p_row_bucket + i_row)
            i_last = tl.load(p_row_bucket + tl.minimum(i_row + BM, queries) - 1)
            if BUCKETS == 1:
                b_received, b_sum, at = pooled(
                    tl.sum(p, 1), i_first, b_received, b_sum, at, p_cells, map_pieces, b_piece, m_piece, PIECES
                )
            else:
                b_bucket = tl.load(p_row_bucket + i_row + o_m, mask=i_row + o_m < queries, other=-1)
                b_part = tl.sum(tl.where((b_bucket == i_first)[None, :], p, 0.0), 1)
                b_received, b_sum, at = pooled(
                    b_part, i_first, b_received, b_sum, at, p_cells, map_pieces, b_piece, m_piece, PIECES
                )
                if BUCKETS == 2:
                    if i_last > i_first:
                        b_part = tl.sum(tl.where((b_bucket == i_last)[None, :], p, 0.0), 1)
                        b_received, b_sum, at = pooled(
                            b_part, i_last, b_received, b_sum, at, p_cells, map_pieces, b_piece, m_piece, PIECES
                        )
                else:
                    for i_bucket in range(i_first + 1, i_last + 1):
                        b_part = tl.sum(tl.where((b_bucket == i_bucket)[None, :], p, 0.0), 1)
                        b_received, b_sum, at = pooled(
                            b_part, i_bucket, b_received, b_sum, at, p_cells, map_pieces, b_piece, m_piece, PIECES
                        )
    if BUCKETS > 0:
        b_received, b_sum, at = pooled(
            b_sum, map_rows, b_received, b_sum, at, p_cells, map_pieces, b_piece, m_piece, PIECES
        )
    tl.store(p_received + tl.cast(i_both, tl.int64) * keys + o_column, b_received, mask=m_column)


@triton.jit
def sortable(x):
    """A float32 as an int32 of the same order, and back."""
    y = x.to(tl.int32, bitcast=True) if x.dtype == tl.float32 else x
    y = y ^ ((y >> 31) & 0x7FFFFFFF)
    return y if x.dtype == tl.float32 else y.to(tl.float32, bitcast=True)


@triton.jit
def score_of(b_best):
    """The score in a 64-bit candidate."""
    return sortable((b_best >> 32).to(tl.int32))


@triton.jit
def merged(s, b_best, b_least, b_floor, i_column, forbidden, BN: tl.constexpr):
    """The best candidates and the least of them, after one more tile of scores."""
    o_n = tl.arange(0, BN)[None, :]
    high = tl.max(s, 1)
    taken = (high >= b_floor) & (high > score_of(b_least)) & (high > forbidden)
    while tl.max(taken.to(tl.int32), 0) > 0:
        column = tl.min(tl.where(s == high[:, None], o_n, NOWHERE), 1)
        b_new = (sortable(high).to(tl.int64) << 32) | (0xFFFFFFFF - (i_column + column).to(tl.int64))
        b_best = tl.where(taken[:, None] & (b_best == b_least[:, None]), b_new[:, None], b_best)
        b_least = tl.min(b_best, 1)
        s = tl.where(o_n == column[:, None], forbidden, s)
        high = tl.max(s, 1)
        taken = (high >= b_floor) & (high > score_of(b_least)) & (high > forbidden)
    return b_best, b_least


@triton.jit(
    do_not_specialize=[
        "queries", "keys", "heads", "group", "tile_rows", "offset", "batch_stride", "head_stride",
        "table_zero", "table_entries", "scale", "forbidden", "slope", "top",
    ]
)  # fmt: skip
def look_top(
    p_q, p_k, p_asking, p_weight, p_numbers, p_table, p_starts, p_tile, p_bits, p_packed,
    p_level, p_floor, p_top_weights, p_top_keys,
    q_batch, q_head, q_token, k_batch, k_head, k_token, a_batch, a_head, a_token,
    queries, keys, heads, group, tile_rows, offset, batch_stride, head_stride,
    scale, forbidden, slope, origin, length, table_zero, table_entries, top,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PLACES: tl.constexpr, LISTED: tl.constexpr,
    SCORE: tl.constexpr, NUMBERS: tl.constexpr, VECTORS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The largest weights of BM queries and their keys.

    A candidate is a 64-bit number: the score's bits in their order, then the key's complement, so that the lower key
    wins a tie. A tile gives up its largest scores one a row at a time, for as long as any row takes one.
    """
    i_tile = tile_rows - 1 - tl.program_id(0) % tile_rows
    i_both = tl.program_id(0) // tile_rows
    i_b = tl.cast(i_both // heads, tl.int64)
    i_h = tl.cast(i_both % heads, tl.int64)
    i_row = i_tile * BM
    p_q += i_b * q_batch + i_h * q_head
    p_k += i_b * k_batch + (i_h // group) * k_head
    p_weight += i_h * D
    p_numbers += i_h * length
    p_table += i_h * table_entries * D
    o_row = i_row + tl.arange(0, BM)
    m_row = o_row < queries
    o_out = tl.cast(i_both, tl.int64) * queries + o_row
    b_q = features(p_q, i_row, q_token, queries, BM, D, BD, D == BD) if SCORE == "dot" and CHUNK == 0 else 0
    if VECTORS:
        p_asking += i_b * a_batch + i_h * a_head
    b_asking = features(p_asking, i_row, a_token, queries, BM, D, BD, D == BD) if VECTORS and CHUNK == 0 else 0
    # The same score may differ in its last bits from that of another kernel.
    b_floor = tl.load(p_floor + o_out, mask=m_row, other=float("inf"))
    b_floor -= tl.abs(b_floor) * 2.44e-4 + 2.44e-4
    b_floor = b_floor / scale
    o_place = tl.arange(0, PLACES)
    b_best = (sortable(tl.full([BM, PLACES], EMPTY, tl.float32)).to(tl.int64) << 32) | o_place[None, :].to(tl.int64)
    b_least = tl.min(b_best, 1)
    if LISTED:
        p_starts += (i_b * batch_stride + i_h * head_stride) * (tile_rows + 1) + i_tile
        first, last = tl.load(p_starts), tl.load(p_starts + 1)
    else:
        first, last = 0, keys // BN
    for x in tl.range(first, last):
        if LISTED:
            i_column, bit = tl.load(p_tile + x) * BN, tl.load(p_bits + x)
        else:
            i_column, bit = x * BN, -1
        s = scores(
            b_q, b_asking, p_q, p_k, p_asking, p_weight, p_numbers, p_table, p_packed,
            i_row, queries, q_token, i_column, keys, k_token, a_token, offset, bit, scale, forbidden, slope,
            origin, table_zero, table_entries,
            D, BD, BM, BN, False, LISTED, SCORE, NUMBERS, VECTORS, False, CHUNK,
        )  # fmt: skip
        b_best, b_least = merged(s, b_best, b_least, b_floor, i_column, forbidden, BN)
    if not LISTED and last * BN < keys:
        s = scores(
            b_q, b_asking, p_q, p_k, p_asking, p_weight, p_numbers, p_table, p_packed,
            i_row, queries, q_token, last * BN, keys, k_token, a_token, offset, -1, scale, forbidden, slope,
            origin, table_zero, table_entries,
            D, BD, BM, BN, False, LISTED, SCORE, NUMBERS, VECTORS, True, CHUNK,
        )  # fmt: skip
        b_best, b_least = merged(s, b_best, b_least, b_floor, last * BN, forbidden, BN)
    b_level = tl.load(p_level + o_out, mask=m_row, other=float("inf"))
    for x in range(top):
        b_new = tl.max(b_best, 1)
        b_best = tl.where(b_best == b_new[:, None], LEAST, b_best)
        b_score = score_of(b_new) * scale
        b_weight = tl.where(b_score > LOWEST, tl.exp2(b_score - b_level), 0.0)
        tl.store(p_top_weights + o_out * top + x, b_weight, mask=m_row)
        b_key = tl.where(b_weight > 0, 0xFFFFFFFF - (b_new & 0xFFFFFFFF), -1)
        tl.store(p_top_keys + o_out * top + x, b_key, mask=m_row)
