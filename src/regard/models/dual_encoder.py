"""The dual encoder: a text tower and an image tower, with vectors in one space."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import BadInput
from .heads import AttentionPoolingHeadConfig, pool
from .interfaces import E, L
from .model import Model, Output

SCALE = math.log(1 / 0.07)
"""The initial logarithm of CLIP's scale."""
SIGMOID_SCALE, SIGMOID_BIAS = math.log(10.0), -10.0
"""SigLIP's: so few pairs match that the loss begins near its minimum."""


@dataclass(frozen=True)
class TowerConfig(Generic[E, L]):
    """`embed → stack →` one token's vector `→` a projection to `shared` dims (None: the vector as it is).

    `end` selects the token: None the first; a number the first of that token in each row, or the last token where there
    is none; `"highest"` the one with the highest number; `"last"` the last real one; `"mean"` takes the mean of all
    real tokens. `pooler` takes a pooling head instead. The projection may have a `bias`. `fill` is the token that texts
    with `lengths` are filled up with to all positions of the embedding; attention reads it as a real one (SigLIP).
    """

    embed: E
    stack: L
    shared: int | None = 512
    end: int | Literal["highest", "mean", "last"] | None = None
    pooler: AttentionPoolingHeadConfig | None = None
    bias: bool = False
    fill: int | None = None

    def build(self) -> Tower:
        return Tower(self)


@dataclass(frozen=True)
class DualEncoderConfig:
    """A text tower and an image tower, either of which may be missing.

    `loss` is CLIP's softmax over the batch, or SigLIP's sigmoid of each pair, whose logits have a learned bias.
    """

    text: TowerConfig | None = None
    image: TowerConfig | None = None
    family: str | None = None
    loss: Literal["softmax", "sigmoid"] = "softmax"

    def build(self) -> DualEncoderModel:
        return DualEncoderModel(self)


class TowerOutput(NamedTuple):
    """Every token, the pooled vector, and the pooled vector in the shared space."""

    hidden: Tensor
    pooled: Tensor
    shared: Tensor


