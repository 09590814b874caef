"""Images: attention, convolution and both on local detail and on global relations."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...nn.block import Stack, StackConfig
from ...nn.hooks.watch import watch
from ..experiment import Bilingual, Claim, Criterion, Language, Measurements, Size, Verdict, judge
from ..parameters import NO_SETTINGS, SEEDS_TEXT, Settings, count, resolve_counts
from ..progress import ProgressCallback, nth_subprogress
from ..toolkit.figures import draw_reference_line, label_axes, line_style, localizer, plot_bars, subplots
from ..toolkit.metrics import accuracy, count_parameters, format_percent, summarize
from ..toolkit.training import fit

SIDE, DIM, GRID, MOST_STEPS = 24, 32, 6, 2000

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=18,
    name="images",
    title=Bilingual("Images: does attention alone dilute local detail?", "图像：只用注意力会稀释局部细节吗？"),
    claim=Bilingual(
        "Attention is global; it dilutes local patterns such as edges and textures and needs much data. Convolutions "
        "capture local patterns at once but not distant relations. Convolutions in the lower layers and attention in "
        "the upper layers combine both.",
        "注意力过度关注全局，会稀释边缘、纹理等局部模式，需要大量数据；卷积能立刻捕捉局部，却捕捉不到相距很远的关系；"
        "下层用卷积、上层用注意力则兼得两者。",
    ),
    setup=Bilingual(
        "Synthetic images of 24 × 24. Detail: a 5 × 5 patch of fine stripes in noise; which of four directions? "
        "Relation: a cross and a square; is the cross left or right of the square? A small ViT (patches of 4), a "
        "convolutional network with global pooling (receptive field of the last layer: 23 pixels), and a hybrid "
        "(convolutional stem, then attention), with about the same number of parameters, on few and on many images. "
        "Each is trained until its loss is small, for at most 2000 steps, and tested on new images.",
        "24 × 24 的合成图像。细节：噪声中有一块 5 × 5 的细条纹，是四个方向中的哪一个？关系："
        "图中有一个十字和一个方框，十字在方框的左边还是右边？小型 ViT（4 × 4 的图块）、"
        "带全局池化的卷积网络（最后一层的感受野为 23 个像素）、混合网络（先卷积，后注意力），参数量相近，"
        "分别用少量和较多图像训练，到损失足够小为止，最多 2000 步；在新图像上测试。",
    ),
    criteria=(
        Criterion(
            "detail-few",
            Bilingual(
                "On few images the ViT is at least 5 points behind the CNN in detail",
                "图像少时，ViT 的细节至少落后卷积 5 个百分点",
            ),
            ">=",
            0.05,
        ),
        Criterion(
            "detail-many",
            Bilingual("On many images it still is (at least 5 points)", "图像较多时仍然如此（至少 5 个百分点）"),
            ">=",
            0.05,
        ),
        Criterion(
            "relation",
            Bilingual(
                "On many images the CNN is at least 5 points behind the ViT in relations",
                "图像较多时，卷积的关系至少落后 ViT 5 个百分点",
            ),
            ">=",
            0.05,
        ),
        Criterion(
            "hybrid",
            Bilingual(
                "The hybrid is within 5 points of the better one in both", "混合网络两方面都在较好者的 5 个百分点以内"
            ),
            "<=",
            0.05,
        ),
    ),
)

TASKS = {"detail": 4, "relation": 2}
PARAMETERS = (
    count("few", Bilingual("few images", "少量图像的数目"), 8, 5000, {"toy": 30, "usual": 300, "full": 300}),
    count("many", Bilingual("many images", "较多图像的数目"), 8, 100000, {"toy": 40, "usual": 6000, "full": 50000}),
    count(
        "steps",
        Bilingual("training steps at most", "训练步数上限"),
        1,
        20000,
        {"toy": 2, "usual": MOST_STEPS, "full": MOST_STEPS},
    ),
    count("seeds", SEEDS_TEXT, 1, 20, {"toy": 1, "usual": 2, "full": 4}),
)


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    values = resolve_counts(PARAMETERS, size, settings)
    seeds, steps, amounts = values["seeds"], values["steps"], {name: values[name] for name in ("few", "many")}
    plan = [(task, amount, model_name) for task in TASKS for amount in amounts for model_name in MODELS]
    accuracies: dict[str, list[float]] = {"/".join(case): [] for case in plan}
    steps_taken: dict[str, list[int]] = {name: [] for name in accuracies}
    distances: dict[str, list[list[float]]] = {}
    for n in range(seeds):
        for m, (task, amount, model_name) in enumerate(plan):
            run_progress = nth_subprogress(
                nth_subprogress(progress, n, seeds), m, len(plan), f"{model_name}, {task}, {amount}"
            )
            model, test_accuracy, steps_used = train(
                model_name, task, amounts[amount], steps, seed * 1000 + n, run_progress
            )
            accuracies[f"{task}/{amount}/{model_name}"].append(test_accuracy)
            steps_taken[f"{task}/{amount}/{model_name}"].append(steps_used)
            if n == 0 and amount == "many" and model_name != "CNN":
                distances[f"{task}/{model_name}"] = attention_distance(model, task)
    return {
        "amounts": amounts,
        "parameters": {model_name: count_parameters(make()) for model_name, make in MODELS.items()},
        "accuracy": {name: summarize(values) for name, values in accuracies.items()},
        "steps": {name: summarize(values) for name, values in steps_taken.items()},
        "distance": distances,
        "evenly": patch_distances().mean().item(),  # of a head with uniform weights
    }


def train(
    model_name: str, task: str, amount: int, steps: int, seed: int, progress: ProgressCallback
) -> tuple[nn.Module, float, int]:
    """The trained model, its accuracy on new images, and the number of steps."""
    torch.manual_seed(seed)
    images, labels = SAMPLERS[task](amount)
    model = MODELS[model_name]()

    def loss() -> Tensor:
        chosen = torch.randint(amount, (32,))
        return nn.functional.cross_entropy(model(images[chosen])[:, : TASKS[task]], labels[chosen])

    losses = fit(model, loss, steps, 2e-3, progress, target_loss=0.05)
    test_images, test_labels = SAMPLERS[task](min(1000, 2 * amount))
    with torch.no_grad():
        return model, accuracy(model(test_images)[:, : TASKS[task]], test_labels), len(losses)


def sample_detail(count: int) -> tuple[Tensor, Tensor]:
    """Images `[count, 1, SIDE, SIDE]` with stripes of one of four directions in a 5 × 5 square, and the direction."""
    labels = torch.randint(4, (count,))
    i, j = torch.arange(5)[:, None], torch.arange(5)[None]
    stripes = torch.stack(
        [((stripe % 2) * 2 - 1).float() for stripe in (i + 0 * j, j + 0 * i, (i + j) // 2, (i - j) // 2)]
    )
    images = 0.5 * torch.randn(count, SIDE, SIDE)
    add_shapes(images, 1.2 * stripes[labels], torch.randint(SIDE - 5, (count, 2)))
    return images[:, None], labels


def sample_relation(count: int) -> tuple[Tensor, Tensor]:
    """Images with a cross and a square, and whether the cross is right of the square; they never share columns."""
    cross, square = torch.zeros(5, 5), torch.ones(5, 5)
    cross[2], cross[:, 2], square[1:4, 1:4] = 1, 1, 0
    labels = torch.randint(2, (count,))
    left = torch.randint(SIDE - 9, (count,))
    right = left + 5 + (torch.rand(count) * (SIDE - 9 - left)).long()
    columns = torch.where(labels[:, None] == 1, torch.stack([right, left], 1), torch.stack([left, right], 1))
    images = 0.3 * torch.randn(count, SIDE, SIDE)
    for n, shape in enumerate((cross, square)):
        rows = torch.randint(SIDE - 5, (count,))
        add_shapes(images, shape.expand(count, 5, 5), torch.stack([rows, columns[:, n]], 1))
    return images[:, None], labels


SAMPLERS = {"detail": sample_detail, "relation": sample_relation}


def add_shapes(images: Tensor, shapes: Tensor, corners: Tensor) -> None:
    """Add to each image its shape `[count, 5, 5]` at its corner `[count, 2]`."""
    rows = corners[:, 0, None, None] + torch.arange(5)[:, None]
    columns = corners[:, 1, None, None] + torch.arange(5)
    images[torch.arange(len(images))[:, None, None], rows, columns] += shapes


class PatchTransformer(nn.Module):
    """A stem that makes GRID × GRID tokens, learned positions, a stack, and a head on the mean token."""

    def __init__(self, stem: nn.Module, layers: int) -> None:
        super().__init__()
        self.stem = stem
        self.positions = nn.Parameter(0.1 * torch.randn(GRID * GRID, DIM))
        self.stack = Stack(StackConfig(dim=DIM, layers=layers, heads=4, hidden=2 * DIM))
        self.head = nn.Linear(DIM, 4)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.stack(self.stem(images).flatten(2).mT + self.positions).mean(1))


def convolutions(*channels: int) -> nn.Sequential:
    """Convolutions of 3 × 3 with batch norms; the first two halve the image's sides."""
    layers: list[nn.Module] = []
    for n, (before, after) in enumerate(pairwise((1, *channels))):
        layers += [nn.Conv2d(before, after, 3, 2 if n < 2 else 1, 1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "ViT": lambda: PatchTransformer(nn.Conv2d(1, DIM, 4, 4), 3),
    "CNN": lambda: nn.Sequential(
        convolutions(16, DIM, 36, 36), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(36, 4)
    ),
    "hybrid": lambda: PatchTransformer(convolutions(16, DIM), 2),
}


def attention_distance(model: nn.Module, task: str) -> list[list[float]]:
    """The mean distance, in pixels, of the attention of each head: `[layers][heads]`."""
    images, _ = SAMPLERS[task](64)
    with torch.no_grad(), watch(model, weights=True) as views:
        model(images)
    distances = patch_distances()
    return [
        [round(v, 3) for v in (view.weights * distances).sum(-1).mean((0, 2)).tolist()]  # type: ignore[operator]
        for view in views.values()
    ]


def patch_distances() -> Tensor:
    """The distances of the patches in pixels, `[GRID², GRID²]`."""
    centres = torch.cartesian_prod(torch.arange(GRID), torch.arange(GRID)).float() * (SIDE / GRID)
    return torch.cdist(centres, centres)


def verdict(numbers: Measurements) -> Verdict:
    accuracies = {name: summary["mean"] for name, summary in numbers["accuracy"].items()}
    vit, cnn, hybrid = ({task: accuracies[f"{task}/many/{model}"] for task in TASKS} for model in MODELS)
    few = accuracies["detail/few/CNN"] - accuracies["detail/few/ViT"]
    differences = {
        "detail-few": few,
        "detail-many": cnn["detail"] - vit["detail"],
        "relation": vit["relation"] - cnn["relation"],
        "hybrid": max(max(vit[task], cnn[task]) - hybrid[task] for task in TASKS),
    }
    measured = {
        name: (value, Bilingual(f"{100 * value:+.1f} points", f"{100 * value:+.1f} 个百分点"))
        for name, value in differences.items()
    }
    rows = {
        model: f"{format_percent(means['detail'])} / {format_percent(means['relation'])}"
        for model, means in zip(MODELS, (vit, cnn, hybrid), strict=True)
    }
    lowest, highest = ([sum(layers[n]) / len(layers[n]) for layers in numbers["distance"].values()] for n in (0, -1))
    distances = f"{sum(lowest) / len(lowest):.1f}", f"{sum(highest) / len(highest):.1f}"
    key = Bilingual(
        f"accuracy in detail / relation: ViT {rows['ViT']}, CNN {rows['CNN']}, hybrid {rows['hybrid']}",
        f"细节 / 关系准确率：ViT {rows['ViT']}，CNN {rows['CNN']}，混合 {rows['hybrid']}",
    )
    return judge(CLAIM, measured, key, Bilingual(
        f"Detail / relation on many images: ViT {rows['ViT']}, CNN {rows['CNN']}, hybrid {rows['hybrid']}. On few "
        "images the "
        f"ViT is {100 * few:.1f} points behind in detail. The mean attention distance is {distances[0]} pixels in the first layer and "
        f"{distances[1]} in "
        f"the last (uniform weights: {numbers['evenly']:.1f}).",
        f"图像较多时的细节 / 关系：ViT {rows['ViT']}，CNN {rows['CNN']}，混合 {rows['hybrid']}。图像少时 ViT "
        f"的细节落后 {100 * few:.1f} 个百分点。"
        f"平均注意力距离：第一层 {distances[0]} 像素，最后一层 {distances[1]} 像素（权重均匀时为 {numbers['evenly']:.1f}）。",
    ))  # fmt: skip


def draw(numbers: Measurements, language: Language) -> Figure:
    tr = localizer(language)
    names = {"ViT": "ViT", "CNN": tr("convolution", "卷积"), "hybrid": tr("hybrid", "混合")}
    groups = [tr(f"{numbers['amounts']['few']} images", f"{numbers['amounts']['few']} 张"),
              tr(f"{numbers['amounts']['many']} images", f"{numbers['amounts']['many']} 张")]  # fmt: skip
    with subplots(language, 3, width=4.2) as (figure, (left, middle, right)):
        figure.suptitle(tr("Accuracy on new images, and attention distance", "新图像的准确率，以及注意力距离"))
        titles = {"detail": tr("Detail: direction of fine stripes", "细节：细条纹的方向"),
                  "relation": tr("Relation: cross left or right of square", "关系：十字在方框左边还是右边")}  # fmt: skip
        for axes, task in ((left, "detail"), (middle, "relation")):
            series = {
                text: [numbers["accuracy"][f"{task}/{amount}/{model}"] for amount in ("few", "many")]
                for model, text in names.items()
            }
            plot_bars(axes, groups, series)
            draw_reference_line(axes, 1 / TASKS[task], tr("chance", "随机"))
            label_axes(axes, titles[task], tr("trained on", "训练图像"), tr("accuracy", "准确率"))
            axes.set_ylim(0, 1.25)
            axes.legend(ncols=2, loc="upper left", fontsize=7)
        for n, (name, layers) in enumerate(numbers["distance"].items()):
            task, model = name.split("/")
            text = f"{names[model]}, {tr(task, {'detail': '细节', 'relation': '关系'}[task])}"
            dots = [(layer + 1 + 0.08 * (n - 1.5), d) for layer, heads in enumerate(layers) for d in heads]
            right.plot(*zip(*dots, strict=True), label=text, **line_style(n, line=""))
        draw_reference_line(right, numbers["evenly"], tr("uniform weights", "权重均匀"))
        right.set_xticks([1, 2, 3])
        right.set_ylim(0, 1.3 * numbers["evenly"])
        label_axes(
            right,
            tr("Mean attention distance of each head", "每个头的平均注意力距离"),
            tr("layer", "层"),
            tr("pixels", "像素"),
        )
        right.legend(fontsize=7)
    return figure
