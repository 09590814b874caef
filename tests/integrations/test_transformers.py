"""Hugging Face models through Regard equal themselves: outputs, gradients, generation, and what watch and edit see."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard import BadInput, Bias, Causal, Documents, Everything, Lengths, PairBias, Pairs, Unsupported, Window
from regard.nn.explain import gradient_times_attention, value_norms
from regard.nn.hooks.edit import edit
from regard.nn.hooks.watch import watch

from ..attention.memory_tracking import largest_allocation

transformers = pytest.importorskip("transformers")
ours = pytest.importorskip("regard.integrations.transformers")

TEXT = {"vocab_size": 41, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SMALL = {"hidden_size": 30, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 37}
GROUPED = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64}
PAIR = {
    "d_model": 30,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 5,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 31,
    "decoder_start_token_id": 1,
}


def draw_parameters(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model in evaluation mode with every parameter drawn anew: attention is then far from uniform."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model.eval()


def make(kind: str, config: Any, how: str = "regard") -> Any:
    model = draw_parameters(getattr(transformers, kind)(config))
    model.set_attn_implementation(how)
    return model


def make_padded(lengths: list[int], side: str = "right", seed: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, 41, (len(lengths), max(lengths)), generator=generator)
    places, count = torch.arange(max(lengths)), torch.tensor(lengths)[:, None]
    real = places < count if side == "right" else places >= max(lengths) - count
    return {"input_ids": tokens.masked_fill(~real, 0), "attention_mask": real.long()}


def assert_close(actual: Tensor, wanted: Tensor, what: str, tolerance: float = 2e-5) -> None:
    actual, wanted = actual.detach(), wanted.detach()
    error = float((actual - wanted).abs().max()) / float(wanted.abs().max().clamp(min=1e-9))
    assert actual.shape == wanted.shape and error <= tolerance, f"{what}: relative error {error:.1e}"


def assert_same(
    kind: str, config: Any, inputs: dict[str, Tensor], real: Tensor | None = None, how: str = "eager"
) -> Any:
    """Outputs at real places, and every gradient of a random linear loss on them, are those of transformers' own."""
    actual, wanted = (run(make(kind, config, name), inputs, real) for name in ("regard", how))
    assert_close(actual[0], wanted[0], "output")
    largest = max(float(gradient.abs().max()) for gradient in wanted[1].values())
    for name, gradient in wanted[1].items():
        scale = max(float(gradient.abs().max()), 1e-3 * largest)
        assert float((actual[1][name] - gradient).abs().max()) <= 2e-4 * scale, name


