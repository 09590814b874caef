"""Device code of Performer; `passes.py` has the formulas and says what the kernels compute together."""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportReturnType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from ..prelude import LOG2E, head_pointer, load_rows_masked, split_index

PRECISION = tl.constexpr("tf32x3")  # of float32's products; those of bfloat16 have no choice


@triton.jit
def load_omega(p_omega, o_f, padded, D: tl.constexpr, BD: tl.constexpr, TWO_PARTS: tl.constexpr):
    """ω `[features, BD]` of features o_f, and its rounding error where it comes in two parts."""
    b_omega = load_rows_masked(p_omega, o_f, o_f < padded, D, D, BD)
    if TWO_PARTS:
        return b_omega, load_rows_masked(p_omega + padded * D, o_f, o_f < padded, D, D, BD)
    else:
        return b_omega, b_omega


@triton.jit
def project(b_x, b_omega, b_omega_low, TWO_PARTS: tl.constexpr, BY_FEATURE: tl.constexpr):
    """ω·x, `[tokens, features]`, or BY_FEATURE `[features, tokens]`."""
    if BY_FEATURE:
        b_s = tl.dot(b_omega, tl.trans(b_x), input_precision=PRECISION)
        if TWO_PARTS:
            b_s = tl.dot(b_omega_low, tl.trans(b_x), b_s)
    else:
        b_s = tl.dot(b_x, tl.trans(b_omega), input_precision=PRECISION)
        if TWO_PARTS:
            b_s = tl.dot(b_x, tl.trans(b_omega_low), b_s)
    return b_s


@triton.jit
def half_norm(b_x, sqrt_scale):
    """‖sqrt_scale · x‖²/2 of each token, in base 2."""
    b_x32 = b_x.to(tl.float32)
    return tl.sum(b_x32 * b_x32, 1) * (sqrt_scale * sqrt_scale * 0.5 * LOG2E)


@triton.jit
def query_head(
    p_q, p_feature_lse2, p_context, i_bh, heads, group_size, padded, stride_qb, stride_qh, DV: tl.constexpr
):  # fmt: skip
    """Pointers to a head's queries, and to the features of its key head."""
    i_b, i_h = split_index(i_bh, heads)
    i_kv = i_bh // group_size
    p_q = head_pointer(p_q, i_b, i_h, stride_qb, stride_qh)
    return p_q, p_feature_lse2 + i_kv * padded, p_context + i_kv * padded * DV


