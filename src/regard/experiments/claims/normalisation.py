"""Normalisation: large scores and softmax, deep stacks without a norm, layer norm and batch norm."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...attention.attend import attend
from ..experiment import Claim, Criterion, Measurements, Verdict, judge
from ..parameters import NO_SETTINGS, STEPS_TEXT, Bilingual, Language, Settings, Size, from_sizes, resolve_counts
from ..progress import ProgressCallback, nth_subprogress
from ..toolkit.figures import draw_reference_line, label_axes, line_style, plot_bars, subplots
from ..toolkit.key_value import KEYS, VALUES, sample_lookups
from ..toolkit.metrics import accuracy, summarize
from ..toolkit.training import fit, seeded_generator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=27,
    name="normalisation",
    title=Bilingual("Layer norm and batch norm", "层归一化与批归一化"),
    claim=Bilingual(
        "Without normalisation the numbers grow from layer to layer; a score of 50 gives e⁵⁰ = 5.2·10²¹, softmax "
        "saturates and its gradient vanishes. Layer norm prevents this and suits sequences better than batch norm, which "
        "mixes the sentences of a batch.",
        "没有归一化，数值会逐层变大；分数为 50 时 e⁵⁰ = 5.2·10²¹，softmax 饱和，梯度消失。层归一化可以防止这一点，"
        "并且比批归一化更适合序列，因为批归一化会把一批中的句子混在一起。",
    ),
    setup=Bilingual(
        "Softmax of two scores that differ by 50, and of scores of 100 with and without subtracting the largest first, in "
        "float32. A stack of 12 blocks (attention and feed-forward, residual) of dim 32 with random weights: the "
        "standard deviation of the attention scores in the last and the first block, without a norm and with layer norm "
        "before each part. Three blocks without a norm, with layer norm and with batch norm (over batch and tokens) are "
        "trained on key-value lookups with a batch of 4 and tested on new ones. The output for one sentence is compared "
        "beside two different other sentences, in training mode.",
        "float32 下相差 50 的两个分数的 softmax；分数为 100 时先减或不减最大值的 softmax。12 个随机权重的块"
        "（注意力与前馈网络，带残差，dim 32）：在没有归一化和每部分之前加层归一化时，最后一块与第一块注意力分数的标准差。"
        "三个块分别不用归一化、用层归一化、用批归一化（对批和词元），以批大小 4 训练按键查值，用新数据测试。"
        "另在训练模式下比较一句话与两批不同的句子放在一起时的输出。",
    ),
    criteria=(
        Criterion(
            "saturation",
            Bilingual(
                "Scores that differ by 50 leave a softmax gradient of at most 1e-20",
                "相差 50 的分数使 softmax 的梯度不超过 1e-20",
            ),
            "<=",
            1e-20,
        ),
        Criterion(
            "overflow",
            Bilingual(
                "A softmax that does not subtract the largest score fails at 100 in float32, the usual one does not (1: so)",
                "不先减最大值的 softmax 在 float32 下遇到 100 会失败，通常的不会（1：如此）",
            ),
            ">=",
            1,
        ),
        Criterion(
            "growth",
            Bilingual(
                "Without a norm the scores grow at least 10 times over 12 blocks",
                "没有归一化时，12 个块中分数至少增长 10 倍",
            ),
            ">=",
            10,
            core=True,
        ),
        Criterion(
            "layer-norm",
            Bilingual("With layer norm they stay within a factor of 2", "用层归一化时，变化在 2 倍以内"),
            "<=",
            2,
            core=True,
        ),
        Criterion(
            "training",
            Bilingual(
                "Layer norm learns the lookups at least 10 points better than no norm",
                "用层归一化学习查值比不用至少高 10 个百分点",
            ),
            ">=",
            0.1,
        ),
        Criterion(
            "batch-norm",
            Bilingual("It learns them at least 10 points better than batch norm", "比批归一化至少高 10 个百分点"),
            ">=",
            0.1,
        ),
        Criterion(
            "mixing",
            Bilingual(
                "With batch norm the output for a sentence depends on the others in the batch (changes by at least 1 %)",
                "用批归一化时，一句话的输出取决于同批的其他句子（变化至少 1%）",
            ),
            ">=",
            0.01,
        ),
    ),
)

DIM, DEPTH, BATCH, PAIRS = 32, 12, 4, 4
NORMS = {
    "none": Bilingual("no norm", "无归一化"),
    "layer": Bilingual("layer norm", "层归一化"),
    "batch": Bilingual("batch norm", "批归一化"),
}
SIZES: dict[Size, dict[str, int]] = {
    "toy": {"steps": 6, "seeds": 1, "blocks": 2},
    "usual": {"steps": 600, "seeds": 2, "blocks": 3},
    "full": {"steps": 5000, "seeds": 5, "blocks": 6},
}
PARAMETERS = (
    from_sizes(SIZES, "blocks", Bilingual("blocks that are trained", "训练的块数"), 1, 12),
    from_sizes(SIZES, "steps", STEPS_TEXT, 1, 20000),
    from_sizes(SIZES, "seeds", Bilingual("seeds", "随机种子数"), 1, 20),
)


class TokenBatchNorm(nn.Module):
    """Batch norm of each feature over the batch and the tokens."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.flatten(0, 1)).unflatten(0, x.shape[:2])