def run(model: Any, inputs: dict[str, Tensor], real: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
    output = model(**inputs)
    y = output.logits if hasattr(output, "logits") else output[0]
    y = y if real is None else y[real.bool()]
    (y * torch.randn(y.shape, generator=torch.Generator().manual_seed(3))).sum().backward()
    return y.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def masks_seen(model: Any, **inputs: Any) -> list[str]:
    with watch(model) as seen:
        model(**inputs)
    return [str(view.mask) for view in seen.values()]


@pytest.mark.parametrize("how", ["eager", "sdpa"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_bert(how: str, side: str) -> None:
    config = transformers.BertConfig(**TEXT, **SMALL, max_position_embeddings=37)
    batch = make_padded([11, 4, 7], side)
    assert_same("BertForMaskedLM", config, batch, batch["attention_mask"], how)
    assert_same("BertForMaskedLM", config, {"input_ids": batch["input_ids"]})


def test_without_a_mask_every_key_is_attended_to_as_in_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    config = transformers.SplinterConfig(**TEXT, **SMALL, max_position_embeddings=37)
    batch = {"input_ids": make_padded([7, 7])["input_ids"]}
    assert_same("SplinterModel", config, batch)  # its modules do not say whether they are causal
    attention = transformers.models.splinter.modeling_splinter.SplinterSelfAttention
    monkeypatch.setattr(attention, "is_causal", True, raising=False)  # as BridgeTower's, over images too
    assert_same("SplinterModel", config, batch)


@pytest.mark.parametrize("how", ["eager", "sdpa"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_gpt2(how: str, side: str) -> None:
    sizes = {"n_layer": 2, "n_head": 3, "n_embd": 33, "n_positions": 37, "scale_attn_by_inverse_layer_idx": True}
    config = transformers.GPT2Config(**TEXT, **sizes)
    batch = make_padded([11, 4, 7], side)
    assert_same("GPT2LMHeadModel", config, batch, batch["attention_mask"], how)
    assert_same("GPT2LMHeadModel", config, {"input_ids": batch["input_ids"]})


@pytest.mark.parametrize("side", ["right", "left"])
def test_llama(side: str) -> None:
    config = transformers.LlamaConfig(**TEXT, **{**SMALL, **GROUPED})
    batch = make_padded([11, 4, 7], side)
    assert_same("LlamaForCausalLM", config, batch, batch["attention_mask"])


def test_llama_with_holes_in_its_mask() -> None:
    batch = make_padded([11, 8])
    batch["attention_mask"][:, 3:5] = 0
    config = transformers.LlamaConfig(**TEXT, **{**SMALL, **GROUPED})
    assert_same("LlamaForCausalLM", config, batch, batch["attention_mask"])


def test_llama_on_packed_sequences() -> None:
    config = transformers.LlamaConfig(**TEXT, **{**SMALL, **GROUPED})
    places = torch.cat([torch.arange(4), torch.arange(7)])[None]
    inputs = {"input_ids": make_padded([11])["input_ids"], "position_ids": places, "use_cache": False}
    assert_same("LlamaForCausalLM", config, inputs)
    assert masks_seen(make("LlamaModel", config), **inputs)[0] == str(
        Causal() & Documents(torch.tensor([[0] * 4 + [1] * 7]))
    )


@pytest.mark.parametrize("side", ["right", "left"])
def test_mistral(side: str) -> None:
    config = transformers.MistralConfig(**TEXT, **{**SMALL, **GROUPED}, sliding_window=3)
    batch = make_padded([11, 4, 7], side)
    assert_same("MistralForCausalLM", config, batch, batch["attention_mask"])


def test_vit() -> None:
    config = transformers.ViTConfig(**SMALL, image_size=12, patch_size=3)
    assert_same("ViTForImageClassification", config, {"pixel_values": torch.randn(2, 3, 12, 12)})


def test_clip() -> None:
    text = {**TEXT, **SMALL, "max_position_embeddings": 17, "eos_token_id": 40}
    config = transformers.CLIPConfig(
        text_config=text, vision_config={**SMALL, "image_size": 12, "patch_size": 3}, projection_dim=7
    )
    batch = make_padded([11, 4, 7])
    batch["input_ids"][torch.arange(3), torch.tensor([10, 3, 6])] = 40
    inputs = {**batch, "pixel_values": torch.randn(2, 3, 12, 12)}
    assert_same("CLIPModel", config, inputs)


def test_marian() -> None:
    config = transformers.MarianConfig(**TEXT, **PAIR, max_position_embeddings=37)
    batch = make_padded([11, 4, 7])
    assert_same("MarianMTModel", config, {**batch, "decoder_input_ids": make_padded([5, 5, 5], seed=4)["input_ids"]})


def test_whisper() -> None:
    config = transformers.WhisperConfig(
        **TEXT, **PAIR, num_mel_bins=8, max_source_positions=13, max_target_positions=17, suppress_tokens=None
    )
    inputs = {"input_features": torch.randn(2, 8, 26), "decoder_input_ids": make_padded([5, 5])["input_ids"]}
    assert_same("WhisperForConditionalGeneration", config, inputs)


def test_t5_hands_its_bias_over_by_distance() -> None:
    config = transformers.T5Config(
        **TEXT, d_model=30, d_kv=7, num_heads=3, d_ff=37, num_layers=2, decoder_start_token_id=0, dropout_rate=0.0
    )
    batch = make_padded([11, 4, 7])
    inputs = {**batch, "decoder_input_ids": make_padded([5, 5, 5], seed=4)["input_ids"]}
    assert_same("T5ForConditionalGeneration", config, inputs)
    model = make("T5ForConditionalGeneration", config)
    with watch(model) as seen:
        model(**inputs)
    assert "Bias(table=<float32 [3, 21]>" in repr(seen["encoder.block.1.layer.0.SelfAttention"])


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("kind", ["GPT2LMHeadModel", "LlamaForCausalLM", "MistralForCausalLM"])
def test_generation_from_prompts_of_different_length(kind: str, cache: str | None) -> None:
    config = {
        "GPT2LMHeadModel": lambda: transformers.GPT2Config(**TEXT, n_layer=2, n_head=3, n_embd=33, n_positions=37),
        "LlamaForCausalLM": lambda: transformers.LlamaConfig(**TEXT, **{**SMALL, **GROUPED}),
        "MistralForCausalLM": lambda: transformers.MistralConfig(**TEXT, **{**SMALL, **GROUPED}, sliding_window=5),
    }[kind]()
    batch, steps = make_padded([7, 3], "left"), {"max_new_tokens": 9, "min_new_tokens": 9, "do_sample": False}
    steps |= {"cache_implementation": cache, "output_logits": True, "return_dict_in_generate": True}
    actual, wanted = (make(kind, config, how).generate(**batch, **steps) for how in ("regard", "sdpa"))
    assert torch.equal(actual.sequences, wanted.sequences)
    assert_close(torch.stack(actual.logits), torch.stack(wanted.logits), "logits")


@pytest.mark.parametrize("beams", [1, 3])
def test_generation_of_a_pair(beams: int) -> None:
    config = transformers.MarianConfig(**TEXT, **PAIR, max_position_embeddings=37, forced_eos_token_id=None)
    steps = {"max_new_tokens": 6, "min_new_tokens": 6, "num_beams": beams, "do_sample": False}
    actual, wanted = (
        make("MarianMTModel", config, how).generate(**make_padded([7, 3]), **steps) for how in ("regard", "sdpa")
    )
    assert torch.equal(actual, wanted)


@pytest.mark.parametrize("side", ["right", "left"])
def test_memory_is_linear_in_the_tokens(side: str) -> None:
    tokens = 3000
    config = transformers.MistralConfig(
        **TEXT, **{**SMALL, **GROUPED, "max_position_embeddings": tokens}, sliding_window=16
    )
    model, batch = make("MistralModel", config), make_padded([tokens, tokens // 2], side)
    with torch.no_grad(), watch(model), edit(model, {(1, 0): "uniform"}):
        assert largest_allocation(lambda: model(**batch)) < tokens * tokens // 4


@pytest.mark.parametrize("cache", [None, "static"])
def test_a_cached_pass_of_several_tokens(cache: str | None) -> None:
    config = transformers.LlamaConfig(**TEXT, **{**SMALL, **GROUPED})
    tokens, model = make_padded([11, 11])["input_ids"], make("LlamaForCausalLM", config)
    whole = model(tokens, use_cache=False).logits
    past = transformers.StaticCache(config=config, max_cache_len=17) if cache else transformers.DynamicCache()
    parts = [model(tokens[:, a:b], past_key_values=past).logits for a, b in ((0, 4), (4, 9), (9, 11))]
    assert_close(torch.cat(parts, 1), whole, "logits")


def test_masks_are_handed_over_as_parts() -> None:
    both_sides = {**SMALL, **GROUPED}
    right, left = make_padded([5, 3]), make_padded([5, 3], "left")
    llama = make("LlamaModel", transformers.LlamaConfig(**TEXT, **both_sides))
    mistral = make("MistralModel", transformers.MistralConfig(**TEXT, **both_sides, sliding_window=3))
    bert = make("BertModel", transformers.BertConfig(**TEXT, **SMALL))
    lengths, before = Lengths(torch.tensor([5, 3])), ~Lengths(torch.tensor([0, 2]))
    assert masks_seen(llama, input_ids=right["input_ids"]) == [str(Causal())] * 2
    assert masks_seen(llama, **right) == [str(Causal() & lengths)] * 2
    assert masks_seen(llama, **left) == [str(Causal() & before)] * 2
    assert masks_seen(mistral, **left) == [str(Window(2) & before)] * 2
    assert masks_seen(bert, **right) == [str(lengths)] * 2
    assert masks_seen(bert, input_ids=right["input_ids"]) == [str(Everything())] * 2


def test_a_chunked_mask_is_documents_and_equals_what_is_written_out() -> None:
    utils = transformers.masking_utils
    real = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]]).bool()
    function = utils.chunked_causal_mask_function(3, torch.tensor([2, 0]))
    sizes = {"batch_size": 2, "q_length": 4, "kv_length": 7, "q_offset": 3, "attention_mask": real}
    actual = ours.mask(**sizes, mask_function=function)
    assert isinstance(actual, ours.LazyMask) and "Documents" in repr(actual)
    assert torch.equal(actual.dense(), utils.sdpa_mask(**sizes, mask_function=function, allow_is_causal_skip=False))


def test_blockwise_and_bidirectional_windows_equal_what_is_written_out() -> None:
    utils, ids = transformers.masking_utils, torch.tensor([[-1, 0, 0, -1, 1, 1, 1]])
    functions = [
        utils.or_masks(utils.causal_mask_function, utils.blockwise_overlay(ids)),
        utils.sliding_window_bidirectional_mask_function(2),
        utils.sliding_window_causal_mask_function(3),
    ]
    sizes = {"batch_size": 1, "q_length": 7, "kv_length": 7}
    for function in functions:
        actual = ours.mask(**sizes, mask_function=function)
        assert isinstance(actual, ours.LazyMask)
        assert torch.equal(actual.dense(), utils.sdpa_mask(**sizes, mask_function=function, allow_is_causal_skip=False))


def test_an_unknown_mask_function_is_written_out() -> None:
    actual = ours.mask(1, 3, 3, mask_function=lambda b, h, q, kv: (q + kv) % 2 == 0)
    assert actual.tolist() == [[[[True, False, True], [False, True, False], [True, False, True]]]]


def test_a_mask_that_is_computed_with_is_written_out() -> None:
    actual = ours.mask(2, 3, 5, q_offset=1, attention_mask=torch.tensor([[True] * 5, [False] + [True] * 4]))
    assert (actual.shape, actual.dtype, actual.ndim) == ((2, 1, 3, 5), torch.bool, 4)
    assert actual[1, 0].int().tolist() == [[0, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 1, 1, 1, 0]]
    assert torch.equal(torch.where(actual, 0.0, -1.0) == 0, actual.dense())


def test_masks_of_the_user() -> None:
    config = transformers.LlamaConfig(**TEXT, **{**SMALL, **GROUPED})
    tokens, allowed = make_padded([5])["input_ids"], torch.ones(5, 5).tril().bool()[None, None]
    allowed[..., 3, 1] = False
    added = torch.where(allowed, 0.0, torch.finfo(torch.float32).min)
    wanted = make("LlamaModel", config, "eager")(tokens, attention_mask=added).last_hidden_state
    for mask in (allowed, added):
        assert_close(make("LlamaModel", config)(tokens, attention_mask=mask).last_hidden_state, wanted, "hidden")
    bias = added / 1e38  # other numbers than 0 and the lowest are a bias
    hidden, wanted = (make("LlamaModel", config, how)(tokens, attention_mask=bias)[0] for how in ("regard", "eager"))
    assert_close(hidden, wanted, "hidden with a bias")


def test_dropout_is_drawn_in_training() -> None:
    model = make("BertModel", transformers.BertConfig(**TEXT, **SMALL, hidden_dropout_prob=0.0)).train()
    tokens = make_padded([5])["input_ids"]
    torch.manual_seed(1)
    first, second = model(tokens)[0], model(tokens)[0]
    torch.manual_seed(1)
    again = model(tokens)[0]
    assert torch.equal(first, again) and not torch.equal(first, second)


def test_attentions_come_out_when_asked_for() -> None:
    config, batch = transformers.BertConfig(**TEXT, **SMALL), make_padded([5, 3])
    actual, wanted = (make("BertModel", config, how)(**batch, output_attentions=True) for how in ("regard", "eager"))
    for ours_, theirs in zip(actual.attentions, wanted.attentions, strict=True):
        assert_close(ours_, theirs, "weights")


def test_a_paged_cache_is_refused_by_name() -> None:
    with pytest.raises(Unsupported, match=r"Linear runs on a paged cache"):
        ours.check_options(nn.Linear(1, 1), {"cache": object()})


def test_a_model_that_computes_its_own_attention_is_refused() -> None:
    config = transformers.BloomConfig(vocab_size=41, hidden_size=24, n_layer=1, n_head=4, attn_implementation="regard")
    with pytest.raises(Unsupported, match="BloomConfig compute their attention themselves"):
        transformers.BloomModel(config)(make_padded([5])["input_ids"])


def test_a_model_that_adds_numbers_in_its_mask() -> None:
    config = transformers.SwinConfig(embed_dim=8, depths=[2], num_heads=[2], window_size=2, image_size=16, patch_size=2)
    images = torch.randn(1, 3, 16, 16)
    actual, wanted = (make("SwinModel", config, how)(images).last_hidden_state for how in ("regard", "eager"))
    assert_close(actual, wanted, "output")


def test_a_bias_by_distance_and_one_by_pairs() -> None:
    by_pairs = torch.arange(9.0).view(1, 1, 3, 3).square()
    assert ours.read_bias(by_pairs, 1) == PairBias(by_pairs)
    part = ours.read_bias((torch.arange(5)[None, :] - torch.arange(2)[:, None]).float()[None, None], 3)
    assert part == Bias(torch.tensor([4.0, 3, 2, 1, 0, -1]).expand(3, -1), zero=1)
    lowest = torch.finfo(torch.float32).min
    mask, bias = ours.split_added(torch.tensor([[[[0.0, lowest], [2.0, 0.0]]]]))
    assert mask == Pairs(torch.tensor([[[[True, False], [True, True]]]]))
    assert bias == PairBias(torch.tensor([[[[0.0, 0.0], [2.0, 0.0]]]]))


def test_a_mask_that_a_model_adds_itself_forbids() -> None:
    """The encoder of BigBird-Pegasus adds the mask to its scores."""
    lazy = ours.LazyMask(Lengths(torch.tensor([2])), 3, (1, 1, 2, 3), "cpu")
    weights = (torch.zeros(1, 1, 2, 3) + lazy).softmax(-1)
    assert torch.equal(weights, torch.tensor([0.5, 0.5, 0.0]).expand(1, 1, 2, 3))


def test_watch_names_modules_as_the_model_does_and_changes_no_bit() -> None:
    model, batch = (
        make("LlamaForCausalLM", transformers.LlamaConfig(**TEXT, **{**SMALL, **GROUPED})),
        make_padded([7, 4]),
    )
    before = model(**batch).logits
    with watch(model, weights=True) as seen:
        assert torch.equal(model(**batch).logits, before)
    assert list(seen) == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    eager = make("LlamaForCausalLM", model.config, "eager")(**batch, output_attentions=True)
    real = batch["attention_mask"].bool()
    for view, weights in zip(seen.values(), eager.attentions, strict=True):
        assert_close(view.weights.transpose(1, 2)[real], weights.transpose(1, 2)[real], "weights")


def test_watch_sees_the_steps_of_a_generation() -> None:
    model = make("LlamaForCausalLM", transformers.LlamaConfig(**TEXT, **{**SMALL, **GROUPED}))
    with watch(model) as seen:
        model.generate(**make_padded([4, 3], "left"), max_new_tokens=3, min_new_tokens=3, do_sample=False)
    views = seen.calls("model.layers.1.self_attn")
    assert [(view.queries, view.keys) for view in views] == [(4, 4), (1, 5), (1, 6)]


def test_edit_silences_a_head_of_their_model() -> None:
    model, batch = make("BertModel", transformers.BertConfig(**TEXT, **SMALL)), make_padded([7, 4])
    with edit(model, {"encoder.layer.1.attention.self": {2: "silent"}}):
        actual = model(**batch).last_hidden_state
    with torch.no_grad():
        model.encoder.layer[1].attention.output.dense.weight[:, 12:18] = 0.0  # what reads head 2
    assert_close(actual, model(**batch).last_hidden_state, "hidden")


def test_explanations_of_their_model() -> None:
    """The norms and gradients that the definition gives, from eager's own weights."""
    model, batch = make("BertModel", transformers.BertConfig(**TEXT, **SMALL)), make_padded([7, 4])
    with watch(model, weights=True) as seen:
        model(**batch).last_hidden_state.square().sum().backward()
    name, layer = "encoder.layer.1.attention.self", model.encoder.layer[1].attention
    values = seen.records[name][0].values
    by_head = layer.output.dense.weight.unflatten(1, (5, 6))  # [dim, heads, head_dim]
    added = torch.einsum("bhij,bhjd,ehd->bhije", seen[name].weights, values, by_head)
    assert_close(value_norms(seen)[name], added.norm(dim=-1).detach(), "norms")
    eager = make("BertModel", model.config, "eager")
    output = eager(**batch, output_attentions=True)
    for weights in output.attentions:
        weights.retain_grad()
    output.last_hidden_state.square().sum().backward()
    wanted = output.attentions[1].grad * output.attentions[1]
    assert_close(gradient_times_attention(seen)[name], wanted.detach(), "worth", 1e-4)


def test_a_model_with_another_attention_is_refused() -> None:
    model = make("BertModel", transformers.BertConfig(**TEXT, **SMALL), "sdpa")
    with pytest.raises(BadInput, match="attn_implementation='regard'"), watch(model):
        pass


def test_a_compiled_model_is_one_graph() -> None:
    model, batch = (
        make("LlamaForCausalLM", transformers.LlamaConfig(**TEXT, **{**SMALL, **GROUPED})),
        make_padded([7, 4]),
    )
    real = batch["attention_mask"].bool()
    with torch.no_grad():
        whole = model(**batch, use_cache=False).logits
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        actual = compiled(**batch, use_cache=False).logits
        torch._dynamo.reset()
    assert_close(actual[real], whole[real], "logits")
