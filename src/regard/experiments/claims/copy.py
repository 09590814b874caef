"""The copy task: four networks repeat a sequence, by its length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...nn import Convolution, FullyConnected, Recurrent, Stack, StackConfig
from ..experiment import Claim, Criterion, Measurements, Verdict, judge
from ..parameters import (
    NO_SETTINGS,
    SEEDS_TEXT,
    STEPS_TEXT,
    Bilingual,
    Language,
    Settings,
    Size,
    count,
    from_sizes,
    resolve_counts,
)
from ..progress import ProgressCallback, nth_subprogress
from ..toolkit.figures import draw_reference_line, label_axes, line_style, plot_summaries, set_length_ticks, subplots
from ..toolkit.metrics import count_parameters, means, summarize
from ..toolkit.training import fit, seeded_generator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=23,
    name="copy",
    title=Bilingual("The copy task", "复制任务"),
    claim=Bilingual(
        "Repeating a sequence is easy for attention, which takes each token from its place. A convolution cannot reach "
        "it, a recurrent network has to carry the whole sequence in one state, and a fully connected network needs its "
        "own weights for every pair of positions and works at one length only.",
        "把一个序列重复一遍，对注意力很容易：直接到原来的位置去取。卷积够不着，循环网络要把整个序列装进一个状态，"
        "全连接网络要为每一对位置准备单独的权重，而且只适用于一种长度。",
    ),
    setup=Bilingual(
        "Input: L random symbols out of 8, a separator, L blanks; the target is the i-th symbol at the i-th blank. For "
        "each L, attention (two layers, learned bias by distance), a convolution of three layers (kernel 3), a "
        "bidirectional GRU and a fully connected network are trained with the same steps on fresh sequences. The models "
        "trained at the shortest length are also tested at twice that length; the fully connected network has no inputs "
        "for it and is counted as chance. Accuracy is per symbol.",
        "输入：8 种符号中随机的 L 个，一个分隔符，L 个空位；目标是在第 i 个空位给出第 i 个符号。对每个 L，"
        "两层注意力（按距离的可学习偏置）、三层卷积（核为 3）、双向 GRU 和全连接网络，用同样的步数在新序列上训练。"
        "在最短长度上训练的模型还用两倍长度测试；全连接网络没有相应的输入，按随机计。准确率按符号计算。",
    ),
    criteria=(
        Criterion(
            "attention",
            Bilingual("Attention copies at every length (at least 95 %)", "注意力在每种长度上都能复制（不低于 95%）"),
            ">=",
            0.95,
            core=True,
        ),
        Criterion(
            "convolution",
            Bilingual(
                "The convolution fails at the largest length (at most 50 %)", "卷积在最大长度上失败（不高于 50%）"
            ),
            "<=",
            0.5,
        ),
        Criterion(
            "recurrent",
            Bilingual("The GRU fails at the largest length (at most 50 %)", "GRU 在最大长度上失败（不高于 50%）"),
            "<=",
            0.5,
        ),
        Criterion(
            "weights",
            Bilingual(
                "The weights of the fully connected network grow with the length: at least 4 times from the shortest to the longest",
                "全连接网络的权重随长度增长：从最短到最长至少 4 倍",
            ),
            ">=",
            4,
        ),
        Criterion(
            "other-length",
            Bilingual(
                "Attention trained at one length copies at twice that length (at least 95 %)",
                "在一种长度上训练的注意力，在两倍长度上也能复制（不低于 95%）",
            ),
            ">=",
            0.95,
        ),
    ),
)

SYMBOLS, DIM = 8, 32
SEPARATOR, BLANK = SYMBOLS, SYMBOLS + 1
NAMES = {
    "attention": Bilingual("attention, 2 layers", "注意力，2 层"),
    "convolution": Bilingual("convolution, 3 layers", "卷积，3 层"),
    "recurrent": Bilingual("GRU, bidirectional", "双向 GRU"),
    "fully connected": Bilingual("fully connected", "全连接"),
}
LENGTHS: dict[Size, list[int]] = {"toy": [3, 6], "usual": [4, 8, 16, 32], "full": [4, 8, 16, 32, 64]}
SIZES: dict[Size, dict[str, int]] = {
    "toy": {"steps": 8, "seeds": 1, "tested": 16},
    "usual": {"steps": 600, "seeds": 1, "tested": 256},
    "full": {"steps": 3000, "seeds": 3, "tested": 1024},
}
PARAMETERS = (
    count(
        "longest",
        Bilingual("largest length", "最大长度"),
        3,
        128,
        {size: LENGTHS[size][-1] for size in LENGTHS},
    ),
    from_sizes(SIZES, "steps", STEPS_TEXT, 1, 20000),
    from_sizes(SIZES, "seeds", SEEDS_TEXT, 1, 20),
)


class CopyModel(nn.Module):
    """Embedding, `body`, and a classification of every token."""

    def __init__(self, body: nn.Module, dim: int = DIM) -> None:
        super().__init__()
        self.words, self.body, self.head = nn.Embedding(SYMBOLS + 2, dim), body, nn.Linear(dim, SYMBOLS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.body(self.words(tokens)))


def build_model(name: str, length: int) -> CopyModel:
    """One of the four networks; only the fully connected one depends on the length."""
    if name == "attention":
        position = "T5Bias(buckets=512, max_distance=512)"
        return CopyModel(Stack(StackConfig(dim=DIM, layers=2, heads=2, hidden=64, position=position)))
    if name == "convolution":
        return CopyModel(Convolution(DIM, 3, kernel=3))
    if name == "recurrent":
        return CopyModel(Recurrent(48, 1, cell="gru", bidirectional=True), 48)
    return CopyModel(FullyConnected(16, 1, 2 * length + 1, hidden=256), 16)


def sample_copies(batch: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens `[batch, 2 · length + 1]`: symbols, separator, blanks; and the symbols `[batch, length]`."""
    symbols = torch.randint(SYMBOLS, (batch, length), generator=generator)
    separator, blanks = torch.full((batch, 1), SEPARATOR), torch.full((batch, length), BLANK)
    return torch.cat([symbols, separator, blanks], 1), symbols


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    """`accuracy[name][length]` summarized over seeds, `doubled[name]` at twice the shortest length, `parameters`."""
    config = SIZES[size] | resolve_counts(PARAMETERS, size, settings)
    longest = config["longest"]
    lengths = [length for length in LENGTHS[size] if length < longest] + [longest]
    jobs = [(name, length, n) for n in range(config["seeds"]) for length in lengths for name in NAMES]
    accuracies: dict[str, dict[int, list[float]]] = {name: {length: [] for length in lengths} for name in NAMES}
    doubled: dict[str, list[float]] = {name: [] for name in NAMES}
    for m, (name, length, n) in enumerate(jobs):
        run_progress = nth_subprogress(progress, m, len(jobs), f"{name}, length {length}")
        model = train_model(name, length, config["steps"], seed + n, run_progress)
        accuracies[name][length].append(copy_accuracy(model, length, config["tested"], seed + n))
        if length == lengths[0]:
            other = (
                1 / SYMBOLS if name == "fully connected" else copy_accuracy(model, 2 * length, config["tested"], seed)
            )
            doubled[name].append(other)
    return {
        "lengths": lengths,
        "accuracy": {name: [summarize(rows[length]) for length in lengths] for name, rows in accuracies.items()},
        "doubled": {name: summarize(values) for name, values in doubled.items()},
        "parameters": {name: [count_parameters(build_model(name, n)) for n in lengths] for name in NAMES},
        "chance": 1 / SYMBOLS,
    }


