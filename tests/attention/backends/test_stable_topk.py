"""`stable_topk` against a whole stable sort."""

from __future__ import annotations

import pytest
import torch

from regard.attention.backends.blockwise.stable_topk import GROUP, stable_topk


@pytest.mark.parametrize("size", [3, 50, 8 * GROUP * 3, 8 * GROUP * 3 + 17, 2003])
@pytest.mark.parametrize("levels", [1, 2, 30, 10**9])
def test_the_first_of_equals_comes_first(size: int, levels: int) -> None:
    """Few levels make equals everywhere: among the largest, at the last place, and in groups that are not searched."""
    x = torch.randint(levels, (5, 2, size), generator=torch.Generator().manual_seed(size)).float()
    want, order = x.sort(dim=-1, descending=True, stable=True)
    values, index = stable_topk(x, 3)
    assert torch.equal(values, want[..., :3]) and torch.equal(index, order[..., :3])


@pytest.mark.parametrize("size", [40, 2003])
def test_rows_with_few_entries_and_with_nan(size: int) -> None:
    x = torch.full((3, size), -torch.inf)
    x[0, [7, 30]] = 1.0
    x[1, 5] = torch.nan
    values, index = stable_topk(x, 4)
    assert values[0].tolist() == [1.0, 1.0, -torch.inf, -torch.inf] and index[0, :2].tolist() == [7, 30]
    assert values[1, 0].isnan() and index[1, 0] == 5 and bool((values[2] == -torch.inf).all())
