"""A setting that a folder's config.json leaves out is what transformers takes for it, or an error that names it."""

from __future__ import annotations

from typing import Any

import pytest

from regard.models.checkpoint.checkpoint import find_family
from regard.models.families.deberta_v3 import TERMS

transformers = pytest.importorskip("transformers")

DEBERTA = {"relative_attention": True, "share_att_key": True, "pos_att_type": list(TERMS)}
FAMILIES: dict[str, tuple[str, str]] = {
    "albert": ("Albert", "predictions.dense.weight"),
    "bart": ("Bart", "final_logits_bias"),
    "deberta-v2": ("DebertaV2", "cls.predictions.transform.dense.weight"),
    "dinov2": ("Dinov2", ""),
    "electra": ("Electra", "generator_predictions.dense.weight"),
    "gemma2": ("Gemma2", "lm_head.weight"),
    "gemma3_text": ("Gemma3Text", "lm_head.weight"),
    "gpt_neox": ("GPTNeoX", "embed_out.weight"),
    "gpt_oss": ("GptOss", "lm_head.weight"),
    "llama": ("Llama", "lm_head.weight"),
    "mbart": ("MBart", "final_logits_bias"),
    "mistral": ("Mistral", "lm_head.weight"),
    "modernbert": ("ModernBert", "head.dense.weight"),
    "moonshine": ("Moonshine", "proj_out.weight"),
    "olmo2": ("Olmo2", "lm_head.weight"),
    "opt": ("OPT", "lm_head.weight"),
    "pegasus": ("Pegasus", "final_logits_bias"),
    "phi3": ("Phi3", "lm_head.weight"),
    "qwen2": ("Qwen2", "lm_head.weight"),
    "qwen3": ("Qwen3", "lm_head.weight"),
    "siglip_text_model": ("SiglipText", ""),
    "siglip_vision_model": ("SiglipVision", ""),
    "smollm3": ("SmolLM3", "lm_head.weight"),
    "swin": ("Swin", ""),
    "wav2vec2": ("Wav2Vec2", "lm_head.weight"),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_setting_that_is_left_out(name: str) -> None:
    title, head = FAMILIES[name]
    family, shapes = find_family(name, "test"), {head: (41, 8)} if head else {}
    whole: dict[str, Any] = {**getattr(transformers, f"{title}Config")().to_dict(), "model_type": name}
    whole |= DEBERTA if name == "deberta-v2" else {}
    expected = family.read(whole, shapes)
    for key in whole.keys() - DEBERTA.keys() - {"model_type"}:
        try:
            actual = family.read({other: value for other, value in whole.items() if other != key}, shapes)
        except KeyError as error:  # a size, of which `load` says that the folder lacks it
            assert error.args == (key,)
        else:
            assert actual == expected, f"without {key} ({whole[key]!r})"