def train_model(name: str, length: int, steps: int, seed: int, progress: ProgressCallback) -> CopyModel:
    """A network trained to copy sequences of one length."""
    torch.manual_seed(seed)
    generator, model = seeded_generator(seed), build_model(name, length)

    def loss() -> Tensor:
        tokens, symbols = sample_copies(32, length, generator)
        return nn.functional.cross_entropy(model(tokens)[:, length + 1 :].flatten(0, 1), symbols.flatten())

    fit(model, loss, steps, 5e-3, progress, target_loss=0.01)
    return model


@torch.no_grad()
def copy_accuracy(model: CopyModel, length: int, tested: int, seed: int) -> float:
    """The fraction of symbols that are repeated right."""
    tokens, symbols = sample_copies(tested, length, seeded_generator(seed + 1000))
    return (model(tokens)[:, length + 1 :].argmax(-1) == symbols).float().mean().item()


def verdict(numbers: Measurements) -> Verdict:
    accuracies = {name: means(rows) for name, rows in numbers["accuracy"].items()}
    lengths, longest = numbers["lengths"], {name: rows[-1] for name, rows in accuracies.items()}
    lowest, doubled = min(accuracies["attention"]), numbers["doubled"]["attention"]["mean"]
    weights = numbers["parameters"]["fully connected"]
    growth = weights[-1] / weights[0]
    measured = {
        "attention": (lowest, Bilingual(f"{lowest:.0%} at worst", f"最低 {lowest:.0%}")),
        "convolution": (longest["convolution"], Bilingual.same(f"{longest['convolution']:.0%}")),
        "recurrent": (longest["recurrent"], Bilingual.same(f"{longest['recurrent']:.0%}")),
        "weights": (
            growth,
            Bilingual(f"{weights[0]:,} to {weights[-1]:,}", f"{weights[0]:,} 到 {weights[-1]:,}"),
        ),
        "other-length": (doubled, Bilingual.same(f"{doubled:.0%}")),
    }
    rows = {name: " / ".join(f"{value:.0%}" for value in values) for name, values in accuracies.items()}
    both = " / ".join(map(str, lengths))
    return judge(
        CLAIM,
        measured,
        Bilingual(
            f"at length {lengths[-1]}: attention {longest['attention']:.0%}, GRU {longest['recurrent']:.0%}, convolution "
            f"{longest['convolution']:.0%}",
            f"长度 {lengths[-1]}：注意力 {longest['attention']:.0%}，GRU {longest['recurrent']:.0%}，"
            f"卷积 {longest['convolution']:.0%}",
        ),
        Bilingual(
            f"Symbols repeated right at length {both}: "
            + "; ".join(f"{NAMES[name].en} {row}" for name, row in rows.items())
            + f" (chance {numbers['chance']:.0%}). Trained at length {lengths[0]} and tested at {2 * lengths[0]}: "
            + ", ".join(f"{NAMES[name].en} {value['mean']:.0%}" for name, value in numbers["doubled"].items())
            + f". Weights of the fully connected network: {weights[0]:,} to {weights[-1]:,}; of attention "
            f"{numbers['parameters']['attention'][-1]:,} at every length.",
            f"长度 {both} 时重复正确的符号："
            + "；".join(f"{NAMES[name].zh} {row}" for name, row in rows.items())
            + f"（随机 {numbers['chance']:.0%}）。在长度 {lengths[0]} 上训练、在 {2 * lengths[0]} 上测试："
            + "，".join(f"{NAMES[name].zh} {value['mean']:.0%}" for name, value in numbers["doubled"].items())
            + f"。全连接网络的权重数：{weights[0]:,} 到 {weights[-1]:,}；注意力在每种长度上都是 "
            f"{numbers['parameters']['attention'][-1]:,}。",
        ),
    )


def draw(numbers: Measurements, language: Language) -> Figure:
    zh = language == "zh"
    with subplots(language, 2) as (figure, (left, right)):
        for n, name in enumerate(NAMES):
            plot_summaries(left, n, numbers["lengths"], numbers["accuracy"][name], NAMES[name](language))
            right.plot(numbers["lengths"], numbers["parameters"][name], label=NAMES[name](language), **line_style(n))
        draw_reference_line(left, numbers["chance"], "随机" if zh else "chance")
        left.set_ylim(0, 1.45)
        left.legend(loc="upper right", ncols=2)
        right.set_yscale("log")
        for axes in (left, right):
            set_length_ticks(axes, numbers["lengths"])
        length = "要复制的长度 L" if zh else "length L to copy"
        label_axes(left, "复制正确的符号" if zh else "Symbols copied right", length, "准确率" if zh else "accuracy")
        label_axes(right, "权重数" if zh else "Number of weights", length, "权重数" if zh else "weights")
        right.legend()
        return figure
