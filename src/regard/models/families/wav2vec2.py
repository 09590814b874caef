"""wav2vec 2 (Baevski et al. 2020): an encoder of samples, with a CTC head where it was trained to transcribe."""

from __future__ import annotations

from typing import Literal

from ...errors import BadInput, Unsupported
from ...nn.block import StackConfig
from ...nn.embeddings.waveform import Wav2VecEmbeddingConfig
from ..checkpoint.files import JsonObject
from ..checkpoint.key_table import Key, Shapes
from ..config import SequenceConfig
from ..heads import LMHeadConfig
from .bert import our_activation, their_activation

PREFIX = "wav2vec2."
IGNORED = (r"(quantizer|project_q|project_hid)\..*",)

Wav2Vec2Config = SequenceConfig[Wav2VecEmbeddingConfig, StackConfig]
CHANNELS, KERNELS, STRIDES = (512,) * 7, (10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2)


def wav2vec2(
    *,
    layers: int = 12,
    dim: int = 768,
    heads: int = 12,
    hidden: int = 3072,
    vocabulary: int | None = 32,
    blank: int = 0,
    channels: tuple[int, ...] = CHANNELS,
    kernels: tuple[int, ...] = KERNELS,
    strides: tuple[int, ...] = STRIDES,
    conv_norm: Literal["group", "layer"] = "group",
    conv_bias: bool = False,
    conv_activation: str = "gelu",
    position_kernel: int = 128,
    position_groups: int = 16,
    pre_norm: bool = False,
    activation: str = "gelu",
    eps: float = 1e-5,
    mask_token: bool = True,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    hidden_dropout: float = 0.1,
) -> Wav2Vec2Config:
    """wav2vec 2 base for 32 letters by default, 94,396,320 parameters; `vocabulary` None leaves the head out.

    `sound [batch, samples]` are samples at 16 kHz (`normalize_samples` where the checkpoint's preprocessor says so); a
    token is 320 of them. The head is trained with CTC, of which `blank` is the blank. The large models that are called
    robust or multilingual have `pre_norm=True`, `conv_norm="layer"` and `conv_bias=True`.

    >>> wav2vec2(layers=2).head.blank
    0
    """
    embed = Wav2VecEmbeddingConfig(
        dim, tuple(channels), tuple(kernels), tuple(strides), conv_norm, conv_bias, conv_activation, position_kernel,
        position_groups, eps, None if pre_norm else eps, dropout, mask_token,
    )  # fmt: skip
    return Wav2Vec2Config(
        embed=embed,
        stack=StackConfig(
            dim, layers, heads, hidden, activation=activation, eps=eps, pre_norm=pre_norm, dropout=dropout,
            attention_dropout=attention_dropout, hidden_dropout=hidden_dropout,
        ),
        head=None if vocabulary is None else LMHeadConfig(vocabulary, dim, tied=False, bias=True, blank=blank),
        family="wav2vec2",
    )  # fmt: skip


def read(config: JsonObject, shapes: Shapes) -> Wav2Vec2Config:
    """Our configuration of theirs."""
    check_supported(config, shapes)
    head = shapes.get("lm_head.weight")
    return wav2vec2(
        layers=config["num_hidden_layers"], dim=config["hidden_size"], heads=config["num_attention_heads"],
        hidden=config["intermediate_size"], vocabulary=head[0] if head else None, blank=config.get("pad_token_id") or 0,
        channels=tuple(config.get("conv_dim", CHANNELS)), kernels=tuple(config.get("conv_kernel", KERNELS)),
        strides=tuple(config.get("conv_stride", STRIDES)), conv_norm=config.get("feat_extract_norm", "group"),
        conv_bias=config.get("conv_bias", False),
        conv_activation=our_activation(config.get("feat_extract_activation", "gelu")),
        position_kernel=config.get("num_conv_pos_embeddings", 128),
        position_groups=config.get("num_conv_pos_embedding_groups", 16),
        pre_norm=config.get("do_stable_layer_norm", False), activation=our_activation(config.get("hidden_act", "gelu")),
        eps=config.get("layer_norm_eps", 1e-5),
        mask_token=any(name.endswith("masked_spec_embed") for name in shapes),
        dropout=config.get("hidden_dropout", 0.1), attention_dropout=config.get("attention_dropout", 0.1),
        hidden_dropout=config.get("activation_dropout", 0.1),
    )  # fmt: skip


