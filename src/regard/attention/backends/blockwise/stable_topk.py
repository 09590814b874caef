"""The largest of each row and where they are, the first of equals first; `topk` leaves the order of equals open."""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 32  # entries of a long row that are searched only where their largest is among the row's largest groups


def stable_topk(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest along the last axis and their indices; the first of equals first, except among −∞."""
    values, index, tied = (search_groups if x.shape[-1] >= 8 * GROUP * count else search)(x, count)
    tied &= ~values[..., 0].isnan()
    if bool(tied.any()):
        values[tied], index[tied] = order_ties(x[tied], values[tied])
    return values, index


def search(x: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The largest, their indices, and the rows where equals may be out of order or left out."""
    values, index = x.topk(count, dim=-1)
    return values, index, has_ties(values) | left_out(x, values, values[..., -1:])


def search_groups(x: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The same in groups: only those `count` whose largest entries are the largest can hold any of the result."""
    groups = x.shape[-1] // GROUP
    largest = x[..., : groups * GROUP].unflatten(-1, (GROUP, groups)).amax(-2)
    best, chosen = largest.topk(count, dim=-1)
    steps = torch.arange(0, GROUP * groups, groups, device=x.device)
    rest = torch.arange(groups * GROUP, x.shape[-1], device=x.device)
    places = torch.cat([(chosen[..., None] + steps).flatten(-2), rest.expand(*chosen.shape[:-1], -1)], dim=-1)
    candidates = x.gather(-1, places)
    values, index, tied = search(candidates, count)
    return values, places.gather(-1, index), tied | left_out(largest, best, values[..., -1:])


def has_ties(values: Tensor) -> Tensor:
    """Whether two of the largest are equal."""
    return ((values[..., 1:] == values[..., :-1]) & (values[..., 1:] > -torch.inf)).any(-1)


def left_out(x: Tensor, chosen: Tensor, least: Tensor) -> Tensor:
    """Whether x has more entries equal to the least of the result than were chosen of it."""
    more = (x == least).sum(-1) > (chosen == least).sum(-1)
    return more & (least > -torch.inf).squeeze(-1)


def order_ties(x: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of the rows x `[rows, n]` in a stable order, from their values in any."""
    least, count = values[:, -1:], values.shape[-1]
    above, equal = x > least, x == least
    missing = count - above.sum(-1, keepdim=True)
    index = (above | (equal & (equal.cumsum(-1) <= missing))).nonzero()[:, 1].view(-1, count)
    values, order = x.gather(-1, index).sort(dim=-1, descending=True, stable=True)
    return values, index.gather(-1, order)
