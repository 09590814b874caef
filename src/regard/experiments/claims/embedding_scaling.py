"""Embeddings multiplied by √dim: their norm beside that of position vectors, and the effect on training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...nn import Stack, StackConfig, sinusoids
from ..experiment import Bilingual, Claim, Criterion, Language, Measurements, Size, Verdict, judge
from ..parameters import (
    NO_SETTINGS,
    SEEDS_TEXT,
    STEPS_TEXT,
    Parameter,
    Settings,
    constant,
    count,
    resolve_counts,
    resolve_settings,
)
from ..progress import ProgressCallback, nth_subprogress
from ..toolkit.figures import line_style, subplots
from ..toolkit.metrics import summarize_losses
from ..toolkit.training import fit, seeded_generator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=5,
    name="embedding-scaling",
    title=Bilingual("Embeddings times √dim", "嵌入乘以 √dim"),
    claim=Bilingual(
        "Embeddings are initialized with standard deviation 1/√dim, so their norm is about 1; times √dim it is about "
        "the norm of the position encoding. Without scaling the position encoding dominates, and training is slower.",
        "词嵌入初始化的标准差约为 1/√dim，向量范数约为 1；乘以 √dim 后与位置编码量级匹配。若不乘，嵌入会太小，"
        "位置编码影响过大，训练会变慢。",
    ),
    setup=Bilingual(
        "Norms of 1000 newly initialized embeddings and of the sinusoidal encodings of 512 positions, dims 32 to "
        "1024. Then a two-layer encoder of dim 64 is trained, on sequences of 16 tokens, to predict the token after "
        "a marker: with standard deviation 1/√dim unscaled, times √dim, and with standard deviation 1 (the default "
        "of torch's embedding) unscaled; data and all other initial weights are the same.",
        "测量 1000 个新初始化的嵌入和 512 个位置的正弦编码的范数，dim 从 32 到 1024。"
        "之后训练 dim 为 64 的两层编码器，在 16 个词元的序列中预测标记之后的词元：标准差 1/√dim 不乘、乘以 √dim，"
        "以及标准差 1（torch 嵌入的默认值）不乘；数据与其余初始权重相同。",
    ),
    criteria=(
        Criterion(
            "scaled",
            Bilingual(
                "Scaled embeddings have about the norm of the position encoding (within a factor of 2 at every dim)",
                "缩放后的嵌入与位置编码的范数相当（每个 dim 上相差不超过 2 倍）",
            ),
            "<=",
            2,
            core=True,
        ),
        Criterion(
            "unscaled",
            Bilingual(
                "Unscaled embeddings are much shorter (at most a third of it at every dim)",
                "未缩放的嵌入短得多（每个 dim 上不超过其三分之一）",
            ),
            "<=",
            1 / 3,
            core=True,
        ),
        Criterion(
            "training",
            Bilingual(
                "Training is slower without scaling (mean loss at least 10 % higher)",
                "不缩放时训练更慢（平均损失至少高 10%）",
            ),
            ">=",
            1.1,
        ),
    ),
)

DIMS, DIM, TOKENS, VOCABULARY = (32, 64, 128, 256, 512, 1024), 64, 16, 64
SCALINGS = {"unscaled": (DIM**-0.5, 1.0), "scaled": (DIM**-0.5, math.sqrt(DIM)), "spread 1": (1.0, 1.0)}
"""The initial standard deviation of the embeddings, and their factor."""
STEPS: dict[Size, int] = {"toy": 10, "usual": 400, "full": 3000}
SEEDS: dict[Size, int] = {"toy": 1, "usual": 3, "full": 5}
PARAMETERS = (
    Parameter(
        "spread", Bilingual("initial standard deviation times √dim", "初始标准差乘以 √dim"), 0.05, 8.0, constant(1.0)
    ),
    count("steps", STEPS_TEXT, 1, 20000, STEPS),
    count("seeds", SEEDS_TEXT, 1, 20, SEEDS),
)


class MarkerModel(nn.Module):
    """Classifies the token after the marker (token 0)."""

    def __init__(self, std: float, scale: float) -> None:
        super().__init__()
        self.body, self.head = Stack(StackConfig(dim=DIM, layers=2, heads=2, hidden=128)), nn.Linear(DIM, VOCABULARY)
        self.embedding, self.scale = nn.Embedding(VOCABULARY, DIM), scale
        nn.init.normal_(self.embedding.weight, std=std)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) * self.scale + sinusoids(torch.arange(TOKENS), DIM)
        marker = (tokens == 0).long().argmax(1)
        return self.head(self.body(x)[torch.arange(len(tokens)), marker])


def sample_rows(batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens with one marker each, not at the end, and the token after it."""
    tokens = torch.randint(1, VOCABULARY, (batch, TOKENS), generator=generator)
    at = torch.randint(TOKENS - 1, (batch, 1), generator=generator)
    tokens.scatter_(1, at, 0)
    return tokens, tokens.gather(1, at + 1).flatten()


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    generator, counts = seeded_generator(seed), resolve_counts(PARAMETERS, size, settings)
    spread = resolve_settings(PARAMETERS, size, settings)["spread"]
    runs = counts["seeds"] * len(SCALINGS)
    losses: dict[str, list[list[float]]] = {scaling: [] for scaling in SCALINGS}
    for n in range(runs):
        scaling = list(SCALINGS)[n % len(SCALINGS)]
        run_progress = nth_subprogress(progress, n, runs, scaling)
        losses[scaling].append(train_marker(scaling, spread, counts["steps"], seed + n // len(SCALINGS), run_progress))
    return {
        "dims": list(DIMS),
        "lengths": vector_lengths(generator, spread),
        "learning": {k: summarize_losses(v) for k, v in losses.items()},
    }


def vector_lengths(generator: torch.Generator, spread: float = 1.0) -> dict[str, list[float]]:
    """The mean norm of embeddings, scaled and not, and of position vectors, by dim."""
    lengths: dict[str, list[float]] = {"unscaled": [], "scaled": [], "position": []}
    for dim in DIMS:
        length = (torch.randn(1000, dim, generator=generator) * (spread * dim**-0.5)).norm(dim=1).mean().item()
        lengths["unscaled"].append(length)
        lengths["scaled"].append(length * math.sqrt(dim))
        lengths["position"].append(sinusoids(torch.arange(512), dim).norm(dim=1).mean().item())
    return lengths


def train_marker(scaling: str, spread: float, steps: int, seed: int, progress: ProgressCallback) -> list[float]:
    torch.manual_seed(seed)
    std, scale = SCALINGS[scaling]
    std *= 1.0 if scaling == "spread 1" else spread
    generator, model = seeded_generator(seed), MarkerModel(std, scale)

    def loss() -> Tensor:
        tokens, targets = sample_rows(64, generator)
        return nn.functional.cross_entropy(model(tokens), targets)

    return fit(model, loss, steps, 2e-3, progress)


def verdict(numbers: Measurements) -> Verdict:
    lengths = numbers["lengths"]
    scaled, unscaled = (
        [length / position for length, position in zip(lengths[scaling], lengths["position"], strict=True)]
        for scaling in ("scaled", "unscaled")
    )
    loss = {scaling: training["mean loss"]["mean"] for scaling, training in numbers["learning"].items()}
    ratio = loss["unscaled"] / loss["scaled"]
    measured = {
        "scaled": (
            max(max(scaled), 1 / min(scaled)),
            Bilingual(f"{min(scaled):.2f} to {max(scaled):.2f} times", f"{min(scaled):.2f} 到 {max(scaled):.2f} 倍"),
        ),
        "unscaled": (max(unscaled), Bilingual(f"at most {max(unscaled):.2f} times", f"最多 {max(unscaled):.2f} 倍")),
        "training": (ratio, Bilingual(f"{ratio:.2f} times", f"{ratio:.2f} 倍")),
    }
    return judge(
        CLAIM,
        measured,
        Bilingual(
            f"{max(unscaled):.2f} times the norm of a position encoding at most unscaled, {min(scaled):.2f} at least scaled",
            f"与位置编码范数之比：不缩放最多 {max(unscaled):.2f}，缩放至少 {min(scaled):.2f}",
        ),
        Bilingual(
            f"Scaled, the norm of an embedding is {min(scaled):.2f} to {max(scaled):.2f} times that of a position encoding, "
            f"whose "
            f"norm is √(dim/2); unscaled {min(unscaled):.2f} to {max(unscaled):.2f} times. The mean training loss "
            f"is {loss['unscaled']:.2f} unscaled and {loss['scaled']:.2f} scaled ({ratio:.2f} times); embeddings that "
            f"start with standard deviation 1 need no scaling ({loss['spread 1']:.2f}).",
            f"缩放后，嵌入的范数是位置编码范数（√(dim/2)）的 {min(scaled):.2f} 到 {max(scaled):.2f} 倍；不缩放时是 "
            f"{min(unscaled):.2f} 到 {max(unscaled):.2f} 倍。平均训练损失：不缩放 {loss['unscaled']:.2f}，"
            f"缩放 {loss['scaled']:.2f}（{ratio:.2f} 倍）；初始标准差为 1 的嵌入不需要缩放（{loss['spread 1']:.2f}）。",
        ),
    )


LABELS = {
    "unscaled": Bilingual("embedding, std 1/√dim", "嵌入，标准差 1/√dim"),
    "scaled": Bilingual("embedding, std 1/√dim, times √dim", "嵌入，标准差 1/√dim，乘以 √dim"),
    "position": Bilingual("position (sinusoidal)", "位置编码（正弦）"),
    "spread 1": Bilingual("embedding, std 1", "嵌入，标准差 1"),
}


def draw(numbers: Measurements, language: Language) -> Figure:
    zh = language == "zh"
    order = list(LABELS)
    with subplots(language, 2, width=4.8) as (figure, (left, right)):
        for scaling, lengths in numbers["lengths"].items():
            left.plot(numbers["dims"], lengths, label=LABELS[scaling](language), **line_style(order.index(scaling)))
        left.set_xscale("log", base=2)
        left.set_yscale("log", base=2)
        left.set_xticks(numbers["dims"], map(str, numbers["dims"]))
        left.set_yticks([1, 2, 4, 8, 16, 32], ["1", "2", "4", "8", "16", "32"])
        left.set_xlabel("dim")
        left.set_ylabel("向量的 L2 范数" if zh else "norm of the vector (L2)")
        left.set_title("缩放前后的嵌入与位置编码" if zh else "Embeddings with and without scaling, and positions")
        left.legend()
        draw_training(right, numbers["learning"], language)
        return figure


def draw_training(axes: Axes, learning: Measurements, language: Language) -> None:
    zh = language == "zh"
    for scaling, training in learning.items():
        percent = [100 * (at + 0.5) / len(training["curve"]) for at in range(len(training["curve"]))]
        style = line_style(list(LABELS).index(scaling))
        axes.plot(percent, training["curve"], label=LABELS[scaling](language), markevery=8, **style)
    axes.set_ylim(0, 6.2)
    axes.set_xlabel("训练进度（%）" if zh else "training progress (%)")
    axes.set_ylabel("损失（nat）" if zh else "loss (nats)")
    axes.set_title("预测标记之后的词元（dim 64）" if zh else "Predicting the token after the marker (dim 64)")
    axes.legend(loc="upper left")
