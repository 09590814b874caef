"""One battery that every preset passes: gradients, padding, cache, save and load, compile, half types, watch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import regard as rg
from regard import models

from .checkpoint_equality import random_weights

SMALL = {"layers": 2, "dim": 24, "heads": 3, "hidden": 31}


def words(batch: int = 3, tokens: int = 13, seed: int = 0) -> Tensor:
    return torch.randint(3, 40, (batch, tokens), generator=torch.Generator().manual_seed(seed))


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def ring(nodes: int) -> Tensor:
    there = torch.arange(nodes)
    return torch.cat([torch.stack([there, (there + 1) % nodes]), torch.stack([(there + 1) % nodes, there])], dim=1)


TEXT = {"tokens": words(), "lengths": torch.tensor([13, 7, 10])}
BLOCKS = {"tokens": words(2, 96), "lengths": torch.tensor([96, 96])}
PAIR = {**TEXT, "targets": words(3, 9, seed=1)}
SAMPLES = {"sound": noise(2, 2900), "lengths": torch.tensor([2900, 1700])}
CONVOLUTIONS = {"channels": (6, 8), "kernels": (10, 3), "strides": (40, 6), "position_kernel": 6}
SOUND = {"sound": noise(2, 40, 7), "lengths": torch.tensor([40, 26])}


@dataclass(frozen=True)
class Preset:
    """A small model of a preset, and what it is called with. `ragged`: rows of different length equal rows alone."""

    make: Callable[[], Any]
    inputs: dict[str, Any]
    ragged: str | None = "tokens"
    decoder: bool = False


PRESETS = {
    "bert": Preset(lambda: models.bert(**SMALL, vocabulary=41, positions=32), TEXT),
    "bert for masked words": Preset(lambda: models.bert(**SMALL, vocabulary=41, positions=32, head="vocabulary"), TEXT),
    "roberta": Preset(lambda: models.roberta(**SMALL, vocabulary=41, positions=32), TEXT),
    "distilbert": Preset(lambda: models.distilbert(**SMALL, vocabulary=41, positions=32), TEXT),
    "deberta_v3": Preset(
        lambda: models.deberta_v3(**SMALL, vocabulary=41, buckets=4, max_distance=9, head="vocabulary"), TEXT
    ),
    "gpt2": Preset(lambda: models.gpt2(**SMALL, vocabulary=41, positions=32), TEXT, decoder=True),
    "llama": Preset(lambda: models.llama(**{**SMALL, "heads": 4, "kv_heads": 2}, vocabulary=41), TEXT, decoder=True),
    "transformer_xl": Preset(
        lambda: models.transformer_xl(**SMALL, vocabulary=41, memory=64), {"tokens": TEXT["tokens"]}, None, decoder=True
    ),
    "longformer": Preset(lambda: models.longformer(**SMALL, window=4, vocabulary=41, positions=32), TEXT),
    "bigbird": Preset(lambda: models.bigbird(**SMALL, block=8, random=1, vocabulary=41, positions=128), BLOCKS, None),
    "t5": Preset(lambda: models.t5(**SMALL, vocabulary=41), PAIR, decoder=True),
    "marian": Preset(lambda: models.marian(**SMALL, vocabulary=41, padding=0, start=0), PAIR, decoder=True),
    "transformer": Preset(lambda: models.transformer(**SMALL, vocabulary=41), PAIR, decoder=True),
    "whisper": Preset(
        lambda: models.whisper(**SMALL, vocabulary=41, bins=7, sound_positions=20, positions=32, padding=0, start=1),
        {"sound": SOUND["sound"], "targets": words(2, 9)},
        None,
        decoder=True,
    ),
    "moonshine": Preset(
        lambda: models.moonshine(**{**SMALL, "heads": 2}, vocabulary=41, padding=0),
        {**SAMPLES, "targets": words(2, 9)},
        None,
        decoder=True,
    ),
    "wav2vec2": Preset(
        lambda: models.wav2vec2(**SMALL, **CONVOLUTIONS, vocabulary=41, position_groups=4, mask_token=False),
        SAMPLES,
        "sound",
    ),
    "speech": Preset(lambda: models.speech(**SMALL, vocabulary=41, bins=7), SOUND, "sound"),
    "truncated_speech": Preset(lambda: models.truncated_speech(**SMALL, vocabulary=41, bins=7), SOUND, "sound"),
    "vit": Preset(lambda: models.vit(**SMALL, size=24, patch=8, classes=5), {"images": noise(2, 3, 24, 24)}, None),
    "clip": Preset(
        lambda: models.clip(text=SMALL, image=SMALL, vocabulary=41, positions=32, size=24, patch=8, shared=16, end=2),
        {"images": noise(3, 3, 24, 24), **TEXT},
        None,
    ),
    "siglip2": Preset(
        lambda: models.siglip2(text=SMALL, image=SMALL, vocabulary=41, positions=32, patches=9, patch=8),
        {"images": noise(3, 3, 24, 16), **TEXT},
        None,
    ),
    "swin": Preset(
        lambda: models.swin(dim=6, depths=(2, 2), heads=(1, 3), window=3, size=24, patch=2, classes=5),
        {"images": noise(2, 3, 28, 24)},
        None,
    ),
    "detr": Preset(
        lambda: models.detr(**SMALL, queries=5, classes=4, backbone=(8, 16)), {"images": noise(2, 3, 32, 24)}, None
    ),
    "gat": Preset(
        lambda: models.gat(features=6, classes=3, dropout=0.0), {"nodes": noise(11, 6), "edges": ring(11)}, None
    ),
    "gatv2": Preset(
        lambda: models.gatv2(features=6, classes=3, dropout=0.0), {"nodes": noise(11, 6), "edges": ring(11)}, None
    ),
}

every = pytest.mark.parametrize("name", PRESETS)


def make_model(name: str) -> Any:
    return random_weights(PRESETS[name].make().build(), size=0.2)


def main_output(output: Any) -> Tensor:
    """What a model is for."""
    actual = output.logits if output.logits is not None else output.hidden
    assert actual is not None
    return actual


@every
def test_every_parameter_learns(name: str) -> None:
    """Forward is finite, and every parameter gets a gradient (global projections need global tokens)."""
    model = make_model(name)
    more = {"global_tokens": torch.arange(13) == torch.zeros(3, 1)} if name == "longformer" else {}
    output = model(**PRESETS[name].inputs, **more)
    assert all(torch.isfinite(x).all() for x in vars(output).values() if isinstance(x, Tensor))
    parts = [
        x
        for x in (output.hidden, output.logits, output.pooled, output.boxes, output.text, output.image)
        if x is not None
    ]
    sum((x.float() * noise(*x.shape)).sum() for x in parts if x.requires_grad).backward()
    without = [n for n, p in model.named_parameters() if p.grad is None or not torch.isfinite(p.grad).all()]
    assert not without, without


@pytest.mark.parametrize("name", [name for name in PRESETS if PRESETS[name].ragged])
def test_padding_never_matters(name: str) -> None:
    """Each row of a padded batch equals the row alone, whatever stands in the padding."""
    preset, model = PRESETS[name], make_model(name)
    key, lengths = preset.ragged, preset.inputs["lengths"]
    batch = main_output(model(**preset.inputs))
    for row, length in enumerate(lengths.tolist()):
        alone = {k: v[row : row + 1] for k, v in preset.inputs.items() if k != "lengths"}
        alone[key] = alone[key][:, :length]
        single = main_output(model(**alone))[0]
        torch.testing.assert_close(batch[row, : single.shape[0]], single, rtol=2e-4, atol=2e-5)
    changed = preset.inputs[key].clone()
    for row, length in enumerate(lengths.tolist()):
        changed[row, length:] = 7
    again = main_output(model(**{**preset.inputs, key: changed}))
    real = torch.arange(batch.shape[1]) < (lengths if batch.shape[1] == changed.shape[1] else lengths // 4)[:, None]
    torch.testing.assert_close(again[real], batch[real], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in PRESETS if PRESETS[name].decoder])
def test_cache_equals_no_cache(name: str) -> None:
    """Token by token through the cache gives the logits of the whole at once; an old cache can be used again."""
    preset, model = PRESETS[name], make_model(name)
    key = "targets" if "targets" in preset.inputs else "tokens"
    inputs = {k: v for k, v in preset.inputs.items() if key == "targets" or k != "lengths"}
    whole = model(**inputs).logits
    first = model(**{**inputs, key: inputs[key][:, :4]})
    actual, cache = [first.logits], first.cache
    for n in range(4, inputs[key].shape[1]):
        step = model(**{key: inputs[key][:, n : n + 1]}, cache=cache)
        actual.append(step.logits)
        cache = step.cache
    torch.testing.assert_close(torch.cat(actual, 1), whole, rtol=1e-4, atol=2e-5)
    again = model(**{key: inputs[key][:, 4:5]}, cache=first.cache)
    torch.testing.assert_close(again.logits, actual[1], rtol=1e-5, atol=1e-6)


@every
def test_save_and_load(name: str, tmp_path: Path) -> None:
    model = make_model(name)
    model.save(tmp_path)
    copy = rg.load(tmp_path)
    assert copy.config == model.config and not copy.training
    inputs = PRESETS[name].inputs
    assert torch.equal(main_output(copy(**inputs)), main_output(model(**inputs)))


@every
def test_half_precision(name: str) -> None:
    """bfloat16 weights, and autocast, give what float32 gives, to that type's rounding."""
    model, inputs = make_model(name), PRESETS[name].inputs
    expected = main_output(model(**inputs))
    with torch.autocast("cpu", torch.bfloat16):
        cast = main_output(model(**inputs)).float()
    scale = expected.abs().max()
    assert (cast - expected).abs().max() < 0.1 * scale
    half = {k: v.bfloat16() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in inputs.items()}
    low = main_output(model.bfloat16()(**half))
    assert low.dtype == torch.bfloat16
    assert (low.float() - expected).abs().max() < 0.1 * scale


@every
def test_compiles_without_a_break(name: str) -> None:
    model, inputs = make_model(name), PRESETS[name].inputs
    expected = main_output(model(**inputs))
    torch._dynamo.reset()
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "dropout") and isinstance(module.dropout, float):
            module.dropout = 0.0
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    actual = main_output(compiled(**inputs))
    if name == "bigbird":  # other blocks in training than in evaluation
        expected = main_output(model(**inputs))
    assert actual.shape == expected.shape
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


@every
def test_watching_changes_nothing(name: str) -> None:
    model, inputs = make_model(name), PRESETS[name].inputs
    expected = main_output(model(**inputs))
    with rg.watch(model, weights=True) as seen:
        actual = main_output(model(**inputs))
    assert torch.equal(actual, expected)
    assert seen and all(torch.isfinite(view.entropy).all() for view in seen.values())
    for view in seen.values():
        sums = view.weights.sum(-1)
        assert (((sums - 1).abs() < 1e-4) | (sums == 0)).all()
