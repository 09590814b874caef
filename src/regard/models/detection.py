"""Detection as set prediction: learned queries attend to an image's features, each predicts a class and a box."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from ..attention.parts.masks import Pairs
from ..errors import BadInput
from ..nn.attention import EncoderOutput
from ..nn.block import StackConfig
from ..nn.embeddings.embedding import Embedding, Input
from ..nn.embeddings.images import (
    FeatureMap,
    Features,
    LearnedPositions2d,
    ResNet,
    SinusoidalPositions2d,
    flatten_map,
    shrink_mask,
)
from ..nn.old_names import accept_old_names
from .model import Model, Output
from .set_loss import Detections, SetLoss, set_loss


@accept_old_names(places="positions")
@dataclass(frozen=True)
class FeatureGridConfig:
    """Images as a grid of feature vectors, with their positions.

    `backbone` is a ResNet's depth (frozen norms, 32 pixels a position), or the channels of a small stem that halves
    the image at each. `positions` are two-dimensional sines, or learned for up to 50 rows and columns.
    """

    reads: ClassVar[Input] = "images"
    dim: int
    backbone: int | tuple[int, ...] = 50
    channels: int = 3
    positions: Literal["sine", "learned"] = "sine"

    def build(self) -> FeatureGridEmbedding:
        return FeatureGridEmbedding(self)


@dataclass(frozen=True)
class DetectionConfig:
    """`embed → stack`, then `queries → decoder → a class and a box each`; without heads when `classes` is None.

    Without `queries` there is no decoder: every position of the grid predicts a class and a box relative to its centre.
    A position then starts with the features of its own patch of the image, so that few images suffice for training.
    """

    embed: FeatureGridConfig
    stack: StackConfig
    decoder: StackConfig | None = None
    queries: int | None = 100
    classes: int | None = 91
    loss: SetLoss = field(default_factory=SetLoss)
    family: str | None = None

    def build(self) -> DetectionModel:
        return DetectionModel(self)


class FeatureGridEmbedding(Embedding):
    """See `FeatureGridConfig`."""

    reads = "images"

    def __init__(self, config: FeatureGridConfig) -> None:
        super().__init__()
        if isinstance(config.backbone, int):
            self.backbone, self.stride = ResNet(config.backbone, config.channels), 32
            self.projection = nn.Conv2d(self.backbone.dim, config.dim, 1)
        else:
            strides = (2,) * len(config.backbone)
            self.stride = 1 << len(config.backbone)
            self.backbone = FeatureMap(config.channels, config.dim, config.backbone, strides)
            self.projection = None
        self.places = (
            SinusoidalPositions2d(config.dim) if config.positions == "sine" else LearnedPositions2d(config.dim)
        )

    def forward(self, images: Tensor, sizes: Tensor | None = None) -> EncoderOutput:
        """`x` and its position embedding, `[batch, positions, dim]`; with `sizes`, a mask of the real positions."""
        x, grid = self.features(images)
        real = torch.ones(len(x), *grid, dtype=torch.bool, device=x.device)
        if sizes is not None:
            real = shrink_mask(pixel_mask(images, sizes), grid)
        mask = None if sizes is None else Pairs(real.flatten(1)[:, None, None])  # [batch, 1, 1, positions]
        return EncoderOutput(x, mask=mask, position_embedding=self.places(real).to(x.dtype))

    def features(self, images: Tensor) -> Features:
        x = self.backbone(images)
        return x if self.projection is None else flatten_map(self.projection(x))

    def centres(self, images: Tensor, sizes: Tensor | None = None) -> Tensor:
        """`[batch, positions, 2]`: the centre of each position, x and y as fractions of the real image."""
        rows, columns = (-(-side // self.stride) for side in images.shape[2:])
        x, y = (self.stride * (torch.arange(count, device=images.device) + 0.5) for count in (columns, rows))
        pixels = torch.stack([x.expand(rows, -1), y[:, None].expand(-1, columns)], -1).flatten(0, 1)
        real = torch.tensor(images.shape[2:], device=images.device)[None] if sizes is None else sizes.to(images.device)
        return (pixels / real.flip(1)[:, None]).expand(len(images), -1, -1)


def pixel_mask(images: Tensor, sizes: Tensor) -> Tensor:
    """`[batch, height, width]`: which pixels belong to the image and not to its padding."""
    if sizes.shape != (images.shape[0], 2):
        raise BadInput(
            f"sizes has shape {list(sizes.shape)}; it must be [{images.shape[0]}, 2]: each image's real height, width."
        )
    sizes = sizes.to(images.device)
    rows, columns = (torch.arange(size, device=sizes.device) for size in images.shape[2:])
    return (rows[:, None] < sizes[:, 0, None, None]) & (columns < sizes[:, 1, None, None])


class DetectionModel(Model):
    """Object detection (DETR).

    `images [batch, channels, height, width]`; smaller images are padded below and to the right, and `sizes [batch, 2]`
    are their real heights and widths. Returns `hidden [batch, queries, dim]`, `logits [batch, queries, classes + 1]`
    (the last class is "no object") and `boxes [batch, queries, 4]`: centre x, centre y, width, height, as fractions of
    the real image. `labels` is a list of `{"classes": [objects], "boxes": [objects, 4]}`; `loss` is the `SetLoss`.
    Without `queries` in the configuration the positions of the grid replace them.

    >>> from regard.models.families.detr import detr
    >>> model = detr(layers=1, dim=12, heads=3, hidden=20, queries=5, classes=4, backbone=(8, 12)).build()
    >>> out = model(images=torch.randn(2, 3, 16, 24), sizes=torch.tensor([[16, 24], [9, 20]]))
    >>> out.logits.shape, out.boxes.shape
    (torch.Size([2, 5, 5]), torch.Size([2, 5, 4]))
    """

    config: DetectionConfig

    def __init__(self, config: DetectionConfig) -> None:
        super().__init__(config)
        dim = config.embed.dim
        self.embed = config.embed.build()
        self.stack = config.stack.build()
        if config.queries is not None and config.decoder is None:
            raise BadInput(f"There are {config.queries} queries and no decoder for them. Give one, or queries=None.")
        self.decoder = None if config.queries is None or config.decoder is None else config.decoder.build()
        self.queries = None if config.queries is None else nn.Parameter(torch.randn(config.queries, dim))
        self.classes = None if config.classes is None else nn.Linear(dim, config.classes + 1)
        self.boxes = None
        if config.classes is not None:  # three linear layers to centre x, centre y, width, height
            layers = nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 4)
            self.boxes = nn.Sequential(*layers)

    def forward(
        self, *, images: Tensor, sizes: Tensor | None = None, labels: Sequence[dict[str, Tensor]] | None = None
    ) -> Output:
        memory = self.encode(images, sizes)
        layers = [memory.x] if self.queries is None else self.decode(memory)
        if self.classes is None or self.boxes is None:
            return Output(layers[-1], loss=self.loss([], labels))
        predicted = layers if labels is not None and self.config.loss.auxiliary else layers[-1:]
        start = self.box_offsets(images, sizes)
        detections = [Detections(self.classes(x), (self.boxes(x) + start).sigmoid()) for x in predicted]
        if self.queries is None and isinstance(memory.mask, Pairs):
            detections = [mask_padding(layer, memory.mask.allowed[:, 0, 0]) for layer in detections]
        return Output(layers[-1], detections[-1].logits, boxes=detections[-1].boxes, loss=self.loss(detections, labels))

    def encode(self, images: Tensor, sizes: Tensor | None = None) -> EncoderOutput:
        """The features that the queries attend to."""
        source = self.embed(images, sizes)
        return replace(source, x=self.stack(source.x, mask=source.mask, position_embedding=source.position_embedding))

    def decode(self, memory: EncoderOutput) -> list[Tensor]:
        """`[batch, queries, dim]` after each layer of the decoder, each with the final norm."""
        if self.queries is None or self.decoder is None:
            raise BadInput("This model has no queries to decode: its grid predicts the boxes. Build it with queries.")
        queries = self.queries.expand(memory.x.shape[0], -1, -1)
        layers: list[Tensor] = []
        last = self.decoder(torch.zeros_like(queries), memory=memory, position_embedding=queries, layer_outputs=layers)
        norm = nn.Identity() if self.decoder.norm is None else self.decoder.norm
        return [*(norm(x) for x in layers[:-1]), last]

    def box_offsets(self, images: Tensor, sizes: Tensor | None) -> Tensor | float:
        """Added to boxes before the sigmoid: for a grid, the centre of the position and a tenth of the image."""
        if self.queries is not None:
            return 0.0
        centres = self.embed.centres(images, sizes)
        return torch.cat([centres, torch.full_like(centres, 0.1)], -1).clamp(0.01, 0.99).logit()

    def loss(self, detections: list[Detections], labels: Sequence[dict[str, Tensor]] | None) -> Tensor | None:
        """The summed loss of the given predictions."""
        if labels is None:
            return None
        if not detections:
            raise BadInput("labels were given, and this model has no heads. Build it with classes.")
        return torch.stack([set_loss(self.config.loss, layer, labels) for layer in detections]).sum()


def mask_padding(detections: Detections, real: Tensor) -> Detections:
    """Predictions in the padding as "no object", with boxes so far away that none is matched."""
    nothing = torch.full_like(detections.logits[0, 0], -1e4)
    nothing[-1] = 0.0
    return Detections(
        torch.where(real[..., None], detections.logits, nothing), detections.boxes.masked_fill(~real[..., None], 2.0)
    )
