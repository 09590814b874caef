"""Device code of additive attention for few queries; `rows.py` says what the kernels compute together."""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportReturnType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from ..prelude import LN2, LOG2E, MAX_INIT, head_pointer
from .kernels import sigmoid_2x


@triton.jit
def load_block(p_x, o_n, o_d, stride_n, tokens, dim):
    """Rows o_n and columns o_d of x `[tokens, dim]`, zeros beyond."""
    return tl.load(
        p_x + o_n.to(tl.int64)[:, None] * stride_n + o_d[None, :],
        mask=(o_n < tokens)[:, None] & (o_d < dim)[None, :], other=0.0,
    )  # fmt: skip


@triton.jit
def load_scores(p_scores, o_i, o_j, queries, keys):
    """Scores `[rows, columns]` of one head in base 2, −∞ beyond."""
    m_pairs = (o_i < queries)[:, None] & (o_j < keys)[None, :]
    return tl.load(p_scores + o_i.to(tl.int64)[:, None] * keys + o_j[None, :], mask=m_pairs, other=-float("inf"))


@triton.jit
def visible_keys(b_s, o_j, keys, MASK: tl.constexpr):
    """Which keys some query of a tile may see: others are not read, and may be anything."""
    return (tl.max(b_s, 0) > -float("inf")) if MASK else o_j < keys