class NormBlock(nn.Module):
    """Attention of one head and a feed-forward layer, each with a residual, and a norm before each."""

    def __init__(self, norm: str) -> None:
        super().__init__()
        make = {"none": lambda dim: nn.Identity(), "layer": nn.LayerNorm, "batch": TokenBatchNorm}[norm]
        self.first, self.second = make(DIM), make(DIM)
        self.q, self.k, self.v = (nn.Linear(DIM, DIM) for _ in range(3))
        self.feed_forward = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.ReLU(), nn.Linear(4 * DIM, DIM))

    def scores(self, x: Tensor) -> Tensor:
        """The scaled scores of the queries and keys, `[batch, queries, keys]`."""
        y = self.first(x)
        return self.q(y) @ self.k(y).mT / math.sqrt(DIM)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        x = x + attend(self.q(y)[:, None], self.k(y)[:, None], self.v(y)[:, None]).squeeze(1)
        return x + self.feed_forward(self.second(x))


class NormModel(nn.Module):
    """Blocks over a query and key-value pairs; classifies the value of the query's key."""

    def __init__(self, norm: str, blocks: int) -> None:
        super().__init__()
        self.keys, self.values = nn.Embedding(KEYS, DIM), nn.Embedding(VALUES + 1, DIM)
        self.blocks, self.head = nn.ModuleList(NormBlock(norm) for _ in range(blocks)), nn.Linear(DIM, VALUES)

    def forward(self, keys: Tensor, values: Tensor) -> Tensor:
        x = self.keys(keys) + self.values(values)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    """`softmax`, `scores[norm][block]`, `accuracy[norm]` summarized over seeds, and `mixing[norm]`."""
    config = SIZES[size] | resolve_counts(PARAMETERS, size, settings)
    accuracies: dict[str, list[float]] = {norm: [] for norm in NORMS}
    jobs = [(norm, n) for n in range(config["seeds"]) for norm in NORMS]
    for m, (norm, n) in enumerate(jobs):
        accuracies[norm].append(train_lookups(norm, config, seed + n, nth_subprogress(progress, m, len(jobs), norm)))
    return {
        "softmax": saturate_softmax(),
        "scores": {norm: score_deviations(norm, seed) for norm in ("none", "layer")},
        "accuracy": {norm: summarize(values) for norm, values in accuracies.items()},
        "mixing": {norm: batch_dependence(norm, seed) for norm in NORMS},
        "chance": 1 / VALUES,
    }


def saturate_softmax() -> dict[str, float]:
    """e⁵⁰, the gradient of softmax for scores that differ by 50, and whether only the naive softmax fails at 100."""
    scores = torch.tensor([0.0, 50.0], dtype=torch.float64, requires_grad=True)
    scores.softmax(0)[1].backward()
    assert scores.grad is not None
    large = torch.tensor([100.0, 99.0])
    naive, usual = large.exp() / large.exp().sum(), large.softmax(0)
    fails = bool(naive.isnan().any()) and bool(usual.isfinite().all())
    return {"exp": math.exp(50), "gradient": scores.grad.abs().max().item(), "overflow": float(fails)}


@torch.no_grad()
def score_deviations(norm: str, seed: int) -> list[float]:
    """The standard deviation of the scores in each of `DEPTH` blocks with random weights of unit gain."""
    torch.manual_seed(seed)
    x, deviations = torch.randn(8, 16, DIM), []
    for _ in range(DEPTH):
        block = NormBlock(norm)
        for layer in block.modules():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=layer.weight.shape[1] ** -0.5)
        deviations.append(block.scores(x).std().item())
        x = block(x)
    return deviations


def train_lookups(norm: str, config: dict[str, int], seed: int, progress: ProgressCallback) -> float:
    """Train on batches of `BATCH`; returns the accuracy on new lookups, in evaluation mode."""
    torch.manual_seed(seed)
    generator, model = seeded_generator(seed), NormModel(norm, config["blocks"])

    def loss() -> Tensor:
        keys, values, targets = sample_lookups(BATCH, PAIRS, generator)
        return nn.functional.cross_entropy(model(keys, values), targets)

    fit(model, loss, config["steps"], 3e-3, progress)
    keys, values, targets = sample_lookups(512, PAIRS, generator)
    with torch.no_grad():
        return accuracy(model(keys, values), targets)


