"""Detection: coloured boxes are found again; average precision is right by hand, by another way, and by COCO's own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from typer.testing import CliRunner

import regard as rg
from regard.cli import app
from regard.data.detection import Boxes
from regard.data.images import ImageFile
from regard.models.set_loss import corners
from regard.tasks.architecture import Architecture
from regard.tasks.detect import NO_CLASS, Detect, DetectSettings, augment, crop_image, fit_size
from regard.tasks.metrics.average_precision import OVERLAPS, Objects, average_precision, iou

HEIGHT, WIDTH = 32, 48
KINDS = {"green": 1, "red": 0}


def paint_image(draw: Random) -> tuple[torch.Tensor, list[tuple[str, int, int, int, int]]]:
    """An image with two boxes, one in either half, and their corners."""
    image, boxes = torch.full((3, HEIGHT, WIDTH), 30, dtype=torch.uint8), []
    for start in (0, WIDTH // 2):
        width, height = draw.randint(8, 14), draw.randint(8, 14)
        left, top = start + draw.randint(0, WIDTH // 2 - width), draw.randint(0, HEIGHT - height)
        kind = draw.choice(sorted(KINDS))
        image[KINDS[kind], top : top + height, left : left + width] = 220
        boxes.append((kind, left, top, left + width, top + height))
    return image, boxes


def example(seed: int) -> Boxes:
    image, boxes = paint_image(Random(seed))
    shares = [[(a + c) / 2 / WIDTH, (b + d) / 2 / HEIGHT, (c - a) / WIDTH, (d - b) / HEIGHT] for _, a, b, c, d in boxes]
    return Boxes(image, torch.tensor(shares), tuple(box[0] for box in boxes), (HEIGHT, WIDTH), str(seed))  # type: ignore[arg-type]


def write(folder: Path, seeds: range) -> Path:
    """PNG files and the table of their boxes; the last image has none."""
    from PIL import Image

    folder.mkdir()
    lines = ["image,label,xmin,ymin,xmax,ymax"]
    for seed in seeds:
        image, boxes = paint_image(Random(seed))
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{seed}.png")
        lines += [f"{seed}.png,{kind},{a},{b},{c},{d}" for kind, a, b, c, d in boxes]
    Image.new("RGB", (WIDTH, HEIGHT), (30, 30, 30)).save(folder / "empty.png")
    (folder / "boxes.csv").write_text("\n".join([*lines, "empty.png,,,,,"]) + "\n", "utf8")
    return folder / "boxes.csv"


def test_commands_from_boxes_to_boxes(tmp_path: Path) -> None:
    """Guessing gives an AP50 of nearly nothing; a model that sees finds most boxes."""
    train, dev = write(tmp_path / "train", range(96)), write(tmp_path / "dev", range(100, 120))
    run, call = tmp_path / "run", CliRunner().invoke
    facts = json.loads(call(app, ["check", str(train), "--task", "detect", "--json"]).stdout)
    assert (facts["images"], facts["boxes"], facts["faults"]) == (97, 192, [])
    wanted = {
        "image_size": WIDTH, "backbone": "16,32,32", "dim": 32, "layers": 1, "hidden": 64, "dropout": 0.0,
        "learning_rate": 2e-3, "warmup": 10, "batch_size": 16, "evaluate_every": 110,
    }  # fmt: skip
    changes = [part for name, value in wanted.items() for part in ("--set", f"{name}={value}")]
    command = ["train", "detect", "--train", str(train), "--dev", str(dev), "--out", str(run), "--device", "cpu"]
    trained = call(app, [*command, "--steps", "110", *changes, "--json"])
    assert trained.exit_code == 0, trained.output
    scores = json.loads(trained.stdout)["metrics"]
    assert scores["AP50"] > 0.6 and scores["AP"] > 0.2, scores
    scored = json.loads(call(app, ["evaluate", str(run), "--data", str(dev), "--json"]).stdout)
    assert scored["metrics"] == pytest.approx(scores) and set(scored["per class"]) == set(KINDS)
    asked = call(
        app, ["predict", str(run), str(tmp_path / "dev" / "100.png"), "--out", str(tmp_path / "seen"), "--json"]
    )
    told = json.loads(asked.stdout)[0]
    assert {one["label"] for one in told["objects"]} <= set(KINDS) and len(told["objects"]) >= 1
    assert all(0 <= a <= c <= WIDTH and 0 <= b <= d <= HEIGHT for a, b, c, d in (one["box"] for one in told["objects"]))
    assert not torch.equal(ImageFile(Path(told["drawn"])).load(), paint_image(Random(100))[0])  # there are frames on it
    gone = call(app, ["predict", str(run), str(tmp_path / "none.png")])
    assert gone.exit_code == 1 and "none.png does not exist" in gone.output


def objects(boxes: list[list[float]], classes: list[int] | None = None, scores: list[float] | None = None) -> Objects:
    numbers = torch.tensor(classes if classes is not None else [0] * len(boxes), dtype=torch.long)
    return Objects(torch.tensor(boxes).view(-1, 4), numbers, None if scores is None else torch.tensor(scores))


A, B, FAR = [0.2, 0.2, 0.2, 0.2], [0.6, 0.6, 0.2, 0.2], [0.9, 0.1, 0.1, 0.1]
NEAR_A = [0.2, 0.2, 0.2, 0.12]
"""Overlaps A by 0.6."""


@pytest.mark.parametrize(
    ("boxes", "scores", "wanted"),
    [
        ([A, B], [0.9, 0.8], 1.0),
        ([A], [0.9], 51 / 101),  # half of the objects: recalls 0 to 0.5
        ([FAR, A, B], [0.9, 0.8, 0.7], 2 / 3),  # precisions 0, 1/2, 2/3; the best at a higher recall counts
        ([A, B, FAR], [0.9, 0.8, 0.7], 1.0),  # what is wrong and least sure costs nothing
        ([A, A, B], [0.9, 0.8, 0.7], (51 + 50 * 2 / 3) / 101),  # an object is found once
        ([], [], 0.0),
    ],
)
def test_average_precision_by_hand(boxes: list, scores: list, wanted: float) -> None:
    values = average_precision([objects(boxes, scores=scores)], [objects([A, B])], 0)
    assert values is not None and values[0] == pytest.approx(wanted)


def test_overlap_decides_what_is_found() -> None:
    """A box that overlaps by 0.6 counts at 0.5, 0.55 and 0.6, not beyond."""
    assert float(iou(torch.tensor(A), torch.tensor(NEAR_A))) == pytest.approx(0.6)
    values = average_precision([objects([[0.2, 0.2, 0.2, 0.121]], scores=[0.9])], [objects([A])], 0)
    assert values is not None and [round(value) for value in values] == [1, 1, 1, 0, 0, 0, 0, 0, 0, 0]


def test_classes_and_images_are_kept_apart() -> None:
    truth = [objects([A], [0]), objects([A], [1])]
    said = [objects([A], [1], [0.9]), objects([A], [1], [0.8])]
    assert average_precision(said, truth, 0) == [0.0] * len(OVERLAPS)
    assert average_precision(said, truth, 1) == pytest.approx([0.5] * len(OVERLAPS))
    assert average_precision(said, truth, 2) is None


def crowd(seed: int) -> tuple[list[Objects], list[Objects]]:
    """Images whose boxes are found roughly, twice or not at all, beside some that are not there."""
    generator, truth, found = torch.Generator().manual_seed(seed), [], []
    for _ in range(6):
        count = int(torch.randint(1, 6, (), generator=generator))
        boxes = torch.cat(
            [torch.rand(count, 2, generator=generator), 0.1 + 0.2 * torch.rand(count, 2, generator=generator)], 1
        )
        classes = torch.randint(0, 2, (count,), generator=generator)
        guesses = torch.cat([boxes, boxes, boxes[:1] + 0.3]) + 0.02 * torch.randn(2 * count + 1, 4, generator=generator)
        guessed = torch.cat([classes, classes, classes[:1]])
        truth.append(Objects(boxes, classes))
        found.append(Objects(guesses.clamp(min=0.01), guessed, torch.rand(2 * count + 1, generator=generator)))
    return found, truth


def plain_precision(found: list[Objects], truth: list[Objects], number: int, least: float) -> float:
    """Average precision the long way: every found box in order, then the area under the best precisions."""
    said = [
        (float(s), n, box)
        for n, one in enumerate(found)
        for s, box in zip(one.of_class(number).scores, one.of_class(number).boxes, strict=True)
    ]  # type: ignore[arg-type]
    used: set[tuple[int, int]] = set()
    total, right, points = sum(len(one.of_class(number).boxes) for one in truth), 0, []
    for count, (_, n, box) in enumerate(sorted(said, key=lambda one: -one[0]), 1):
        options = [
            (float(iou(box, other)), k) for k, other in enumerate(truth[n].of_class(number).boxes) if (n, k) not in used
        ]
        best = max(options, default=(0.0, -1))
        if best[0] >= least:
            used.add((n, best[1]))
            right += 1
        points.append((right / total, right / count))
    recalls = [step / 100 for step in range(101)]
    return sum(max((p for r, p in points if r >= recall - 1e-9), default=0.0) for recall in recalls) / 101


@pytest.mark.parametrize("seed", range(4))
def test_average_precision_the_long_way(seed: int) -> None:
    found, truth = crowd(seed)
    for number in (0, 1):
        values = average_precision(found, truth, number)
        wanted = [plain_precision(found, truth, number, least) for least in OVERLAPS]
        assert values == pytest.approx(wanted), number


def test_average_precision_is_cocos() -> None:
    """Against the reference implementation, where it is installed."""
    coco_module = pytest.importorskip("pycocotools.coco")
    evaluator = pytest.importorskip("pycocotools.cocoeval")
    found, truth = crowd(0)

    def rows(every: list[Objects]) -> list[dict]:
        return [
            {
                "image_id": n, "category_id": int(one.classes[k]), "iscrowd": 0, "id": 1000 * n + k + 1,
                "bbox": [float(x) for x in torch.cat([box[:2] - box[2:] / 2, box[2:]])],
                "area": float(box[2] * box[3]), "score": 1.0 if one.scores is None else float(one.scores[k]),
            }
            for n, one in enumerate(every)
            for k, box in enumerate(one.boxes)
        ]  # fmt: skip

    gold = coco_module.COCO()
    gold.dataset = {
        "images": [{"id": n} for n in range(len(truth))],
        "annotations": rows(truth),
        "categories": [{"id": 0}, {"id": 1}],
    }
    gold.createIndex()
    score = evaluator.COCOeval(gold, gold.loadRes(rows(found)), "bbox")
    score.evaluate()
    score.accumulate()
    score.summarize()
    ours = torch.tensor([average_precision(found, truth, number) for number in (0, 1)])
    assert score.stats[:3].tolist() == pytest.approx([ours.mean(), ours[:, 0].mean(), ours[:, 5].mean()], abs=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_boxes_move_with_their_pixels(seed: int) -> None:
    """After cutting and mirroring, a box still frames its colour."""
    one, draw = example(seed), Random(seed)
    task = Detect.prepare([one], DetectSettings(image_size=WIDTH, crop=0.3))
    image, objects = augment(*task.example(one), draw, task.settings)
    height, width = image.shape[1:]
    for box, number in zip(objects.boxes, objects.classes, strict=True):
        (left, top), (right, bottom) = (
            (side * torch.tensor([width, height])).round().int().tolist() for side in corners(box)
        )
        colour = image[KINDS[task.labels[int(number)]]]
        assert (colour[top:bottom, left:right] > 100).all()
        assert bottom - top >= 2 and right - left >= 2


def test_what_lies_outside_a_cut_is_gone() -> None:
    image = torch.zeros(3, 40, 40, dtype=torch.uint8)

    class Corner(Random):
        """Cuts off the most, at the upper left."""

        def random(self) -> float:
            return 1.0

        def randint(self, a: int, b: int) -> int:
            return b

    left, kept = crop_image(image, objects([[0.1, 0.1, 0.1, 0.1], [0.75, 0.75, 0.5, 0.5]], [0, 1]), Corner(), 0.5)
    assert left.shape == (3, 20, 20) and kept.classes.tolist() == [1]
    assert torch.allclose(kept.boxes, torch.tensor([[0.5, 0.5, 1.0, 1.0]]))


SMALL = Architecture(dim=16, layers=1, heads=2, hidden=32, dropout=0.0)


@pytest.mark.parametrize("queries", [None, 5])
def test_a_smaller_image_beside_a_larger_one(queries: int | None) -> None:
    """Its boxes are shares of itself, and of the padding nothing is said."""
    one, other = example(0), example(1)
    small = Boxes(other.image[:, :16, :24], one.boxes[:1], ("red",), (16, 24), "small")  # type: ignore[index]
    task = Detect.prepare([one, small], DetectSettings(image_size=WIDTH, backbone=(8, 8, 8), queries=queries))
    task.pixels = lambda image: image  # type: ignore[assignment]  # as they are, of two sizes
    torch.manual_seed(0)
    made = task.config(replace(SMALL, layers=0 if queries is None else 1)).build().eval()
    batch = task.batch([one, small])
    assert batch["classes"].tolist()[1][1] == NO_CLASS and task.count(batch) == 3
    assert task.loss(made, batch).isfinite()
    alone, together = task.detect(made, [small.image])[0], task.detect(made, [one.image, small.image])[1]
    if queries is None:
        assert torch.allclose(alone.boxes[0], together.boxes[0], atol=1e-5)  # too far from the padding to see it
        grid = torch.zeros(4, 6, dtype=torch.bool)
        grid[:2, :3] = True
        assert together.scores is not None and torch.equal(together.scores > 0, grid.flatten())


def test_an_image_without_objects_teaches_that_there_are_none() -> None:
    one = example(0)
    bare = Boxes(one.image, torch.zeros(0, 4), (), one.size, "bare")
    task = Detect.prepare([one], DetectSettings(image_size=WIDTH, backbone=(8, 8, 8)))
    made = task.config(SMALL).build()
    loss = task.loss(made, task.batch([bare]))
    loss.backward()
    assert loss.isfinite() and task.count(task.batch([bare])) == 1
    assert made.classes.bias.grad.abs().sum() > 0  # type: ignore[union-attr]


def test_a_class_that_was_never_learned_is_told() -> None:
    one = example(0)
    task = Detect.prepare([one], DetectSettings(image_size=WIDTH, backbone=(8, 8, 8)))
    odd = replace(one, labels=("cat", one.labels[1]))
    scores = task.evaluate(task.config(SMALL).build().eval(), [odd])
    assert scores.details["classes never learned"] == {"cat": 1} and list(scores.details["per class"]) == [
        one.labels[1]
    ]


def test_refusals_say_what_to_do() -> None:
    one = example(0)
    task = Detect.prepare([one], DetectSettings(image_size=WIDTH, backbone=(8, 8, 8)))
    with pytest.raises(rg.BadInput, match="Leave model at transformer"):
        task.config(Architecture(model="lstm"))
    with pytest.raises(rg.BadInput, match=r"label_smoothing is 0\.1"):
        task.loss(task.config(SMALL).build(), task.batch([one]), smoothing=0.1)
    with pytest.raises(rg.BadInput, match="No box was read"):
        Detect.prepare([Boxes(one.image, torch.zeros(0, 4), (), one.size, "bare")], DetectSettings())
    assert fit_size((480, 640), 320) == (240, 320)
