"""Tiles of numbers by pair between memory and the registers in which tensor cores leave their products.

Such a tile `[rows, keys]` has its keys in the `key_order` BY_THREAD. While it is loaded or stored it is
`[rows · keys / 32, 32]`: a thread has eight neighbours of a row of 32, four threads have the row, and the rows are in
the order in which warps have them. So nothing moves between threads.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportReturnType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def pair_offsets(BM: tl.constexpr, BN: tl.constexpr):
    """The row and the first key of each 32 numbers of a tile, `[BM · BN / 32, 1]`."""
    o_x = tl.arange(0, BM * BN // 32)[:, None]
    return o_x % (BM // 2) // 8 * 16 + o_x % BM // (BM // 2) * 8 + o_x % 8, o_x // BM * 32


@triton.jit
def load_pairs(
    p_x, i_m, i_n, queries, keys, stride_m, stride_n, BM: tl.constexpr, BN: tl.constexpr, ALIGNED: tl.constexpr
):
    """The tile of x `[queries, keys]` whose corner is at (i_m, i_n), for `pair_scores`; zeros beyond the last of both.

    ALIGNED says that rows are whole vectors of 16 bytes. Halves then come in words of two, which stay together until
    they are needed.
    """
    BITS: tl.constexpr = p_x.dtype.element_ty.primitive_bitwidth
    o_m, o_n = pair_offsets(BM, BN)
    # Offsets within the tile are the same in all of a loop's steps. Sizes are multiples as they are: the compiler must
    # know it.
    if ALIGNED and BITS == 16:
        o_n = o_n // 2 + tl.arange(0, 16)[None, :]
        p_words = p_x.to(tl.pointer_type(tl.int32)) + tl.cast(i_m, tl.int64) * (stride_m // 8 * 4) + i_n // 2
        m_pair = (o_m < queries - i_m) & (o_n < keys // 8 * 4 - i_n // 2)
        return tl.load(p_words + (o_m * (stride_m // 8 * 4) + o_n), mask=m_pair, other=0)
    else:
        VECTOR: tl.constexpr = 128 // BITS if ALIGNED else 1
        o_n += tl.arange(0, 32)[None, :]
        p_tile = p_x + tl.cast(i_m, tl.int64) * (stride_m // VECTOR * VECTOR) + tl.cast(i_n, tl.int64) * stride_n
        m_pair = (o_m < queries - i_m) & (o_n < keys // VECTOR * VECTOR - i_n)
        return tl.load(p_tile + (o_m * (stride_m // VECTOR * VECTOR) + o_n * stride_n), mask=m_pair, other=0.0)


@triton.jit
def pair_scores(p_x, b_x, BM: tl.constexpr, BN: tl.constexpr):
    """What `load_pairs` has loaded from x, as float32 `[BM, BN]`."""
    if b_x.dtype == tl.int32:
        b_x = tl.permute(tl.reshape(b_x, (BN // 32, 2, BM // 16, 8, 4, 4)), (2, 1, 3, 0, 5, 4))
        if p_x.dtype.element_ty == tl.bfloat16:  # the upper half of a float32
            b_low, b_high = (b_x << 16).to(tl.float32, bitcast=True), (b_x & -65536).to(tl.float32, bitcast=True)
        else:
            b_low = b_x.to(tl.int16).to(p_x.dtype.element_ty, bitcast=True).to(tl.float32)
            b_high = (b_x >> 16).to(tl.int16).to(p_x.dtype.element_ty, bitcast=True).to(tl.float32)
        return tl.reshape(tl.join(b_low, b_high), (BM, BN))
    else:
        b_x = tl.reshape(b_x, (BN // 32, 2, BM // 16, 8, 4, 4, 2))
        return tl.reshape(tl.permute(b_x, (2, 1, 3, 0, 5, 4, 6)), (BM, BN)).to(tl.float32)


@triton.jit
def store_pairs(p_x, b_x, i_m, i_n, queries, keys, BM: tl.constexpr, BN: tl.constexpr):
    """Store a tile `[BM, BN]` as that of a contiguous x `[queries, keys]`."""
    o_m, o_n = pair_offsets(BM, BN)
    o_n += tl.arange(0, 32)[None, :]
    b_x = tl.reshape(b_x.to(p_x.dtype.element_ty), (BM // 16, 2, 8, BN // 32, 4, 4, 2))
    b_x = tl.reshape(tl.permute(b_x, (3, 1, 0, 2, 5, 4, 6)), (BM * BN // 32, 32))
    p_tile = p_x + tl.cast(i_m, tl.int64) * keys + i_n
    tl.store(p_tile + (o_m * keys + o_n), b_x, mask=(o_m < queries - i_m) & (o_n < keys - i_n))


@triton.jit
def load_tokens(p_x, first, o_n, tokens, stride_n, D: tl.constexpr, BD: tl.constexpr):
    """Tokens first + o_n of x `[tokens, D]` as `[tokens, BD]`, zeros beyond the last and beyond D."""
    o_d = tl.arange(0, BD)
    m_x = (o_n < tokens - first)[:, None]
    if D != BD:
        m_x = m_x & (o_d < D)[None, :]
    p_rows = p_x + tl.cast(first, tl.int64) * stride_n
    return tl.load(p_rows + (o_n[:, None] * stride_n + o_d[None, :]), mask=m_x, other=0.0)