@torch.no_grad()
def batch_dependence(norm: str, seed: int) -> float:
    """The relative change of a sentence's output when the other sentences of its batch change, in training mode."""
    torch.manual_seed(seed)
    block, one = NormBlock(norm), torch.randn(1, 16, DIM)
    first, second = (block(torch.cat([one, 3 * torch.randn(3, 16, DIM)]))[0] for _ in range(2))
    return ((first - second).norm() / first.norm()).item()


def verdict(numbers: Measurements) -> Verdict:
    growth = {norm: rows[-1] / rows[0] for norm, rows in numbers["scores"].items()}
    layer_change = max(growth["layer"], 1 / growth["layer"])
    right = {norm: row["mean"] for norm, row in numbers["accuracy"].items()}
    softmax, mixing = numbers["softmax"], numbers["mixing"]
    measured = {
        "saturation": (softmax["gradient"], Bilingual.same(f"e⁵⁰ = {softmax['exp']:.1e}, {softmax['gradient']:.0e}")),
        "overflow": (softmax["overflow"], Bilingual.same(f"{softmax['overflow']:.0f}")),
        "growth": (growth["none"], Bilingual(f"{growth['none']:.3g} times", f"{growth['none']:.3g} 倍")),
        "layer-norm": (layer_change, Bilingual(f"{growth['layer']:.2f} times", f"{growth['layer']:.2f} 倍")),
        "training": (
            right["layer"] - right["none"],
            Bilingual(
                f"{right['layer']:.0%} against {right['none']:.0%}", f"{right['layer']:.0%}，不用时 {right['none']:.0%}"
            ),
        ),
        "batch-norm": (
            right["layer"] - right["batch"],
            Bilingual(
                f"{right['layer']:.0%} against {right['batch']:.0%}",
                f"{right['layer']:.0%}，批归一化 {right['batch']:.0%}",
            ),
        ),
        "mixing": (
            mixing["batch"],
            Bilingual(
                f"{mixing['batch']:.0%} (layer norm {mixing['layer']:.0e})",
                f"{mixing['batch']:.0%}（层归一化 {mixing['layer']:.0e}）",
            ),
        ),
    }
    return judge(
        CLAIM,
        measured,
        Bilingual(
            f"scores over {DEPTH} blocks: {growth['none']:.3g} times without a norm, {growth['layer']:.2f} with layer norm",
            f"{DEPTH} 个块中分数的变化：无归一化 {growth['none']:.3g} 倍，层归一化 {growth['layer']:.2f} 倍",
        ),
        Bilingual(
            f"e⁵⁰ = {softmax['exp']:.2e}; the softmax gradient at a difference of 50 is {softmax['gradient']:.0e}. Over "
            f"{DEPTH} blocks the scores grow {growth['none']:.3g} times without a norm and {growth['layer']:.2f} times with "
            f"layer norm. Accuracy with a batch of {BATCH}: no norm {right['none']:.0%}, layer norm {right['layer']:.0%}, "
            f"batch norm {right['batch']:.0%} (chance {numbers['chance']:.0%}). The output for a sentence changes with its "
            f"batch by {mixing['layer']:.0e} (layer norm) and {mixing['batch']:.0%} (batch norm).",
            f"e⁵⁰ = {softmax['exp']:.2e}；相差 50 时 softmax 的梯度为 {softmax['gradient']:.0e}。经过 {DEPTH} 个块，"
            f"分数在无归一化时变为 {growth['none']:.3g} 倍，用层归一化时 {growth['layer']:.2f} 倍。批大小为 {BATCH} 时的准确率："
            f"无归一化 {right['none']:.0%}，层归一化 {right['layer']:.0%}，批归一化 {right['batch']:.0%}"
            f"（随机 {numbers['chance']:.0%}）。一句话的输出随同批句子的变化：层归一化 {mixing['layer']:.0e}，"
            f"批归一化 {mixing['batch']:.0%}。",
        ),
    )


def draw(numbers: Measurements, language: Language) -> Figure:
    zh = language == "zh"
    with subplots(language, 2) as (figure, (left, right)):
        for n, (norm, rows) in enumerate(numbers["scores"].items()):
            left.plot(range(1, len(rows) + 1), rows, label=NORMS[norm](language), **line_style(n))
        left.set_yscale("log")
        left.legend()
        label_axes(
            left,
            "注意力分数的标准差" if zh else "Standard deviation of the scores",
            "块" if zh else "block",
            "标准差" if zh else "standard deviation",
        )
        plot_bars(
            right, [label(language) for label in NORMS.values()], {"": [numbers["accuracy"][norm] for norm in NORMS]}
        )
        draw_reference_line(right, numbers["chance"], "随机" if zh else "chance")
        right.set_ylim(0, 1.1)
        label_axes(
            right,
            f"批大小为 {BATCH} 时按键查值" if zh else f"Lookups with a batch of {BATCH}",
            "归一化" if zh else "norm",
            "准确率" if zh else "accuracy",
        )
        return figure
