"""Positions by task: generation of text, texture in images, and relations in images, with and without positions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...nn import Stack, StackConfig, sinusoids
from ..experiment import Claim, Criterion, Measurements, Verdict, judge
from ..parameters import (
    NO_SETTINGS,
    SEEDS_TEXT,
    STEPS_TEXT,
    TOKENS_TEXT,
    Bilingual,
    Language,
    Settings,
    Size,
    from_sizes,
    resolve_counts,
)
from ..progress import ProgressCallback, nth_subprogress
from ..toolkit.figures import label_axes, plot_bars, subplots
from ..toolkit.metrics import accuracy, summarize
from ..toolkit.training import fit, seeded_generator
from .images import GRID, SAMPLERS, TASKS, PatchTransformer
from .length import SYMBOLS, sample_texts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=28,
    name="positions",
    title=Bilingual("Positions by task", "不同任务中的位置"),
    claim=Bilingual(
        "Generation needs the order of the words strictly; in images the positions of the patches matter little.",
        "生成任务严格依赖词的次序；在图像中，图块的位置不太重要。",
    ),
    setup=Bilingual(
        "Generation: a causal model of two layers predicts the next symbol of a random text in which each depends on the "
        "two before it and their order. Images: a small ViT classifies fine stripes in noise (texture), or says whether a "
        "cross is left or right of a square (relation). Each is trained with and without positions, and the one with "
        "positions is also tested on shuffled tokens or patches. Accuracy is on new data.",
        "生成：两层因果模型预测随机文本的下一个符号，每个符号取决于前两个及其次序。图像：小型 ViT 判断噪声中细条纹的方向"
        "（纹理），或判断十字在方框的左边还是右边（关系）。各自在有位置和无位置时训练；有位置的还用打乱的词元或图块测试。"
        "准确率在新数据上计算。",
    ),
    criteria=(
        Criterion(
            "generation",
            Bilingual("Without positions generation loses at least 10 points", "没有位置时，生成至少损失 10 个百分点"),
            ">=",
            0.1,
            core=True,
        ),
        Criterion(
            "shuffled-text",
            Bilingual("On shuffled text it loses at least 10 points", "文本打乱后，生成至少损失 10 个百分点"),
            ">=",
            0.1,
        ),
        Criterion(
            "texture",
            Bilingual("Without positions texture loses at most 5 points", "没有位置时，纹理最多损失 5 个百分点"),
            "<=",
            0.05,
        ),
        Criterion(
            "shuffled-texture",
            Bilingual("On shuffled patches texture loses at most 5 points", "图块打乱后，纹理最多损失 5 个百分点"),
            "<=",
            0.05,
        ),
        Criterion(
            "relation",
            Bilingual("Without positions relations lose at most 5 points", "没有位置时，关系最多损失 5 个百分点"),
            "<=",
            0.05,
        ),
    ),
)

NAMES = {
    "generation": Bilingual("generation", "生成"),
    "detail": Bilingual("image: texture", "图像：纹理"),
    "relation": Bilingual("image: relation", "图像：关系"),
}
STATES = {
    "with": Bilingual("with positions", "有位置"),
    "without": Bilingual("without positions", "无位置"),
    "shuffled": Bilingual("with positions, shuffled when tested", "有位置，测试时打乱"),
}
DIM = 32
SIZES: dict[Size, dict[str, int]] = {
    "toy": {"tokens": 8, "images": 30, "steps": 3, "seeds": 1, "tested": 16},
    "usual": {"tokens": 24, "images": 3000, "steps": 500, "seeds": 1, "tested": 500},
    "full": {"tokens": 64, "images": 20000, "steps": 3000, "seeds": 4, "tested": 1000},
}
PARAMETERS = (
    from_sizes(SIZES, "tokens", TOKENS_TEXT, 4, 128),
    from_sizes(SIZES, "images", Bilingual("training images", "训练图像数"), 16, 50000),
    from_sizes(SIZES, "steps", STEPS_TEXT, 1, 20000),
    from_sizes(SIZES, "seeds", SEEDS_TEXT, 1, 20),
)


class Generator(nn.Module):
    """A causal stack that predicts the next symbol of each, with sinusoidal positions or none."""

    def __init__(self, positions: bool) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(SYMBOLS, DIM), positions
        self.stack = Stack(StackConfig(dim=DIM, layers=2, heads=4, mask="Causal()"))
        self.head = nn.Linear(DIM, SYMBOLS)

    def forward(self, text: Tensor) -> Tensor:
        x = self.words(text)
        return self.head(self.stack(x + sinusoids(torch.arange(text.shape[1]), DIM) if self.positions else x))


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    """`accuracy[task][state]`, summarized over seeds."""
    config = SIZES[size] | resolve_counts(PARAMETERS, size, settings)
    jobs = [(task, positions, n) for n in range(config["seeds"]) for task in NAMES for positions in (True, False)]
    accuracies: dict[str, dict[str, list[float]]] = {task: {state: [] for state in STATES} for task in NAMES}
    for m, (task, positions, n) in enumerate(jobs):
        run_progress = nth_subprogress(progress, m, len(jobs), f"{task}, {'with' if positions else 'no'} positions")
        run = run_generation if task == "generation" else partial(run_images, task)
        plain, shuffled = run(positions, config, seed * 1000 + n, run_progress)
        accuracies[task]["with" if positions else "without"].append(plain)
        if positions:
            accuracies[task]["shuffled"].append(shuffled)
    return {
        "accuracy": {
            task: {state: summarize(values) for state, values in rows.items()} for task, rows in accuracies.items()
        }
    }


def run_generation(
    positions: bool, config: dict[str, int], seed: int, progress: ProgressCallback
) -> tuple[float, float]:
    """How often the likeliest next symbol is predicted after the text, and after the text in another order."""
    torch.manual_seed(seed)
    generator, model, tokens = seeded_generator(seed), Generator(positions), config["tokens"]
    chain = torch.softmax(3 * torch.randn(SYMBOLS, SYMBOLS, SYMBOLS, generator=generator), -1)

    def loss() -> Tensor:
        text = sample_texts(chain, 32, tokens + 1, generator)
        return nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    fit(model, loss, config["steps"], 5e-3, progress)
    text = sample_texts(chain, config["tested"], tokens, generator)
    likeliest = chain[text[:, -2], text[:, -1]].argmax(-1)
    order = torch.randperm(tokens, generator=generator)
    with torch.no_grad():
        return tuple(accuracy(model(given)[:, -1], likeliest) for given in (text, text[:, order]))  # type: ignore[return-value]


def run_images(
    task: str, positions: bool, config: dict[str, int], seed: int, progress: ProgressCallback
) -> tuple[float, float]:
    """The accuracy on new images, and on the same images with shuffled patches."""
    torch.manual_seed(seed)
    images, labels = SAMPLERS[task](config["images"])
    model = PatchTransformer(nn.Conv2d(1, DIM, 4, 4), 2)
    if not positions:
        model.positions.requires_grad_(False).zero_()

    def loss() -> Tensor:
        chosen = torch.randint(len(images), (32,))
        return nn.functional.cross_entropy(model(images[chosen])[:, : TASKS[task]], labels[chosen])

    fit(model, loss, config["steps"], 2e-3, progress)
    images, labels = SAMPLERS[task](config["tested"])
    with torch.no_grad():
        plain, shuffled = (model(given)[:, : TASKS[task]] for given in (images, shuffle_patches(images)))
    return accuracy(plain, labels), accuracy(shuffled, labels)


def shuffle_patches(images: Tensor) -> Tensor:
    """The images with their patches in one random order."""
    side = images.shape[-1] // GRID
    patches = images.unfold(2, side, side).unfold(3, side, side).flatten(2, 3)  # [count, 1, patches, side, side]
    patches = patches[:, :, torch.randperm(patches.shape[2])].unflatten(2, (GRID, GRID))
    return patches.permute(0, 1, 2, 4, 3, 5).reshape(images.shape)


def verdict(numbers: Measurements) -> Verdict:
    right = {task: {state: row["mean"] for state, row in rows.items()} for task, rows in numbers["accuracy"].items()}
    comparisons = {
        "generation": ("generation", "without"),
        "shuffled-text": ("generation", "shuffled"),
        "texture": ("detail", "without"),
        "shuffled-texture": ("detail", "shuffled"),
        "relation": ("relation", "without"),
    }
    measured = {}
    for name, (task, state) in comparisons.items():
        whole, part = right[task]["with"], right[task][state]
        text = Bilingual(f"{part:.0%} against {whole:.0%}", f"{part:.0%}，有位置时 {whole:.0%}")
        measured[name] = whole - part, text
    rows = {task: " / ".join(f"{right[task][state]:.0%}" for state in STATES) for task in NAMES}
    return judge(
        CLAIM,
        measured,
        Bilingual(
            "lost without positions: "
            + ", ".join(
                f"{NAMES[task].en} {100 * (right[task]['with'] - right[task]['without']):.0f} points" for task in NAMES
            ),
            "没有位置时损失的百分点："
            + "，".join(
                f"{NAMES[task].zh} {100 * (right[task]['with'] - right[task]['without']):.0f}" for task in NAMES
            ),
        ),
        Bilingual(
            "Accuracy with positions / without / shuffled when tested: "
            + "; ".join(f"{NAMES[task].en} {row}" for task, row in rows.items())
            + ".",
            "有位置 / 无位置 / 测试时打乱的准确率："
            + "；".join(f"{NAMES[task].zh} {row}" for task, row in rows.items())
            + "。",
        ),
    )


def draw(numbers: Measurements, language: Language) -> Figure:
    zh = language == "zh"
    with subplots(language, 1, width=6.6) as (figure, (axes,)):
        plot_bars(
            axes,
            [label(language) for label in NAMES.values()],
            {STATES[state](language): [numbers["accuracy"][task][state] for task in NAMES] for state in STATES},
        )
        axes.set_ylim(0, 1.35)
        label_axes(
            axes,
            "有位置、无位置与打乱" if zh else "With positions, without, and shuffled",
            "任务" if zh else "task",
            "准确率" if zh else "accuracy",
        )
        axes.legend(loc="upper center", ncols=2)
        return figure
