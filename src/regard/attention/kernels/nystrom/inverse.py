"""Nyström's pseudo-inverse in a few kernels a step: sums of products of small matrices, many of them at a time.

A step is Z ← ¼ Z (13 + 15 n + 7 n² + n³) with n = −aZ. Its matrices are so small that the start of an operation costs
as much as its work, so a kernel does what torch needs several for: out = c·x + d·y + Σ_t α_t A_t B_t, of which each A
and B may be taken transposed.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from ..launch import Launch

TILE = (64, 64)  # rows and columns of a program's results
DEPTH = {1: (32, 4), 2: (32, 3), 3: (32, 2)}  # terms of sums taken at once, and stages, by the number of products
WARPS = 4
GIVEN = {"EF": 9, "CD": 7, "Y": 5, "X": 4, "AB": 3}  # how many of a kernel's pointers are given, by the last that is
LAST = 9


@triton.jit
def lines(p_x, o_r, o_c, size):
    """x at rows o_r and columns o_c, zeros beyond."""
    m = (o_r < size)[:, None] & (o_c < size)[None, :]
    return tl.load(p_x + o_r[:, None] * size + o_c[None, :], mask=m, other=0.0)


@triton.jit
def operands(p_a, p_b, plane, o_m, o_n, o_k, size, TURN_A: tl.constexpr, TURN_B: tl.constexpr):
    """A `[rows, k]` and B `[k, columns]`, each read from the plane in which neighbours in k are neighbours."""
    a = lines(p_a + (plane if TURN_A else 0), o_m, o_k, size)
    b = lines(p_b + (0 if TURN_B else plane), o_n, o_k, size)
    return a, tl.trans(b)


@triton.jit
def sum_kernel(
    p_out, p_a, p_b, p_x, p_y, p_c, p_d, p_e, p_f, size, plane,
    X: tl.constexpr, Y: tl.constexpr, AB: tl.constexpr, CD: tl.constexpr, EF: tl.constexpr,
    TURN_A: tl.constexpr, TURN_B: tl.constexpr, TURN_C: tl.constexpr, TURN_D: tl.constexpr,
    TURN_E: tl.constexpr, TURN_F: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """out = AB·A B + X·x + Y·y + CD·C D + EF·E F in one tile of one matrix; what has the factor 0 is not read.

    Every matrix is there twice, its transpose `plane` numbers on: tensor cores want both operands with neighbouring k
    side by side, and to turn them on the way takes several times as long as the product.
    """
    tiles_m, tiles_n = tl.cdiv(size, BM), tl.cdiv(size, BN)
    i_t = tl.program_id(0) % (tiles_m * tiles_n)
    start = (tl.program_id(0) // (tiles_m * tiles_n)).to(tl.int64) * size * size
    o_m, o_n = i_t // tiles_n * BM + tl.arange(0, BM), i_t % tiles_n * BN + tl.arange(0, BN)
    ab, cd, ef = tl.zeros([BM, BN], tl.float32), tl.zeros([BM, BN], tl.float32), tl.zeros([BM, BN], tl.float32)
    for k in range(0, size, BK):  # of all products at once, so that they wait for their operands together
        o_k = k + tl.arange(0, BK)
        a, b = operands(p_a + start, p_b + start, plane, o_m, o_n, o_k, size, TURN_A, TURN_B)
        ab = tl.dot(a, b, ab, input_precision=PRECISION)
        if CD != 0.0:
            c, d = operands(p_c + start, p_d + start, plane, o_m, o_n, o_k, size, TURN_C, TURN_D)
            cd = tl.dot(c, d, cd, input_precision=PRECISION)
        if EF != 0.0:
            e, f = operands(p_e + start, p_f + start, plane, o_m, o_n, o_k, size, TURN_E, TURN_F)
            ef = tl.dot(e, f, ef, input_precision=PRECISION)
    acc = AB * ab
    if CD != 0.0:
        acc += CD * cd
    if EF != 0.0:
        acc += EF * ef
    if X != 0.0:
        acc += X * lines(p_x + start, o_m, o_n, size)
    if Y != 0.0:
        acc += Y * lines(p_y + start, o_m, o_n, size)
    m = (o_m < size)[:, None] & (o_n < size)[None, :]
    tl.store(p_out + start + o_m[:, None] * size + o_n[None, :], acc, mask=m)
    tl.store(p_out + start + plane + o_n[None, :] * size + o_m[:, None], acc, mask=m)


class Sums:
    """The sums that forward and backward are made of, for so many matrices of one size, each there twice (`room`)."""

    def __init__(self, count: int, size: int, precision: str):
        self.count, self.size, self.precision = count, size, precision
        self.plane = -(-count * size * size // 4) * 4  # so that each begins where loads of 16 bytes can be
        self.n = self.sum(AB=-1.0)
        self.square = self.sum(AB=1.0)
        self.w = self.sum(X=1.0, Y=7 / 15, AB=1 / 15)
        self.z = self.sum(X=13 / 4, AB=15 / 4)
        self.dw = self.sum(AB=15 / 4, TURN_A=True)
        self.d_square = self.sum(X=7 / 15, AB=1 / 15, TURN_A=True)
        self.dn = self.sum(X=1.0, AB=1 / 15, TURN_B=True, CD=1.0, TURN_D=True, EF=1.0, TURN_E=True)
        self.da = self.sum(X=1.0, AB=-1.0, TURN_B=True)
        self.dz = self.sum(X=13 / 4, AB=15 / 4, TURN_B=True, CD=-1.0, TURN_C=True)

    def sum(self, **given: Any) -> Launch:
        factors = dict.fromkeys(("X", "Y", "AB", "CD", "EF"), 0.0)
        turns = dict.fromkeys([f"TURN_{letter}" for letter in "ABCDEF"], False)
        (rows, columns), (deep, stages) = TILE, DEPTH[sum(name in given for name in ("AB", "CD", "EF"))]
        programs = self.count * -(-self.size // rows) * -(-self.size // columns)
        sizes = {
            "size": self.size,
            "plane": self.plane,
            "BM": rows,
            "BN": columns,
            "BK": deep,
            "PRECISION": self.precision,
        }
        run = {"num_warps": WARPS, "num_stages": stages}
        first = next(places for name, places in GIVEN.items() if name in given)
        absent = dict.fromkeys(sum_kernel.arg_names[first:LAST])
        return Launch(sum_kernel, programs, **factors | turns | given, **sizes, **run, **absent)

    def room(self, like: Tensor, matrices: int) -> list[Tensor]:
        """Room for so many matrices and their transposes, `[2, plane]` each."""
        return list(like.new_empty(matrices, 2, self.plane).unbind(0))

    def steps(self, like: Tensor, count: int) -> list[list[Tensor]]:
        """Room for the (z, n, n², w) of so many steps."""
        room = self.room(like, 4 * count)
        return [room[i : i + 4] for i in range(0, len(room), 4)]

    def matrix(self, x: Tensor, turned: bool = False) -> Tensor:
        """`[count, n, n]` of what lies in a room."""
        return x[int(turned), : self.count * self.size * self.size].view(self.count, self.size, self.size)

    def rehearse(self, like: Tensor) -> None:
        """Everything once, for its kernels to be compiled."""
        steps = self.steps(like, 2)
        a, dz = self.room(like, 2)
        self.forward(a, steps, 1)
        self.backward(a, steps[:1], dz)

    def forward(self, a: Tensor, steps: list[list[Tensor]], iterations: int) -> Tensor:
        """Z after the iterations from steps[0]'s; each step is (z, n, n², w), and they are filled in turn."""
        for i in range(iterations):
            (z, n, square, w), after = steps[i % len(steps)], steps[(i + 1) % len(steps)][0]
            self.n(n, a, z)
            self.square(square, n, n)
            self.w(w, n, square, n, square)  # (15 n + 7 n² + n³) / 15
            self.z(after, z, w, z)
        return steps[iterations % len(steps)][0]

    def backward(self, a: Tensor, steps: list[list[Tensor]], dz: Tensor) -> tuple[Tensor, Tensor]:
        """da and d of the first Z."""
        dw, d_square, dn, da, *others = self.room(a, 6)
        da.zero_()
        for z, n, square, w in reversed(steps):
            self.dw(dw, z, dz)
            self.d_square(d_square, n, dw, dw)
            self.dn(dn, dw, square, dw, None, d_square, n, n, d_square)
            self.da(da, dn, z, da)
            before = others[0] if dz is not others[0] else others[1]
            self.dz(before, dz, w, dz, None, a, dn)
            dz = before
        return da, dz
