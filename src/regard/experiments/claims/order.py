"""Word order: attention without positions is permutation equivariant; position schemes that break it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...nn import LearnedPositions, SinusoidalPositions, Stack, StackConfig
from ...nn.parts.config import PartArguments
from ..experiment import Bilingual, Claim, Criterion, Language, Measurements, Size, Verdict, judge
from ..parameters import NO_SETTINGS, SEEDS_TEXT, STEPS_TEXT, Settings, count, resolve_counts
from ..progress import ProgressCallback, nth_subprogress
from ..toolkit.figures import COLOURS, subplots
from ..toolkit.metrics import summarize
from ..toolkit.training import fit, seeded_generator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=6,
    name="order",
    title=Bilingual("Who hit whom", "谁打了谁"),
    claim=Bilingual(
        "Self-attention does not encode order: permuting the words permutes the outputs. “A hit B” (A打了B) and “B "
        "hit A” (B打了A) cannot be distinguished until positions are added: sinusoidal, learned, relative (T5), "
        "rotary or ALiBi.",
        "自注意力本身不包含位置或顺序的信息：打乱输入，输出也只是相应地打乱。“A打了B”和“B打了A”的词向量集合相同，"
        "模型无法区分，直到加入位置编码：正弦、可学习、相对（T5）、旋转或 ALiBi。",
    ),
    setup=Bilingual(
        "A two-layer encoder in float64 receives random sentences and permutations of them. Then it is trained on "
        "sentences of three words, name, verb, name, to predict the agent from the mean of its outputs, in the same "
        "way for every position encoding, and tested on unseen pairs of names. The distance between its vectors for "
        "“A打了B” and “B打了A” is measured. A causal mask, with and without ALiBi, is tested as well.",
        "给 float64 的两层编码器输入随机句子及其打乱后的句子。之后它学习由三个词组成的句子（名字、动词、名字），"
        "从输出的平均预测施动者，各种位置编码的条件相同，在未见过的名字组合上测试；"
        "并测量它对“A打了B”与“B打了A”给出的向量之间的距离。另外也测试因果掩码，带与不带 ALiBi。",
    ),
    criteria=(
        Criterion(
            "equivariant",
            Bilingual(
                "Without positions permuting the input permutes the outputs (to within 1e-9)",
                "没有位置编码时，打乱输入只是打乱输出（相差不超过 1e-9）",
            ),
            "<=",
            1e-9,
            core=True,
        ),
        Criterion(
            "chance",
            Bilingual(
                "Without positions who hit whom is a guess (accuracy at most 0.6, chance is 0.5)",
                "没有位置编码时，谁打了谁只能猜（准确率不超过 0.6，随机为 0.5）",
            ),
            "<=",
            0.6,
            core=True,
        ),
        Criterion(
            "sinusoidal",
            Bilingual(
                "Sinusoidal positions suffice (accuracy at least 0.95)", "正弦位置编码足以区分（准确率不低于 0.95）"
            ),
            ">=",
            0.95,
        ),
        Criterion(
            "learned",
            Bilingual(
                "Learned positions suffice (accuracy at least 0.95)", "可学习位置编码足以区分（准确率不低于 0.95）"
            ),
            ">=",
            0.95,
        ),
        Criterion(
            "t5",
            Bilingual(
                "Relative (T5) positions suffice (accuracy at least 0.95)",
                "相对（T5）位置编码足以区分（准确率不低于 0.95）",
            ),
            ">=",
            0.95,
        ),
        Criterion(
            "rotary",
            Bilingual("Rotary positions suffice (accuracy at least 0.95)", "旋转位置编码足以区分（准确率不低于 0.95）"),
            ">=",
            0.95,
        ),
        Criterion(
            "alibi",
            Bilingual(
                "ALiBi positions suffice (accuracy at least 0.95)", "ALiBi 位置编码足以区分（准确率不低于 0.95）"
            ),
            ">=",
            0.95,
        ),
    ),
)

NAMES, VERBS, DIM = 20, 5, 32
SCHEMES: dict[str, PartArguments] = {
    "none": {},
    "sinusoidal": {},
    "learned": {},
    "relative (T5)": {"position": "T5Bias()"},
    "rotary": {"position": "Rotary()"},
    "ALiBi": {"position": "Alibi()"},
    "none, causal": {"mask": "Causal()"},
    "ALiBi, causal": {"position": "Alibi()", "mask": "Causal()"},
}
POSITION_SCHEMES = ("sinusoidal", "learned", "relative (T5)", "rotary", "ALiBi")
STEPS: dict[Size, int] = {"toy": 10, "usual": 200, "full": 2000}
SEEDS: dict[Size, int] = {"toy": 1, "usual": 3, "full": 5}
PARAMETERS = (
    count("names", Bilingual("names", "名字数"), 4, 200, NAMES),
    count("steps", STEPS_TEXT, 1, 20000, STEPS),
    count("seeds", SEEDS_TEXT, 1, 20, SEEDS),
)


class SentenceModel(nn.Module):
    """Encodes a sentence and classifies its subject."""

    def __init__(self, scheme: str, names: int = NAMES) -> None:
        super().__init__()
        self.words = nn.Embedding(names + VERBS, DIM)
        encodings = {"sinusoidal": SinusoidalPositions(DIM), "learned": LearnedPositions(3, DIM)}
        self.positions = encodings.get(scheme)
        self.body = Stack(StackConfig(dim=DIM, layers=2, heads=2, hidden=64, **SCHEMES[scheme]))
        self.head = nn.Linear(DIM, names)

    def encode(self, words: Tensor) -> Tensor:
        """A vector for each word, `[batch, words, dim]`."""
        x = self.words(words)
        return self.body(x if self.positions is None else x + self.positions(torch.arange(words.shape[1])).to(x.dtype))

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.encode(words).mean(1))


def sample_sentences(pairs: Tensor, batch: int, generator: torch.Generator, names: int = NAMES) -> Tensor:
    """Name, verb, name: `[batch, 3]`, the names drawn from the pairs."""
    first, second = pairs[torch.randint(len(pairs), (batch,), generator=generator)].unbind(1)
    return torch.stack([first, torch.randint(names, names + VERBS, (batch,), generator=generator), second], 1)


def split_pairs(generator: torch.Generator, names: int = NAMES) -> tuple[Tensor, Tensor]:
    """Training pairs of names and, a quarter, test pairs; a pair and its reverse are in the same split."""
    together = torch.combinations(torch.arange(names))
    together = together[torch.randperm(len(together), generator=generator)]
    both = [torch.cat([half, half.flip(1)]) for half in together.split(len(together) * 3 // 4)]
    return both[0], torch.cat(both[1:])


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    runs: dict[str, list[tuple[float, float]]] = {scheme: [] for scheme in SCHEMES}
    values = resolve_counts(PARAMETERS, size, settings)
    total = values["seeds"] * len(SCHEMES)
    for n in range(total):
        scheme = list(SCHEMES)[n % len(SCHEMES)]
        run_progress = nth_subprogress(progress, n, total, scheme)
        runs[scheme].append(train_scheme(scheme, values, seed + n // len(SCHEMES), run_progress))
    return {
        "shuffled": {scheme: permutation_error(scheme, seed) for scheme in SCHEMES},
        "accuracy": {scheme: summarize([accuracy for accuracy, _ in results]) for scheme, results in runs.items()},
        "apart": {scheme: summarize([distance for _, distance in results]) for scheme, results in runs.items()},
    }


@torch.no_grad()
def permutation_error(scheme: str, seed: int) -> float:
    """The largest difference between outputs of a permuted sentence and permuted outputs, untrained."""
    torch.manual_seed(seed)
    model = SentenceModel(scheme).double().eval()
    words, order = torch.randint(NAMES + VERBS, (8, 3)), torch.tensor([2, 0, 1])
    return (model.encode(words[:, order]) - model.encode(words)[:, order]).abs().max().item()


def train_scheme(scheme: str, values: dict[str, int], seed: int, progress: ProgressCallback) -> tuple[float, float]:
    """Accuracy on test pairs, and the relative distance of the vectors of a sentence and its reverse."""
    torch.manual_seed(seed)
    generator, names = seeded_generator(seed), values["names"]
    (training_pairs, test_pairs), model = split_pairs(generator, names), SentenceModel(scheme, names)

    def loss() -> Tensor:
        words = sample_sentences(training_pairs, 128, generator, names)
        return nn.functional.cross_entropy(model(words), words[:, 0])

    fit(model, loss, values["steps"], 3e-3, progress)
    with torch.no_grad():
        words = sample_sentences(test_pairs, 1000, generator, names)
        accuracy = (model(words).argmax(1) == words[:, 0]).float().mean().item()
        forward, backward = (model.encode(sentences).mean(1) for sentences in (words, words.flip(1)))
        return accuracy, ((forward - backward).norm(dim=1) / forward.norm(dim=1)).mean().item()


def verdict(numbers: Measurements) -> Verdict:
    accuracy = {scheme: summary["mean"] for scheme, summary in numbers["accuracy"].items()}
    short = [scheme for scheme in POSITION_SCHEMES if accuracy[scheme] < 0.95]
    names = dict(zip(POSITION_SCHEMES, ("sinusoidal", "learned", "t5", "rotary", "alibi"), strict=True))
    measured = {
        "equivariant": (numbers["shuffled"]["none"], Bilingual.same(f"{numbers['shuffled']['none']:.0e}")),
        "chance": (accuracy["none"], Bilingual.same(f"{accuracy['none']:.0%}")),
    }
    for scheme, name in names.items():
        measured[name] = accuracy[scheme], Bilingual.same(f"{accuracy[scheme]:.0%}")
    best, worst = (choose(accuracy[scheme] for scheme in POSITION_SCHEMES) for choose in (max, min))
    key = Bilingual(
        f"who hit whom: {accuracy['none']:.0%} without positions, {worst:.0%} to {best:.0%} with",
        f"谁打了谁：无位置编码 {accuracy['none']:.0%}，有位置编码 {worst:.0%} 到 {best:.0%}",
    )
    why = Bilingual(describe_en(numbers, accuracy, short), describe_zh(numbers, accuracy, short))
    return judge(CLAIM, measured, key, why)


def describe_en(numbers: Measurements, right: dict[str, float], short: list[str]) -> str:
    accuracies = ", ".join(f"{scheme} {right[scheme]:.0%}" for scheme in POSITION_SCHEMES)
    limit = f" Below 95 %: {', '.join(short)}." if short else ""
    if "ALiBi" in short:
        limit += " ALiBi's penalty |i − j| is the same in both directions, so it cannot distinguish a sentence from its mirror image."
    return (
        f"Without positions permuting the input permutes the output to within {numbers['shuffled']['none']:.0e}, "
        f"and "
        f"the accuracy is {right['none']:.0%}; with positions: {accuracies}.{limit} A causal mask without positions "
        f"reaches {right['none, causal']:.0%}, ALiBi with it {right['ALiBi, causal']:.0%}."
    )


def describe_zh(numbers: Measurements, right: dict[str, float], short: list[str]) -> str:
    accuracies = "，".join(f"{NAMES_ZH[scheme]} {right[scheme]:.0%}" for scheme in POSITION_SCHEMES)
    limit = f"未达到的有：{'、'.join(NAMES_ZH[scheme] for scheme in short)}。" if short else ""
    if "ALiBi" in short:
        limit += "ALiBi 的惩罚 |i − j| 两个方向相同，因此一句话与它的镜像没有区别。"
    return (
        f"没有位置编码时，打乱输入与打乱输出只差 {numbers['shuffled']['none']:.0e}，"
        f"判断谁打了谁的准确率为 {right['none']:.0%}；"
        f"有位置编码时：{accuracies}。{limit}只用因果掩码、不加位置编码可达 {right['none, causal']:.0%}，"
        f"ALiBi 加因果掩码 {right['ALiBi, causal']:.0%}。"
    )


NAMES_ZH = {
    "none": "无位置编码",
    "sinusoidal": "正弦",
    "learned": "可学习",
    "relative (T5)": "相对（T5）",
    "rotary": "旋转",
    "ALiBi": "ALiBi",
    "none, causal": "无位置编码，因果掩码",
    "ALiBi, causal": "ALiBi，因果掩码",
}


def draw(numbers: Measurements, language: Language) -> Figure:
    zh = language == "zh"
    names = [NAMES_ZH[scheme] if zh else scheme for scheme in SCHEMES]
    with subplots(language, 2, width=4.6) as (figure, (left, right)):
        draw_bars(left, numbers["accuracy"], names, "{:.2f}")
        left.axvline(0.5, color=COLOURS[1], linestyle="--", label="随机" if zh else "chance")
        left.set_xlim(0, 1.18)
        left.set_xlabel("未见过的名字组合上的准确率" if zh else "accuracy on unseen pairs of names")
        left.set_title("预测施动者" if zh else "Predicting the agent")
        left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18))
        draw_bars(right, numbers["apart"], names, "{:.2g}")
        right.set_xlim(
            0, 1.3 * max(summary["mean"] + summary["spread"] for summary in numbers["apart"].values()) + 1e-9
        )
        right.set_xlabel("两个向量的距离 / 范数" if zh else "distance of the two vectors / norm")
        right.set_title("“A打了B”与“B打了A”的距离" if zh else "Distance of “A hit B” and “B hit A”")
        return figure


def draw_bars(axes: Axes, summaries: Measurements, names: list[str], form: str) -> None:
    means, spreads = ([summaries[scheme][key] for scheme in SCHEMES] for key in ("mean", "spread"))
    bars = axes.barh(names, means, xerr=spreads, color=COLOURS[0], capsize=2)
    axes.bar_label(bars, [form.format(mean) for mean in means], fontsize=8, padding=3)
    axes.invert_yaxis()
