"""What the kernels of every score share: which program works on what, the mask's bits, dropout, rotation."""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl

PLAIN = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1" or torch.version.hip is not None)  # no inline assembly


@triton.jit
def place(i_group, i_instance, heads, BY_BATCH: tl.constexpr, BY_HEAD: tl.constexpr):
    """(batch, head) of a program, from the group of its list and its number among the programs of that group."""
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
def allowed(p_packed, i_bits, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TURNED: tl.constexpr):
    """The bits of a mixed tile as booleans, `[ROWS, COLUMNS]` (TURNED: `[COLUMNS, ROWS]`)."""
    WORDS: tl.constexpr = COLUMNS // 32
    p_words = p_packed + i_bits.to(tl.int64) * (ROWS * WORDS) + tl.arange(0, ROWS) * WORDS
    o_column = tl.arange(0, COLUMNS)
    o_column = o_column[:, None] if TURNED else o_column[None, :]
    b_word = spread(tl.load(p_words), TURNED)
    # A word a row, chosen by the column: loading a word for each pair would cost as much as the product itself.
    for x in tl.static_range(1, WORDS):
        b_word = tl.where(o_column // 32 == x, spread(tl.load(p_words + x), TURNED), b_word)
    return ((b_word >> (o_column % 32)) & 1) != 0


@triton.jit
def spread(b_row, TURNED: tl.constexpr):
    """A value a query, as a column of the tile, or as a row of it when the tile is turned."""
    return b_row[None, :] if TURNED else b_row[:, None]


@triton.jit
def mix(x):
    """Murmur3's finaliser over uint32."""
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def row_keys(p_seed, i_b, i_h, o_i):
    """A mixed number for each query at places o_i: `dropout.row_keys` in 32 bits."""
    x = mix(tl.load(p_seed).to(tl.uint32))
    x = mix(x ^ i_b.to(tl.uint32))
    x = mix(x ^ i_h.to(tl.uint32))
    return mix(x ^ o_i.to(tl.uint32))


@triton.jit
def kept(b_keys, o_j, threshold, TURNED: tl.constexpr):
    """Whether each weight is kept by dropout: `dropout.keep` in 32 bits."""
    b_column = o_j.to(tl.uint32) * 0x9E3779B1
    x = mix(spread(b_keys, TURNED) ^ (b_column[:, None] if TURNED else b_column[None, :]))
    return (x & 0x7FFFFFFF).to(tl.int32) >= threshold


@triton.jit
def numbers_at(p_line, o_x, length, BM: tl.constexpr, BN: tl.constexpr, TURNED: tl.constexpr, PAIRS: tl.constexpr):
    """Numbers by distance of a tile whose corner is at entry o_x of the line, to start its product from.

    The line is there in four copies, each one entry further right than the last: row r reads copy r % 4, where its
    columns start at a multiple of four and neighbours can be loaded together. Four more, reversed, serve turned tiles.
    PAIRS loads them two at a time. It is right only where the result starts a product of tensor cores, in whose layout
    the numbers that a thread holds come in pairs of neighbours.
    """
    if TURNED:
        o_down, o_right = tl.arange(0, BN), tl.arange(0, BM)
        p_line += 5 * length - o_x
    else:
        o_down, o_right = tl.arange(0, BM), tl.arange(0, BN)
        p_line += o_x
    p_n = p_line + ((o_down % 4) * length - o_down // 4 * 4)[:, None] + o_right[None, :]
    if PLAIN or not PAIRS:
        b_n = tl.load(p_n)
    else:
        # An ordinary load would be given a layout of its own and go through shared memory to the product's.
        b_n = tl.inline_asm_elementwise(
            "ld.global.nc.v2.f32 {$0, $1}, [$2];", "=f,=f,l,l", [p_n.to(tl.int64)], tl.float32, is_pure=True, pack=2
        )
    return b_n


@triton.jit
def by_distance(
    p_numbers, i_h, o_x, origin, offset, length, unit,
    BM: tl.constexpr, BN: tl.constexpr, TURNED: tl.constexpr, PAIRS: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    """What distance adds in a tile whose corner has j − row = o_x: read from lines, or −unit·slope·|i − j|."""
    if NUMBERS == 1:
        return numbers_at(p_numbers + i_h * 8 * length, origin + o_x, length, BM, BN, TURNED, PAIRS)
    else:
        b_apart = o_x - offset + spread(-tl.arange(0, BM), TURNED) + spread(tl.arange(0, BN), not TURNED)
        return -(tl.load(p_numbers + i_h) * unit) * tl.abs(b_apart).to(tl.float32)


@triton.jit
def sheared(b_low, b_high, B: tl.constexpr):
    """Products with distances as scores: column c of row r is at c − r of the band [b_low | b_high], from −B on."""
    o_r, o_c = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    # Each row's columns are a rotation of what it takes from either half, so one choice and one permutation do.
    return tl.gather(tl.where(o_c < B - o_r, b_high, b_low), (o_c - o_r) & (B - 1), 1)


@triton.jit
def unsheared(b_d, B: tl.constexpr):
    """The adjoint of `sheared`: (for the low half of the band, for the high half)."""
    o_r, o_c = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    b_turned = tl.gather(b_d, (o_c + o_r) & (B - 1), 1)
    m_high = o_c < B - o_r
    return tl.where(m_high, 0.0, b_turned), tl.where(m_high, b_turned, 0.0)
