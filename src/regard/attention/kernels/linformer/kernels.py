"""Device code of Linformer's projections; `passes.py` has the formulas."""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportReturnType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from ..prelude import head_pointer, load_rows_masked, split_index

PRECISION = tl.constexpr("tf32x3")  # of float32's products; those of half types have no choice


@triton.jit
def store_rows_masked(p_x, o_n, m_n, b_x, D: tl.constexpr, BD: tl.constexpr):
    """Store `[rows, BD]` as rows o_n of p_x `[n, D]` where m_n."""
    o_d = tl.arange(0, BD)
    tl.store(p_x + o_n[:, None] * D + o_d[None, :], b_x, mask=m_n[:, None] & (o_d < D)[None, :])


@triton.jit(do_not_specialize=["heads", "projected", "instances"])
def project_kernel(
    p_e, p_k, p_v, p_parts, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    heads, tokens, projected, split_size, instances,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """BM projected keys and values of one head over one split of the tokens; a part has the keys of all heads first."""
    i_split, i_bh = tl.program_id(1), tl.program_id(2)
    i_b, i_h = split_index(i_bh, heads)
    p_k = head_pointer(p_k, i_b, i_h, stride_kb, stride_kh)
    p_v = head_pointer(p_v, i_b, i_h, stride_vb, stride_vh)
    o_m = tl.program_id(0) * BM + tl.arange(0, BM)
    m_m = o_m < projected
    p_rows = p_e + o_m.to(tl.int64)[:, None] * tokens
    b_k = tl.zeros([BM, BD], tl.float32)
    b_v = tl.zeros([BM, BDV], tl.float32)
    for n in range(i_split * split_size, tl.minimum((i_split + 1) * split_size, tokens), BN):
        o_n = n + tl.arange(0, BN)
        b_e = tl.load(p_rows + o_n[None, :], mask=m_m[:, None] & (o_n < tokens)[None, :], other=0.0)
        b_k = tl.dot(b_e, load_rows_masked(p_k, o_n, o_n < tokens, stride_kn, D, BD), b_k, input_precision=PRECISION)
        b_v = tl.dot(b_e, load_rows_masked(p_v, o_n, o_n < tokens, stride_vn, DV, BDV), b_v, input_precision=PRECISION)
    p_parts += i_split.to(tl.int64) * instances * projected * (D + DV)
    o_row = i_bh.to(tl.int64) * projected + o_m
    store_rows_masked(p_parts, o_row, m_m, b_k, D, BD)
    store_rows_masked(p_parts + instances.to(tl.int64) * projected * D, o_row, m_m, b_v, DV, BDV)


@triton.jit(do_not_specialize=["count", "splits"])
def sum_splits_kernel(p_parts, p_out, count, splits, BN: tl.constexpr):
    """The parts `[splits, count]`, added in order."""
    o_n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    b_sum = tl.zeros([BN], tl.float32)
    for _ in range(0, splits):
        b_sum += tl.load(p_parts + o_n, mask=o_n < count, other=0.0)
        p_parts += count
    tl.store(p_out + o_n, b_sum.to(p_out.dtype.element_ty), mask=o_n < count)


@triton.jit
def add_products(
    b_acc, p_do, p_x, o_m, m_m, o_n, m_n, stride_b, stride_h, stride_n, batch, heads, projected,
    D: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """acc + Σ_h do[h] x[h]ᵀ over all heads h, `[projected, tokens]`."""
    for i_bh in range(0, batch * heads):
        i_b, i_h = split_index(i_bh, heads)
        b_do = load_rows_masked(p_do, o_m, m_m, D, D, BD)
        b_x = load_rows_masked(head_pointer(p_x, i_b, i_h, stride_b, stride_h), o_n, m_n, stride_n, D, BD)
        b_acc = tl.dot(b_do, tl.trans(b_x), b_acc, input_precision=PRECISION)
        p_do += projected * D
    return b_acc


@triton.jit(do_not_specialize=["batch", "heads", "projected"])
def d_projection_kernel(
    p_dk, p_dv, p_k, p_v, p_de, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    batch, heads, tokens, projected,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """dE of BM projected keys × BN tokens, all heads added in order."""
    o_m = tl.program_id(1) * BM + tl.arange(0, BM)
    o_n = tl.program_id(0) * BN + tl.arange(0, BN)
    m_m, m_n = o_m < projected, o_n < tokens
    b_acc = tl.zeros([BM, BN], tl.float32)
    b_acc = add_products(
        b_acc, p_dk, p_k, o_m, m_m, o_n, m_n, stride_kb, stride_kh, stride_kn, batch, heads, projected, D, BD
    )
    b_acc = add_products(
        b_acc, p_dv, p_v, o_m, m_m, o_n, m_n, stride_vb, stride_vh, stride_vn, batch, heads, projected, DV, BDV
    )
    p_tile = p_de + o_m.to(tl.int64)[:, None] * tokens + o_n[None, :]
    tl.store(p_tile, b_acc.to(p_de.dtype.element_ty), mask=m_m[:, None] & m_n[None, :])
