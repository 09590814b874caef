"""One head and several with equal parameters, on tokens with two relations to others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ...attention.look import look
from ...nn.attention import MultiHeadAttention
from ..experiment import Bilingual, Claim, Criterion, Language, Measurements, Size, Verdict, judge
from ..parameters import (
    DIM_TEXT,
    NO_SETTINGS,
    SEEDS_TEXT,
    STEPS_TEXT,
    TOKENS_TEXT,
    Settings,
    from_sizes,
    resolve_counts,
)
from ..progress import ProgressCallback, nth_subprogress
from ..toolkit.figures import line_style, plot_summaries, subplots
from ..toolkit.metrics import summarize
from ..toolkit.training import fit, seeded_generator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=11,
    name="heads",
    title=Bilingual("One head and several heads", "单头与多头"),
    claim=Bilingual(
        "Several heads represent different relations at once, such as syntax and meaning; a single head has only one "
        "view.",
        "多个头可以同时关注不同的关系（如语法关系与语义关系）；只用一个头，相当于只从一个角度去理解。",
    ),
    setup=Bilingual(
        "Every token points at two others (two random relations) and must predict the content of both, in order. One "
        "layer of attention of equal width, and so with exactly the same number of parameters, is trained with 1, 2, "
        "4 and 8 heads. The weight of each head on each relation is measured on new sequences.",
        "每个词元指向另外两个词元（两种随机的关系），并须按次序预测两者的内容。宽度相同、"
        "因而参数量完全相同的一层注意力，分别用 1、2、4、8 个头训练。在新的序列上测量每个头在每种关系上的权重。",
    ),
    criteria=(
        Criterion(
            "two-heads",
            Bilingual(
                "Two heads predict both relations at least 20 points more often than one",
                "两个头同时预测对两种关系的比例比一个头至少高 20 个百分点",
            ),
            ">=",
            0.2,
            core=True,
        ),
        Criterion(
            "split",
            Bilingual(
                "In every seed the two heads split the relations between them (each over half of its weight)",
                "每个种子中两个头各负责一种关系（各有一半以上的权重）",
            ),
            ">=",
            1,
        ),
    ),
)

RELATIONS = (Bilingual("first relation", "第一种关系"), Bilingual("second relation", "第二种关系"))
COUNTS = (1, 2, 4, 8)
CONTENTS = 6
SIZES: dict[Size, dict[str, int]] = {
    "toy": {"tokens": 5, "dim": 16, "steps": 10, "batch": 8, "seeds": 1},
    "usual": {"tokens": 12, "dim": 64, "steps": 700, "batch": 32, "seeds": 3},
    "full": {"tokens": 32, "dim": 128, "steps": 5000, "batch": 64, "seeds": 5},
}
PARAMETERS = (
    from_sizes(SIZES, "tokens", TOKENS_TEXT, 3, 64),
    from_sizes(SIZES, "dim", DIM_TEXT, 8, 256, multiple=8),
    from_sizes(SIZES, "steps", STEPS_TEXT, 1, 20000),
    from_sizes(SIZES, "seeds", SEEDS_TEXT, 1, 20),
)


class PointerModel(nn.Module):
    """Attention over tokens of content, position and two pointers; two classifications."""

    def __init__(self, tokens: int, dim: int, heads: int) -> None:
        super().__init__()
        self.content = nn.Embedding(CONTENTS, dim)
        self.positions, self.first, self.second = (nn.Embedding(tokens, dim) for _ in range(3))
        self.attention = MultiHeadAttention(dim, heads)
        self.head = nn.Linear(dim, 2 * CONTENTS)

    def embed(self, content: Tensor, pointers: Tensor) -> Tensor:
        """`[batch, tokens, dim]` of `content [batch, tokens]` and `pointers [batch, tokens, 2]`."""
        first, second = pointers.unbind(-1)
        return self.content(content) + self.positions.weight + self.first(first) + self.second(second)

    def forward(self, content: Tensor, pointers: Tensor) -> Tensor:
        """`[batch, tokens, 2, contents]`: the content that each pointer points to."""
        mixed = self.attention(self.embed(content, pointers))
        return self.head(mixed).unflatten(-1, (2, CONTENTS))


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    """`both[heads]`: both contents predicted; `weights[heads][seed][head]`: of the first and the second relation."""
    config = SIZES[size] | resolve_counts(PARAMETERS, size, settings)
    runs = [(heads, seed + n) for heads in COUNTS for n in range(config["seeds"])]
    runs_by_heads: dict[int, list[Measurements]] = {heads: [] for heads in COUNTS}
    for n, (heads, run_seed) in enumerate(runs):
        run_progress = nth_subprogress(progress, n, len(runs), f"{heads} heads, seed {run_seed}")
        runs_by_heads[heads].append(train_heads(heads, config, run_seed, run_progress))
    return {
        "heads": list(COUNTS),
        "both": [summarize([run["both"] for run in runs_by_heads[heads]]) for heads in COUNTS],
        "one": [summarize([run["one"] for run in runs_by_heads[heads]]) for heads in COUNTS],
        "weights": [[run["weights"] for run in runs_by_heads[heads]] for heads in COUNTS],
        "parameters": [runs_by_heads[heads][0]["parameters"] for heads in COUNTS],
    }


def train_heads(heads: int, config: dict[str, int], seed: int, progress: ProgressCallback) -> Measurements:
    """Train a model; returns its accuracy and the weights of its heads."""
    torch.manual_seed(seed)
    generator = seeded_generator(seed)
    model = PointerModel(config["tokens"], config["dim"], heads)

    def loss() -> Tensor:
        content, pointers, targets = sample_rows(config["batch"], config["tokens"], generator)
        return cross_entropy(model(content, pointers).flatten(0, 2), targets.flatten())

    fit(model, loss, config["steps"], 5e-3, progress)
    content, pointers, targets = sample_rows(8 * config["batch"], config["tokens"], generator)
    with torch.no_grad():
        right = model(content, pointers).argmax(-1) == targets
        weights = relation_weights(model, content, pointers)
    return {
        "both": right.all(-1).float().mean().item(),
        "one": right.float().mean().item(),
        "weights": weights.tolist(),
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def sample_rows(batch: int, tokens: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Contents, two different pointers per token, and the contents that they point to."""
    content = torch.randint(CONTENTS, (batch, tokens), generator=generator)
    pointers = torch.rand(batch, tokens, tokens, generator=generator).argsort(-1)[..., :2]
    targets = content.gather(1, pointers.flatten(1)).unflatten(1, (tokens, 2))
    return content, pointers, targets


