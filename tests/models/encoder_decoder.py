"""What is the same in the tests of all encoder–decoders."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .checkpoint_equality import assert_close, ragged

TARGETS = [7, 3, 5]


def batches(vocabulary: int, target_vocabulary: int | None = None, low: int = 3) -> tuple[dict[str, Tensor], Tensor]:
    """A padded source, and labels of other lengths filled up with −100."""
    source, target = ragged([11, 5, 8], vocabulary), ragged(TARGETS, target_vocabulary or vocabulary, seed=3, low=low)
    return source, target["tokens"].masked_fill(target["mask"] == 0, -100)


@torch.no_grad()
def assert_cache_equals_no_cache(model: Any, targets: Tensor, **source: Tensor) -> None:
    """One token after the other gives the logits of all at once; so do two and the rest; the cache given stays."""
    whole = model(**source, targets=targets).logits
    first = model(**source, targets=targets[:, :1])
    got, parts = first, [first.logits]
    for n in range(1, targets.shape[1]):
        got = model(targets=targets[:, n : n + 1], cache=got.cache)
        parts.append(got.logits)
    assert_close(torch.cat(parts, 1), whole, "one by one", 1e-5)
    again = model(targets=targets[:, 1:], cache=first.cache)
    assert_close(again.logits, whole[:, 1:], "the rest at once", 1e-5)
    order = torch.tensor([2, 0, 1])
    turned = model(targets=targets[order, 1:], cache=first.cache.select(order))
    assert_close(turned.logits, whole[order, 1:], "rows in another order", 1e-5)


@torch.no_grad()
def assert_padding_never_matters(model: Any, targets: Tensor, source: dict[str, Tensor], name: str = "tokens") -> None:
    """Each row alone, without padding, gives what it gives in the batch; so does other padding."""
    lengths, target_lengths = source["lengths"], torch.tensor(TARGETS)
    given = {"lengths": lengths, "targets": targets, "target_lengths": target_lengths}
    batch = model(**{name: source[name]}, **given).logits
    for row, (length, target_length) in enumerate(zip(lengths.tolist(), TARGETS, strict=True)):
        one = slice(row, row + 1)
        alone = model(**{name: source[name][one, :length]}, targets=targets[one, :target_length]).logits
        assert_close(batch[one, :target_length], alone, f"row {row}", 1e-5)
    real = torch.arange(source[name].shape[1]) < lengths[:, None]
    real = real if source[name].dim() == 2 else real[..., None]
    other = torch.where(real, source[name], torch.ones_like(source[name]))
    assert torch.equal(model(**{name: other}, **given).logits, batch)
