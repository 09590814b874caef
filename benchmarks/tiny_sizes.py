"""Small sizes for configurations of transformers, by the names that they have for them."""

from __future__ import annotations

from typing import Any

LAYERS: dict[str, Any] = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_encoder_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers", "depth", "num_block_layers"), 2),
    **dict.fromkeys(("num_encoder_hidden_layers", "num_decoder_hidden_layers"), 2),
    **dict.fromkeys(("encoder_num_hidden_layers", "decoder_num_hidden_layers"), 2),
}
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
IMAGES: dict[str, Any] = {"image_size": 32, "patch_size": 8, "num_frames": 2, "tubelet_size": 1, "num_labels": 3}
IMAGES |= {"num_queries": 5}
IMAGES |= {"temporal_patch_size": 1, "spatial_merge_size": 2, "frames_per_clip": 2, "crop_size": 32}
WIDTHS: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "text_vocab_size", "decoder_vocab_size"), 61),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "emb_dim", "embed_dim", "embedding_size"), 32),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "num_encoder_attention_heads", "num_decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "swa_num_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_dim", "kv_channels", "swa_head_dim", "swa_v_head_dim"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "rotary_dim"), 8),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "ffn_hidden_size", "hidden_dim"), 48),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "d_inner", "mlp_dim"), 48),
    **dict.fromkeys(("out_hidden_size", "encoder_hidden_size", "decoder_hidden_size"), 32),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 16),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "projection_dim"), 16),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_source_positions", "max_target_positions"), 64),
    **dict.fromkeys(("sliding_window", "attention_window", "local_attention", "window_size"), 4),
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "n_group": 1},
    **{"topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 1, "type_vocab_size": 2},
    **dict.fromkeys(("mamba_n_groups", "mamba_ngroups", "n_mamba_heads"), 1),
    **dict.fromkeys(("mamba_d_state", "mamba_d_ssm", "ssm_state_size", "hidden_size_per_layer_input"), 8),
    **dict.fromkeys(("mamba_chunk_size", "chunk_size", "laurel_rank"), 4),
    **{"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_headdim": 16, "mamba_expand": 2},
    **{"index_topk": 4, "index_head_dim": 8, "index_n_heads": 2, "index_block_size": 2, "index_topk_blocks": 2},
    **{"vocab_size_per_layer_input": 61, "num_kv_shared_layers": 0, "hidden_size_global": 32, "adapter_rank": 4},
}
"""Sizes by the names that configurations have for them; a name that a configuration does not have is left out."""

TOKENS = ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "projection_dim")
SIZES: tuple[dict[str, Any], ...] = ({**LAYERS, **IMAGES, **WIDTHS}, {**LAYERS, **WIDTHS}, {**LAYERS, **IMAGES}, LAYERS)
"""The sets of sizes that are tried in turn: some families check that their widths fit each other."""

LATENT = {"num_key_value_heads": 4}  # multi-head latent attention has keys for every head
LOCAL_GLOBAL = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
WINDOWED, CODEC, CONTEXT = (
    {"window_size": 16, "fullatt_block_indexes": [1]},
    {"upsample_groups": 32},
    {"context_size": 8},
)
DEPTH = {"backbone_config": {"reshape_hidden_states": False}, "reassemble_hidden_size": 32}
LATE_QUERIES = {"num_blocks": 1}
SPECIAL: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite"), LATENT),
    **dict.fromkeys(("glm_moe_dsa", "longcat_flash", "minicpm3", "youtu", "esmc"), LATENT),
    "mistral4": {**LATENT, "head_dim": 16, "qk_head_dim": 16},
    "mistral_large4_text": LATENT,
    "glm5_next_text": {
        **{**LATENT, "index_kpool": 2, "qk_rope_head_dim": 0, "head_dim": 0, "qk_head_dim": 8},
        **{"linear_num_heads": 4, "linear_head_dim": 8},
    },
    "gemma4_text": LOCAL_GLOBAL,
    "cohere_compass_text": {
        **LOCAL_GLOBAL,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 100.0} for kind in LOCAL_GLOBAL["layer_types"]
        },
    },
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "intermediate_size": [48] * 4,
        "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
        "num_kv_shared_layers": 2,
    },
    "minimax_m3_vl_text": {"layer_types": ["full_attention", "minimax_m3_sparse"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "qwen4_exp_text": {
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "indexed_attention"],
        **{"indexer_budget": 4, "indexer_compress_ratio": 2, "indexer_head_dim": 8, "indexer_kv_heads": 1},
        **{"indexer_n_heads": 2, "hc_lowrank": 8, "ngram_vocab_size_base": 101, "heads_per_ngram": 2},
        **{"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "split_ngram_parts": 2},
        **{"linear_num_value_heads": 4, "ple_embed_dim": 32, "make_ngram_vocab_size_divisible_by": 4},
    },
    "dbrx": {
        "n_layers": 2,
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 48, "hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_d_head": 16, "mamba_n_heads": 4},
    "granitemoehybrid": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
    "zamba": {
        "num_hidden_layers": 3,
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        **{"attention_head_dim": 16, "mamba_dt_rank": 4, "n_mamba_heads": 2},
    },
    "zamba2": {"attention_head_dim": 16, "n_mamba_heads": 4, "mamba_headdim": 16, "hybrid_layer_ids": [1]},
    "blt": {"patching_mode": "static", "encoder_hash_byte_group_vocab": 101},
    "moonshine_streaming": {"num_key_value_heads": 4},
    **dict.fromkeys(("qwen2_5_vl_vision", "exaone4_5_vision"), WINDOWED),
    **dict.fromkeys(("mimi", "mimi_decoder", "pocket_tts_audio_tokenizer_decoder"), CODEC),
    "lw_detr": {"image_size": 64},
    "perceiver": {"d_latents": 32, "num_latents": 5, "num_cross_attention_heads": 4, "num_self_attention_heads": 4},
    "pix2struct_text_model": {"hidden_size": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4},
    **dict.fromkeys(("granite_speech5_encoder", "granite_speech5_ctc"), CONTEXT),
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 1},
    "bridgetower_vision_model": {"hidden_size": 64},
    "blip-2": {"qformer_config": {"use_qformer_text_input": True}},
    **dict.fromkeys(("depth_anything", "prompt_depth_anything"), DEPTH),
    "dpt": {"is_hybrid": False, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3]},
    "zoedepth": {"backbone_config": {"reshape_hidden_states": False}, "backbone_hidden_size": 32},
    "oneformer": {"task_seq_len": 7},
    **dict.fromkeys(("eomt", "eomt_dinov3"), LATE_QUERIES),
    "kosmos-2": {"latent_query_num": 4},
    "dia_decoder": {"cross_hidden_size": 32},
    "chameleon": {"vocabulary_map": {"<image>": 5, "IMGIMGABZ": 6}},
    "shieldgemma2": {"yes_token_index": 3, "no_token_index": 4},
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "zaya": {"num_experts_per_tok": 1},
    "xmod": {"default_language": "en_XX"},
    "reformer": {"is_decoder": True, "axial_pos_shape": [4, 16], "axial_pos_embds_dim": [16, 16]},
    "luke": {"entity_vocab_size": 11},
}
"""What some families need besides."""


BACKBONE = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]}
"""In place of a backbone that another library has."""
