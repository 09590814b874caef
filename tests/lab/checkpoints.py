"""Small random checkpoints of every family, each as transformers writes it, with the files its own tools would add."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

TEXTS = ["the cat sat on the mat", "a dog ran", "one two three four five six seven", "猫 坐在 垫子", "it was too tired"]
PLAIN = {"num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 33, "intermediate_size": 29}
SIDES = {
    "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 3, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 29, "decoder_ffn_dim": 31, "d_model": 24,
}  # fmt: skip


def draw_weights(model: Any) -> Any:
    """The model with weights that make its heads look at different things; a backbone's stay as they were made."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "backbone" not in name and "norm" not in name.lower() and "embed_positions" not in name:
                size = 0.02 if "input_projection" in name else 0.3
                weight.copy_(torch.randn(weight.shape, generator=generator) * size)
    return model.eval()


def tokenizer(folder: Path, unit: str = "wordpiece") -> Any:
    """A small vocabulary, saved in the folder."""
    from regard.models.tokenizers.tokenizer import Tokenizer

    made = Tokenizer.train(TEXTS, unit, 300)  # type: ignore[arg-type]
    folder.mkdir(parents=True, exist_ok=True)
    made.save(folder)
    return made


def words(kind: str, folder: Path, config: dict[str, Any], unit: str = "wordpiece", name: str = "") -> Any:
    """A model of text: `kind` is the beginning of transformers' names, `name` what follows."""
    import transformers

    held = tokenizer(folder, unit)
    made = getattr(transformers, f"{kind}Config")(vocab_size=held.size, **config)
    return draw_weights(getattr(transformers, kind + (name or "Model"))(made))


def bert(folder: Path) -> Any:
    return words("Bert", folder, PLAIN, name="ForSequenceClassification")


def roberta(folder: Path) -> Any:
    return words("Roberta", folder, PLAIN, name="ForMaskedLM")


def distilbert(folder: Path) -> Any:
    return words("DistilBert", folder, {"n_layers": 2, "n_heads": 3, "dim": 33, "hidden_dim": 29})


def gpt2(folder: Path) -> Any:
    return words("GPT2", folder, {"n_layer": 2, "n_head": 3, "n_embd": 33, "n_inner": 29}, "bpe", "LMHeadModel")


def llama(folder: Path) -> Any:
    config = {**PLAIN, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    return words("Llama", folder, config, "bpe", "ForCausalLM")


def longformer(folder: Path) -> Any:
    config = {**PLAIN, "attention_window": 4, "max_position_embeddings": 103, "pad_token_id": 1, "type_vocab_size": 1}
    return words("Longformer", folder, config)


def bigbird(folder: Path) -> Any:
    config = {**PLAIN, "block_size": 4, "num_random_blocks": 1, "max_position_embeddings": 131}
    return words("BigBird", folder, config)


def t5(folder: Path) -> Any:
    held = tokenizer(folder, "unigram")
    config = {"num_layers": 2, "num_decoder_layers": 3, "num_heads": 3, "d_model": 24, "d_kv": 7, "d_ff": 29}
    config |= {"decoder_start_token_id": held.pad, "eos_token_id": held.end, "pad_token_id": held.pad}
    import transformers

    made = transformers.T5Config(vocab_size=held.size, **config)  # type: ignore[arg-type]
    return draw_weights(transformers.T5ForConditionalGeneration(made))


def marian(folder: Path) -> Any:
    """With its two SentencePiece models and the vocabulary that both share."""
    import sentencepiece
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    pieces: dict[str, None] = {"</s>": None, "<unk>": None}
    for name, texts in (("source", TEXTS), ("target", TEXTS[::-1])):
        out = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts * 4), model_writer=out, vocab_size=55, minloglevel=2, hard_vocab_limit=False
        )
        (folder / f"{name}.spm").write_bytes(out.getvalue())
        read = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
        pieces |= {read.id_to_piece(number): None for number in range(3, len(read))}
    numbers = {piece: number for number, piece in enumerate([*pieces, "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(numbers))
    (folder / "tokenizer_config.json").write_text(json.dumps({"source_lang": "en", "target_lang": "zh"}))
    pad = numbers["<pad>"]
    ends = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0, "forced_eos_token_id": 0}
    config = transformers.MarianConfig(vocab_size=len(numbers), max_position_embeddings=64, **SIDES, **ends)
    return draw_weights(transformers.MarianMTModel(config))


def whisper(folder: Path) -> Any:
    """Half a second at once, so that it is quick."""
    import transformers

    held = tokenizer(folder, "characters")
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"feature_size": 16, "sampling_rate": 8000, "hop_length": 80, "n_fft": 200})
    )
    ends = {"pad_token_id": held.pad, "bos_token_id": held.start, "eos_token_id": held.end}
    ends |= {"decoder_start_token_id": held.start, "suppress_tokens": None, "begin_suppress_tokens": None}
    config = transformers.WhisperConfig(
        vocab_size=held.size, num_mel_bins=16, max_source_positions=25, max_target_positions=40, **SIDES, **ends
    )
    return draw_weights(transformers.WhisperForConditionalGeneration(config))


def vit(folder: Path) -> Any:
    import transformers

    named = {"id2label": {0: "cat", 1: "dog", 2: "mat"}, "label2id": {"cat": 0, "dog": 1, "mat": 2}}
    config = transformers.ViTConfig(**PLAIN, image_size=24, patch_size=8, **named)
    return draw_weights(transformers.ViTForImageClassification(config))


def clip(folder: Path) -> Any:
    import transformers

    tower = {**PLAIN, "projection_dim": 12}
    config = transformers.CLIPConfig(
        text_config={**tower, "vocab_size": 40, "max_position_embeddings": 13},
        vision_config={**tower, "image_size": 24, "patch_size": 8},
        projection_dim=12,
    )
    return draw_weights(transformers.CLIPModel(config))


def detr(folder: Path) -> Any:
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "preprocessor_config.json").write_text(
        json.dumps(
            {"size": {"shortest_edge": 96, "longest_edge": 160}, "image_mean": [0.5] * 3, "image_std": [0.2] * 3}
        )
    )
    resnet = transformers.ResNetConfig(
        layer_type="basic", hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], out_features=["stage4"]
    )
    config = transformers.DetrConfig(
        use_timm_backbone=False, backbone_config=resnet, **SIDES, num_queries=7, num_labels=5
    )
    return draw_weights(transformers.DetrForObjectDetection(config))


FAMILIES: dict[str, Callable[[Path], Any]] = {
    make.__name__: make
    for make in (
        bert, roberta, distilbert, gpt2, llama, longformer, bigbird, t5, marian, whisper, vit, clip, detr
    )
}  # fmt: skip


def save(root: Path, name: str) -> Any:
    """The checkpoint `root/name`, as transformers saves it; gives their model back."""
    model = FAMILIES[name](root / name)
    model.save_pretrained(root / name)
    return model
