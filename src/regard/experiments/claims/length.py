"""Length extrapolation: positions on sequences longer than in training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...models.heads import IGNORED
from ...nn.block import StackConfig
from ..experiment import Bilingual, Claim, Criterion, Language, Measurements, Size, Verdict, judge
from ..parameters import NO_SETTINGS, SEEDS_TEXT, STEPS_TEXT, Settings, from_sizes, resolve_counts
from ..progress import ProgressCallback, nth_subprogress
from ..toolkit.figures import line_style, set_length_ticks, subplots
from ..toolkit.metrics import means, summarize, token_accuracy
from ..toolkit.tagger import build_tagger
from ..toolkit.training import fit, seeded_generator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=7,
    name="length",
    title=Bilingual("Sequences longer than in training", "比训练时更长的序列"),
    claim=Bilingual(
        "Sinusoidal position encodings let a model generalize to sequences longer than those it was trained on.",
        "由正弦、余弦函数构成的位置编码，使模型可以泛化到比训练时更长的序列。",
    ),
    setup=Bilingual(
        "Each token of a random text depends on the two tokens before it and their order. Causal models of two "
        "layers that differ only in the position encoding are trained on texts of one length and tested on texts 2, "
        "4 and 8 times as long. The metric is how often they predict the most likely next token in the second half "
        "of a text. Learned position embeddings beyond the training length exist but are untrained.",
        "随机文本的每个词元取决于它前面的两个词元及其次序。若干两层因果模型只有位置编码不同，在同一长度的文本上训练，"
        "再在 2、4、8 倍长的文本上测试：统计在文本后半部分预测对最可能的下一个词元的比例。"
        "可学习位置嵌入在训练长度之外的向量存在，但没有经过训练。",
    ),
    criteria=(
        Criterion(
            "learns",
            Bilingual(
                "With sinusoidal encodings the task is learned (accuracy at least 0.8 at the training length)",
                "使用正弦编码能学会任务（训练长度上准确率不低于 0.8）",
            ),
            ">=",
            0.8,
            core=True,
        ),
        Criterion(
            "twice",
            Bilingual(
                "It generalizes to twice the length (at least 90 % of that accuracy)",
                "能推广到 2 倍长度（不低于该准确率的 90%）",
            ),
            ">=",
            0.9,
            core=True,
        ),
        Criterion(
            "eight-times",
            Bilingual(
                "It generalizes up to 8 times the length (at least 90 % of that accuracy)",
                "能推广到 8 倍长度（不低于该准确率的 90%）",
            ),
            ">=",
            0.9,
        ),
    ),
)

NAMES = {
    "sinusoidal": Bilingual("sinusoidal", "正弦"),
    "learned": Bilingual("learned", "可学习"),
    "T5": Bilingual("T5 bias", "T5 偏置"),
    "rotary": Bilingual("rotary", "旋转"),
    "ALiBi": Bilingual("ALiBi", "ALiBi"),
    "none": Bilingual("none", "无"),
}
POSITIONS = {
    "T5": "T5Bias(buckets=16, max_distance=32, bidirectional=False)",
    "rotary": "Rotary()",
    "ALiBi": "Alibi()",
}
SYMBOLS = 6
SIZES: dict[Size, dict[str, int]] = {
    "toy": {"tokens": 8, "steps": 12, "batch": 8, "seeds": 1, "dim": 16, "texts": 4},
    "usual": {"tokens": 32, "steps": 350, "batch": 16, "seeds": 2, "dim": 32, "texts": 32},
    "full": {"tokens": 128, "steps": 3000, "batch": 32, "seeds": 5, "dim": 64, "texts": 128},
}
PARAMETERS = (
    from_sizes(SIZES, "tokens", Bilingual("tokens of a training text", "训练文本的词元数"), 4, 512),
    from_sizes(SIZES, "steps", STEPS_TEXT, 1, 20000),
    from_sizes(SIZES, "seeds", SEEDS_TEXT, 1, 20),
)


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    """`accuracy[scheme][length]`, summarized over seeds."""
    config = SIZES[size] | resolve_counts(PARAMETERS, size, settings)
    lengths = [config["tokens"] * times for times in (1, 2, 4, 8)]
    runs = [(scheme, seed + n) for n in range(config["seeds"]) for scheme in NAMES]
    accuracies: dict[str, list[list[float]]] = {scheme: [] for scheme in NAMES}
    for n, (scheme, run_seed) in enumerate(runs):
        run_progress = nth_subprogress(progress, n, len(runs), f"{scheme}, seed {run_seed}")
        accuracies[scheme].append(train_and_test(scheme, lengths, config, run_seed, run_progress))
    by_length = {
        scheme: [summarize(column) for column in zip(*rows, strict=True)] for scheme, rows in accuracies.items()
    }
    return {"lengths": lengths, "accuracy": by_length, "chance": 1 / SYMBOLS}


def train_and_test(
    scheme: str, lengths: list[int], config: dict[str, int], seed: int, progress: ProgressCallback
) -> list[float]:
    """Train at the first length; returns the accuracy at each length."""
    generator = seeded_generator(seed)
    torch.manual_seed(seed)
    chain = torch.softmax(3 * torch.randn(SYMBOLS, SYMBOLS, SYMBOLS, generator=generator), -1)
    positions = "sinusoidal" if scheme == "sinusoidal" else lengths[-1] if scheme == "learned" else None
    stack = StackConfig(config["dim"], 2, 4, mask="Causal()", position=POSITIONS.get(scheme))
    model = build_tagger(stack, SYMBOLS, SYMBOLS, positions)

    texts = sample_texts(chain, config["batch"] * config["steps"], lengths[0] + 1, generator)
    batches = torch.stack(texts.split(config["batch"]))
    index = torch.zeros(1, dtype=torch.long)  # on the device, so that a CUDA graph can advance it

    def loss() -> Tensor:
        text = batches[index].squeeze(0)
        index.add_(1)
        return model(tokens=text[:, :-1], labels=text[:, 1:]).loss

    fit(model, loss, config["steps"], 5e-3, progress)
    return [
        token_accuracy(model, likeliest_labels(chain, sample_texts(chain, config["texts"], tokens, generator)))
        for tokens in lengths
    ]


def sample_texts(chain: Tensor, count: int, tokens: int, generator: torch.Generator) -> Tensor:
    """Texts `[count, tokens]` of a chain `[symbols, symbols, symbols]`: p(next | last two)."""
    text = torch.randint(SYMBOLS, (count, 2), generator=generator)
    for _ in range(tokens - 2):
        following = torch.multinomial(chain[text[:, -2], text[:, -1]], 1, generator=generator)
        text = torch.cat([text, following], 1)
    return text


def likeliest_labels(chain: Tensor, text: Tensor) -> dict[str, Tensor]:
    """Texts with the likeliest next token as the label in the second half."""
    labels = torch.full_like(text, IGNORED)
    labels[:, 1:] = chain.argmax(-1)[text[:, :-1], text[:, 1:]]
    labels[:, : text.shape[1] // 2] = IGNORED
    return {"tokens": text, "labels": labels}


def relative_accuracy(numbers: Measurements, scheme: str) -> list[float]:
    """Accuracy at each length relative to the trained length."""
    accuracies = means(numbers["accuracy"][scheme])
    return [value / max(accuracies[0], 1e-9) for value in accuracies]


def verdict(numbers: Measurements) -> Verdict:
    fractions = relative_accuracy(numbers, "sinusoidal")
    at_longest = {scheme: relative_accuracy(numbers, scheme)[-1] for scheme in NAMES}
    extrapolating = [scheme for scheme in NAMES if at_longest[scheme] >= 0.9]
    trained = numbers["accuracy"]["sinusoidal"][0]["mean"]
    measured = {
        "learns": (trained, Bilingual.same(f"{trained:.2f}")),
        "twice": (fractions[1], Bilingual.same(f"{fractions[1]:.0%}")),
        "eight-times": (min(fractions), Bilingual(f"{min(fractions):.0%} at worst", f"最低 {min(fractions):.0%}")),
    }
    return judge(
        CLAIM,
        measured,
        Bilingual(
            f"sinusoidal keeps {', '.join(f'{value:.0%}' for value in fractions[1:])} at 2, 4, 8 times the length",
            f"正弦编码在 2、4、8 倍长度上保留 {'、'.join(f'{value:.0%}' for value in fractions[1:])}",
        ),
        Bilingual(
            f"With sinusoidal encodings the accuracy is {trained:.2f} at {numbers['lengths'][0]} tokens; of this, "
            f"{', '.join(f'{value:.0%}' for value in fractions[1:])} remain at 2, 4 and 8 times the length. At 8 times "
            f"{', '.join(f'{NAMES[scheme].en} keeps {value:.0%}' for scheme, value in at_longest.items())}. "
            f"90 % or more: {', '.join(NAMES[scheme].en for scheme in extrapolating) or 'none'}.",
            f"使用正弦编码时，{numbers['lengths'][0]} 个词元上的准确率为 {trained:.2f}；在 2、4、8 倍长度上分别保留其 "
            f"{'、'.join(f'{value:.0%}' for value in fractions[1:])}。8 倍长度时的保留比例："
            f"{'，'.join(f'{NAMES[scheme].zh} {value:.0%}' for scheme, value in at_longest.items())}。"
            f"不低于 90% 的有：{'、'.join(NAMES[scheme].zh for scheme in extrapolating) or '无'}。",
        ),
    )


def draw(numbers: Measurements, language: Language) -> Figure:
    """Accuracy by length, one line for each scheme."""
    lengths = numbers["lengths"]
    with subplots(language, width=7.6, height=4.4) as (figure, (axes,)):
        for n, (scheme, name) in enumerate(NAMES.items()):
            values = numbers["accuracy"][scheme]
            bars = [summary["spread"] for summary in values]
            axes.errorbar(lengths, means(values), bars, label=name(language), capsize=2, **line_style(n))
        axes.axhline(numbers["chance"], color="#777777", linewidth=0.8, label=Bilingual("chance", "随机猜测")(language))
        set_length_ticks(axes, lengths)
        axes.set_ylim(0, 1.05)
        below = Bilingual("tokens of the test text (trained on the shortest)", "测试文本的词元数（用最短的训练）")
        axes.set_xlabel(below(language))
        axes.set_ylabel(Bilingual("accuracy (most likely next token)", "准确率（最可能的下一个词元）")(language))
        title = Bilingual("Accuracy up to 8 times the training length", "直到 8 倍训练长度的准确率")
        axes.set_title(title(language))
        figure.legend(loc="outside right upper", frameon=False, title=Bilingual("position", "位置编码")(language))
    return figure