class Tower(nn.Module):
    """See `TowerConfig`."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__()
        self.end, self.fill = config.end, config.fill
        self.embed = config.embed.build()
        self.stack = config.stack.build()
        self.pooler = None if config.pooler is None else config.pooler.build()
        dim, shared = config.stack.dim, config.shared
        self.project = nn.Identity() if shared is None else nn.Linear(dim, shared, bias=config.bias)

    def forward(self, given: Tensor, lengths: Tensor | None = None, sizes: Tensor | None = None) -> TowerOutput:
        if self.fill is not None and lengths is not None:
            given, lengths = fill_up(given, lengths, self.fill, self.embed.config.positions), None
        if sizes is None:
            x = self.embed(given)
        else:
            x, lengths = self.embed(given, sizes), self.embed.patch_counts(sizes)
        hidden = self.stack(x, lengths=lengths)
        pooled = self.pool(given, hidden, lengths) if self.pooler is None else self.pooler(hidden, lengths)
        return TowerOutput(hidden, pooled, functional.normalize(self.project(pooled), dim=-1))

    def pool(self, given: Tensor, hidden: Tensor, lengths: Tensor | None) -> Tensor:
        """The vector of the token that `end` selects, or their mean."""
        if self.end in (None, "mean", "last"):
            return pool(hidden, lengths, self.end or "first")
        rows = torch.arange(hidden.shape[0], device=hidden.device)
        return hidden[rows, find_end(given, lengths, self.end)]


def fill_up(tokens: Tensor, lengths: Tensor, fill: int, size: int) -> Tensor:
    """`[batch, size]`: the real tokens of each row, and `fill` after them.

    >>> fill_up(torch.tensor([[5, 6], [7, 8]]), torch.tensor([2, 1]), 0, 3).tolist()
    [[5, 6, 0], [7, 0, 0]]
    """
    if tokens.shape[1] > size:
        raise BadInput(f"The text has {tokens.shape[1]} tokens; this model reads {size}. Cut it.")
    padded = torch.arange(tokens.shape[1], device=tokens.device) >= lengths[:, None]
    return functional.pad(tokens.masked_fill(padded, fill), (0, size - tokens.shape[1]), value=fill)


def find_end(tokens: Tensor, lengths: Tensor | None, end: int | str) -> Tensor:
    """`[batch]`: the position of each row's end, padding excluded.

    >>> find_end(torch.tensor([[1, 7, 7], [1, 9, 9]]), None, 7).tolist()
    [1, 2]
    """
    lengths = torch.full_like(tokens[:, 0], tokens.shape[1]) if lengths is None else lengths
    real = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]  # [batch, tokens]
    if end == "highest":
        return tokens.masked_fill(~real, -1).argmax(1)
    matches = real & (tokens == end)
    return torch.where(matches.any(1), matches.int().argmax(1), lengths - 1)


class DualEncoderModel(Model):
    """Text and images in one space (CLIP, SigLIP).

        text, image = normalised project(pooled);   logits = e^scale · image · textᵀ (+ bias)

    Returns `text [texts, dim]` and `image [images, dim]` for the inputs given, and `logits [images, texts]` for both.
    `hidden` (after the final norm) and `pooled` are returned for one input alone. `labels [images]` are the indices of
    the texts, or True where image n belongs to text n; the loss is the mean of the two cross-entropies, over the texts
    for each image and over the images for each text, or SigLIP's sigmoid loss of all pairs. `sizes [images, 2]` are the
    heights and widths in pixels of images that are padded at the right and at the bottom.

    >>> from regard.models.families.clip import clip
    >>> tower = {"layers": 1, "dim": 12, "heads": 3, "hidden": 20}
    >>> model = clip(text=tower, image=tower, vocabulary=11, positions=7, end=10, size=8, patch=4, shared=6).build()
    >>> out = model(tokens=torch.tensor([[1, 10], [2, 10], [3, 10]]), images=torch.randn(2, 3, 8, 8))
    >>> out.logits.shape, out.text.shape
    (torch.Size([2, 3]), torch.Size([3, 6]))
    """

    config: DualEncoderConfig

    def __init__(self, config: DualEncoderConfig) -> None:
        super().__init__(config)
        self.text = None if config.text is None else config.text.build()
        self.image = None if config.image is None else config.image.build()
        both = config.text is not None and config.image is not None
        sigmoid = config.loss == "sigmoid"
        self.scale = nn.Parameter(torch.tensor(SIGMOID_SCALE if sigmoid else SCALE)) if both else None
        self.bias = nn.Parameter(torch.tensor(SIGMOID_BIAS)) if both and sigmoid else None

    def forward(
        self,
        *,
        tokens: Tensor | None = None,
        lengths: Tensor | None = None,
        images: Tensor | None = None,
        sizes: Tensor | None = None,
        labels: Tensor | Literal[True] | None = None,
    ) -> Output:
        text = None if tokens is None else need_tower(self.text, "tokens")(tokens, lengths)
        image = None if images is None else need_tower(self.image, "images")(images, sizes=sizes)
        if text is None or image is None or self.scale is None:
            return single_output(text, image, labels)
        logits = self.scale.exp() * image.shared @ text.shared.t()
        logits = logits if self.bias is None else logits + self.bias
        loss = None if labels is None else LOSSES[self.config.loss](logits, labels)
        return Output(logits=logits, text=text.shared, image=image.shared, loss=loss)


def need_tower(tower: Tower | None, name: str) -> Tower:
    """The tower of an input, or `BadInput`."""
    if tower is None:
        raise BadInput(
            f"{name} were given, and this model has no tower for them. Leave them out, or load the whole model."
        )
    return tower


def single_output(text: TowerOutput | None, image: TowerOutput | None, labels: Tensor | Literal[True] | None) -> Output:
    """The output for texts without images, or images without texts."""
    if labels is not None:
        raise BadInput("labels are the index of each image's text. Give both tokens and images, or leave labels out.")
    if text is not None:
        return Output(text.hidden, pooled=text.pooled, text=text.shared)
    if image is not None:
        return Output(image.hidden, pooled=image.pooled, image=image.shared)
    raise BadInput(
        "This model reads tokens and images; it was given neither. Call model(tokens=...) or model(images=...)."
    )


def contrastive_loss(logits: Tensor, labels: Tensor | Literal[True]) -> Tensor:
    """The mean of the cross-entropy of each image over the texts and of each text over the images.

    `logits [images, texts]`; `labels [images]`, or True where image n belongs to text n.
    """
    images, texts = pair_indices(logits, labels)
    logits = logits.float()
    return (functional.cross_entropy(logits, texts) + functional.cross_entropy(logits.t()[texts], images)) / 2


def sigmoid_loss(logits: Tensor, labels: Tensor | Literal[True]) -> Tensor:
    """SigLIP's (Zhai et al. 2023): −Σ over all pairs of ln σ(±logit), + for an image and its text, over the images."""
    images, texts = pair_indices(logits, labels)
    signs = torch.full_like(logits, -1.0, dtype=torch.float32)
    signs[images, texts] = 1.0
    return -functional.logsigmoid(signs * logits.float()).sum() / logits.shape[0]


LOSSES = {"softmax": contrastive_loss, "sigmoid": sigmoid_loss}


def pair_indices(logits: Tensor, labels: Tensor | Literal[True]) -> tuple[Tensor, Tensor]:
    """(each image, its text), or `BadInput`."""
    images = torch.arange(logits.shape[0], device=logits.device)
    texts = images if labels is True else labels
    if texts.shape != images.shape or (labels is True and logits.shape[0] != logits.shape[1]):
        raise BadInput(
            f"labels is {True if labels is True else list(texts.shape)} for {logits.shape[0]} images and "
            f"{logits.shape[1]} texts. Give each image's text, [{logits.shape[0]}]; True where they pair off."
        )
    return images, texts
