"""Families equal transformers from one folder: outputs, all gradients, the folder written back, generated tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard import Unsupported
from regard.models.checkpoint.checkpoint import load
from regard.models.families.opt import opt
from regard.nn import CacheConfig

from ..checkpoint_equality import assert_close, assert_same, assert_writes_back, loaded, ragged, random_weights, real

transformers = pytest.importorskip("transformers")

WORDS = {"vocab_size": 41, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = {
    **WORDS,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 24,
    "intermediate_size": 29,
    "max_position_embeddings": 64,
}
NEOX = {
    **WORDS,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_size": 32,
    "intermediate_size": 29,
    "max_position_embeddings": 64,
}
OPT = {**WORDS, "num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 24, "ffn_dim": 29}
BERT = {**NEOX, "type_vocab_size": 3, "num_attention_heads": 4, "hidden_dropout_prob": 0.0}
MODERN = {
    **{name: value for name, value in NEOX.items() if name != "max_position_embeddings"},
    "num_hidden_layers": 4,
    "local_attention": 4,
}
BART = {
    **WORDS,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 29,
    "decoder_ffn_dim": 19,
    "d_model": 24,
    "max_position_embeddings": 32,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
GEMMA = {**LLAMA, "head_dim": 8, "query_pre_attn_scalar": 16, "sliding_window": 4}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.5, 2.0],
    "long_factor": [2.0, 3.0, 5.0],
}
PARTIAL = {"partial_rotary_factor": 0.75}
CACHES: tuple[Any, ...] = (False, "dynamic", "static", "sliding", "paged", CacheConfig("paged", sliding=True, block=2))


@dataclass(frozen=True)
class Case:
    """A class of transformers with a small configuration; `output` is the name of what is compared."""

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    generates: bool = True

    def theirs(self) -> Any:
        model_type = getattr(transformers, self.name)
        return random_weights(model_type(model_type.config_class(**self.config)))


DECODERS = {
    "Qwen2.5": Case("Qwen2ForCausalLM", {**LLAMA, "tie_word_embeddings": True}),
    "Qwen3": Case("Qwen3ForCausalLM", {**LLAMA, "head_dim": 8}),
    "Qwen3 windows": Case(
        "Qwen3ForCausalLM",
        {**LLAMA, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1, "attention_bias": True},
    ),
    "Llama with ReLU": Case("LlamaForCausalLM", {**LLAMA, "hidden_act": "relu"}, generates=False),
    "SmolLM": Case("LlamaForCausalLM", {**LLAMA, "tie_word_embeddings": True}),
    "SmolLM3": Case("SmolLM3ForCausalLM", {**LLAMA, "no_rope_layers": [1, 0]}),
    "OLMo 2": Case("Olmo2ForCausalLM", {**LLAMA, "rope_parameters": YARN}),
    "Phi-3": Case("Phi3ForCausalLM", {**LLAMA, "sliding_window": 5}),
    "Phi-3 long": Case(
        "Phi3ForCausalLM", {**LLAMA, "original_max_position_embeddings": 10, "rope_parameters": LONG}, generates=False
    ),
    "dynamic": Case(
        "LlamaForCausalLM",
        {**LLAMA, "max_position_embeddings": 8, "rope_parameters": {"rope_type": "dynamic", "factor": 3.0}},
        generates=False,
    ),
    "GPT-NeoX": Case("GPTNeoXForCausalLM", NEOX),
    "GPT-NeoX in series": Case(
        "GPTNeoXForCausalLM",
        {**NEOX, "use_parallel_residual": False, "rope_parameters": {"partial_rotary_factor": 0.5}},
    ),
    "Gemma 2": Case("Gemma2ForCausalLM", {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "Gemma 3": Case("Gemma3ForCausalLM", {**GEMMA, "layer_types": ["full_attention", "sliding_attention"]}),
    "gpt-oss": Case(
        "GptOssForCausalLM",
        {
            **LLAMA,
            "head_dim": 8,
            "intermediate_size": 32,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 4,
        },
    ),
    "OPT": Case("OPTForCausalLM", OPT),
    "Phi-4 mini": Case(
        "Phi3ForCausalLM",
        {**LLAMA, "hidden_size": 32, "original_max_position_embeddings": 32, "rope_parameters": {**LONG, **PARTIAL}},
    ),
    "OPT 350M": Case("OPTForCausalLM", {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 16}),
    "OPT projected": Case("OPTForCausalLM", {**OPT, "word_embed_proj_dim": 16, "tie_word_embeddings": False}),
    "OPT post-norm": Case("OPTForCausalLM", {**OPT, "do_layer_norm_before": False, "enable_bias": False}),
}
ENCODERS = {
    "ELECTRA": Case("ElectraForMaskedLM", {**BERT, "embedding_size": 12}),
    "ELECTRA discriminator": Case("ElectraForPreTraining", BERT),
    "ModernBERT": Case("ModernBertForMaskedLM", MODERN),
    "ModernBERT biases": Case(
        "ModernBertModel", {**MODERN, "norm_bias": True, "attention_bias": True, "mlp_bias": True}
    ),
    "ALBERT": Case("AlbertForMaskedLM", {**BERT, "embedding_size": 12}),
    "ALBERT groups": Case("AlbertModel", {**BERT, "embedding_size": 12, "num_hidden_groups": 2}),
}
ENCODER_DECODERS = {
    "BART": Case("BartForConditionalGeneration", BART),
    "mBART": Case("MBartForConditionalGeneration", {**BART, "scale_embedding": True}),
    "Pegasus": Case("PegasusForConditionalGeneration", {**BART, "activation_function": "relu"}),
}


@pytest.mark.parametrize("name", DECODERS)
def test_decoder(name: str, tmp_path: Path) -> None:
    case = DECODERS[name]
    theirs = case.theirs()
    ours, batch = loaded(theirs, tmp_path), ragged([11, 5, 8], 41)
    inputs = {"input_ids": batch["tokens"], "attention_mask": batch["mask"]}
    a, b = ours(tokens=batch["tokens"], lengths=batch["lengths"]), theirs(**inputs)
    assert_same(ours, theirs, a.logits, b.logits, batch["lengths"])
    assert_writes_back(ours, theirs, tmp_path, **inputs)
    if case.generates:
        prompt = batch["tokens"][:2]
        wanted = generate(theirs, prompt)
        for cache in CACHES:
            assert_same_tokens(ours.generate(tokens=prompt, max_new=5, cache=cache), wanted)
        assert_same_new_tokens(ours, theirs, batch)


@pytest.mark.parametrize("name", ENCODERS)
def test_encoder(name: str, tmp_path: Path) -> None:
    theirs = ENCODERS[name].theirs()
    ours, batch = loaded(theirs, tmp_path), ragged([11, 5, 8], 41)
    inputs, more = {"input_ids": batch["tokens"], "attention_mask": batch["mask"]}, {}
    if ours.config.embed.segments:
        inputs["token_type_ids"] = more["segments"] = batch["tokens"] % 3
    a, b = ours(tokens=batch["tokens"], lengths=batch["lengths"], **more), theirs(**inputs)
    output, wanted = (a.hidden, b.last_hidden_state) if a.logits is None else (a.logits, b.logits)
    assert_same(ours, theirs, output.reshape(wanted.shape), wanted, batch["lengths"])
    assert_writes_back(ours, theirs, tmp_path, **inputs)


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_encoder_decoder(name: str, tmp_path: Path) -> None:
    theirs = ENCODER_DECODERS[name].theirs()
    with torch.no_grad():
        for module in theirs.modules():
            if hasattr(module, "create_weight"):
                module.weight.copy_(module.create_weight())
    make_parameter(theirs, "final_logits_bias")
    ours, source, target = loaded(theirs, tmp_path), ragged([9, 5], 41), ragged([6, 6], 41, seed=3)["tokens"]
    inputs = {"input_ids": source["tokens"], "attention_mask": source["mask"], "decoder_input_ids": target}
    given = {"tokens": source["tokens"], "lengths": source["lengths"]}
    a, b = ours(**given, targets=target), theirs(**inputs)
    assert_same(ours, theirs, a.logits, b.logits)
    assert_writes_back(ours, theirs, tmp_path, **inputs)
    new = theirs.generate(
        source["tokens"], attention_mask=source["mask"], max_new_tokens=5, do_sample=False, num_beams=1
    )
    for cache in CACHES:
        assert_same_tokens(ours.generate(**given, max_new=5, cache=cache), new)


@pytest.mark.parametrize("pooling", ["cls", "mean", None])
def test_modernbert_classes(pooling: str | None, tmp_path: Path) -> None:
    """Of a sequence by its first token or its mean, and (None) of each token."""
    kind = "ModernBertForTokenClassification" if pooling is None else "ModernBertForSequenceClassification"
    theirs = Case(kind, {**MODERN, "num_labels": 5, "classifier_pooling": pooling or "cls", "norm_bias": True}).theirs()
    ours, batch = loaded(theirs, tmp_path), ragged([11, 5, 8], 41)
    inputs = {"input_ids": batch["tokens"], "attention_mask": batch["mask"]}
    a, b = ours(tokens=batch["tokens"], lengths=batch["lengths"]).logits, theirs(**inputs).logits
    assert_same(ours, theirs, a, b, None if pooling else batch["lengths"])
    assert_writes_back(ours, theirs, tmp_path, **inputs)


def test_the_text_model_of_a_gemma_3_with_images(tmp_path: Path) -> None:
    default = ("num_attention_heads", "num_key_value_heads")  # 8 and 4, which published folders leave out
    text = {name: value for name, value in GEMMA.items() if name not in default}
    text |= {"sliding_window_pattern": 2, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    image = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
    config = transformers.Gemma3Config(text_config=text, vision_config=image, mm_tokens_per_image=4)
    theirs = random_weights(transformers.Gemma3ForConditionalGeneration(config))
    theirs.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**saved, "text_config": text}))
    ours, batch = load(tmp_path), ragged([11, 5, 8], 41)
    inputs = {"input_ids": batch["tokens"], "attention_mask": batch["mask"]}
    a, b = ours(tokens=batch["tokens"], lengths=batch["lengths"]), theirs(**inputs)
    assert_close(real(a.logits, batch["lengths"]), real(b.logits, batch["lengths"]), "logits")
    ours.save(tmp_path / "text", format="huggingface")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "text")
    assert_close(real(again(**inputs).logits, batch["lengths"]), real(b.logits, batch["lengths"]), "logits", 1e-6)
    assert_same_tokens(ours.generate(tokens=batch["tokens"][:2], max_new=5), generate(theirs, batch["tokens"][:2]))


UNTIED = {"tie_word_embeddings": False}
REFUSED = {
    "BART": (Case("BartForConditionalGeneration", {**BART, **UNTIED}), "embeddings of tokens for encoder and decoder"),
    "Gemma 3": (Case("Gemma3ForCausalLM", {**GEMMA, "attn_logit_softcapping": 2.0}), "which transformers ignores"),
    "OPT": (Case("OPTModel", {**OPT, "word_embed_proj_dim": 16}), "for a language model alone"),
    "Qwen3": (Case("Qwen3ForCausalLM", {**LLAMA, "hidden_act": "relu2"}), "has the activation 'relu2'; supported are"),
    "ModernBERT": (Case("ModernBertForQuestionAnswering", MODERN), "those of sequences and of tokens are read"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_why(name: str, tmp_path: Path) -> None:
    case, why = REFUSED[name]
    case.theirs().save_pretrained(tmp_path)
    with pytest.raises(Unsupported, match=why):
        load(tmp_path)


def test_an_albert_with_a_matrix_of_its_own_for_logits(tmp_path: Path) -> None:
    theirs = Case("AlbertForMaskedLM", {**BERT, "embedding_size": 12, **UNTIED}).theirs()
    ours, batch = loaded(theirs, tmp_path), ragged([11, 5, 8], 41)
    a = ours(tokens=batch["tokens"], lengths=batch["lengths"])
    b = theirs(input_ids=batch["tokens"], attention_mask=batch["mask"])
    assert_same(ours, theirs, a.logits, b.logits, batch["lengths"])


def make_parameter(model: torch.nn.Module, name: str) -> None:
    """Draw a buffer anew, as a parameter whose gradient can be compared."""
    value = torch.randn_like(getattr(model, name))
    delattr(model, name)
    setattr(model, name, torch.nn.Parameter(value))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("kind", ["Dinov2Model", "Dinov2ForImageClassification"])
def test_dinov2(kind: str, gated: bool, tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 24, "mlp_ratio": 2}
    case = Case(kind, {**sizes, "image_size": 8, "patch_size": 4, "use_swiglu_ffn": gated})
    theirs = case.theirs()
    ours = loaded(theirs, tmp_path)
    for height in (8, 12):  # positions are interpolated for the second
        images = torch.randn(2, 3, height, 8, generator=torch.Generator().manual_seed(4))
        a, b = ours(images=images), theirs(images)
        pair = (a.hidden, b.last_hidden_state) if a.logits is None else (a.logits, b.logits)
        assert_same(ours, theirs, *pair)
    assert_writes_back(ours, theirs, tmp_path, pixel_values=images)


def generate(theirs: Any, prompt: Tensor, **more: Any) -> Tensor:
    options = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 5, "do_sample": False}
    return theirs.generate(prompt, **{**options, **more})


def assert_same_new_tokens(ours: Any, theirs: Any, batch: dict[str, Tensor]) -> None:
    """Prompts of different length have the same new tokens; transformers takes their padding on the left."""
    tokens, lengths, mask = batch["tokens"], batch["lengths"], batch["mask"]
    shift = (torch.arange(tokens.shape[1]) - (tokens.shape[1] - lengths)[:, None]) % tokens.shape[1]
    left = tokens.gather(1, shift)
    new = generate(theirs, left, attention_mask=mask.gather(1, shift), min_new_tokens=5)
    made = ours.generate(tokens=tokens, lengths=lengths, max_new=5, min_new=5, cache="sliding")
    for row, length in enumerate(lengths.tolist()):
        assert_same_tokens(made[row, length : length + 5], new[row, -5:])


def assert_same_tokens(ours: Tensor, theirs: Tensor) -> None:
    assert torch.equal(ours, theirs), f"{ours.tolist()} is not {theirs.tolist()}"


def test_published_size_of_opt_350m() -> None:
    with torch.device("meta"):
        model = opt(layers=24, dim=1024, heads=16, hidden=4096, inner=512, pre_norm=False).build()
    assert sum(parameter.numel() for parameter in model.parameters()) == 331_196_416
