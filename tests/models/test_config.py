"""Configurations as values and as JSON: parts, text at the border, and files of earlier versions."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import regard as rg
from regard.errors import BadInput
from regard.models.config import CONFIGS, OLD_FIELDS, OLD_TYPES, SequenceConfig, as_dict, from_dict
from regard.nn import BigBirdMask, LearnedShaw, LearnedT5Bias, MultiHeadAttention, ScaledRotary, StackConfig
from regard.nn.baselines.convolution import ConvolutionConfig
from regard.nn.parts.layer_masks import LayerMasks

ASSETS = Path(rg.__file__).parent / "assets"
STACK = {"type": "StackConfig", "dim": 8, "layers": 2, "heads": 2}
SMALLEST: dict[str, dict[str, Any]] = {
    "Sequence": {"embed": {"type": "Text", "vocabulary": 5, "dim": 8}, "stack": STACK},
    "Pair": {"embed": {"type": "Text", "vocabulary": 5, "dim": 8}, "stack": STACK, "decoder": STACK, "copies": False},
    "Text": {"vocabulary": 5, "dim": 8, "places": 7},
    "Words": {"vocabulary": 5, "letters": 0, "dim": 8, "places": None},
    "Image": {"size": [8, 8], "patch": 4, "dim": 8},
    "Sound": {"bins": 4, "dim": 8, "places": "sinusoidal"},
    "Stages": {"channels": 1, "dim": 8, "widths": [4], "places": True},
    "FeatureGrid": {"dim": 8, "backbone": [4], "places": "learned"},
    "Pooler": {"dim": 8},
    "Vocabulary": {"vocabulary": 5, "dim": 8},
    "Classes": {"classes": 3, "dim": 8},
    "Span": {"dim": 8},
    "Ngram": {"vocabulary": 5, "order": 1, "sizes": [2]},
    "Line": {"vocabulary": 5, "pairs": 4, "classes": 2, "paired": [0], "near": 3, "nothing": [0]},
    "Tower": {"embed": {"type": "Text", "vocabulary": 5, "dim": 8}, "stack": STACK, "shared": 4},
    "TwoTowers": {
        "text": {"type": "Tower", "embed": {"type": "Text", "vocabulary": 5, "dim": 8}, "stack": STACK, "shared": 4}
    },
    "Detection": {"embed": {"type": "FeatureGrid", "dim": 8, "backbone": [4]}, "stack": STACK, "queries": None},
    "Graph": {"features": 3, "classes": 2, "dim": 8},
    "GraphEncoder": {
        "features": 3,
        "stack": {"type": "GraphLayersConfig", "dim": 8, "layers": 1},
        "head": {"type": "Classes", "classes": 2, "dim": 8},
    },
    "Committee": {
        "member": {"type": "Line", "vocabulary": 5, "pairs": 4, "classes": 2},
        "members": 2,
        "beside": None,
        "share": 0.25,
    },
}


@pytest.mark.parametrize("name", sorted(OLD_TYPES))
def test_types_and_fields_of_earlier_versions(name: str) -> None:
    config = from_dict({"type": name, **SMALLEST[name]})
    assert type(config).__name__ == OLD_TYPES[name] and type(config) is CONFIGS[OLD_TYPES[name]]
    for old, new in OLD_FIELDS.get(OLD_TYPES[name], {}).items():
        given = SMALLEST[name][old]
        assert as_dict(getattr(config, new)) == (as_dict(from_dict(given)) if isinstance(given, dict) else given)
    assert from_dict(json.loads(json.dumps(as_dict(config)))) == config
    config.build()


def test_every_old_field_is_a_field_now() -> None:
    for name, renamed in OLD_FIELDS.items():
        names = {field.name for field in fields(CONFIGS[name])}
        assert set(renamed.values()) <= names and not set(renamed) & names


@pytest.mark.parametrize("folder", sorted(path.parent.parent.name for path in ASSETS.glob("*/model/regard.json")))
def test_shipped_models_have_configurations_of_values(folder: str) -> None:
    data = json.loads((ASSETS / folder / "model" / "regard.json").read_text())["model"]
    config = from_dict(data)
    assert from_dict(as_dict(config)) == config
    assert rg.load(folder).config == config


def test_text_of_earlier_versions_with_placeholders() -> None:
    plan = "block=4, random=1, places=64"
    old = {**STACK, "mask": f"BigBirdBlocks({plan}, layer={{layer}}, heads=2, drawn={{training}})"}
    config = from_dict({**old, "score": f"BigBirdDot({plan}, layer={{layer}})"})
    assert config.mask == BigBirdMask(block=4, random=1, heads=2, positions=64)
    assert from_dict(as_dict(config)) == config
    assert [mask.training for mask in config.layer_masks(training=True)] == [True, True]
    assert [mask.layer for mask in config.layer_masks(training=False)] == [0, 1]
    stack = config.build()
    assert [block.attention.score.train()().blocks.layer for block in stack.blocks] == [0, 1]
    seeded = from_dict({**STACK, "mask": "Causal() & bigbird(block=4, seed={layer})"})
    masks = tuple(rg.Causal() & rg.bigbird(4, seed=seed) for seed in (0, 1))
    assert seeded.parts.mask == LayerMasks(masks) and seeded.causal
    listed = from_dict({**STACK, "mask": ["Causal()", None]})
    assert listed.parts.mask == LayerMasks((rg.Causal(), None)) and not listed.causal
    assert as_dict(listed)["mask"] == ["Causal()", None] and from_dict(as_dict(listed)) == listed


@pytest.mark.parametrize(
    ("mask", "causal"),
    [
        (None, False),
        (rg.Causal(), True),
        (~rg.Causal(), False),
        (rg.Window(before=3), True),
        (rg.Window(before=3, after=1), False),
        ("~Causal()", False),
        ("Window(3)", True),
        ("Causal() & Window(before=3)", True),
        ("Causal() | Global(1)", False),
        ((rg.Causal(), "Window(3)"), True),
        ((rg.Causal(), None), False),
        (BigBirdMask(4, 1, 2, 64), False),
    ],
    ids=str,
)
def test_masks_say_whether_a_stack_is_causal(mask: Any, causal: bool) -> None:
    assert StackConfig(dim=8, layers=2, heads=2, mask=mask).causal is causal


def test_text_and_values_make_the_same_configuration() -> None:
    text = StackConfig(8, 2, 2, score="Additive()", position="Shaw(16)", mask="Window(3)", method="Nystrom(4)")
    score, position = rg.nn.LearnedAdditive(), LearnedShaw(reach=16)
    value = StackConfig(8, 2, 2, score=score, position=position, mask=rg.Window(3), method=rg.Nystrom(4))
    assert text == value and replace(text, mask="Causal()") == replace(value, mask=rg.Causal())
    assert as_dict(value)["mask"] == "Window(before=3)" and as_dict(value)["position"] == "LearnedShaw()"
    assert StackConfig(8, 2, 2, position="Rotary(base=500.0)").position == rg.Rotary(500.0)
    assert StackConfig(8, 2, 2, position="Rotary(linear=4.0)").position == ScaledRotary(linear=4.0)
    assert StackConfig(8, 2, 2, position="T5Bias(buckets=8)").position == LearnedT5Bias(buckets=8)
    assert ConvolutionConfig(8, 1, attention=True, mask="Window(3)").mask == rg.Window(3)


@pytest.mark.parametrize("config_type", [StackConfig, ConvolutionConfig, rg.nn.FullyConnectedConfig])
def test_one_value_holds_the_parts_of_a_configuration(config_type: Any) -> None:
    parts = rg.Parts(position=LearnedT5Bias(buckets=8), mask=rg.Causal(), dropout=0.1)
    sizes = {"dim": 8, "layers": 2, "heads": 2}
    config = config_type(**sizes, parts=parts)
    assert config == config_type(**sizes, position="T5Bias(buckets=8)", mask="Causal()", attention_dropout=0.1)
    assert config.parts == parts and from_dict(as_dict(config)) == config
    by_name = config.score, config.position, config.mask, config.method, config.attention_dropout
    assert rg.Parts(*by_name) == parts
    assert replace(config, mask=None).parts == rg.Parts(position=LearnedT5Bias(buckets=8), dropout=0.1)
    assert replace(config, parts=rg.Parts()) == config_type(**sizes)
    with pytest.raises(TypeError, match="'maks'"):
        config_type(**sizes, maks=rg.Causal())


def test_parts_of_a_layer_replace_those_given_together() -> None:
    parts = rg.Parts(rg.nn.LearnedAdditive(), rg.Alibi(), rg.Causal(), dropout=0.5)
    layer = MultiHeadAttention(8, 2, parts=parts, mask=None, dropout=0.0, score="Dot()")
    assert layer.mask is None and layer.dropout == 0.0
    assert isinstance(layer.score(), rg.Dot) and isinstance(layer.position(), rg.Alibi)  # type: ignore[misc]
    assert isinstance(MultiHeadAttention(8, 2, parts=parts).score(), rg.Additive)


def test_layers_take_values_and_text() -> None:
    torch.manual_seed(0)
    text = MultiHeadAttention(8, 2, position="Alibi()", mask="Causal() & Window(7)")
    value = MultiHeadAttention(8, 2, position=rg.Alibi(), mask=rg.Causal() & rg.Window(7))
    value.load_state_dict(text.state_dict())
    x = torch.randn(2, 10, 8)
    assert torch.equal(text(x), value(x))


class Even(rg.Mask):
    def allow(self, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return (i + j) % 2 == 0


@pytest.mark.parametrize("mask", [Even(), rg.Lengths(torch.tensor([3])), rg.Causal() & Even()], ids=repr)
def test_a_mask_that_text_cannot_make_runs_but_is_not_saved(mask: rg.Mask, tmp_path: Path) -> None:
    stack = StackConfig(dim=8, layers=1, heads=2, mask=mask)
    assert stack.build()(torch.randn(1, 5, 8)).shape == (1, 5, 8)
    model = SequenceConfig(rg.nn.TextEmbeddingConfig(11, 8), stack).build()
    with pytest.raises(BadInput, match="cannot be saved"):
        model.save(tmp_path)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mask": "Casual()"}, "Did you mean Causal"),
        ({"mask": 3}, "mask is 3; it must be a Mask"),
        ({"mask": (None,)}, "1 masks; give one, or one for each of 2 layers"),
        ({"score": rg.Causal()}, "score is Causal.*must be a Score"),
        ({"position": "Shaw(far=3)"}, "far"),
        ({"method": "Nystroem()"}, "Did you mean Nystrom"),
    ],
)
def test_wrong_parts_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        StackConfig(dim=8, layers=2, heads=2, **wrong)


def test_old_keywords_of_presets_are_accepted() -> None:
    assert rg.models.gpt2(layers=1, places=7) == rg.models.gpt2(layers=1, positions=7)
    assert rg.nn.Text(5, 8, places=7) == rg.nn.TextEmbeddingConfig(5, 8, positions=7)


def test_the_cell_of_a_recurrent_network_under_its_old_name() -> None:
    config = rg.nn.RecurrentConfig(8, 2, cell="lstm")
    assert rg.nn.RecurrentConfig(8, 2, kind="lstm") == config
    assert from_dict({"type": "RecurrentConfig", "dim": 8, "layers": 2, "kind": "lstm"}) == config
    assert rg.nn.Recurrent(8, 2, kind="lstm").cell == "lstm"
    assert as_dict(config)["cell"] == "lstm"


def test_unknown_types_and_keys_name_the_nearest() -> None:
    with pytest.raises(BadInput, match="type 'Stack'"):
        from_dict({"type": "Stack"})
    with pytest.raises(BadInput, match="Did you mean 'heads'"):
        from_dict({**STACK, "head": 3})
