"""Probes, the drawings and the sentences they read."""

import pytest
import torch

from regard.experiments.toolkit.drawings import SHAPES, sample_drawings
from regard.experiments.toolkit.probes import fit_ridge, layer_outputs, probe_classes, probe_numbers
from regard.experiments.toolkit.topics import TOPICS, sample_sentences
from regard.nn import Stack, StackConfig


def test_ridge_solves_the_normal_equations() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(50, 4, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)
    y = x @ weight + 3
    assert torch.allclose(fit_ridge(x, y, l2=0.0)(x), y)
    assert fit_ridge(x, y, l2=1e6)(x).std(0).max() < 1e-3  # only the mean is left


def test_probes_read_what_is_there_and_nothing_else() -> None:
    torch.manual_seed(0)
    x, labels = torch.randn(2000, 8), torch.randint(3, (2000,))
    marked = x + 6 * torch.nn.functional.one_hot(labels, 8)
    halves = slice(0, 1000), slice(1000, 2000)
    train, test = ((marked[half], labels[half]) for half in halves)
    assert probe_classes(train, test, 3) > 0.97
    train, test = ((x[half], labels[half]) for half in halves)
    assert abs(probe_classes(train, test, 3) - 1 / 3) < 0.06
    train, test = ((x[half], x[half, :1] + x[half, 1:2]) for half in halves)
    assert probe_numbers(train, test) > 0.98
    train, test = ((x[half, 2:], x[half, :1]) for half in halves)
    assert abs(probe_numbers(train, test)) < 0.05


def test_layer_outputs_start_with_the_input_and_end_with_the_output() -> None:
    torch.manual_seed(0)
    stack = Stack(StackConfig(dim=8, layers=2, heads=2, pre_norm=False)).eval()
    model = torch.nn.ModuleDict({"stack": stack})
    x = torch.randn(2, 3, 8)
    results: list[torch.Tensor] = []
    outputs = layer_outputs(model, lambda: results.append(stack(x)))
    assert len(outputs) == 3 and torch.equal(outputs[0], x.flatten(0, 1))
    assert torch.equal(outputs[2], results[0].flatten(0, 1)) and not torch.equal(outputs[1], outputs[2])
    assert not any(block._forward_hooks or block._forward_pre_hooks for block in stack.blocks)


def test_drawings_have_all_shapes_and_colours_that_do_not_tell_them() -> None:
    pictures, shapes = sample_drawings(400, torch.Generator().manual_seed(0))
    assert pictures.shape == (400, 3, 32, 32) and pictures.min() >= 0 and pictures.max() <= 1
    assert (pictures[:, :, 0, 0] == 1).all()  # on white
    assert set(shapes.tolist()) == set(range(len(SHAPES)))
    hearts = pictures[shapes == 0]
    centre = hearts[:, :, 16, 16].mean(1)
    assert centre.min() < 0.3 and centre.max() > 0.6  # any colour
    amount = [(1 - pictures[shapes == n]).abs().gt(0.02).any(1).float().mean().item() for n in range(4)]
    assert min(amount) > 0.05 and max(amount) < 0.6


@pytest.mark.parametrize("seed", [0, 5])
def test_held_out_sentences_have_other_nouns(seed: int) -> None:
    nouns = {noun for text in TOPICS.values() for noun in text.split()}
    assert len(nouns) == 72
    (known, topics), (held_out, _) = (sample_sentences(600, flag, seed) for flag in (False, True))
    used = [{word for text in texts for word in text.replace(",", "").split()} & nouns for texts in (known, held_out)]
    assert len(used[0]) == len(used[1]) == 36 and not used[0] & used[1]
    for text, topic in zip(known, topics, strict=True):
        assert len(set(text.replace(",", "").split()) & set(list(TOPICS.values())[topic].split())) == 2
    assert sample_sentences(600, False, seed)[0] == known