def check_supported(config: JsonObject, shapes: Shapes) -> None:
    """Raise `Unsupported` for variants that are not read here."""
    if config.get("add_adapter") or config.get("adapter_attn_dim") is not None:
        raise Unsupported(
            "This wav2vec 2 has adapters (add_adapter, adapter_attn_dim), which are not read here. Take the checkpoint "
            "that they were added to."
        )
    if any(name.split(".")[0] in ("projector", "classifier", "tdnn", "objective") for name in shapes):
        raise Unsupported("This wav2vec 2 is a classifier of recordings, which is not read here. Save its encoder.")


def write(config: Wav2Vec2Config) -> JsonObject:
    """Their configuration of ours."""
    stack, embed, head = config.stack, config.embed, config.head
    if not isinstance(embed, Wav2VecEmbeddingConfig) or stack.residual not in ("pre", "post"):
        raise BadInput("This cannot be written as a wav2vec 2: change it to the configuration of wav2vec2().")
    blank = head.blank if isinstance(head, LMHeadConfig) else None
    return {
        "model_type": "wav2vec2",
        "architectures": ["Wav2Vec2Model" if head is None else "Wav2Vec2ForCTC"],
        "num_hidden_layers": stack.layers,
        "hidden_size": stack.dim,
        "num_attention_heads": stack.heads,
        "intermediate_size": stack.hidden,
        "hidden_act": their_activation(stack.activation),
        "layer_norm_eps": stack.eps,
        "do_stable_layer_norm": stack.pre_norm,
        "conv_dim": list(embed.channels),
        "conv_kernel": list(embed.kernels),
        "conv_stride": list(embed.strides),
        "conv_bias": embed.conv_bias,
        "num_feat_extract_layers": len(embed.channels),
        "feat_extract_norm": embed.conv_norm,
        "feat_extract_activation": their_activation(embed.conv_activation),
        "num_conv_pos_embeddings": embed.position_kernel,
        "num_conv_pos_embedding_groups": embed.position_groups,
        "mask_time_prob": 0.05 if embed.mask_token else 0.0,
        "mask_feature_prob": 0.0,
        "hidden_dropout": stack.dropout,
        "attention_dropout": stack.attention_dropout,
        "activation_dropout": stack.hidden_dropout,
        "layerdrop": 0.0,
        "ctc_loss_reduction": "mean",
        "ctc_zero_infinity": True,
        **({"vocab_size": head.vocabulary} if isinstance(head, LMHeadConfig) else {}),
        **({} if blank is None else {"pad_token_id": blank}),
    }


def keys(config: Wav2Vec2Config) -> list[Key]:
    base = "" if config.head is None else PREFIX
    convolutions, projection = base + "feature_extractor.conv_layers.{n}.", base + "feature_projection."
    theirs, block, positions = base + "encoder.layers.{n}.", "stack.blocks.{n}.", base + "encoder.pos_conv_embed.conv."
    projections = [("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("out_proj", "out")]
    return [
        Key(base + "masked_spec_embed", "embed.mask"),
        Key(convolutions + "conv.{p}", "embed.convolutions.{n}.{p}"),
        Key(convolutions + "layer_norm.{p}", "embed.conv_norms.{n}.{p}"),
        Key(projection + "layer_norm.{p}", "embed.feature_norm.{p}"),
        Key(projection + "projection.{p}", "embed.projection.{p}"),
        Key(positions + "parametrizations.weight.original0", "embed.places.scale"),
        Key(positions + "parametrizations.weight.original1", "embed.places.direction"),
        Key(positions + "bias", "embed.places.bias"),
        Key(base + "encoder.layer_norm.{p}", ("stack" if config.stack.pre_norm else "embed") + ".norm.{p}"),
        *(Key(theirs + f"attention.{a}.{{p}}", block + f"attention.{b}.{{p}}") for a, b in projections),
        Key(theirs + "layer_norm.{p}", block + "attention_norm.{p}"),
        Key(theirs + "feed_forward.intermediate_dense.{p}", block + "feed_forward.up.{p}"),
        Key(theirs + "feed_forward.output_dense.{p}", block + "feed_forward.down.{p}"),
        Key(theirs + "final_layer_norm.{p}", block + "feed_forward_norm.{p}"),
        Key("lm_head.weight", "head.weight"),
        Key("lm_head.bias", "head.bias"),
    ]
