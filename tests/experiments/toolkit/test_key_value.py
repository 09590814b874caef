"""The lookup task."""

import torch

from regard.experiments.toolkit.key_value import sample_lookups


def test_target_is_the_value_of_the_query_key() -> None:
    keys, values, targets = sample_lookups(50, 6, torch.Generator().manual_seed(0))
    for row in range(50):
        assert values[row, 1:][keys[row, 1:] == keys[row, 0]].tolist() == [targets[row].item()]
