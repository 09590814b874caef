"""A step of training a small translator, beside the loop that one writes over torch.nn.Transformer."""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.bench.works import Calls
from regard.models.families.transformer import transformer
from regard.models.heads import IGNORED
from regard.models.model import PairModel
from regard.nn.embeddings.text import sinusoids
from regard.tasks.translate import pair_loss

PAD, START, END, FIRST = 0, 1, 2, 3
LAYERS, HEADS, SMOOTHING = 4, 4, 0.1


def sentences(count: int, words: int) -> list[list[int]]:
    """Random sentences between start and end, as long as those of image captions in pieces: about 14, 4 to 45."""
    draw = torch.Generator().manual_seed(0)
    lengths = (torch.randn(count, generator=draw) * 0.35 + math.log(13)).exp().round().long().clamp(4, 45)
    return [[START, *torch.randint(FIRST, words, (n,), generator=draw).tolist(), END] for n in lengths.tolist()]


def filled(rows: list[list[int]]) -> Tensor:
    """Rows `[batch, tokens]`, padded to the longest."""
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)


def batch_of(pairs: int, words: int) -> dict[str, Tensor]:
    """A batch as the task makes it, in the order that the sentences have."""
    rows = sentences(2 * pairs, words)
    sources, targets = rows[:pairs], rows[pairs:]
    whole = filled(targets)
    return {
        "tokens": filled(sources),
        "lengths": torch.tensor([len(row) for row in sources]),
        "targets": whole[:, :-1],
        "target_lengths": torch.tensor([len(row) - 1 for row in targets]),
        "labels": whole[:, 1:].masked_fill(whole[:, 1:] == PAD, IGNORED),
    }


def step(pairs: int, words: int, width: int, dtype: torch.dtype = torch.float32) -> Calls:
    """Loss and gradients of a batch of pairs by a Transformer of 4 + 4 layers with one embedding for all.

    Both compute the same with the same weights. Torch's computes the padding of its rectangle too.
    """
    torch.manual_seed(0)
    ours, theirs = translators(words, width, dtype)
    batch = batch_of(pairs, words)
    return {
        "regard": lambda: gradients(our_loss(ours, batch), our_weights(ours)),
        "nn.Transformer": lambda: gradients(their_loss(theirs, batch), their_weights(theirs)),
    }


def translators(words: int, width: int, dtype: torch.dtype = torch.float32) -> tuple[PairModel, "Plain"]:
    """Ours and torch's with the same weights."""
    config = transformer(layers=LAYERS, dim=width, heads=HEADS, hidden=2 * width, vocabulary=words, dropout=0.0)
    final = {name: replace(getattr(config, name), final_norm=True) for name in ("stack", "decoder")}
    ours, theirs = replace(config, **final).build().to(dtype), Plain(words, width).to(dtype)
    same_weights(ours, theirs)
    return ours, theirs


def our_loss(model: PairModel, batch: dict[str, Tensor]) -> Tensor:
    return pair_loss(model, batch, SMOOTHING)


def their_loss(model: "Plain", batch: dict[str, Tensor]) -> Tensor:
    """The sum over the labels that count, computed for padding too."""
    logits = model(batch["tokens"], batch["targets"])
    kept = {"ignore_index": IGNORED, "label_smoothing": SMOOTHING, "reduction": "sum"}
    return cross_entropy(logits.flatten(0, 1).float(), batch["labels"].flatten(), **kept)


class Plain(nn.Module):
    """The usual model over torch's own."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.transformer = nn.Transformer(width, HEADS, LAYERS, LAYERS, 2 * width, dropout=0.0, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits `[batch, tokens, words]`."""
        later = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool, device=target.device).triu(1)
        padded = source == PAD
        hidden = self.transformer(
            self.placed(source),
            self.placed(target),
            tgt_mask=later,
            src_key_padding_mask=padded,
            tgt_key_padding_mask=target == PAD,
            memory_key_padding_mask=padded,
            tgt_is_causal=True,
        )
        return hidden @ self.embed.weight.T

    def placed(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        places = torch.arange(x.shape[1], device=x.device)
        return x * math.sqrt(x.shape[2]) + sinusoids(places, x.shape[2]).to(x.dtype)


def gradients(loss: Tensor, weights: list[list[Tensor]]) -> tuple[Tensor, ...]:
    """The loss, and of each group of weights the gradient, joined."""
    every = torch.autograd.grad(loss, [weight for group in weights for weight in group])
    found = iter(every)
    return loss.detach(), *(torch.cat([next(found) for _ in group]) for group in weights)


def our_weights(model: PairModel) -> list[list[Tensor]]:
    """The weights in the order of torch's, those that torch keeps as one tensor in one list."""
    found = [[model.embed.get_parameter("tokens.weight")]]
    for stack in (model.stack, model.decoder):
        for block in stack.blocks:
            for attention in there(block, "attention", "cross"):
                for kind in ("weight", "bias"):
                    found.append([attention.get_parameter(f"{name}.{kind}") for name in "qkv"])
                found += pair_of(attention.get_submodule("out"))
            found += pair_of(block.feed_forward.up) + pair_of(block.feed_forward.down)
            for norm in there(block, "attention_norm", "cross_norm", "feed_forward_norm"):
                found += pair_of(norm)
        found += pair_of(stack.norm)
    return found


def their_weights(model: Plain) -> list[list[Tensor]]:
    """The weights of torch's model, one in each list."""
    found: list[list[Tensor]] = []
    found.append([model.embed.weight])
    for stack in (model.transformer.encoder, model.transformer.decoder):
        for layer in stack.layers:
            for attention in there(layer, "self_attn", "multihead_attn"):
                found.extend([attention.get_parameter(f"in_proj_{kind}")] for kind in ("weight", "bias"))
                found += pair_of(attention.get_submodule("out_proj"))
            for part in there(layer, "linear1", "linear2", "norm1", "norm2", "norm3"):
                found += pair_of(part)
        found += pair_of(stack.get_submodule("norm"))
    return found


def there(layer: nn.Module, *names: str) -> list[nn.Module]:
    """Those of its parts that a layer has."""
    return [part for name in names if (part := getattr(layer, name, None)) is not None]


def pair_of(layer: nn.Module) -> list[list[Tensor]]:
    return [[layer.get_parameter("weight")], [layer.get_parameter("bias")]]


@torch.no_grad()
def same_weights(ours: PairModel, theirs: Plain) -> None:
    """Give torch's model the weights of ours."""
    for group, (weight,) in zip(our_weights(ours), their_weights(theirs), strict=True):
        weight.copy_(torch.cat(group))
