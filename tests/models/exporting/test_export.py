"""Export of every preset to torch.export and ONNX: equal numbers, also for other batch sizes and lengths."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import regard as rg
from regard import models
from regard.models.exporting.example_inputs import make_example_inputs
from regard.models.exporting.export import choose_format, export_model, max_difference, run_onnx
from regard.models.graph_attention import GATConfig
from regard.models.graph_encoder import GraphEncoderConfig
from regard.models.heads import ClassificationHeadConfig
from regard.models.table import TableConfig
from regard.nn.block import StackConfig
from regard.nn.embeddings.columns import ColumnEmbeddingConfig
from regard.nn.graphs.layers import GraphLayersConfig

from ..checkpoint_equality import random_weights

pytest.importorskip("onnxruntime")

TINY: dict[str, Any] = {"layers": 1, "dim": 16, "heads": 2, "hidden": 24}
TEXT = {**TINY, "vocabulary": 41}
TWO_LAYERS = {**TEXT, "layers": 2}

PRESETS: dict[str, Any] = {
    "bert": lambda: models.bert(**TEXT, positions=32, head="vocabulary"),
    "roberta": lambda: models.roberta(**TEXT, positions=32),
    "distilbert": lambda: models.distilbert(**TEXT, positions=32),
    "longformer": lambda: models.longformer(**TEXT, window=4, positions=32),
    "bigbird": lambda: models.bigbird(**TEXT, block=None, positions=32),
    "deberta_v3": lambda: models.deberta_v3(**TEXT, buckets=4, max_distance=9),
    "gpt2": lambda: models.gpt2(**TEXT, positions=32),
    "llama": lambda: models.llama(**{**TEXT, "kv_heads": 1}),
    "transformer_xl": lambda: models.transformer_xl(**TEXT, memory=64),
    "t5": lambda: models.t5(**TEXT, head_dim=8),
    "marian": lambda: models.marian(**TEXT, padding=0, start=0),
    "transformer": lambda: models.transformer(**TEXT),
    "whisper": lambda: models.whisper(**TEXT, bins=7, sound_positions=20, positions=32, padding=0, start=1),
    "moonshine": lambda: models.moonshine(**TEXT, padding=0),
    "wav2vec2": lambda: models.wav2vec2(
        **TEXT, channels=(6, 8), kernels=(10, 3), strides=(40, 6), position_kernel=6, position_groups=4
    ),
    "speech": lambda: models.speech(**TEXT, bins=7),
    "truncated_speech": lambda: models.truncated_speech(**TEXT, bins=7),
    "vit": lambda: models.vit(**TINY, size=16, patch=8, classes=5),
    "clip": lambda: models.clip(text=TINY, image=TINY, vocabulary=41, positions=32, size=16, patch=8, shared=8, end=2),
    "siglip": lambda: models.siglip(text=TINY, image=TINY, vocabulary=41, positions=32, size=16, patch=8),
    "siglip2": lambda: models.siglip2(text=TINY, image=TINY, vocabulary=41, positions=32, patches=4, patch=8),
    "swin": lambda: models.swin(dim=6, depths=(2, 2), heads=(1, 3), window=3, size=28, patch=2, classes=5),
    "detr": lambda: models.detr(**TINY, queries=5, classes=4, backbone=(8, 16)),
    "albert": lambda: models.albert(**TEXT, inner=8, positions=32, head="vocabulary"),
    "electra": lambda: models.electra(**TEXT, inner=8, positions=32),
    "modernbert": lambda: models.modernbert(**TWO_LAYERS, window=4, padding=0),
    "bart": lambda: models.bart(**TEXT, positions=32, padding=0, start=0),
    "mbart": lambda: models.mbart(**TEXT, positions=32, padding=0, start=0),
    "pegasus": lambda: models.pegasus(**TEXT, positions=32, padding=0, start=0),
    "opt": lambda: models.opt(**TEXT, positions=32, padding=None),
    "gpt_neox": lambda: models.gpt_neox(**TEXT, position=rg.Rotary(dim=4)),
    "mistral": lambda: models.mistral(**TEXT, kv_heads=1),
    "qwen2": lambda: models.qwen2(**TEXT, kv_heads=1),
    "qwen3": lambda: models.qwen3(**TEXT, kv_heads=1, head_dim=8),
    "smollm2": lambda: models.smollm2(**TEXT, kv_heads=1),
    "smollm3": lambda: models.smollm3(**TEXT, kv_heads=1),
    "olmo2": lambda: models.olmo2(**TEXT, kv_heads=1),
    "phi3": lambda: models.phi3(**TEXT, kv_heads=1),
    "gemma2": lambda: models.gemma2(**TWO_LAYERS, kv_heads=1, head_dim=8, window=4),
    "gemma3": lambda: models.gemma3(**TWO_LAYERS, kv_heads=1, head_dim=8, window=4),
    "gpt_oss": lambda: models.gpt_oss(**TWO_LAYERS, kv_heads=1, head_dim=8, window=4, experts=3, active=2),
    "dinov2": lambda: models.dinov2(**TINY, size=16, patch=8),
    "gat": lambda: models.gat(features=6, classes=3),
    "gatv2": lambda: models.gatv2(features=6, classes=3),
}
SAME_LAYERS = {
    *("roberta", "distilbert", "marian", "truncated_speech", "gatv2", "bigbird", "albert", "electra", "modernbert"),
    *("bart", "mbart", "pegasus", "opt", "gpt_neox", "mistral", "qwen2", "qwen3", "smollm2", "smollm3", "olmo2"),
    *("phi3", "gemma2", "gemma3", "dinov2", "siglip"),
}
"""Presets whose layers are those of others here; they are exported where REGARD_ALL_EXPORTS is set."""
SAME_AS = {"t5_encoder": "t5", "transformer_small": "transformer", "transformer_xl_large": "transformer_xl"}
"""Presets that are others with other sizes or without their decoder."""

FIXED = {"whisper": {"sound"}, "detr": {"images"}}
"""Inputs whose size stays that of the example."""


def build(name: str) -> Any:
    return random_weights(PRESETS[name]().build().eval(), size=0.2)


def resize_batch(name: str, given: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    """The example with another batch size and other lengths."""
    generator = torch.Generator().manual_seed(seed)
    if name in ("gat", "gatv2"):
        there = torch.arange(17)
        return {"nodes": torch.randn(17, 6, generator=generator), "edges": torch.stack([there, (there * 3 + 1) % 17])}
    batch, tokens, result = 2, 9, {}
    for key, value in given.items():
        if key == "lengths":
            continue
        sizes = [batch, *value.shape[1:]]
        if key in ("tokens", "sound") and key not in FIXED.get(name, ()):
            sizes[1] = tokens if key == "tokens" else 24 if value.dim() == 3 else 2999
        if key == "targets":
            sizes[1] = 5
        random = torch.randn(sizes, generator=generator)
        result[key] = random if value.is_floating_point() else torch.randint(1, 40, sizes, generator=generator)
    if "lengths" in given:
        longest = result["tokens" if "tokens" in result else "sound"].shape[1]
        result["lengths"] = torch.tensor([longest, longest - 4])
    return {key: result[key] for key in given}


def outputs(model: Any, given: dict[str, Tensor], names: tuple[str, ...]) -> list[Tensor]:
    with torch.no_grad():
        output = model(**given)
    return [getattr(output, name) for name in names]


@pytest.mark.parametrize(
    "name", [name for name in PRESETS if name not in SAME_LAYERS or "REGARD_ALL_EXPORTS" in os.environ]
)
def test_onnx_gives_the_same_numbers_for_other_sizes(name: str, tmp_path: Path) -> None:
    model = build(name)
    given = make_example_inputs(model)
    exported = export_model(model, tmp_path / "model.onnx", inputs=given)
    assert exported.error is not None and exported.error < 1e-4 and exported.inputs == tuple(given)
    fixed = FIXED.get(name, set())
    assert all(exported.dynamic[key] for key in given if key not in fixed), exported.dynamic
    if name == "detr":
        return
    other = resize_batch(name, given, seed=5)
    actual = run_onnx(exported.file, other)
    assert actual is not None and max_difference(actual, outputs(model, other, exported.outputs)) < 1e-4


def test_tables_are_exported(tmp_path: Path) -> None:
    embed = ColumnEmbeddingConfig(sizes=(0, 5, 0), dim=8)
    model = random_weights(TableConfig(embed, StackConfig(8, 1, 2), ClassificationHeadConfig(3, 8)).build().eval())
    exported = export_model(model, tmp_path / "model.onnx")
    columns = torch.tensor([[0.5, 3.0, torch.nan], [-1.0, 4.0, 2.0]])
    actual = run_onnx(exported.file, {"columns": columns})
    assert actual is not None
    assert max_difference(actual, outputs(model, {"columns": columns}, exported.outputs)) < 1e-4


@pytest.mark.parametrize("pool", ["mean", "sum", "attention"])
def test_classifiers_of_graphs_are_exported(pool: Any, tmp_path: Path) -> None:
    """For other numbers of nodes, edges and graphs, one of them with a single node."""
    head = ClassificationHeadConfig(3, 8, pool=pool)
    model = random_weights(GraphEncoderConfig(6, GraphLayersConfig(8, 1, heads=2), head).build().eval())
    exported = export_model(model, tmp_path / "model.onnx")
    generator, there = torch.Generator().manual_seed(3), torch.arange(9)
    given = {"nodes": torch.randn(9, 6, generator=generator), "edges": torch.stack([there, (there * 2) % 9])}
    given["sizes"] = torch.tensor([5, 1, 3])
    actual = run_onnx(exported.file, given)
    assert actual is not None and max_difference(actual, outputs(model, given, exported.outputs)) < 1e-4


@pytest.mark.parametrize("name", ["bert", "t5", "vit", "gat"])
def test_torch_export_gives_the_same_numbers_for_other_sizes(name: str, tmp_path: Path) -> None:
    model = build(name)
    given = make_example_inputs(model)
    exported = export_model(model, tmp_path / "model.pt2")
    program = torch.export.load(exported.file)
    own = [str(node.target) for node in program.graph.nodes if "regard" in str(node.target)]
    assert not own and exported.error == pytest.approx(0.0, abs=1e-4)
    other = resize_batch(name, given, seed=5)
    actual = list(program.module()(*other.values()))
    assert max_difference(actual, outputs(model, other, exported.outputs)) < 1e-4


def test_every_preset_is_tested_and_in_the_table() -> None:
    assert set(PRESETS) | set(SAME_AS) == set(models.__all__)
    for page in ("export.md", "export.zh.md"):
        text = (Path(__file__).parents[3] / "docs" / "how-to" / page).read_text("utf8")
        rows = re.findall(r"^\| (`[^|]*) \| ([✓✗][^|]*) \|", text, re.MULTILINE)
        named = {name for names, _ in rows for name in re.findall(r"`(\w+)`", names)}
        assert named == set(models.__all__) and all(mark.startswith("✓") for _, mark in rows)


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(rg.BadInput, match=r"end it with \.onnx or \.pt2"):
        choose_format(Path("model.bin"), None)
    with pytest.raises(rg.BadInput, match="format is 'tflite'"):
        choose_format(Path("model.bin"), "tflite")  # type: ignore[arg-type]
    with pytest.raises(rg.Unsupported, match="Train with edge_features=false"):
        export_model(GATConfig(6, 3, 8, 2, 2, edge_features=1).build(), tmp_path / "model.onnx")
    model = rg.load("tagger")
    with pytest.raises(rg.Unsupported, match="Give inputs="):
        export_model(model, tmp_path / "model.onnx")
