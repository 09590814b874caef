"""The Transformer of 2017 equals the one that torch's layers make."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from regard.errors import Unsupported
from regard.models.checkpoint.checkpoint import load
from regard.models.families.transformer import transformer, transformer_small
from regard.nn.embeddings.text import sinusoids

from ..checkpoint_equality import assert_close, random_weights, real
from ..encoder_decoder import TARGETS, assert_cache_equals_no_cache, assert_padding_never_matters, batches

SIZES = {"layers": 2, "decoder_layers": 3, "dim": 24, "heads": 3, "hidden": 29, "vocabulary": 41, "start": 2}


def torch_layers(config) -> tuple[nn.TransformerEncoder, nn.TransformerDecoder]:
    """What torch has, with the same sizes."""
    stack, decoder = config.stack, config.decoder
    words = {"batch_first": True, "norm_first": stack.pre_norm, "activation": stack.activation, "dropout": 0.0}
    last = (lambda: nn.LayerNorm(stack.dim)) if stack.pre_norm else (lambda: None)
    encoder = nn.TransformerEncoderLayer(stack.dim, stack.heads, stack.hidden, **words)
    reader = nn.TransformerDecoderLayer(stack.dim, stack.heads, stack.hidden, **words)
    return (
        nn.TransformerEncoder(encoder, stack.layers, last(), enable_nested_tensor=False),
        nn.TransformerDecoder(reader, decoder.layers, last()),
    )


def pairs_of(theirs: nn.Module, ours: nn.Module):
    """Each tensor of a torch layer with those of ours that it is made of."""
    norms = {"norm1": "attention_norm", "norm2": "cross_norm", "norm3": "feed_forward_norm"}
    if ours.blocks[0].cross is None:
        norms = {"norm1": "attention_norm", "norm2": "feed_forward_norm"}
    for layer, block in zip(theirs.layers, ours.blocks, strict=True):
        attentions = {"self_attn": block.attention, "multihead_attn": block.cross}
        for name, own in attentions.items():
            if own is not None:
                actual = getattr(layer, name)
                yield actual.in_proj_weight, [own.q.weight, own.k.weight, own.v.weight]
                yield actual.in_proj_bias, [own.q.bias, own.k.bias, own.v.bias]
                yield from linear(actual.out_proj, own.out)
        yield from linear(layer.linear1, block.feed_forward.up)
        yield from linear(layer.linear2, block.feed_forward.down)
        for name, own in norms.items():
            yield from linear(getattr(layer, name), getattr(block, own))
    if theirs.norm is not None:
        yield from linear(theirs.norm, ours.norm)


def linear(theirs: nn.Module, ours: nn.Module):
    yield theirs.weight, [ours.weight]
    yield theirs.bias, [ours.bias]


def by_torch(ours, encoder, decoder, weight: Tensor, source: dict[str, Tensor], targets: Tensor) -> Tensor:
    """Logits of the same model, made of torch's layers."""
    dim = ours.config.stack.dim

    def embed(tokens: Tensor) -> Tensor:
        return weight[tokens] * math.sqrt(dim) + sinusoids(torch.arange(tokens.shape[1]), dim)

    hidden = source["mask"] == 0
    later = torch.ones(targets.shape[1], targets.shape[1], dtype=torch.bool).triu(1)
    memory = encoder(embed(source["tokens"]), src_key_padding_mask=hidden)
    return decoder(embed(targets), memory, tgt_mask=later, memory_key_padding_mask=hidden) @ weight.t()


