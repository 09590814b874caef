"""Device code of `look`; `passes.py` says what the kernels compute together."""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportReturnType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from ..prelude import (
    INLINE_PTX,
    LN2,
    LOWEST,
    MAX_INIT,
    head_pointer,
    load_mask,
    load_span,
    load_span_transposed,
    split_index,
    tanh,
)

NO_COLUMN = tl.constexpr(1 << 30)
NO_CANDIDATE = tl.constexpr(-(1 << 63))  # below every candidate


@triton.jit
def activate(x, slope, TANH: tl.constexpr):
    if TANH:
        b_e = tl.exp2(tl.abs(x) * -2.8853900817779268)
        y = (1.0 - b_e) / (1.0 + b_e)
        return tl.where(x < 0, -y, y)
    return tl.where(x > 0, x, x * slope)


@triton.jit
def load_rel_vectors(
    p_rel_vectors, highest, zero, entries, remaining,
    D: tl.constexpr, BD: tl.constexpr, B: tl.constexpr, TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """The vectors of distances highest, highest − 1, …, `[B, BD]`, or transposed `[BD, B]`."""
    o_x = tl.minimum(tl.maximum(highest - tl.arange(0, B) + zero, 0), entries - 1)
    o_d = tl.arange(0, BD)
    if TRANSPOSED:
        b_x = tl.load(p_rel_vectors + o_x[None, :] * D + o_d[:, None], mask=(o_d < remaining)[:, None], other=0.0)
    else:
        b_x = tl.load(p_rel_vectors + o_x[:, None] * D + o_d[None, :], mask=(o_d < remaining)[None, :], other=0.0)
    return b_x


@triton.jit
def rel_scores(
    b_rel_q, p_rel_q, p_rel_vectors, first, size, stride_rn, highest, zero, entries,
    D: tl.constexpr, BD: tl.constexpr, B: tl.constexpr, BY_KEY: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Products of B queries with the vectors of distances highest, highest − 1, …, `[B, B]`; BY_KEY transposed."""
    if CHUNK > 0:
        b_x = tl.zeros([B, B], tl.float32)
        for d in range(0, D, CHUNK):
            b_t = load_rel_vectors(p_rel_vectors + d, highest, zero, entries, D - d, D, CHUNK, B, not BY_KEY)
            if BY_KEY:
                b_a = load_span_transposed(p_rel_q + d, first, stride_rn, size, B, D - d, CHUNK, D % CHUNK != 0)
                b_x = tl.dot(b_t, b_a, b_x, input_precision="ieee")
            else:
                b_a = load_span(p_rel_q + d, first, stride_rn, size, B, D - d, CHUNK, D % CHUNK != 0)
                b_x = tl.dot(b_a, b_t, b_x, input_precision="ieee")
    elif BY_KEY:
        b_a = load_span_transposed(p_rel_q, first, stride_rn, size, B, D, BD, D != BD)
        b_t = load_rel_vectors(p_rel_vectors, highest, zero, entries, D, D, BD, B, False)
        b_x = tl.dot(b_t, b_a, input_precision="ieee")
    else:
        b_t = load_rel_vectors(p_rel_vectors, highest, zero, entries, D, D, BD, B, True)
        b_x = tl.dot(b_rel_q, b_t, input_precision="ieee")
    return b_x


@triton.jit
def load_rel_bias(p_line, o_x):
    """Entries o_x of the distance bias along a line."""
    if INLINE_PTX:
        # An ordinary load gets a layout of its own and goes through shared memory to the scores'.
        p_x = (p_line + o_x).to(tl.int64)
        b_x = tl.inline_asm_elementwise("ld.global.nc.f32 $0, [$1];", "=f,l", [p_x], tl.float32, is_pure=True, pack=1)
    else:
        b_x = tl.load(p_line + o_x)
    return b_x


@triton.jit
def tile_scores(
    b_own, b_rel_q, p_own, p_other, p_rel_q, p_weight, p_rel_bias, p_rel_vectors, p_packed,
    own_first, own_size, own_stride, size, other_stride, stride_rn, offset, masked, slope, cap,
    origin, rel_zero, rel_entries, first, i_bits,
    D: tl.constexpr, BD: tl.constexpr, OWN: tl.constexpr, SPAN: tl.constexpr, BY_KEY: tl.constexpr,
    LISTED: tl.constexpr, SCORE: tl.constexpr, REL_BIAS: tl.constexpr, REL_VECTORS: tl.constexpr, CHUNK: tl.constexpr,
    EDGE: tl.constexpr,
):  # fmt: skip
    """A tile of scores divided by `scale`, `[OWN, SPAN]`: queries × keys, or BY_KEY keys × queries.

    Times `scale` they are in base 2. They are `masked` where the mask forbids a pair or, at an EDGE, the keys end.
    """
    o_own = tl.arange(0, OWN)
    o_other = tl.arange(0, SPAN)
    if SCORE == "dot" and CHUNK == 0:
        b_other = load_span_transposed(p_other, first, other_stride, size, SPAN, D, BD, D != BD)
        b_s = tl.dot(b_own, b_other, input_precision="ieee")
    elif SCORE == "dot":
        b_s = tl.zeros([OWN, SPAN], tl.float32)
        for d in range(0, D, CHUNK):
            b_x = load_span(p_own + d, own_first, own_stride, own_size, OWN, D - d, CHUNK, D % CHUNK != 0)
            b_y = load_span_transposed(p_other + d, first, other_stride, size, SPAN, D - d, CHUNK, D % CHUNK != 0)
            b_s = tl.dot(b_x, b_y, b_s, input_precision="ieee")
    else:
        b_s = tl.zeros([OWN, SPAN], tl.float32)
        p_x = p_own + tl.cast(own_first, tl.int64) * own_stride + o_own * own_stride
        p_y = p_other + tl.cast(first, tl.int64) * other_stride + o_other * other_stride
        m_x = own_first + o_own < own_size
        m_y = first + o_other < size
        for d in range(D):
            b_x = tl.load(p_x + d, mask=m_x, other=0.0).to(tl.float32)
            b_y = tl.load(p_y + d, mask=m_y, other=0.0).to(tl.float32)
            b_s += tl.load(p_weight + d) * activate(b_x[:, None] + b_y[None, :], slope, SCORE == "tanh")
    if REL_VECTORS:
        tl.static_assert(OWN == SPAN)
        i_row = first if BY_KEY else own_first
        rows = size if BY_KEY else own_size
        highest = first + offset - own_first if BY_KEY else own_first + offset - first
        b_near = rel_scores(
            b_rel_q, p_rel_q, p_rel_vectors, i_row, rows, stride_rn, highest, rel_zero, rel_entries,
            D, BD, OWN, BY_KEY, CHUNK,
        )  # fmt: skip
        b_far = rel_scores(
            b_rel_q, p_rel_q, p_rel_vectors, i_row, rows, stride_rn, highest + OWN, rel_zero, rel_entries,
            D, BD, OWN, BY_KEY, CHUNK,
        )  # fmt: skip
        # Column c of row r is entry c − r of both halves: a rotation of what the row takes from either.
        o_c = o_own[:, None] if BY_KEY else o_other[None, :]
        o_r = o_other[None, :] if BY_KEY else o_own[:, None]
        b_s += tl.gather(tl.where(o_c < OWN - o_r, b_near, b_far), (o_c - o_r) & (OWN - 1), 0 if BY_KEY else 1)
    if cap is not None:
        b_s = cap * tanh(b_s * (1.0 / cap))
    if REL_BIAS:
        if BY_KEY:
            b_s += load_rel_bias(p_rel_bias, (origin + own_first - first) + (o_own[:, None] - o_other[None, :]))
        else:
            b_s += load_rel_bias(p_rel_bias, (origin + first - own_first) + (o_other[None, :] - o_own[:, None]))
    if LISTED:  # noqa: SIM102
        if i_bits >= 0:
            if BY_KEY:
                b_s = tl.where(load_mask(p_packed, i_bits, SPAN, OWN, True), b_s, masked)
            else:
                b_s = tl.where(load_mask(p_packed, i_bits, OWN, SPAN, False), b_s, masked)
    if EDGE:
        b_s = tl.where((first + o_other < size)[None, :], b_s, masked)
    return b_s


@triton.jit
def head_operands(
    p_q, p_k, p_rel_q, p_weight, p_rel_bias, p_rel_vectors, i_bh, heads, group_size,
    stride_qb, stride_qh, stride_kb, stride_kh, stride_rb, stride_rh, length, rel_entries,
    D: tl.constexpr, REL_VECTORS: tl.constexpr,
):  # fmt: skip
    """(batch, head) of a program, and the pointers to that head's queries, keys and parts."""
    i_b, i_h = split_index(i_bh, heads)
    p_q = head_pointer(p_q, i_b, i_h, stride_qb, stride_qh)
    p_k = head_pointer(p_k, i_b, i_h // group_size, stride_kb, stride_kh)
    if REL_VECTORS:
        p_rel_q = head_pointer(p_rel_q, i_b, i_h, stride_rb, stride_rh)
    p_rel_vectors += i_h * rel_entries * D
    return i_b, i_h, p_q, p_k, p_rel_q, p_weight + i_h * D, p_rel_bias + i_h * length, p_rel_vectors


@triton.jit
def list_range(p_starts, i_group, lists, i_list, count, LISTED: tl.constexpr):
    """First and last + 1 of the listed tiles of a row or column; of all `count` where there are no lists."""
    if LISTED:
        p_starts += i_group * (lists + 1) + i_list
        first, last = tl.load(p_starts), tl.load(p_starts + 1)
    else:
        first, last = 0, count
    return first, last


@triton.jit
def listed_tile(p_tile, p_bits, x, SIZE: tl.constexpr, LISTED: tl.constexpr):
    """First token and bits of listed tile x."""
    if LISTED:
        first, i_bits = tl.load(p_tile + x) * SIZE, tl.load(p_bits + x)
    else:
        first, i_bits = x * SIZE, -1
    return first, i_bits


@triton.jit
def update_sums(
    b_s, b_m, b_l, b_e, b_d, b_tops, i_column, b_position, x, scale, BN: tl.constexpr, CLASSES: tl.constexpr
):  # fmt: skip
    """The sums of `rows_kernel` with one more tile of scores."""
    b_max = tl.max(b_s, 1) * scale
    b_new_m = tl.maximum(b_m, b_max)
    b_t = b_s * scale - b_new_m[:, None]
    b_p = tl.exp2(b_t)
    b_alpha = tl.exp2(b_m - b_new_m)
    b_distance = tl.arange(0, BN).to(tl.float32)[None, :] + (tl.cast(i_column, tl.float32) - b_position)[:, None]
    b_e = (b_e + b_l * (b_m - b_new_m)) * b_alpha + tl.sum(b_p * b_t, 1)
    b_d = b_d * b_alpha + tl.sum(b_p * tl.abs(b_distance), 1)
    b_l = b_l * b_alpha + tl.sum(b_p, 1)
    if CLASSES > 1:
        b_tops = tl.where((tl.arange(0, CLASSES) == x % CLASSES)[None, :], tl.maximum(b_tops, b_max[:, None]), b_tops)
    return b_new_m, b_l, b_e, b_d, b_tops


@triton.jit(
    do_not_specialize=[
        "queries", "keys", "heads", "group_size", "tile_rows", "offset", "stride_gb", "stride_gh",
        "rel_zero", "rel_entries", "scale", "masked", "slope", "top",
    ]
)  # fmt: skip
def rows_kernel(
    p_q, p_k, p_rel_q, p_weight, p_rel_bias, p_rel_vectors, p_starts, p_tile, p_bits, p_packed,
    p_lse, p_lse2, p_entropy, p_distance, p_peak, p_floor,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_rb, stride_rh, stride_rn,
    queries, keys, heads, group_size, tile_rows, offset, stride_gb, stride_gh,
    scale, masked, slope, cap, origin, length, rel_zero, rel_entries, top,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CLASSES: tl.constexpr, LISTED: tl.constexpr,
    SCORE: tl.constexpr, REL_BIAS: tl.constexpr, REL_VECTORS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Log-sum-exp, entropy, distance and peak of BM queries, in base 2 with a running maximum m and t = s − m:

        l = Σ 2^t,   e = Σ 2^t · t,   d = Σ 2^t · |i − j|
        lse = m + log2 l,   entropy = log2 l − e / l,   distance = d / l,   peak = 1 / l

    When m grows by x, every sum is multiplied by α = 2^−x, and e loses x · l first. `floor` is the top-th largest of
    the maxima of CLASSES classes of tiles: at least so many scores are not below it.
    """
    i_tile = tile_rows - 1 - tl.program_id(0) % tile_rows  # the last rows have the most keys under a causal mask
    i_bh = tl.program_id(0) // tile_rows
    i_row = i_tile * BM
    i_b, i_h, p_q, p_k, p_rel_q, p_weight, p_rel_bias, p_rel_vectors = head_operands(
        p_q, p_k, p_rel_q, p_weight, p_rel_bias, p_rel_vectors, i_bh, heads, group_size,
        stride_qb, stride_qh, stride_kb, stride_kh, stride_rb, stride_rh, length, rel_entries, D, REL_VECTORS,
    )  # fmt: skip
    o_row = i_row + tl.arange(0, BM)
    b_q = load_span(p_q, i_row, stride_qn, queries, BM, D, BD, D != BD) if SCORE == "dot" and CHUNK == 0 else 0
    b_rel_q = load_span(p_rel_q, i_row, stride_rn, queries, BM, D, BD, D != BD) if REL_VECTORS and CHUNK == 0 else 0
    operands = (
        b_q, b_rel_q, p_q, p_k, p_rel_q, p_weight, p_rel_bias, p_rel_vectors, p_packed,
        i_row, queries, stride_qn, keys, stride_kn, stride_rn, offset, masked, slope, cap,
        origin, rel_zero, rel_entries,
    )  # fmt: skip
    b_m = tl.full([BM], MAX_INIT, tl.float32)
    b_l = tl.zeros([BM], tl.float32)
    b_e = tl.zeros([BM], tl.float32)
    b_d = tl.zeros([BM], tl.float32)
    o_class = tl.arange(0, CLASSES)
    b_tops = tl.full([BM, CLASSES], LOWEST, tl.float32)
    b_position = (o_row + offset).to(tl.float32)
    i_group = i_b * stride_gb + i_h * stride_gh
    first, last = list_range(p_starts, i_group, tile_rows, i_tile, keys // BN, LISTED)
    for x in tl.range(first, last):
        i_column, i_bits = listed_tile(p_tile, p_bits, x, BN, LISTED)
        b_s = tile_scores(
            *operands, i_column, i_bits, D, BD, BM, BN, False, LISTED, SCORE, REL_BIAS, REL_VECTORS, CHUNK, False
        )  # fmt: skip
        b_m, b_l, b_e, b_d, b_tops = update_sums(
            b_s, b_m, b_l, b_e, b_d, b_tops, i_column, b_position, x, scale, BN, CLASSES
        )
    if not LISTED and last * BN < keys:  # the remaining keys: a boundary test in every tile would cost a third more
        b_s = tile_scores(
            *operands, last * BN, -1, D, BD, BM, BN, False, LISTED, SCORE, REL_BIAS, REL_VECTORS, CHUNK, True
        )  # fmt: skip
        b_m, b_l, b_e, b_d, b_tops = update_sums(
            b_s, b_m, b_l, b_e, b_d, b_tops, last * BN, b_position, last, scale, BN, CLASSES
        )
    m_alive = b_l > 0
    b_safe_l = tl.where(m_alive, b_l, 1.0)
    b_lse2 = b_m + tl.log2(b_safe_l)
    m_row = o_row < queries
    o_out = tl.cast(i_bh, tl.int64) * queries + o_row
    tl.store(p_lse2 + o_out, tl.where(m_alive, b_lse2, float("inf")), mask=m_row)
    tl.store(p_lse + o_out, tl.where(m_alive, b_lse2 * LN2, -float("inf")), mask=m_row)
    b_entropy = tl.maximum((tl.log2(b_safe_l) - b_e / b_safe_l) * LN2, 0.0)
    tl.store(p_entropy + o_out, tl.where(m_alive, b_entropy, 0.0), mask=m_row)
    tl.store(p_distance + o_out, tl.where(m_alive, b_d / b_safe_l, 0.0), mask=m_row)
    tl.store(p_peak + o_out, tl.where(m_alive, 1.0 / b_safe_l, 0.0), mask=m_row)
    if CLASSES > 1:
        for _ in range(top - 1):
            i_best = tl.argmax(b_tops, 1)
            b_tops = tl.where(o_class[None, :] == i_best[:, None], LOWEST, b_tops)
        b_floor = tl.max(b_tops, 1)
        tl.store(p_floor + o_out, b_floor, mask=m_row)


@triton.jit
def add_to_bucket(
    b_part, i_bucket, b_received, b_sum, i_open, p_cells, map_pieces, b_piece, m_piece, PIECES: tl.constexpr
):
    """(received, the open bucket's sum, its index) with one more part; a new bucket stores the open one."""
    if i_bucket == i_open:
        b_sum += b_part
    else:
        o_piece = tl.arange(0, PIECES)
        b_cells = tl.sum(tl.where(o_piece[:, None] == b_piece[None, :], b_sum[None, :], 0.0), 1)
        p_line = p_cells + tl.cast(tl.maximum(i_open, 0), tl.int64) * map_pieces + o_piece
        tl.store(p_line, b_cells, mask=m_piece & (i_open >= 0))
        b_received += b_sum
        b_sum = b_part
        i_open = i_bucket
    return b_received, b_sum, i_open


@triton.jit(
    do_not_specialize=[
        "queries", "keys", "heads", "group_size", "tile_columns", "offset", "stride_gb", "stride_gh",
        "rel_zero", "rel_entries", "scale", "masked", "slope", "map_rows", "map_pieces",
    ]
)  # fmt: skip
def columns_kernel(
    p_q, p_k, p_rel_q, p_weight, p_rel_bias, p_rel_vectors, p_starts, p_tile, p_bits, p_packed,
    p_lse2, p_received, p_row_bucket, p_key_bucket, p_cells, p_weights,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_rb, stride_rh, stride_rn,
    queries, keys, heads, group_size, tile_columns, offset, stride_gb, stride_gh,
    scale, masked, slope, cap, origin, length, rel_zero, rel_entries, map_rows, map_pieces,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BUCKETS: tl.constexpr, PIECES: tl.constexpr,
    WEIGHTS: tl.constexpr, LISTED: tl.constexpr, SCORE: tl.constexpr, REL_BIAS: tl.constexpr, REL_VECTORS: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Weight received by BN keys, and their part of the map, from the log-sum-exp of each query:

        p = 2^(s − lse),   received = Σ_i p,   cells[r, piece] = Σ over i of bucket r and j of the piece of p

    A tile of keys is cut into pieces by the map's buckets. Queries come in ascending order, so a bucket's sum is
    complete when the next bucket begins; a tile of queries touches at most BUCKETS of them (3: any number; 0: there is
    no map).
    """
    i_tile = tl.program_id(0) % tile_columns
    i_bh = tl.program_id(0) // tile_columns
    i_column = i_tile * BN
    i_b, i_h, p_q, p_k, p_rel_q, p_weight, p_rel_bias, p_rel_vectors = head_operands(
        p_q, p_k, p_rel_q, p_weight, p_rel_bias, p_rel_vectors, i_bh, heads, group_size,
        stride_qb, stride_qh, stride_kb, stride_kh, stride_rb, stride_rh, length, rel_entries, D, REL_VECTORS,
    )  # fmt: skip
    p_lse2 += tl.cast(i_bh, tl.int64) * queries
    o_column = i_column + tl.arange(0, BN)
    o_m = tl.arange(0, BM)
    m_column = o_column < keys
    b_k = load_span(p_k, i_column, stride_kn, keys, BN, D, BD, D != BD) if SCORE == "dot" and CHUNK == 0 else 0
    operands = (
        b_k, 0, p_k, p_q, p_rel_q, p_weight, p_rel_bias, p_rel_vectors, p_packed,
        i_column, keys, stride_kn, queries, stride_qn, stride_rn, offset, masked, slope, cap,
        origin, rel_zero, rel_entries,
    )  # fmt: skip
    b_received = tl.zeros([BN], tl.float32)
    b_sum = tl.zeros([BN], tl.float32)
    i_open = -1
    if BUCKETS > 0:
        o_piece = tl.arange(0, PIECES)
        i_piece = tl.load(p_key_bucket + i_column)
        m_piece = o_piece <= tl.load(p_key_bucket + tl.minimum(i_column + BN, keys) - 1) - i_piece
        b_piece = tl.load(p_key_bucket + o_column, mask=m_column, other=-1) - i_piece
        b_piece = tl.where(m_column, b_piece, -1)
        p_cells += tl.cast(i_bh, tl.int64) * map_rows * map_pieces + i_piece + i_tile
    i_group = i_b * stride_gb + i_h * stride_gh
    first, last = list_range(p_starts, i_group, tile_columns, i_tile, tl.cdiv(queries, BM), LISTED)
    for x in tl.range(first, last):
        i_row, i_bits = listed_tile(p_tile, p_bits, x, BM, LISTED)
        b_s = tile_scores(
            *operands, i_row, i_bits, D, BD, BN, BM, True, LISTED, SCORE, REL_BIAS, REL_VECTORS, CHUNK, False
        )  # fmt: skip
        b_lse2 = tl.load(p_lse2 + i_row + o_m, mask=i_row + o_m < queries, other=float("inf"))
        b_p = tl.exp2(b_s * scale - b_lse2[None, :])
        if WEIGHTS:
            p_pairs = p_weights + (tl.cast(i_bh, tl.int64) * queries + i_row) * keys + o_m[None, :].to(tl.int64) * keys
            tl.store(p_pairs + o_column[:, None], b_p, mask=m_column[:, None] & (i_row + o_m < queries)[None, :])
        if BUCKETS == 0:
            b_received += tl.sum(b_p, 1)
        else:
            i_first = tl.load(p_row_bucket + i_row)
            i_last = tl.load(p_row_bucket + tl.minimum(i_row + BM, queries) - 1)
            if BUCKETS == 1:
                b_received, b_sum, i_open = add_to_bucket(
                    tl.sum(b_p, 1), i_first, b_received, b_sum, i_open, p_cells, map_pieces, b_piece, m_piece, PIECES
                )
            else:
                b_bucket = tl.load(p_row_bucket + i_row + o_m, mask=i_row + o_m < queries, other=-1)
                b_part = tl.sum(tl.where((b_bucket == i_first)[None, :], b_p, 0.0), 1)
                b_received, b_sum, i_open = add_to_bucket(
                    b_part, i_first, b_received, b_sum, i_open, p_cells, map_pieces, b_piece, m_piece, PIECES
                )
                if BUCKETS == 2:
                    if i_last > i_first:
                        b_part = tl.sum(tl.where((b_bucket == i_last)[None, :], b_p, 0.0), 1)
                        b_received, b_sum, i_open = add_to_bucket(
                            b_part, i_last, b_received, b_sum, i_open, p_cells, map_pieces, b_piece, m_piece, PIECES
                        )
                else:
                    for i_bucket in range(i_first + 1, i_last + 1):
                        b_part = tl.sum(tl.where((b_bucket == i_bucket)[None, :], b_p, 0.0), 1)
                        b_received, b_sum, i_open = add_to_bucket(
                            b_part, i_bucket, b_received, b_sum, i_open, p_cells, map_pieces, b_piece, m_piece, PIECES
                        )
    if BUCKETS > 0:
        b_received, b_sum, i_open = add_to_bucket(
            b_sum, map_rows, b_received, b_sum, i_open, p_cells, map_pieces, b_piece, m_piece, PIECES
        )
    tl.store(p_received + tl.cast(i_bh, tl.int64) * keys + o_column, b_received, mask=m_column)


@triton.jit
def order_bits(x):
    """A float32 as an int32 of the same order, and back."""
    y = x.to(tl.int32, bitcast=True) if x.dtype == tl.float32 else x
    y = y ^ ((y >> 31) & 0x7FFFFFFF)
    return y if x.dtype == tl.float32 else y.to(tl.float32, bitcast=True)


@triton.jit
def candidate_score(b_best):
    """The score in a 64-bit candidate."""
    return order_bits((b_best >> 32).to(tl.int32))


@triton.jit
def insert_candidates(b_s, b_best, b_least, b_floor, i_column, masked, BN: tl.constexpr):
    """The best candidates and the least of them, after one more tile of scores."""
    o_n = tl.arange(0, BN)[None, :]
    b_max = tl.max(b_s, 1)
    m_taken = (b_max >= b_floor) & (b_max > candidate_score(b_least)) & (b_max > masked)
    while tl.max(m_taken.to(tl.int32), 0) > 0:
        b_column = tl.min(tl.where(b_s == b_max[:, None], o_n, NO_COLUMN), 1)
        b_new = (order_bits(b_max).to(tl.int64) << 32) | (0xFFFFFFFF - (i_column + b_column).to(tl.int64))
        b_best = tl.where(m_taken[:, None] & (b_best == b_least[:, None]), b_new[:, None], b_best)
        b_least = tl.min(b_best, 1)
        b_s = tl.where(o_n == b_column[:, None], masked, b_s)
        b_max = tl.max(b_s, 1)
        m_taken = (b_max >= b_floor) & (b_max > candidate_score(b_least)) & (b_max > masked)
    return b_best, b_least


@triton.jit(
    do_not_specialize=[
        "queries", "keys", "heads", "group_size", "tile_rows", "offset", "stride_gb", "stride_gh",
        "rel_zero", "rel_entries", "scale", "masked", "slope", "top",
    ]
)  # fmt: skip
def top_kernel(
    p_q, p_k, p_rel_q, p_weight, p_rel_bias, p_rel_vectors, p_starts, p_tile, p_bits, p_packed,
    p_lse2, p_floor, p_top_weights, p_top_keys,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_rb, stride_rh, stride_rn,
    queries, keys, heads, group_size, tile_rows, offset, stride_gb, stride_gh,
    scale, masked, slope, cap, origin, length, rel_zero, rel_entries, top,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CANDIDATES: tl.constexpr,
    LISTED: tl.constexpr, SCORE: tl.constexpr, REL_BIAS: tl.constexpr, REL_VECTORS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The largest weights of BM queries and their keys.

    A candidate is a 64-bit number: the score's bits in their order, then the key's complement, so that the lower key
    wins a tie. A tile offers its largest score of each row in turn, as long as any row takes one.
    """
    i_tile = tile_rows - 1 - tl.program_id(0) % tile_rows
    i_bh = tl.program_id(0) // tile_rows
    i_row = i_tile * BM
    i_b, i_h, p_q, p_k, p_rel_q, p_weight, p_rel_bias, p_rel_vectors = head_operands(
        p_q, p_k, p_rel_q, p_weight, p_rel_bias, p_rel_vectors, i_bh, heads, group_size,
        stride_qb, stride_qh, stride_kb, stride_kh, stride_rb, stride_rh, length, rel_entries, D, REL_VECTORS,
    )  # fmt: skip
    o_row = i_row + tl.arange(0, BM)
    m_row = o_row < queries
    o_out = tl.cast(i_bh, tl.int64) * queries + o_row
    b_q = load_span(p_q, i_row, stride_qn, queries, BM, D, BD, D != BD) if SCORE == "dot" and CHUNK == 0 else 0
    b_rel_q = load_span(p_rel_q, i_row, stride_rn, queries, BM, D, BD, D != BD) if REL_VECTORS and CHUNK == 0 else 0
    operands = (
        b_q, b_rel_q, p_q, p_k, p_rel_q, p_weight, p_rel_bias, p_rel_vectors, p_packed,
        i_row, queries, stride_qn, keys, stride_kn, stride_rn, offset, masked, slope, cap,
        origin, rel_zero, rel_entries,
    )  # fmt: skip
    # The same score may differ in its last bits from that of another kernel.
    b_floor = tl.load(p_floor + o_out, mask=m_row, other=float("inf"))
    b_floor -= tl.abs(b_floor) * 2.44e-4 + 2.44e-4
    b_floor = b_floor / scale
    o_candidate = tl.arange(0, CANDIDATES)
    b_best = order_bits(tl.full([BM, CANDIDATES], LOWEST, tl.float32)).to(tl.int64) << 32
    b_best = b_best | o_candidate[None, :].to(tl.int64)
    b_least = tl.min(b_best, 1)
    i_group = i_b * stride_gb + i_h * stride_gh
    first, last = list_range(p_starts, i_group, tile_rows, i_tile, keys // BN, LISTED)
    for x in tl.range(first, last):
        i_column, i_bits = listed_tile(p_tile, p_bits, x, BN, LISTED)
        b_s = tile_scores(
            *operands, i_column, i_bits, D, BD, BM, BN, False, LISTED, SCORE, REL_BIAS, REL_VECTORS, CHUNK, False
        )  # fmt: skip
        b_best, b_least = insert_candidates(b_s, b_best, b_least, b_floor, i_column, masked, BN)
    if not LISTED and last * BN < keys:
        b_s = tile_scores(
            *operands, last * BN, -1, D, BD, BM, BN, False, LISTED, SCORE, REL_BIAS, REL_VECTORS, CHUNK, True
        )  # fmt: skip
        b_best, b_least = insert_candidates(b_s, b_best, b_least, b_floor, last * BN, masked, BN)
    b_lse2 = tl.load(p_lse2 + o_out, mask=m_row, other=float("inf"))
    for x in range(top):
        b_new = tl.max(b_best, 1)
        b_best = tl.where(b_best == b_new[:, None], NO_CANDIDATE, b_best)
        b_score = candidate_score(b_new) * scale
        b_weight = tl.where(b_score > MAX_INIT, tl.exp2(b_score - b_lse2), 0.0)
        tl.store(p_top_weights + o_out * top + x, b_weight, mask=m_row)
        b_key = tl.where(b_weight > 0, 0xFFFFFFFF - (b_new & 0xFFFFFFFF), -1)
        tl.store(p_top_keys + o_out * top + x, b_key, mask=m_row)
