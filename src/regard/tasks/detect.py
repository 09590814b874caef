"""Object detection: a box and a class for every object on an image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import torch
from torch import Tensor, nn

from ..data.detection import Boxes, read_boxes
from ..data.images import ENDINGS, Picture, import_pillow, load_image
from ..data.json_values import JsonObject, ParsedObject
from ..data.reading import Reading
from ..errors import BadInput
from ..models.detection import DetectionConfig, FeatureGridConfig
from ..models.set_loss import SetLoss, corners
from ..models.tokenizers.tokenizer import Tokenizer
from ..settings import Settings, Training, setting
from .architecture import Architecture, attention_stack
from .inputs.cache import TensorCache
from .inputs.given import as_picture, name_of
from .inputs.images import resize
from .metrics.average_precision import OVERLAPS, Objects, average_precision
from .results import DetectedObject, Detection
from .task import Batch, Scores, Task

SAMPLE = 100
"""Training images from which mean and deviation are computed."""

NO_CLASS = -1
"""Padding of the classes of images with fewer objects."""


@dataclass(frozen=True)
class DetectSettings(Settings):
    """Settings of the task `detect`.

    Without `queries` each position of the feature grid predicts at most one object near it. With queries a decoder
    finds objects anywhere (DETR), which needs tens of thousands of images.
    """

    image_size: int = setting(320, "Pixels of an image's longer side after resizing.", ge=1, former="size")
    backbone: tuple[int, ...] = setting(
        (32, 64, 128, 128),
        "Channels of convolutions that each halve the image; one number is the depth of a ResNet.",
        ge=1,
    )
    queries: int | None = setting(None, "Object queries of a DETR decoder; none predicts at grid positions.", ge=1)
    flip: bool = setting(True, "Half of the images are mirrored in training.")
    crop: float = setting(0.2, "Share of rows and columns that is cropped at most in training.", ge=0)
    threshold: float = setting(0.5, "Score that a box needs to be listed by predict.", ge=0, former="sure")
    images: str | None = setting(None, "Folder or tar file of the images.")
    label: str | None = setting(None, "Column of the labels.")


class Detect(Task[DetectSettings, Boxes, Boxes]):
    """Boxes for images: `Boxes` examples, average precision as COCO computes it."""

    name = "detect"
    Settings = DetectSettings
    ARCHITECTURE = Architecture(dim=128, layers=3, heads=4, hidden=512)
    TRAINING = Training(
        epochs=300,
        batch_size=8,
        learning_rate=5e-4,
        warmup=200,
        schedule="cosine",
        max_grad_norm=0.5,
        evaluate_every=250,
    )

    def __init__(
        self, settings: DetectSettings, classes: list[str], mean: Sequence[float], std: Sequence[float]
    ) -> None:
        self.settings, self.mean, self.std = settings, list(mean), list(std)
        self._labels = classes
        self.threshold = settings.threshold
        self.class_number = {name: n for n, name in enumerate(classes)}
        self.pixels = TensorCache(self.load)

    @property
    def labels(self) -> list[str]:
        return self._labels

    @classmethod
    def read(cls, paths: Sequence[Path], settings: DetectSettings) -> Reading[Boxes]:
        return read_boxes(paths, images=settings.images, label=settings.label)

    @classmethod
    def prepare(cls, examples: Sequence[Boxes], settings: DetectSettings) -> Detect:
        """The task for these training examples: its classes, and mean and deviation of the images."""
        classes = sorted({label for example in examples for label in example.labels})
        if not classes:
            raise BadInput("No box was read. Look at the files with `regard check --task detect`.")
        images = [example.image for example in examples[:: -(-len(examples) // SAMPLE)]]
        sample = [load_image(image, 3).flatten(1).float() / 255 for image in images]
        mean = torch.stack([x.mean(1) for x in sample]).mean(0)
        std = torch.stack([(x - mean[:, None]).square().mean(1) for x in sample]).mean(0).sqrt().clamp(min=1e-3)
        return cls(settings, classes, mean.tolist(), std.tolist())

    def as_dict(self) -> JsonObject:
        return {"classes": self.labels, "mean": self.mean, "std": self.std}

    @classmethod
    def from_dict(cls, data: ParsedObject, settings: DetectSettings, tokenizer: Tokenizer | None = None) -> Detect:
        return cls(settings, data["classes"], data["mean"], data["std"])

    def config(self, a: Architecture) -> DetectionConfig:
        if a.model != "transformer":
            raise BadInput(
                f"The model {a.model!r} reads tokens in a row; on an image's grid neighbours do not stand beside each "
                "other there. Leave model at transformer; layers=0 leaves the convolutions alone, to compare with."
            )
        depth, queries = self.settings.backbone, self.settings.queries
        embed = FeatureGridConfig(a.dim, depth[0] if len(depth) == 1 else depth)
        stack = replace(attention_stack(a, False, False), final_norm=True)
        decoder = None if queries is None else replace(stack, cross=True)
        return DetectionConfig(embed, stack, decoder, queries, len(self.labels), SetLoss(auxiliary=queries is not None))

    def sizes(self, examples: Sequence[Boxes]) -> list[int]:
        depth = self.settings.backbone
        stride = 32 if len(depth) == 1 else 1 << len(depth)
        shapes = (fit_size(example.size, self.settings.image_size) for example in examples)
        return [-(-height // stride) * -(-width // stride) for height, width in shapes]

    def batch(self, examples: Sequence[Boxes], rng: Random | None = None) -> dict[str, Tensor]:
        """`images`, their real `sizes`, and `classes [batch, most]`, `boxes [batch, most, 4]` of their objects."""
        pairs = [self.example(example) for example in examples]
        if rng is not None:
            pairs = [augment(image, objects, rng, self.settings) for image, objects in pairs]
        return {
            **self.pad_images([image for image, _ in pairs]),
            "classes": pad_rows([objects.classes for _, objects in pairs], NO_CLASS),
            "boxes": pad_rows([objects.boxes for _, objects in pairs], 0.0),
        }

    def example(self, example: Boxes) -> tuple[Tensor, Objects]:
        """The pixels of an image and its objects, those of an unknown class left out."""
        numbers = torch.tensor([self.class_number.get(label, NO_CLASS) for label in example.labels], dtype=torch.long)
        known = numbers != NO_CLASS
        return self.pixels(example.image), Objects(example.boxes[known], numbers[known])

    def load(self, image: Picture) -> Tensor:
        """uint8 `[3, height, width]`, the longer side resized to `image_size`."""
        pixels = load_image(image, 3)
        return resize(pixels, fit_size((pixels.shape[1], pixels.shape[2]), self.settings.image_size))

    def pad_images(self, images: Sequence[Tensor]) -> dict[str, Tensor]:
        """Images in the upper left corners of one tensor, and the size of each."""
        sizes = torch.tensor([image.shape[1:] for image in images])
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.mean, self.std))
        whole = torch.zeros(len(images), 3, *sizes.amax(0).tolist())
        for target, image in zip(whole, images, strict=True):
            target[:, : image.shape[1], : image.shape[2]] = (image / 255 - mean) / std
        return {"images": whole, "sizes": sizes}

    def count(self, batch: dict[str, Tensor]) -> int:
        return max(1, int((batch["classes"] != NO_CLASS).sum()))

    def loss(self, model: nn.Module, batch: dict[str, Tensor], smoothing: float = 0.0) -> Tensor:
        """The set loss, which is a mean over objects, times their number."""
        if smoothing:
            raise BadInput(f"label_smoothing is {smoothing}; a query's class is not smoothed here. Set it to 0.")
        labels = [
            {"classes": classes[classes != NO_CLASS], "boxes": boxes[classes != NO_CLASS]}
            for classes, boxes in zip(batch["classes"], batch["boxes"], strict=True)
        ]
        return model(images=batch["images"], sizes=batch["sizes"], labels=labels).loss * self.count(batch)

    def evaluate(self, model: nn.Module, examples: Sequence[Boxes]) -> Scores:
        """AP over IoU thresholds from 0.5 to 0.95, at 0.5 and at 0.75: the mean over classes, and of each class."""
        predictions = self.detect(model, [example.image for example in examples])
        truth = [self.example(example)[1] for example in examples]
        every = {name: average_precision(predictions, truth, n) for n, name in enumerate(self.labels)}
        per_class = {name: values for name, values in every.items() if values is not None}
        table = torch.tensor(list(per_class.values())).view(-1, len(OVERLAPS))
        columns = {"AP": table, "AP50": table[:, :1], "AP75": table[:, 5:6]}
        metrics = {name: float(values.mean()) if len(table) else 0.0 for name, values in columns.items()}
        details: JsonObject = {
            "per class": {name: {"AP": sum(v) / len(v), "AP50": v[0]} for name, v in per_class.items()}
        }
        unknown = self.unknown_labels(examples)
        details |= {"classes never learned": dict(unknown)} if unknown else {}
        lines = [
            f"{example.name}\t{self.line(objects)}" for example, objects in zip(examples, predictions, strict=True)
        ]
        return Scores(metrics, "AP", hypotheses=lines, details=details)

    def unknown_labels(self, examples: Sequence[Boxes]) -> Counter[str]:
        """Classes of these examples that the training data does not have, with their counts."""
        return Counter(label for example in examples for label in example.labels if label not in self.class_number)

    def line(self, objects: Objects) -> str:
        rows = [item.to_dict() for item in self.list_objects(objects, (1, 1))]
        return " ".join(f"{row['label']} {row['score']:.2f} {row['box']}" for row in rows)

    @torch.no_grad()
    def detect(self, model: nn.Module, images: Sequence[Picture], size: int = 8) -> list[Objects]:
        """All predicted boxes of each image, unsorted."""
        device, predictions = next(model.parameters()).device, []
        for start in range(0, len(images), size):
            inputs = self.pad_images([self.pixels(image) for image in images[start : start + size]])
            out = model(**{name: x.to(device) for name, x in inputs.items()})
            scores, classes = out.logits.float().softmax(-1)[..., :-1].max(-1)  # [batch, queries]
            rows = zip(out.boxes.float().cpu(), classes.cpu(), scores.cpu(), strict=True)
            predictions += [Objects(*row) for row in rows]
        return predictions

    def list_objects(self, objects: Objects, size: tuple[int, int]) -> tuple[DetectedObject, ...]:
        """The boxes above the threshold, best first, with corners in pixels of an image of this (height, width)."""
        scores = objects.scores if objects.scores is not None else torch.ones(len(objects.classes))
        low, high = corners(objects.boxes)
        scale = torch.tensor([size[1], size[0]] * 2)
        boxes = (torch.cat([low, high], 1).clamp(0, 1) * scale).tolist()
        order = [n for n in scores.argsort(descending=True).tolist() if scores[n] >= self.settings.threshold]
        names = [self.labels[n] for n in objects.classes.tolist()]
        return tuple(DetectedObject(names[n], float(scores[n]), tuple(boxes[n])) for n in order)

    def image_inputs(self, image: Picture) -> Batch:
        return self.pad_images([self.load(image)])

    @property
    def input_files(self) -> tuple[str, ...]:
        return ENDINGS

    def predict(self, model: nn.Module, inputs: Sequence[object]) -> list[Detection]:
        """The objects of each image, boxes (xmin, ymin, xmax, ymax) in pixels."""
        images = [as_picture(given) for given in inputs]
        sizes = [load_image(image, 3).shape[1:] for image in images]
        return [
            Detection(name_of(given), self.list_objects(objects, (size[0], size[1])))
            for given, size, objects in zip(inputs, sizes, self.detect(model, images), strict=True)
        ]

    def draw_predictions(self, model: nn.Module, inputs: Sequence[str], out: Path) -> list[Detection]:
        drawn = []
        for given, result in zip(inputs, self.predict(model, inputs), strict=True):
            file = save_boxes(load_image(as_picture(given), 3), result.objects, out / f"{Path(result.file).stem}.png")
            drawn.append(replace(result, drawn=str(file)))
        return drawn

    def describe(self, examples: Sequence[Boxes]) -> JsonObject:
        """Facts that `check` shows: images, boxes of each class, sizes."""
        boxes = torch.cat([example.boxes for example in examples])
        sizes = Counter(example.size for example in examples)
        return {
            "images": len(examples),
            "boxes": len(boxes),
            "classes": dict(Counter(label for example in examples for label in example.labels).most_common()),
            "most on an image": max(len(example.labels) for example in examples),
            "median width": f"{boxes[:, 2].median():.3f} of the image's",
            "sizes": {f"{height} × {width}": count for (height, width), count in sizes.most_common(5)},
            "positions": max(self.sizes(examples)),
            "examples": [f"{example.name}: {count_labels(example.labels)}" for example in examples[:3]],
        }


def count_labels(labels: Sequence[str]) -> str:
    """The labels with their counts.

    >>> count_labels(["cat", "dog", "cat"])
    'cat 2, dog 1'
    """
    return ", ".join(f"{label} {count}" for label, count in Counter(labels).most_common()) or "nothing"


def fit_size(size: tuple[int, int], longest: int) -> tuple[int, int]:
    """(height, width) of an image whose longer side has become `longest` pixels.

    >>> fit_size((480, 640), 320)
    (240, 320)
    """
    scale = longest / max(size)
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def augment(image: Tensor, objects: Objects, rng: Random, settings: DetectSettings) -> tuple[Tensor, Objects]:
    """The image with a random crop and flip, and its boxes accordingly."""
    if settings.crop:
        image, objects = crop_image(image, objects, rng, settings.crop)
    if settings.flip and rng.random() < 0.5:
        centre = objects.boxes.clone()
        centre[:, 0] = 1 - centre[:, 0]
        image, objects = image.flip(2), replace(objects, boxes=centre)
    return image, objects


def crop_image(image: Tensor, objects: Objects, rng: Random, most: float) -> tuple[Tensor, Objects]:
    """The image without up to a share `most` of its rows and columns, and the objects whose centre is still there."""
    _, height, width = image.shape
    rows, columns = (max(1, round(side * (1 - most * rng.random()))) for side in (height, width))
    top, left = rng.randint(0, height - rows), rng.randint(0, width - columns)
    whole, corner = torch.tensor([width, height] * 2), torch.tensor([left, top] * 2)
    size = torch.tensor([columns, rows] * 2)
    sides = (torch.cat(corners(objects.boxes), 1) * whole - corner) / size  # [objects, 4], relative to the crop
    centre = (sides[:, :2] + sides[:, 2:]) / 2
    inside = ((centre > 0) & (centre < 1)).all(1)
    sides = sides[inside].clamp(0, 1)
    boxes = torch.cat([(sides[:, :2] + sides[:, 2:]) / 2, sides[:, 2:] - sides[:, :2]], 1)
    return image[:, top : top + rows, left : left + columns], Objects(boxes, objects.classes[inside])


def pad_rows(rows: Sequence[Tensor], fill: float) -> Tensor:
    """Rows of different lengths as one tensor, with at least one column."""
    most = max(1, *(len(row) for row in rows))
    whole = rows[0].new_full((len(rows), most, *rows[0].shape[1:]), fill)
    for target, row in zip(whole, rows, strict=True):
        target[: len(row)] = row
    return whole


COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def save_boxes(image: Tensor, objects: Sequence[DetectedObject], path: Path) -> Path:
    """A PNG of the image with a frame and a label around each object."""
    from PIL import ImageDraw

    picture = import_pillow().fromarray(image.permute(1, 2, 0).contiguous().numpy())
    draw, names = ImageDraw.Draw(picture), sorted({item.label for item in objects})
    for item in objects:
        colour, (left, top, *_) = COLOURS[names.index(item.label) % len(COLOURS)], item.box
        draw.rectangle(item.box, outline=colour, width=2)
        draw.text((left + 3, top + 1), f"{item.label} {item.score:.2f}", fill=colour)
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path)
    return path
