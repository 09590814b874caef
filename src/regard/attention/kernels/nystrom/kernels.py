"""Device code of Nyström attention: means of segments, softmax between landmarks, and sums of matrix products."""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportReturnType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from ..prelude import head_pointer, split_index


@triton.jit(do_not_specialize=["heads", "size"])
def landmarks_kernel(
    p_x, p_mean, p_rounded, stride_xb, stride_xh, stride_xn, heads, size,
    D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The mean of one segment's `size` tokens, in float32 and rounded."""
    i_segment, i_bh = tl.program_id(0), tl.program_id(1)
    o_d = tl.arange(0, BD)
    i_b, i_h = split_index(i_bh, heads)
    p_x = head_pointer(p_x, i_b, i_h, stride_xb, stride_xh) + i_segment.to(tl.int64) * size * stride_xn
    b_total = tl.zeros([BD], tl.float32)
    for n in range(0, size, BN):
        o_n = n + tl.arange(0, BN)
        m_x = (o_n < size)[:, None] & (o_d < D)[None, :]
        b_total += tl.sum(tl.load(p_x + o_n[:, None] * stride_xn + o_d[None, :], mask=m_x, other=0.0).to(tl.float32), 0)
    o_out = (i_bh * tl.num_programs(0) + i_segment).to(tl.int64) * D + o_d
    b_mean = b_total / size
    tl.store(p_mean + o_out, b_mean, mask=o_d < D)
    tl.store(p_rounded + o_out, b_mean.to(p_rounded.dtype.element_ty), mask=o_d < D)


@triton.jit(do_not_specialize=["size"])
def d_landmarks_kernel(
    p_dx, p_scores_grad, p_attention_grad, size, D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr
):
    """Add the gradient of a mean, through the scores and through attention, to that of its tokens."""
    i_segment, i_bh = tl.program_id(0), tl.program_id(1)
    o_d = tl.arange(0, BD)
    row = (i_bh * tl.num_programs(0) + i_segment).to(tl.int64)
    o_in = row * D + o_d
    b_grad = tl.load(p_scores_grad + o_in, mask=o_d < D, other=0.0)
    b_share = (b_grad + tl.load(p_attention_grad + o_in, mask=o_d < D, other=0.0).to(tl.float32)) / size
    p_dx += row * size * D
    for n in range(0, size, BN):
        o_n = n + tl.arange(0, BN)
        m_x = (o_n < size)[:, None] & (o_d < D)[None, :]
        p_rows = p_dx + o_n[:, None] * D + o_d[None, :]
        b_dx = tl.load(p_rows, mask=m_x, other=0.0).to(tl.float32) + b_share[None, :]
        tl.store(p_rows, b_dx.to(p_dx.dtype.element_ty), mask=m_x)


@triton.jit
def row_block(start, r, o_c, size, BR: tl.constexpr):
    """Rows r … of a matrix that begins at `start`: (rows, offsets, mask)."""
    o_r = r + tl.arange(0, BR)
    return o_r, start + o_r[:, None] * size + o_c[None, :], (o_r < size)[:, None] & (o_c < size)[None, :]


@triton.jit
def init_kernel(p_scores, p_a, p_z, p_total, size, plane, BR: tl.constexpr, BC: tl.constexpr):
    """a = softmax of one matrix of scores, Z = aᵀ / c, both with their transposes, and the sums of a's columns."""
    start = tl.program_id(0).to(tl.int64) * size * size
    o_c = tl.arange(0, BC)
    b_total = tl.zeros([BC], tl.float32)
    for r in range(0, size, BR):
        o_r, o_x, m_x = row_block(start, r, o_c, size, BR)
        b_s = tl.load(p_scores + o_x, mask=m_x, other=-float("inf"))
        b_s = tl.where((o_r < size)[:, None], b_s, 0.0)
        b_exp = tl.exp(b_s - tl.max(b_s, 1)[:, None])
        b_a = tl.where(m_x, b_exp / tl.sum(b_exp, 1)[:, None], 0.0)
        tl.store(p_a + o_x, b_a, mask=m_x)
        tl.store(p_a + plane + start + o_c[None, :] * size + o_r[:, None], b_a, mask=m_x)
        b_total += tl.sum(b_a, 0)
    tl.store(p_total + tl.program_id(0) * size + o_c, b_total, mask=o_c < size)
    norm = tl.maximum(tl.max(b_total, 0), 1.0)
    tl.debug_barrier()  # threads read what others wrote
    for r in range(0, size, BR):
        o_r, o_x, m_x = row_block(start, r, o_c, size, BR)
        b_a = tl.load(p_a + o_x, mask=m_x, other=0.0) / norm
        tl.store(p_z + plane + o_x, b_a, mask=m_x)
        tl.store(p_z + start + o_c[None, :] * size + o_r[:, None], b_a, mask=m_x)


@triton.jit(do_not_specialize=["scale"])
def d_scores_kernel(p_a, p_da, p_dz, p_z, p_total, p_ds, size, plane, scale, BR: tl.constexpr, BC: tl.constexpr):
    """scale · d scores of one matrix, from da and the gradient of the first Z."""
    start = tl.program_id(0).to(tl.int64) * size * size
    o_c = tl.arange(0, BC)
    b_pull = tl.zeros([BC], tl.float32)
    for r in range(0, size, BR):
        _o_r, o_x, m_x = row_block(start, r, o_c, size, BR)
        b_pull += tl.sum(tl.load(p_dz + o_x, mask=m_x, other=0.0) * tl.load(p_z + o_x, mask=m_x, other=0.0), 0)
    b_total = tl.load(p_total + tl.program_id(0) * size + o_c, mask=o_c < size, other=0.0)
    norm = tl.maximum(tl.max(b_total, 0), 1.0)
    b_largest = tl.where((b_total == norm) & (o_c < size), 1.0, 0.0)  # a tie is divided evenly, as in torch
    b_largest = b_largest / tl.maximum(tl.sum(b_largest, 0), 1.0) * (tl.sum(b_pull, 0) / norm)
    for r in range(0, size, BR):
        _o_r, o_x, m_x = row_block(start, r, o_c, size, BR)
        b_a = tl.load(p_a + o_x, mask=m_x, other=0.0)
        b_dz = tl.load(p_dz + plane + o_x, mask=m_x, other=0.0)
        b_da = tl.load(p_da + o_x, mask=m_x, other=0.0) + b_dz / norm - b_largest[None, :]
        tl.store(p_ds + o_x, scale * b_a * (b_da - tl.sum(b_da * b_a, 1)[:, None]), mask=m_x)


@triton.jit
def load_matrix(p_x, o_r, o_c, size):
    """The matrix at rows o_r and columns o_c, zeros beyond."""
    m_x = (o_r < size)[:, None] & (o_c < size)[None, :]
    return tl.load(p_x + o_r[:, None] * size + o_c[None, :], mask=m_x, other=0.0)


@triton.jit
def load_operands(p_a, p_b, plane, o_m, o_n, o_k, size, TRANSPOSE_A: tl.constexpr, TRANSPOSE_B: tl.constexpr):
    """A `[rows, k]` and B `[k, columns]`, each read from the plane in which neighbours in k are neighbours."""
    b_a = load_matrix(p_a + (plane if TRANSPOSE_A else 0), o_m, o_k, size)
    b_b = load_matrix(p_b + (0 if TRANSPOSE_B else plane), o_n, o_k, size)
    return b_a, tl.trans(b_b)


@triton.jit
def product_sum_kernel(
    p_out, p_a, p_b, p_x, p_y, p_c, p_d, p_e, p_f, size, plane,
    X: tl.constexpr, Y: tl.constexpr, AB: tl.constexpr, CD: tl.constexpr, EF: tl.constexpr,
    TRANSPOSE_A: tl.constexpr, TRANSPOSE_B: tl.constexpr, TRANSPOSE_C: tl.constexpr, TRANSPOSE_D: tl.constexpr,
    TRANSPOSE_E: tl.constexpr, TRANSPOSE_F: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """out = AB·A B + X·x + Y·y + CD·C D + EF·E F in one tile of one matrix; a term with the factor 0 is not read.

    Every matrix is stored twice, its transpose `plane` elements on: tensor cores need operands contiguous in k, and a
    transposition on the way takes several times as long as the product.
    """
    tiles_m, tiles_n = tl.cdiv(size, BM), tl.cdiv(size, BN)
    i_t = tl.program_id(0) % (tiles_m * tiles_n)
    start = (tl.program_id(0) // (tiles_m * tiles_n)).to(tl.int64) * size * size
    o_m, o_n = i_t // tiles_n * BM + tl.arange(0, BM), i_t % tiles_n * BN + tl.arange(0, BN)
    b_ab, b_cd, b_ef = tl.zeros([BM, BN], tl.float32), tl.zeros([BM, BN], tl.float32), tl.zeros([BM, BN], tl.float32)
    for k in range(0, size, BK):  # all products at once, so that their loads overlap
        o_k = k + tl.arange(0, BK)
        b_a, b_b = load_operands(p_a + start, p_b + start, plane, o_m, o_n, o_k, size, TRANSPOSE_A, TRANSPOSE_B)
        b_ab = tl.dot(b_a, b_b, b_ab, input_precision=PRECISION)
        if CD != 0.0:
            b_c, b_d = load_operands(p_c + start, p_d + start, plane, o_m, o_n, o_k, size, TRANSPOSE_C, TRANSPOSE_D)
            b_cd = tl.dot(b_c, b_d, b_cd, input_precision=PRECISION)
        if EF != 0.0:
            b_e, b_f = load_operands(p_e + start, p_f + start, plane, o_m, o_n, o_k, size, TRANSPOSE_E, TRANSPOSE_F)
            b_ef = tl.dot(b_e, b_f, b_ef, input_precision=PRECISION)
    b_acc = AB * b_ab
    if CD != 0.0:
        b_acc += CD * b_cd
    if EF != 0.0:
        b_acc += EF * b_ef
    if X != 0.0:
        b_acc += X * load_matrix(p_x + start, o_m, o_n, size)
    if Y != 0.0:
        b_acc += Y * load_matrix(p_y + start, o_m, o_n, size)
    m_x = (o_m < size)[:, None] & (o_n < size)[None, :]
    tl.store(p_out + start + o_m[:, None] * size + o_n[None, :], b_acc, mask=m_x)
    tl.store(p_out + start + plane + o_n[None, :] * size + o_m[:, None], b_acc, mask=m_x)
