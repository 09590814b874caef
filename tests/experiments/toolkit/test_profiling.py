"""Time and memory of calls."""

import torch

from regard.experiments.toolkit.profiling import peak_bytes


def test_peak_bytes_are_those_of_the_largest_moment() -> None:
    def call() -> torch.Tensor:
        a = torch.empty(1000, dtype=torch.float32)
        del a
        b = torch.empty(3000, dtype=torch.float32)
        return b.add_(1)

    assert 12000 <= peak_bytes(call) < 16000
