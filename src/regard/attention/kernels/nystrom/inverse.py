"""The pseudo-inverse of Nyström attention in a few kernels per step, for many small matrices at once.

A step is Z ← ¼ Z (13 + 15 n + 7 n² + n³) with n = −aZ. Its matrices are so small that starting an operation costs as
much as its work, so one kernel does what torch needs several for: out = X·x + Y·y + Σ_t α_t A_t B_t, where each A and B
may be transposed. With w = (15 n + 7 n² + n³) / 15, a step is Z ← 13/4 Z + 15/4 Z w.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from ..launch import Launch
from .kernels import product_sum_kernel

TILE = (64, 64)  # rows and columns of a program's results
DEPTH = {1: (32, 4), 2: (32, 3), 3: (32, 2)}  # depth of a product's step, and stages, by the number of products
WARPS = 4
POINTERS = {"EF": 9, "CD": 7, "Y": 5, "X": 4, "AB": 3}  # how many pointers a sum has, by its last term
MAX_POINTERS = 9


class InverseStep(NamedTuple):
    """What backward needs of a step."""

    z: Tensor
    n: Tensor
    square: Tensor  # n²
    w: Tensor


class InverseIteration:
    """The iteration for `count` matrices of one size. Each matrix is stored with its transpose (`empty`)."""

    def __init__(self, count: int, size: int, precision: str):
        self.count, self.size, self.precision = count, size, precision
        self.plane = -(-count * size * size // 4) * 4  # a multiple of 16 bytes
        self.n = self.product_sum(AB=-1.0)
        self.square = self.product_sum(AB=1.0)
        self.w = self.product_sum(X=1.0, Y=7 / 15, AB=1 / 15)
        self.z = self.product_sum(X=13 / 4, AB=15 / 4)
        self.dw = self.product_sum(AB=15 / 4, TRANSPOSE_A=True)
        self.d_square = self.product_sum(X=7 / 15, AB=1 / 15, TRANSPOSE_A=True)
        self.dn = self.product_sum(
            X=1.0, AB=1 / 15, TRANSPOSE_B=True, CD=1.0, TRANSPOSE_D=True, EF=1.0, TRANSPOSE_E=True
        )
        self.da = self.product_sum(X=1.0, AB=-1.0, TRANSPOSE_B=True)
        self.dz = self.product_sum(X=13 / 4, AB=15 / 4, TRANSPOSE_B=True, CD=-1.0, TRANSPOSE_C=True)

    def product_sum(self, **terms: Any) -> Launch:
        """AB·A B + X·x + Y·y + CD·C D + EF·E F with these factors; terms that are not named are 0."""
        factors = dict.fromkeys(("X", "Y", "AB", "CD", "EF"), 0.0)
        transposes = dict.fromkeys([f"TRANSPOSE_{letter}" for letter in "ABCDEF"], False)
        (rows, columns), (depth, stages) = TILE, DEPTH[sum(name in terms for name in ("AB", "CD", "EF"))]
        programs = self.count * -(-self.size // rows) * -(-self.size // columns)
        sizes = {"size": self.size, "plane": self.plane, "BM": rows, "BN": columns, "BK": depth}
        options = {"PRECISION": self.precision, "num_warps": WARPS, "num_stages": stages}
        first = next(count for name, count in POINTERS.items() if name in terms)
        absent = dict.fromkeys(product_sum_kernel.arg_names[first:MAX_POINTERS])
        return Launch(product_sum_kernel, programs, **factors | transposes | terms, **sizes, **options, **absent)

    def empty(self, like: Tensor, matrices: int) -> list[Tensor]:
        """Memory for `matrices` matrices with their transposes, `[2, plane]` each."""
        return list(like.new_empty(matrices, 2, self.plane).unbind(0))

    def empty_steps(self, like: Tensor, count: int) -> list[InverseStep]:
        """Memory for `count` steps."""
        matrices = self.empty(like, 4 * count)
        return [InverseStep._make(matrices[i : i + 4]) for i in range(0, len(matrices), 4)]

    def matrix(self, x: Tensor, transposed: bool = False) -> Tensor:
        """A stored matrix as `[count, n, n]`."""
        return x[int(transposed), : self.count * self.size * self.size].view(self.count, self.size, self.size)

    def run_all(self, like: Tensor) -> None:
        """Start every kernel once, for them to be compiled."""
        steps = self.empty_steps(like, 2)
        a, dz = self.empty(like, 2)
        self.forward(a, steps, 1)
        self.backward(a, steps[:1], dz)

    def forward(self, a: Tensor, steps: list[InverseStep], iterations: int) -> Tensor:
        """Z after the iterations from the first step's; the steps are filled in turn."""
        for i in range(iterations):
            (z, n, square, w), following = steps[i % len(steps)], steps[(i + 1) % len(steps)].z
            self.n(n, a, z)
            self.square(square, n, n)
            self.w(w, n, square, n, square)
            self.z(following, z, w, z)
        return steps[iterations % len(steps)].z

    def backward(self, a: Tensor, steps: list[InverseStep], dz: Tensor) -> tuple[Tensor, Tensor]:
        """da and the gradient of the first Z."""
        dw, d_square, dn, da, *spare = self.empty(a, 6)
        da.zero_()
        for z, n, square, w in reversed(steps):
            self.dw(dw, z, dz)
            self.d_square(d_square, n, dw, dw)
            self.dn(dn, dw, square, dw, None, d_square, n, n, d_square)
            self.da(da, dn, z, da)
            previous = spare[0] if dz is not spare[0] else spare[1]
            self.dz(previous, dz, w, dz, None, a, dn)
            dz = previous
        return da, dz