@triton.jit(do_not_specialize=["heads", "tokens", "split_size", "sqrt_scale"])
def context_kernel(
    p_k, p_v, p_omega, p_counts, p_context, p_feature_lse2,
    stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn, heads, tokens, padded, split_size, sqrt_scale,
    TWO_PARTS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Context and log-sum-exp in base 2 of BM features over one split of the keys."""
    i_split, i_bh = tl.program_id(1), tl.program_id(2)
    i_b, i_h = split_index(i_bh, heads)
    p_k = head_pointer(p_k, i_b, i_h, stride_kb, stride_kh)
    p_v = head_pointer(p_v, i_b, i_h, stride_vb, stride_vh)
    o_f = tl.program_id(0) * BM + tl.arange(0, BM)
    b_omega, b_omega_low = load_omega(p_omega, o_f, padded, D, BD, TWO_PARTS)
    last = tl.minimum(tl.load(p_counts + i_b), tokens)
    b_m = tl.full([BM], -float("inf"), tl.float32)
    b_l = tl.zeros([BM], tl.float32)
    b_acc = tl.zeros([BM, BDV], tl.float32)
    for n in range(i_split * split_size, tl.minimum((i_split + 1) * split_size, last), BN):
        o_n = n + tl.arange(0, BN)
        b_x = load_rows_masked(p_k, o_n, o_n < last, stride_kn, D, BD)
        b_v = load_rows_masked(p_v, o_n, o_n < last, stride_vn, DV, BDV)
        b_s = (
            project(b_x, b_omega, b_omega_low, TWO_PARTS, True) * (sqrt_scale * LOG2E)
            - half_norm(b_x, sqrt_scale)[None, :]
        )
        b_s = tl.where((o_n < last)[None, :], b_s, -float("inf"))
        b_new_m = tl.maximum(b_m, tl.max(b_s, 1))  # finite: a split begins with a real key
        b_p = tl.exp2(b_s - b_new_m[:, None])
        b_alpha = tl.exp2(b_m - b_new_m)
        b_l = b_l * b_alpha + tl.sum(b_p, 1)
        b_acc = tl.dot(b_p.to(b_v.dtype), b_v, b_acc * b_alpha[:, None], input_precision=PRECISION)
        b_m = b_new_m
    m_alive = b_l > 0
    b_l = tl.where(m_alive, b_l, 1.0)
    o_v = tl.arange(0, BDV)
    row = (i_split * tl.num_programs(2) + i_bh).to(tl.int64) * padded + o_f
    m_f = o_f < padded
    tl.store(
        p_context + row[:, None] * DV + o_v[None, :], b_acc / b_l[:, None], mask=m_f[:, None] & (o_v < DV)[None, :]
    )
    tl.store(p_feature_lse2 + row, tl.where(m_alive, b_m + tl.log2(b_l), -float("inf")), mask=m_f)


@triton.jit(do_not_specialize=["features", "splits"])
def merge_context_kernel(
    p_context_parts, p_lse2_parts, p_context, p_rounded, p_feature_lse2, padded, features, splits,
    DV: tl.constexpr, BDV: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Context and log-sum-exp of BN features, merged from those of the splits."""
    i_bh = tl.program_id(1)
    o_f = tl.program_id(0) * BN + tl.arange(0, BN)
    b_m = tl.full([BN], -float("inf"), tl.float32)
    b_l = tl.zeros([BN], tl.float32)
    b_acc = tl.zeros([BN, BDV], tl.float32)
    for i_split in range(0, splits):
        row = (i_split * tl.num_programs(1) + i_bh).to(tl.int64) * padded
        b_feature_lse2 = tl.load(p_lse2_parts + row + o_f)
        b_new_m = tl.maximum(b_m, b_feature_lse2)
        b_safe_m = tl.where(b_new_m == -float("inf"), 0.0, b_new_m)
        b_alpha, b_beta = tl.exp2(b_m - b_safe_m), tl.exp2(b_feature_lse2 - b_safe_m)
        b_l = b_l * b_alpha + b_beta
        b_acc = b_acc * b_alpha[:, None] + b_beta[:, None] * load_rows_masked(
            p_context_parts + row * DV, o_f, o_f < padded, DV, DV, BDV
        )
        b_m = b_new_m
    m_alive = (b_l > 0) & (o_f < features)
    b_acc = b_acc / tl.where(b_l > 0, b_l, 1.0)[:, None]
    row = i_bh.to(tl.int64) * padded + o_f
    o_v = tl.arange(0, BDV)
    o_x = row[:, None] * DV + o_v[None, :]
    tl.store(p_context + o_x, b_acc, mask=(o_v < DV)[None, :])
    tl.store(p_rounded + o_x, b_acc.to(p_rounded.dtype.element_ty), mask=(o_v < DV)[None, :])
    tl.store(p_feature_lse2 + row, tl.where(m_alive, b_m + tl.log2(tl.where(m_alive, b_l, 1.0)), -float("inf")))


@triton.jit(do_not_specialize=["heads", "group_size", "queries", "sqrt_scale"])
def output_kernel(
    p_q, p_omega, p_feature_lse2, p_context, p_out, p_lse2,
    stride_qb, stride_qh, stride_qn, heads, group_size, queries, padded, sqrt_scale,
    TWO_PARTS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The output of BM queries, and their log-sum-exp over features in base 2 (0 where no key is real)."""
    i_bh = tl.program_id(1)
    p_q, p_feature_lse2, p_context = query_head(
        p_q, p_feature_lse2, p_context, i_bh, heads, group_size, padded, stride_qb, stride_qh, DV
    )
    o_i = tl.program_id(0) * BM + tl.arange(0, BM)
    b_x = load_rows_masked(p_q, o_i, o_i < queries, stride_qn, D, BD)
    b_m = tl.full([BM], -float("inf"), tl.float32)
    b_l = tl.zeros([BM], tl.float32)
    b_acc = tl.zeros([BM, BDV], tl.float32)
    for f in range(0, padded, BN):
        o_f = f + tl.arange(0, BN)
        b_omega, b_omega_low = load_omega(p_omega, o_f, padded, D, BD, TWO_PARTS)
        b_s = (
            project(b_x, b_omega, b_omega_low, TWO_PARTS, False) * (sqrt_scale * LOG2E)
            + tl.load(p_feature_lse2 + o_f)[None, :]
        )
        b_new_m = tl.maximum(b_m, tl.max(b_s, 1))
        b_safe_m = tl.where(b_new_m == -float("inf"), 0.0, b_new_m)
        b_p = tl.exp2(b_s - b_safe_m[:, None])
        b_alpha = tl.exp2(b_m - b_safe_m)
        b_l = b_l * b_alpha + tl.sum(b_p, 1)
        b_context = load_rows_masked(p_context, o_f, o_f < padded, DV, DV, BDV)
        b_acc = tl.dot(b_p.to(b_context.dtype), b_context, b_acc * b_alpha[:, None], input_precision=PRECISION)
        b_m = b_new_m
    m_alive = b_l > 0
    b_l = tl.where(m_alive, b_l, 1.0)
    o_v = tl.arange(0, BDV)
    row = i_bh.to(tl.int64) * queries + o_i
    m_i = o_i < queries
    b_out = (b_acc / b_l[:, None]).to(p_out.dtype.element_ty)
    tl.store(p_out + row[:, None] * DV + o_v[None, :], b_out, mask=m_i[:, None] & (o_v < DV)[None, :])
    tl.store(p_lse2 + row, tl.where(m_alive, b_m + tl.log2(b_l), 0.0), mask=m_i)


@triton.jit(do_not_specialize=["heads", "group_size", "queries", "sqrt_scale"])
def dq_kernel(
    p_q, p_omega, p_feature_lse2, p_context, p_out, p_do, p_lse2, p_delta, p_dq,
    stride_qb, stride_qh, stride_qn, heads, group_size, queries, padded, sqrt_scale,
    TWO_PARTS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """dq = sqrt_scale · Σ_f da ω, and δ, of BM queries."""
    i_bh = tl.program_id(1)
    p_q, p_feature_lse2, p_context = query_head(
        p_q, p_feature_lse2, p_context, i_bh, heads, group_size, padded, stride_qb, stride_qh, DV
    )
    o_i = tl.program_id(0) * BM + tl.arange(0, BM)
    m_i = o_i < queries
    row = i_bh.to(tl.int64) * queries
    b_x = load_rows_masked(p_q, o_i, m_i, stride_qn, D, BD)
    b_do = load_rows_masked(p_do + row * DV, o_i, m_i, DV, DV, BDV)
    b_delta = tl.sum(b_do.to(tl.float32) * load_rows_masked(p_out + row * DV, o_i, m_i, DV, DV, BDV).to(tl.float32), 1)
    b_lse2 = tl.load(p_lse2 + row + o_i, mask=m_i, other=0.0)
    b_dq = tl.zeros([BM, BD], tl.float32)
    for f in range(0, padded, BN):
        o_f = f + tl.arange(0, BN)
        b_omega, b_omega_low = load_omega(p_omega, o_f, padded, D, BD, TWO_PARTS)
        b_s = (
            project(b_x, b_omega, b_omega_low, TWO_PARTS, False) * (sqrt_scale * LOG2E)
            + tl.load(p_feature_lse2 + o_f)[None, :]
        )
        b_p = tl.exp2(b_s - b_lse2[:, None])
        b_context = load_rows_masked(p_context, o_f, o_f < padded, DV, DV, BDV)
        b_da = b_p * (tl.dot(b_do, tl.trans(b_context), input_precision=PRECISION) - b_delta[:, None])
        b_dq = tl.dot(b_da.to(b_omega.dtype), b_omega, b_dq, input_precision=PRECISION)
    o_d = tl.arange(0, BD)
    p_row = p_dq + (row + o_i)[:, None] * D + o_d[None, :]
    tl.store(p_row, (b_dq * sqrt_scale).to(p_dq.dtype.element_ty), mask=m_i[:, None] & (o_d < D)[None, :])
    tl.store(p_delta + row + o_i, b_delta, mask=m_i)


@triton.jit(do_not_specialize=["heads", "group_size", "queries", "split_size", "sqrt_scale"])
def d_context_kernel(
    p_q, p_omega, p_feature_lse2, p_context, p_do, p_lse2, p_delta, p_dcontext, p_dfeature_lse,
    stride_qb, stride_qh, stride_qn, heads, group_size, queries, padded, split_size, sqrt_scale,
    TWO_PARTS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """d context = Σ_i p do and d lse = Σ_i da of BM features over one split of the queries."""
    i_split, i_bh = tl.program_id(1), tl.program_id(2)
    p_q, p_feature_lse2, p_context = query_head(
        p_q, p_feature_lse2, p_context, i_bh, heads, group_size, padded, stride_qb, stride_qh, DV
    )
    o_f = tl.program_id(0) * BM + tl.arange(0, BM)
    m_f = o_f < padded
    b_omega, b_omega_low = load_omega(p_omega, o_f, padded, D, BD, TWO_PARTS)
    b_context = load_rows_masked(p_context, o_f, m_f, DV, DV, BDV)
    b_feature_lse2 = tl.load(p_feature_lse2 + o_f, mask=m_f, other=-float("inf"))
    row = i_bh.to(tl.int64) * queries
    b_dcontext = tl.zeros([BM, BDV], tl.float32)
    b_dlse = tl.zeros([BM], tl.float32)
    for n in range(i_split * split_size, tl.minimum((i_split + 1) * split_size, queries), BN):
        o_i = n + tl.arange(0, BN)
        m_i = o_i < queries
        b_x = load_rows_masked(p_q, o_i, m_i, stride_qn, D, BD)
        b_do = load_rows_masked(p_do + row * DV, o_i, m_i, DV, DV, BDV)
        b_lse2 = tl.load(p_lse2 + row + o_i, mask=m_i, other=float("inf"))
        b_delta = tl.load(p_delta + row + o_i, mask=m_i, other=0.0)
        b_s = project(b_x, b_omega, b_omega_low, TWO_PARTS, True) * (sqrt_scale * LOG2E) + b_feature_lse2[:, None]
        b_p = tl.exp2(b_s - b_lse2[None, :])
        b_dcontext = tl.dot(b_p.to(b_do.dtype), b_do, b_dcontext, input_precision=PRECISION)
        b_da = b_p * (tl.dot(b_context, tl.trans(b_do), input_precision=PRECISION) - b_delta[None, :])
        b_dlse += tl.sum(b_da, 1)
    o_v = tl.arange(0, BDV)
    o_row = (i_split * tl.num_programs(2) + i_bh).to(tl.int64) * padded + o_f
    tl.store(p_dcontext + o_row[:, None] * DV + o_v[None, :], b_dcontext, mask=m_f[:, None] & (o_v < DV)[None, :])
    tl.store(p_dfeature_lse + o_row, b_dlse, mask=m_f)


@triton.jit(do_not_specialize=["group_size", "splits"])
def merge_d_context_kernel(
    p_dcontext_parts, p_dlse_parts, p_context, p_feature_lse2, p_dcontext, p_delta, p_neg_lse2,
    padded, group_size, splits,
    DV: tl.constexpr, BDV: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """d context of BN features, summed over splits and over heads that share keys; δ_f − d lse; −lse."""
    i_bh = tl.program_id(1)
    o_f = tl.program_id(0) * BN + tl.arange(0, BN)
    b_dlse = tl.zeros([BN], tl.float32)
    b_acc = tl.zeros([BN, BDV], tl.float32)
    for i in range(0, splits * group_size):
        row = ((i // group_size * tl.num_programs(1) + i_bh) * group_size + i % group_size).to(tl.int64) * padded
        b_dlse += tl.load(p_dlse_parts + row + o_f)
        b_acc += load_rows_masked(p_dcontext_parts + row * DV, o_f, o_f < padded, DV, DV, BDV)
    row = i_bh.to(tl.int64) * padded
    b_delta = tl.sum(b_acc * load_rows_masked(p_context + row * DV, o_f, o_f < padded, DV, DV, BDV), 1)
    o_v = tl.arange(0, BDV)
    o_x = (row + o_f)[:, None] * DV + o_v[None, :]
    tl.store(p_dcontext + o_x, b_acc.to(p_dcontext.dtype.element_ty), mask=(o_v < DV)[None, :])
    tl.store(p_delta + row + o_f, b_delta - b_dlse)
    b_feature_lse2 = tl.load(p_feature_lse2 + row + o_f)
    tl.store(p_neg_lse2 + row + o_f, tl.where(b_feature_lse2 == -float("inf"), b_feature_lse2, -b_feature_lse2))


@triton.jit(do_not_specialize=["heads", "tokens", "sqrt_scale"])
def dkdv_kernel(
    p_k, p_v, p_omega, p_counts, p_neg_lse2, p_dcontext, p_delta, p_dk, p_dv,
    stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn, heads, tokens, padded, sqrt_scale,
    TWO_PARTS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """dk = sqrt_scale · Σ_f db (ω − sqrt_scale · k) and dv = Σ_f r d context of BM keys; p_delta is δ_f − d lse."""
    i_bh = tl.program_id(1)
    i_b, i_h = split_index(i_bh, heads)
    o_n = tl.program_id(0) * BM + tl.arange(0, BM)
    m_n = o_n < tl.minimum(tl.load(p_counts + i_b), tokens)
    b_x = load_rows_masked(head_pointer(p_k, i_b, i_h, stride_kb, stride_kh), o_n, m_n, stride_kn, D, BD)
    b_v = load_rows_masked(head_pointer(p_v, i_b, i_h, stride_vb, stride_vh), o_n, m_n, stride_vn, DV, BDV)
    b_neg_norm = tl.where(m_n, -half_norm(b_x, sqrt_scale), -float("inf"))
    row = i_bh.to(tl.int64) * padded
    b_dk = tl.zeros([BM, BD], tl.float32)
    b_dv = tl.zeros([BM, BDV], tl.float32)
    b_sum = tl.zeros([BM], tl.float32)
    for f in range(0, padded, BN):
        o_f = f + tl.arange(0, BN)
        b_omega, b_omega_low = load_omega(p_omega, o_f, padded, D, BD, TWO_PARTS)
        b_neg_lse2 = tl.load(p_neg_lse2 + row + o_f)
        b_r = tl.exp2(
            project(b_x, b_omega, b_omega_low, TWO_PARTS, False) * (sqrt_scale * LOG2E)
            + b_neg_norm[:, None]
            + b_neg_lse2[None, :]
        )
        b_dcontext = load_rows_masked(p_dcontext + row * DV, o_f, o_f < padded, DV, DV, BDV)
        b_dv = tl.dot(b_r.to(b_dcontext.dtype), b_dcontext, b_dv, input_precision=PRECISION)
        b_db = b_r * (
            tl.dot(b_v, tl.trans(b_dcontext), input_precision=PRECISION) - tl.load(p_delta + row + o_f)[None, :]
        )
        b_dk = tl.dot(b_db.to(b_omega.dtype), b_omega, b_dk, input_precision=PRECISION)
        b_sum += tl.sum(b_db, 1)
    b_dk = sqrt_scale * (b_dk - sqrt_scale * b_sum[:, None] * b_x.to(tl.float32))
    o_d, o_v = tl.arange(0, BD), tl.arange(0, BDV)
    o_row = (i_bh.to(tl.int64) * tokens + o_n)[:, None]
    m_n = (o_n < tokens)[:, None]
    tl.store(p_dk + o_row * D + o_d[None, :], b_dk.to(p_dk.dtype.element_ty), mask=m_n & (o_d < D)[None, :])
    tl.store(p_dv + o_row * DV + o_v[None, :], b_dv.to(p_dv.dtype.element_ty), mask=m_n & (o_v < DV)[None, :])
