"""A training step of a small translator beside the same model over `torch.nn.Transformer`."""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.bench.workloads import Calls
from regard.models.families.transformer import transformer
from regard.models.heads import IGNORED
from regard.models.model import EncoderDecoderModel
from regard.nn.embeddings.text import sinusoids
from regard.tasks.translate import pair_loss

PAD, START, END, FIRST = 0, 1, 2, 3
LAYERS, HEADS, SMOOTHING = 4, 4, 0.1


def random_sentences(count: int, words: int) -> list[list[int]]:
    """Random sentences between start and end with lengths like image captions in subwords: about 14, 4 to 45."""
    generator = torch.Generator().manual_seed(0)
    lengths = (torch.randn(count, generator=generator) * 0.35 + math.log(13)).exp().round().long().clamp(4, 45)
    return [[START, *torch.randint(FIRST, words, (n,), generator=generator).tolist(), END] for n in lengths.tolist()]


def pad_rows(rows: list[list[int]]) -> Tensor:
    """Rows `[batch, tokens]`, padded to the longest."""
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)


def make_batch(pairs: int, words: int) -> dict[str, Tensor]:
    """A batch as the translation task makes it, in the order of the sentences."""
    rows = random_sentences(2 * pairs, words)
    sources, targets = rows[:pairs], rows[pairs:]
    target_rows = pad_rows(targets)
    return {
        "tokens": pad_rows(sources),
        "lengths": torch.tensor([len(row) for row in sources]),
        "targets": target_rows[:, :-1],
        "target_lengths": torch.tensor([len(row) - 1 for row in targets]),
        "labels": target_rows[:, 1:].masked_fill(target_rows[:, 1:] == PAD, IGNORED),
    }


def train_step(pairs: int, words: int, width: int, dtype: torch.dtype = torch.float32) -> Calls:
    """Loss and gradients of a batch of sentence pairs by a Transformer of 4 + 4 layers with shared embeddings.

    Both have the same weights and the same loss. Torch's model also computes the padding.
    """
    torch.manual_seed(0)
    ours, theirs = build_translators(words, width, dtype)
    batch = make_batch(pairs, words)
    return {
        "regard": lambda: gradients(regard_loss(ours, batch), regard_weights(ours)),
        "nn.Transformer": lambda: gradients(torch_loss(theirs, batch), torch_weights(theirs)),
    }


def build_translators(
    words: int, width: int, dtype: torch.dtype = torch.float32
) -> tuple[EncoderDecoderModel, "TorchTranslator"]:
    """Our model and torch's, with the same weights."""
    config = transformer(layers=LAYERS, dim=width, heads=HEADS, hidden=2 * width, vocabulary=words, dropout=0.0)
    stacks = {name: replace(getattr(config, name), final_norm=True) for name in ("stack", "decoder")}
    ours, theirs = replace(config, **stacks).build().to(dtype), TorchTranslator(words, width).to(dtype)
    copy_weights(ours, theirs)
    return ours, theirs


def regard_loss(model: EncoderDecoderModel, batch: dict[str, Tensor]) -> Tensor:
    return pair_loss(model, batch, SMOOTHING)


def torch_loss(model: "TorchTranslator", batch: dict[str, Tensor]) -> Tensor:
    """The summed loss; ignored labels do not count."""
    logits = model(batch["tokens"], batch["targets"])
    options = {"ignore_index": IGNORED, "label_smoothing": SMOOTHING, "reduction": "sum"}
    return cross_entropy(logits.flatten(0, 1).float(), batch["labels"].flatten(), **options)


class TorchTranslator(nn.Module):
    """A translator over `torch.nn.Transformer`."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.transformer = nn.Transformer(width, HEADS, LAYERS, LAYERS, 2 * width, dropout=0.0, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits `[batch, tokens, words]`."""
        later = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool, device=target.device).triu(1)
        padded = source == PAD
        hidden = self.transformer(
            self.embed_tokens(source),
            self.embed_tokens(target),
            tgt_mask=later,
            src_key_padding_mask=padded,
            tgt_key_padding_mask=target == PAD,
            memory_key_padding_mask=padded,
            tgt_is_causal=True,
        )
        return hidden @ self.embed.weight.T

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        positions = torch.arange(x.shape[1], device=x.device)
        return x * math.sqrt(x.shape[2]) + sinusoids(positions, x.shape[2]).to(x.dtype)


def gradients(loss: Tensor, weights: list[list[Tensor]]) -> tuple[Tensor, ...]:
    """The loss and, for each group of weights, the concatenated gradient."""
    flat = torch.autograd.grad(loss, [weight for group in weights for weight in group])
    remaining = iter(flat)
    return loss.detach(), *(torch.cat([next(remaining) for _ in group]) for group in weights)


def regard_weights(model: EncoderDecoderModel) -> list[list[Tensor]]:
    """Our weights in torch's order; weights that torch holds as one tensor share a list."""
    weights = [[model.embed.get_parameter("tokens.weight")]]
    for stack in (model.stack, model.decoder):
        for block in stack.blocks:
            for attention in existing_parts(block, "attention", "cross"):
                for parameter in ("weight", "bias"):
                    weights.append([attention.get_parameter(f"{name}.{parameter}") for name in "qkv"])
                weights += weight_and_bias(attention.get_submodule("out"))
            weights += weight_and_bias(block.feed_forward.up) + weight_and_bias(block.feed_forward.down)
            for norm in existing_parts(block, "attention_norm", "cross_norm", "feed_forward_norm"):
                weights += weight_and_bias(norm)
        weights += weight_and_bias(stack.norm)
    return weights


def torch_weights(model: TorchTranslator) -> list[list[Tensor]]:
    """The weights of torch's model, one in each list."""
    weights: list[list[Tensor]] = []
    weights.append([model.embed.weight])
    for stack in (model.transformer.encoder, model.transformer.decoder):
        for layer in stack.layers:
            for attention in existing_parts(layer, "self_attn", "multihead_attn"):
                weights.extend([attention.get_parameter(f"in_proj_{parameter}")] for parameter in ("weight", "bias"))
                weights += weight_and_bias(attention.get_submodule("out_proj"))
            for part in existing_parts(layer, "linear1", "linear2", "norm1", "norm2", "norm3"):
                weights += weight_and_bias(part)
        weights += weight_and_bias(stack.get_submodule("norm"))
    return weights


def existing_parts(layer: nn.Module, *names: str) -> list[nn.Module]:
    """The submodules of these names that a layer has."""
    return [part for name in names if (part := getattr(layer, name, None)) is not None]


def weight_and_bias(layer: nn.Module) -> list[list[Tensor]]:
    return [[layer.get_parameter("weight")], [layer.get_parameter("bias")]]


@torch.no_grad()
def copy_weights(ours: EncoderDecoderModel, theirs: TorchTranslator) -> None:
    """Copy our weights to torch's model."""
    for group, (weight,) in zip(regard_weights(ours), torch_weights(theirs), strict=True):
        weight.copy_(torch.cat(group))