@triton.jit(
    do_not_specialize=[
        "heads", "group_size", "queries", "keys", "slope", "stride_mb", "stride_mh", "stride_mq", "stride_mn",
    ]
)  # fmt: skip
def scores_kernel(
    p_q, p_k, p_w, p_mask, p_scores,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_mb, stride_mh, stride_mq, stride_mn,
    heads, group_size, queries, keys, slope,
    TANH: tl.constexpr, MASK: tl.constexpr, D: tl.constexpr, BQ: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """s = Σ_d weight · act(q + k) in base 2 of BQ queries and BN keys, −∞ where masked."""
    tiles_n, tiles_q = tl.cdiv(keys, BN), tl.cdiv(queries, BQ)
    i_n = tl.program_id(0) % tiles_n
    i_q = tl.program_id(0) // tiles_n % tiles_q
    i_bh = tl.program_id(0) // tiles_n // tiles_q
    i_b, i_h = i_bh // heads, i_bh % heads
    p_q = head_pointer(p_q, i_b, i_h, stride_qb, stride_qh)
    p_k = head_pointer(p_k, i_b, i_h // group_size, stride_kb, stride_kh)
    o_i, o_j = i_q * BQ + tl.arange(0, BQ), i_n * BN + tl.arange(0, BN)
    b_acc = tl.zeros([BQ, BN, BD], tl.float32)
    b_total = tl.zeros([BD], tl.float32)
    for d in range(0, D, BD):
        o_d = d + tl.arange(0, BD)
        b_w = tl.load(p_w + i_h * D + o_d, mask=o_d < D, other=0.0).to(tl.float32)
        b_q = load_block(p_q, o_i, o_d, stride_qn, queries, D).to(tl.float32)
        b_k = load_block(p_k, o_j, o_d, stride_kn, keys, D).to(tl.float32)
        b_x = b_q[:, None, :] + b_k[None, :, :]
        if TANH:
            b_acc += b_w[None, None, :] * sigmoid_2x(b_x)
            b_total += b_w
        else:
            b_acc += b_w[None, None, :] * tl.where(b_x > 0, b_x, slope * b_x)
    b_s = tl.sum(b_acc, 2)
    if TANH:
        b_s = tl.sum(b_total, 0) - 2.0 * b_s
    b_s *= LOG2E
    m_pairs = (o_i < queries)[:, None] & (o_j < keys)[None, :]
    if MASK:
        p_allowed = p_mask + i_b.to(tl.int64) * stride_mb + i_h.to(tl.int64) * stride_mh
        p_allowed += o_i.to(tl.int64)[:, None] * stride_mq + o_j.to(tl.int64)[None, :] * stride_mn
        b_s = tl.where(tl.load(p_allowed, mask=m_pairs, other=0) != 0, b_s, -float("inf"))
    p_out = p_scores + i_bh.to(tl.int64) * queries * keys + o_i.to(tl.int64)[:, None] * keys + o_j[None, :]
    tl.store(p_out, b_s, mask=m_pairs)


@triton.jit(do_not_specialize=["heads", "group_size", "queries", "keys"])
def mix_kernel(
    p_scores, p_v, p_output, p_lse, stride_vb, stride_vh, stride_vn, heads, group_size, queries, keys,
    MASK: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BDV: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """o = Σ_j p·v / l and lse = m + log l of BM queries and BDV values, with a running maximum m and sum l."""
    CHUNKS: tl.constexpr = (DV + BDV - 1) // BDV
    tiles_q = tl.cdiv(queries, BM)
    i_v = tl.program_id(0) % CHUNKS
    i_q = tl.program_id(0) // CHUNKS % tiles_q
    i_bh = tl.program_id(0) // CHUNKS // tiles_q
    i_b, i_h = i_bh // heads, i_bh % heads
    p_v = head_pointer(p_v, i_b, i_h // group_size, stride_vb, stride_vh)
    p_scores += i_bh.to(tl.int64) * queries * keys
    o_i, o_v = i_q * BM + tl.arange(0, BM), i_v * BDV + tl.arange(0, BDV)
    b_m = tl.full([BM], MAX_INIT, tl.float32)
    b_l = tl.zeros([BM], tl.float32)
    b_o = tl.zeros([BM, BDV], tl.float32)
    for n in range(0, keys, BN):
        o_j = n + tl.arange(0, BN)
        b_s = load_scores(p_scores, o_i, o_j, queries, keys)
        m_j = visible_keys(b_s, o_j, keys, MASK)
        b_new_m = tl.maximum(b_m, tl.max(b_s, 1))
        b_p = tl.exp2(b_s - b_new_m[:, None])
        b_alpha = tl.exp2(b_m - b_new_m)
        b_l = b_l * b_alpha + tl.sum(b_p, 1)
        b_m = b_new_m
        p_rows = p_v + o_j.to(tl.int64)[:, None] * stride_vn + o_v[None, :]
        b_v = tl.load(p_rows, mask=m_j[:, None] & (o_v < DV)[None, :], other=0.0)
        b_p_high = b_p.to(b_v.dtype)
        b_o = tl.dot(b_p_high, b_v, b_o * b_alpha[:, None], input_precision=PRECISION)
        if b_v.dtype != tl.float32:  # what rounding cut off, too
            b_o = tl.dot((b_p - b_p_high.to(tl.float32)).to(b_v.dtype), b_v, b_o)
    m_alive = b_l > 0
    b_safe = tl.where(m_alive, b_l, 1.0)
    p_rows = p_output + (i_bh.to(tl.int64) * queries + o_i)[:, None] * DV + o_v[None, :]
    b_o = (b_o / b_safe[:, None]).to(p_output.dtype.element_ty)
    tl.store(p_rows, b_o, mask=(o_i < queries)[:, None] & (o_v < DV)[None, :])
    if i_v == 0:
        b_lse = tl.where(m_alive, (b_m + tl.log2(b_safe)) * LN2, -float("inf"))
        tl.store(p_lse + i_bh.to(tl.int64) * queries + o_i, b_lse, mask=o_i < queries)


@triton.jit(do_not_specialize=["heads", "group_size", "keys"])
def mix_one_kernel(
    p_scores, p_v, p_output, p_lse, stride_vb, stride_vh, stride_vn, heads, group_size, keys,
    MASK: tl.constexpr, DV: tl.constexpr, BN: tl.constexpr, BDV: tl.constexpr,
):  # fmt: skip
    """`mix_kernel` for one query of each head, without a product of matrices."""
    CHUNKS: tl.constexpr = (DV + BDV - 1) // BDV
    i_v, i_bh = tl.program_id(0) % CHUNKS, tl.program_id(0) // CHUNKS
    i_b, i_h = i_bh // heads, i_bh % heads
    p_v = head_pointer(p_v, i_b, i_h // group_size, stride_vb, stride_vh)
    p_scores += i_bh.to(tl.int64) * keys
    o_v = i_v * BDV + tl.arange(0, BDV)
    b_m = MAX_INIT
    b_l = 0.0
    b_o = tl.zeros([BDV], tl.float32)
    for n in range(0, keys, BN):
        o_j = n + tl.arange(0, BN)
        b_s = tl.load(p_scores + o_j, mask=o_j < keys, other=-float("inf"))
        m_j = (b_s > -float("inf")) if MASK else o_j < keys
        p_rows = p_v + o_j.to(tl.int64)[:, None] * stride_vn + o_v[None, :]
        b_v = tl.load(p_rows, mask=m_j[:, None] & (o_v < DV)[None, :], other=0.0).to(tl.float32)
        b_new_m = tl.maximum(b_m, tl.max(b_s, 0))
        b_p = tl.exp2(b_s - b_new_m)
        b_alpha = tl.exp2(b_m - b_new_m)
        b_l = b_l * b_alpha + tl.sum(b_p, 0)
        b_o = b_o * b_alpha + tl.sum(b_p[:, None] * b_v, 0)
        b_m = b_new_m
    m_alive = b_l > 0
    b_safe = tl.where(m_alive, b_l, 1.0)
    p_row = p_output + i_bh.to(tl.int64) * DV + o_v
    tl.store(p_row, (b_o / b_safe).to(p_output.dtype.element_ty), mask=o_v < DV)
    if i_v == 0:
        tl.store(p_lse + i_bh, tl.where(m_alive, (b_m + tl.log2(b_safe)) * LN2, -float("inf")))


@triton.jit(do_not_specialize=["heads", "group_size", "queries", "keys"])
def ds_kernel(
    p_scores, p_v, p_grad, p_output, p_lse, p_ds, p_p,
    stride_vb, stride_vh, stride_vn, heads, group_size, queries, keys,
    MASK: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BDV: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """p = exp(s − lse) and ds = p · (do·v − δ) with δ = Σ o · do, of BM queries and BN keys."""
    tiles_n, tiles_q = tl.cdiv(keys, BN), tl.cdiv(queries, BM)
    i_n = tl.program_id(0) % tiles_n
    i_q = tl.program_id(0) // tiles_n % tiles_q
    i_bh = tl.program_id(0) // tiles_n // tiles_q
    i_b, i_h = i_bh // heads, i_bh % heads
    p_v = head_pointer(p_v, i_b, i_h // group_size, stride_vb, stride_vh)
    p_scores += i_bh.to(tl.int64) * queries * keys
    o_i, o_j = i_q * BM + tl.arange(0, BM), i_n * BN + tl.arange(0, BN)
    o_rows = i_bh.to(tl.int64) * queries * DV
    b_s = load_scores(p_scores, o_i, o_j, queries, keys)
    b_lse = tl.load(p_lse + i_bh.to(tl.int64) * queries + o_i, mask=o_i < queries, other=-float("inf"))
    b_lse = tl.where(b_lse == -float("inf"), 0.0, b_lse * LOG2E)
    b_p = tl.exp2(b_s - b_lse[:, None])
    m_j = visible_keys(b_s, o_j, keys, MASK)
    b_dp = tl.zeros([BM, BN], tl.float32)
    b_delta = tl.zeros([BM], tl.float32)
    for d in range(0, DV, BDV):
        o_v = d + tl.arange(0, BDV)
        b_do = load_block(p_grad + o_rows, o_i, o_v, DV, queries, DV)
        b_o = load_block(p_output + o_rows, o_i, o_v, DV, queries, DV).to(tl.float32)
        p_rows = p_v + o_j.to(tl.int64)[None, :] * stride_vn + o_v[:, None]
        b_v = tl.load(p_rows, mask=m_j[None, :] & (o_v < DV)[:, None], other=0.0)
        b_dp = tl.dot(b_do, b_v, b_dp, input_precision=PRECISION)
        b_delta += tl.sum(b_do.to(tl.float32) * b_o, 1)
    b_ds = b_p * (b_dp - b_delta[:, None])
    m_pairs = (o_i < queries)[:, None] & (o_j < keys)[None, :]
    o_pairs = i_bh.to(tl.int64) * queries * keys + o_i.to(tl.int64)[:, None] * keys + o_j[None, :]
    tl.store(p_ds + o_pairs, b_ds, mask=m_pairs)
    tl.store(p_p + o_pairs, b_p.to(p_p.dtype.element_ty), mask=m_pairs)


@triton.jit(do_not_specialize=["heads", "group_size", "queries", "keys"])
def dv_kernel(
    p_p, p_grad, p_dv, heads, group_size, queries, keys,
    DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BDV: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dv = Σ_i p · do of BN keys and BDV values, over the queries of all heads that read them."""
    CHUNKS: tl.constexpr = (DV + BDV - 1) // BDV
    tiles_n, kv_heads = tl.cdiv(keys, BN), heads // group_size
    i_v = tl.program_id(0) % CHUNKS
    i_n = tl.program_id(0) // CHUNKS % tiles_n
    i_bkv = tl.program_id(0) // CHUNKS // tiles_n
    i_b, i_kv = i_bkv // kv_heads, i_bkv % kv_heads
    o_j, o_v = i_n * BN + tl.arange(0, BN), i_v * BDV + tl.arange(0, BDV)
    b_dv = tl.zeros([BN, BDV], tl.float32)
    for g in range(0, group_size):
        i_bh = (i_b * heads + i_kv * group_size + g).to(tl.int64)
        for i in range(0, queries, BM):
            o_i = i + tl.arange(0, BM)
            p_pairs = p_p + i_bh * queries * keys + o_i.to(tl.int64)[None, :] * keys + o_j[:, None]
            b_p = tl.load(p_pairs, mask=(o_i < queries)[None, :] & (o_j < keys)[:, None], other=0.0)
            b_do = load_block(p_grad + i_bh * queries * DV, o_i, o_v, DV, queries, DV)
            b_dv = tl.dot(b_p, b_do, b_dv, input_precision=PRECISION)
    p_rows = p_dv + (i_bkv.to(tl.int64) * keys + o_j)[:, None] * DV + o_v[None, :]
    tl.store(p_rows, b_dv.to(p_dv.dtype.element_ty), mask=(o_j < keys)[:, None] & (o_v < DV)[None, :])


@triton.jit(do_not_specialize=["heads", "group_size", "queries", "keys", "slope"])
def dqk_kernel(
    p_q, p_k, p_w, p_ds, p_dq_parts, p_dk, p_dw_parts,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, heads, group_size, queries, keys, slope,
    TANH: tl.constexpr, D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Of BN keys and BD dims, with the derivative act′:

    dk = weight Σ_i ds · act′,   and of these keys alone   dq = weight Σ_j ds · act′,   dweight = Σ_ij ds · act
    """
    CHUNKS: tl.constexpr = (D + BD - 1) // BD
    tiles_n, kv_heads = tl.cdiv(keys, BN), heads // group_size
    i_d = tl.program_id(0) % CHUNKS
    i_n = tl.program_id(0) // CHUNKS % tiles_n
    i_bkv = tl.program_id(0) // CHUNKS // tiles_n
    i_b, i_kv = i_bkv // kv_heads, i_bkv % kv_heads
    o_j, o_d = i_n * BN + tl.arange(0, BN), i_d * BD + tl.arange(0, BD)
    m_d = o_d < D
    b_k = load_block(head_pointer(p_k, i_b, i_kv, stride_kb, stride_kh), o_j, o_d, stride_kn, keys, D).to(tl.float32)
    b_dk = tl.zeros([BN, BD], tl.float32)
    for g in range(0, group_size):
        i_h = i_kv * group_size + g
        i_bh = (i_b * heads + i_h).to(tl.int64)
        b_w = tl.load(p_w + i_h * D + o_d, mask=m_d, other=0.0).to(tl.float32)
        b_dw = tl.zeros([BN, BD], tl.float32)
        p_row = head_pointer(p_q, i_b, i_h, stride_qb, stride_qh) + o_d
        for i in range(0, queries):
            b_q = tl.load(p_row, mask=m_d, other=0.0).to(tl.float32)
            b_ds = tl.load(p_ds + (i_bh * queries + i) * keys + o_j, mask=o_j < keys, other=0.0)
            b_x = tl.where((b_ds != 0.0)[:, None], b_k + b_q[None, :], 0.0)  # what is masked may be anything
            if TANH:
                b_r = sigmoid_2x(b_x)
                b_dw += b_ds[:, None] * (1.0 - 2.0 * b_r)
                b_g = b_ds[:, None] * (b_r - b_r * b_r)
            else:
                b_dw += b_ds[:, None] * tl.where(b_x > 0, b_x, slope * b_x)
                b_g = b_ds[:, None] * tl.where(b_x > 0, 1.0, slope)
            b_g *= (b_w * 4.0 if TANH else b_w)[None, :]
            b_dk += b_g
            p_out = p_dq_parts + ((i_bh * queries + i) * tiles_n + i_n) * D + o_d
            tl.store(p_out, tl.sum(b_g, 0).to(p_dq_parts.dtype.element_ty), mask=m_d)
            p_row += stride_qn
        tl.store(p_dw_parts + (i_bh * tiles_n + i_n) * D + o_d, tl.sum(b_dw, 0), mask=m_d)
    p_rows = p_dk + (i_bkv.to(tl.int64) * keys + o_j)[:, None] * D + o_d[None, :]
    tl.store(p_rows, b_dk.to(p_dk.dtype.element_ty), mask=(o_j < keys)[:, None] & m_d[None, :])