def relation_weights(model: PointerModel, content: Tensor, pointers: Tensor) -> Tensor:
    """`[heads, 2]`: the mean weight that a head gives to the first and the second relation."""
    x, layer = model.embed(content, pointers), model.attention
    q, k = (layer.split_heads(make(x), layer.heads, None) for make in (layer.q, layer.k))
    weights = look(q, k, weights=True).weights  # [batch, heads, tokens, tokens]
    assert weights is not None
    indices = pointers[:, None].expand(-1, layer.heads, -1, -1)
    return weights.gather(-1, indices).mean((0, 2))


def verdict(numbers: Measurements) -> Verdict:
    single, double = (numbers["both"][numbers["heads"].index(heads)]["mean"] for heads in (1, 2))
    pairs = numbers["weights"][numbers["heads"].index(2)]
    # seeds in which one of two heads attends to the first relation and the other to the second
    specialized = sum(min(a, d) > 0.5 or min(b, c) > 0.5 for (a, b), (c, d) in pairs)
    measured = {
        "two-heads": (
            double - single,
            Bilingual(f"{double:.0%} against {single:.0%}", f"{double:.0%}，一个头 {single:.0%}"),
        ),
        "split": (
            specialized / len(pairs),
            Bilingual(f"{specialized} of {len(pairs)} seeds", f"{len(pairs)} 个种子中的 {specialized} 个"),
        ),
    }
    accuracies = " / ".join(f"{value['mean']:.0%}" for value in numbers["both"])
    counts = " / ".join(str(heads) for heads in numbers["heads"])
    alone = numbers["weights"][0][0][0]
    return judge(
        CLAIM,
        measured,
        Bilingual(
            f"both relations correct: one head {single:.0%}, two heads {double:.0%}",
            f"两种关系都对：一个头 {single:.0%}，两个头 {double:.0%}",
        ),
        Bilingual(
            f"Both contents predicted with {counts} heads and {numbers['parameters'][0]:,} parameters each: {accuracies}. The one "
            f"head (first seed) gives {alone[0]:.0%} of its weight to the first relation and {alone[1]:.0%} to the "
            f"second; two heads split the relations between them in {specialized} of {len(pairs)} seeds.",
            f"头数为 {counts}、参数量均为 {numbers['parameters'][0]:,} 时，同时预测对两者内容的比例：{accuracies}。单个头（第一个种子）把 "
            f"{alone[0]:.0%} 的权重给第一种关系，{alone[1]:.0%} 给第二种；{len(pairs)} 个种子中有 {specialized} 个两个头各负责一种关系。",
        ),
    )


def draw(numbers: Measurements, language: Language) -> Figure:
    """Accuracy by number of heads, and the weights of each head of the first seed."""
    with subplots(language, 4, width=3.2, height=3.7) as (figure, axes):
        x = range(len(numbers["heads"]))
        series = (("both", Bilingual("both contents", "两者都对")), ("one", Bilingual("each content", "单个内容")))
        for n, (name, label) in enumerate(series):
            plot_summaries(axes[0], n, x, numbers[name], label(language))
        axes[0].set_xticks(x, [str(heads) for heads in numbers["heads"]])
        axes[0].set_ylim(0, 1.05)
        axes[0].set_xlabel(Bilingual("heads (equal parameters)", "头数（参数量相同）")(language))
        axes[0].set_ylabel(Bilingual("accuracy", "准确率")(language))
        axes[0].set_title(Bilingual("Accuracy", "准确率")(language))
        axes[0].legend(frameon=False)
        for axis, heads in zip(axes[1:], (1, 2, 4), strict=True):
            draw_heads(axis, numbers["weights"][numbers["heads"].index(heads)][0], language)
    return figure


def draw_heads(axes: Axes, weights: list[list[float]], language: Language) -> None:
    """Two bars per head: its weight on each relation."""
    for n, relation in enumerate(RELATIONS):
        at = [head + 0.4 * n - 0.2 for head in range(len(weights))]
        values = [head[n] for head in weights]
        axes.bar(at, values, 0.38, label=relation(language), color=line_style(n)["color"], hatch=("", "//")[n])
    axes.set_xticks(range(len(weights)), [str(head + 1) for head in range(len(weights))])
    axes.set_xlim(-0.6, len(weights) - 0.4)
    axes.set_ylim(0, 1.25)
    axes.set_xlabel(Bilingual("head", "头")(language))
    axes.set_ylabel(Bilingual("mean weight", "平均权重")(language))
    axes.set_title(
        Bilingual(
            "Weights of one head" if len(weights) == 1 else f"Weights of {len(weights)} heads",
            f"{len(weights)} 个头的权重",
        )(language)
    )
    axes.legend(frameon=False, loc="upper center", fontsize=7)
