"""Disentangled attention (DeBERTa): vectors by distance beside the key and beside the query."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ....errors import BadInput
from ...execution import tensor_cache
from ..part import check_count, check_tensor
from .position import KeyVectors, Position, RelativeVectors, check_dim, check_heads, gather_by_distance, read_as


@dataclass(frozen=True, eq=False, repr=False)
class Disentangled(Position):
    """(scale / √terms) · (q·k + q·keys[δ] + k·queries[δ]), with δ the entry of i − j (He et al. 2021).

    `keys [heads, n, d]` is the paper's K_r, which makes "content to position" ("c2p"); `queries [heads, n, d]` is Q_r,
    "position to content" ("p2c"). Either may be None; terms counts the products, 3 with both, so that `Dot()` scales by
    1/√(3d) as the paper does. Distance 0 is entry n / 2, and the nearest end serves distances beyond the table.
    With a `max_distance` the entries are DeBERTa-v2's buckets: one for each distance up to n / 4, then logarithmic ones
    up to max_distance.

    >>> import torch, regard as rg
    >>> q, k, v = (torch.randn(1, 2, 5, 4) for _ in range(3))
    >>> keys, queries = torch.randn(2, 16, 4), torch.randn(2, 16, 4)
    >>> rg.attend(q, k, v, position=rg.Disentangled(keys, queries, max_distance=32)).shape
    torch.Size([1, 2, 5, 4])
    """

    keys: Tensor | None = None
    queries: Tensor | None = None
    max_distance: int | None = None
    formula = "(scale / √terms) · (q·k + q·keys[bucket(i − j)] + k·queries[bucket(i − j)])"
    dot_only = True
    exact_inputs = True

    def __post_init__(self) -> None:
        if self.keys is None and self.queries is None:
            raise BadInput("Disentangled has neither keys nor queries; give one of them or both, [heads, n, d] each.")
        for name, table in self.tensors().items():
            check_tensor(table, f"Disentangled's {name}", (3,), "[heads, n, d]")
            if table.shape[1] < 2 or table.shape[1] % 2:
                raise BadInput(
                    f"Disentangled's {name} are {list(table.shape)}; n must be even and at least 2: half for each side."
                )
        if len({table.shape[1] for table in self.tensors().values()}) > 1:
            shapes = " and ".join(f"{name} {list(table.shape)}" for name, table in self.tensors().items())
            raise BadInput(f"Disentangled has {shapes}; both need the same number of entries.")
        if self.max_distance is not None:
            check_count(self.max_distance, "Disentangled's max_distance", 1)
            exact = self.entries // 4
            if exact == 0 or self.max_distance <= exact + 1:
                raise BadInput(
                    f"Disentangled's max_distance is {self.max_distance} and its tables have {self.entries} entries. "
                    "Logarithmic buckets need at least 4 entries, and a max_distance above n / 4 + 1."
                )

    @property
    def entries(self) -> int:
        return next(iter(self.tensors().values())).shape[1]

    @property
    def score_scale(self) -> float:
        return (1 + len(self.tensors())) ** -0.5

    @property
    def multiplies_keys(self) -> bool:
        return self.queries is not None

    def tables(self) -> list[Tensor]:
        return [table for table in (self.keys, self.queries) if table is not None]

    def check(self, q: Tensor, k: Tensor) -> None:
        for name, table in self.tensors().items():
            check_heads(f"Disentangled's {name}", table, q)
            check_dim(f"Disentangled's {name}", table, q)

    def vector_scores(self, q: Tensor, k: Tensor, distance: Tensor, dtype: torch.dtype) -> Tensor:
        index, total = distance_entries(distance, self.entries, self.max_distance), q.new_zeros(())
        if self.keys is not None:
            total = total + gather_by_distance(q, self.keys, index, dtype)
        if self.queries is not None:
            total = total + gather_by_distance(k, self.queries, index.mT, dtype).mT
        return total

    def rel_vectors(self, q: Tensor, k: Tensor, dtype: torch.dtype) -> RelativeVectors | None:
        return None if self.keys is None else RelativeVectors(q, *self.by_distance(self.keys, dtype))

    def key_vectors(self, q: Tensor, k: Tensor, dtype: torch.dtype) -> KeyVectors | None:
        return None if self.queries is None else KeyVectors(*self.by_distance(self.queries, dtype))

    def by_distance(self, table: Tensor, dtype: torch.dtype) -> tuple[Tensor, int]:
        """The vector of every distance that has its own, read in a type, and the index of distance 0."""
        table = read_as(table, dtype)
        if self.max_distance is None:
            return table, self.entries // 2
        exact = table.to(torch.promote_types(dtype, torch.float32))  # in which gradients of a bucket are summed
        return exact[:, all_entries(self.entries, self.max_distance, table.device)], self.max_distance


def distance_entries(distance: Tensor, entries: int, max_distance: int | None) -> Tensor:
    """The entry of each i − j: distance + entries / 2, or that of DeBERTa-v2's bucket; the nearest within the table.

    A bucket is the distance itself up to mid = entries / 4, and beyond it ± (mid + ⌈(mid − 1) · log(|distance| / mid) /
    log((max_distance − 1) / mid)⌉). Distances beyond max_distance count as max_distance.
    """
    span = entries // 2
    if max_distance is not None:
        mid = span // 2
        # A GPU multiplies by 1 / mid where mid is a number of Python: ⌈1 + an ulp⌉ would be the next bucket.
        far = distance.abs().clamp(mid, max_distance).float() / torch.full((), float(mid), device=distance.device)
        last = torch.log(torch.full((), (max_distance - 1) / mid, device=distance.device))
        bucket = (torch.ceil(torch.log(far) / last * (mid - 1)) + mid).long()
        distance = torch.where(distance.abs() <= mid, distance, distance.sign() * bucket)
    return (distance + span).clamp(0, entries - 1)


@tensor_cache
def all_entries(entries: int, max_distance: int, device: torch.device) -> Tensor:
    """The entries of the distances −max_distance … max_distance."""
    distance = torch.arange(-max_distance, max_distance + 1, device=device)
    return distance_entries(distance, entries, max_distance)