@pytest.mark.parametrize("more", [{}, {"pre_norm": True}, {"activation": "gelu", "heads": 4}])
def test_equal_to_torch_layers(more: dict) -> None:
    config = transformer(**{**SIZES, **more})
    ours = random_weights(config.build())
    encoder, decoder = torch_layers(config)
    table = [*pairs_of(encoder, ours.stack), *pairs_of(decoder, ours.decoder)]
    with torch.no_grad():
        for theirs, own in table:
            theirs.copy_(torch.cat(own))
    weight = ours.embed.tokens.weight.detach().clone().requires_grad_()
    source, labels = batches(41)
    targets = ours.shift_right(labels)
    assert targets[:, 0].eq(2).all()
    a = ours(tokens=source["tokens"], lengths=source["lengths"], targets=targets).logits
    b = by_torch(ours, encoder, decoder, weight, source, targets)
    lengths = torch.tensor(TARGETS)
    assert_close(real(a, lengths), real(b, lengths), "logits")
    mix = torch.randn(real(b, lengths).shape)
    (real(a, lengths) * mix).sum().backward()
    (real(b, lengths) * mix).sum().backward()
    assert_close(ours.embed.tokens.weight.grad, weight.grad, "gradient of the embedding")
    # The keys' biases have no gradient but rounding: a third of in_proj_bias is compared as a part of the whole.
    for n, (theirs, own) in enumerate(table):
        assert_close(torch.cat([x.grad for x in own]), theirs.grad, f"gradient {n}")


def test_loss_is_that_of_the_labels() -> None:
    ours, (source, labels) = random_weights(transformer(**SIZES).build()), batches(41)
    out = ours(tokens=source["tokens"], lengths=source["lengths"], labels=labels)
    chances = out.logits.log_softmax(-1)
    wanted = -torch.stack([chances[b, t, labels[b, t]] for b in range(3) for t in range(TARGETS[b])]).mean()
    torch.testing.assert_close(out.loss, wanted)


@pytest.mark.parametrize("more", [{}, {"pre_norm": True, "target_vocabulary": 43}, {"tied": False}])
def test_cache_and_padding(more: dict) -> None:
    ours = random_weights(transformer(**SIZES, **more).build())
    source, labels = batches(41, more.get("target_vocabulary"))
    targets = labels.clamp(min=0)
    assert_cache_equals_no_cache(ours, targets, tokens=source["tokens"], lengths=source["lengths"])
    assert_padding_never_matters(ours, targets, source)


def test_future_does_not_leak() -> None:
    ours, (source, labels) = random_weights(transformer(**SIZES).build()), batches(41)
    targets = labels.clamp(min=0)
    other = targets.clone()
    other[:, 4:] = (other[:, 4:] + 1) % 41
    a, b = (ours(tokens=source["tokens"], targets=x).logits for x in (targets, other))
    assert torch.equal(a[:, :4], b[:, :4]) and not torch.allclose(a[:, 4:], b[:, 4:])


def test_no_cache_in_training() -> None:
    ours, (source, labels) = transformer(**SIZES).build().train(), batches(41)
    assert ours(tokens=source["tokens"], targets=labels.clamp(min=0)).cache is None


def test_saved_and_read(tmp_path: Path) -> None:
    ours, (source, labels) = random_weights(transformer_small(vocabulary=41, dim=16).build()), batches(41)
    ours.save(tmp_path)
    copy = load(tmp_path)
    assert copy.config == ours.config
    a, b = (model(tokens=source["tokens"], targets=labels.clamp(min=0)).logits for model in (ours, copy))
    assert torch.equal(a, b)
    with pytest.raises(Unsupported, match="no counterpart of"):
        ours.save(tmp_path / "theirs", format="huggingface")


def test_published_size() -> None:
    """Counted by hand; the paper says 65 million.

    Embedding 37,000 · 512 = 18,944,000. An attention: 4 · (512² + 512) = 1,050,624. Feed-forward: 512 · 2048 + 2048 +
    2048 · 512 + 512 = 2,099,712. A norm: 1,024. Encoder: 6 · (1,050,624 + 2,099,712 + 2 · 1,024) = 18,914,304.
    Decoder: 6 · (2 · 1,050,624 + 2,099,712 + 3 · 1,024) = 25,224,192.
    """
    with torch.device("meta"):
        actual = sum(p.numel() for p in transformer().build().parameters())
    assert actual == 18_944_000 + 18_914_304 + 25_224_192 == 63_082_496
