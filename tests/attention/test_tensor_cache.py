"""The cache of tensors that are made of plain numbers."""

from __future__ import annotations

import torch

from regard.attention.tensor_cache import tensor_cache


def test_tensors_are_made_once_and_outside_inference_mode() -> None:
    find = tensor_cache(lambda n, device: torch.zeros(n, device=device))
    with torch.inference_mode():
        first = find(1, "cpu")
    assert find(1, "cpu") is first and not first.is_inference()
    assert find(2, "cpu") is not first


def test_fake_tensors_are_not_cached() -> None:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    find = tensor_cache(lambda n: torch.zeros(n))
    with FakeTensorMode():
        assert isinstance(find(3), FakeTensor)
    assert not isinstance(find(3), FakeTensor)
    with FakeTensorMode():
        assert isinstance(find(3), FakeTensor)
