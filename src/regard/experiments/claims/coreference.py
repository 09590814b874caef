"""Coreference: whether heads of a pretrained encoder link *it* with its antecedent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...nn.hooks.watch import watch
from ..experiment import Bilingual, Claim, Criterion, Language, Measurements, Size, Verdict, judge
from ..parameters import NO_SETTINGS, Settings, count, resolve_counts
from ..progress import ProgressCallback
from ..toolkit.figures import COLOURS, HATCHES, Localizer, label_axes, localizer, subplots
from ..toolkit.metrics import format_percent
from ..toolkit.minilm import SentenceEncoder, load_minilm
from ..toolkit.training import seeded_generator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=19,
    name="coreference",
    title=Bilingual("What does *it* attend to?", "it 关注哪个词？"),
    claim=Bilingual(
        'In "The animal didn\'t cross the street because it was too tired" self-attention links *it* with *animal*.',
        "在句子 “The animal didn't cross the street because it was too tired.” 中，"
        "自注意力可明确关联 “it” 与 “animal”。",
    ),
    setup=Bilingual(
        "MiniLM (pretrained, six layers of twelve heads). Sentences of five templates, each in two versions that "
        "change what *it* refers to (too tired: the animal, too wide: the street). For each head: does *it* give the "
        "correct noun more weight than the other one? The best head on half of the nouns is tested on the other "
        "half. Always choosing the first noun, the nearest noun or a random noun gives 50 % by construction.",
        "MiniLM（预训练，六层，每层十二个头）。五种模板的句子，每句有两个版本，使 it 指代不同的词（too tired：动物；"
        "too wide：街道）。对每个头检查：it 给正确名词的权重是否大于另一个名词？在一半名词上选出最好的头，"
        "用另一半名词测试。总选第一个名词、总选最近的名词或随机选择，都恰好是 50 %。",
    ),
    criteria=(
        Criterion(
            "sentence",
            Bilingual(
                "In the sentence itself the selected head gives *animal* more weight than *street*",
                "在原句中，选出的头给 animal 的权重大于 street",
            ),
            ">=",
            1,
        ),
        Criterion(
            "chance",
            Bilingual(
                "On other sentences the selected head prefers the correct noun more often than chance (95 % interval above 50 %)",
                "在其他句子中，选出的头偏向正确名词的比例高于随机（95% 区间在 50% 之上）",
            ),
            ">=",
            0.5,
        ),
        Criterion(
            "moves",
            Bilingual(
                "Weights move towards the correct noun when the version changes (95 % interval above 50 %)",
                "版本改变时权重移向正确名词（95% 区间在 50% 之上）",
            ),
            ">=",
            0.5,
        ),
        Criterion(
            "reliable",
            Bilingual("The selected head is reliable (correct in at least 75 %)", "选出的头是可靠的（至少 75% 正确）"),
            ">=",
            0.75,
        ),
    ),
)


@dataclass(frozen=True)
class Pattern:
    """A template of sentences with two nouns; the last word decides which is the antecedent."""

    text: str
    first: str
    second: str
    of_first: str
    of_second: str


@dataclass(frozen=True)
class SentencePair:
    """A sentence in two wordings: *it* refers to the first noun, then to the second."""

    first: str
    second: str
    wordings: tuple[str, str]


PATTERNS = (
    Pattern("The {a} didn't cross the {b} because it was too {c}.", "animal dog cat horse cow bear",
            "street road river bridge field lake", "tired scared weak", "wide busy deep"),
    Pattern("The {a} doesn't fit into the {b} because it is too {c}.", "trophy ball book chair table statue",
            "suitcase box bag car drawer cabinet", "big large wide", "small narrow tiny"),
    Pattern("The {a} couldn't lift the {b} because it was too {c}.", "robot horse machine truck elephant crane",
            "stone rock box car log piano", "weak small old", "heavy big massive"),
    Pattern("The {a} didn't eat the {b} because it was too {c}.", "dog cat horse bird rabbit monkey",
            "apple meat cake fish bread soup", "sick full tired", "cold hot hard"),
    Pattern("The {a} broke the {b} because it was so {c}.", "ball stone hammer rock bullet hail",
            "window glass mirror bottle roof lamp", "hard heavy fast", "thin fragile weak"),
)  # fmt: skip
EXAMPLE_SENTENCES = ("The animal didn't cross the street because it was too tired.",
          "The animal didn't cross the street because it was too wide.")  # fmt: skip

ROUNDING = 1e-5
PARAMETERS = (
    count(
        "pairs",
        Bilingual("sentence pairs per template", "每种模板的句对数"),
        2,
        81,
        {"toy": 4, "usual": 27, "full": 27},
    ),
    count(
        "templates", Bilingual("sentence templates", "句子模板数"), 1, len(PATTERNS), {"toy": 1, "usual": 5, "full": 5}
    ),
)
"""Smaller changes of a fraction of the weight are rounding."""


def sentence_pairs(pattern: Pattern, half: int) -> list[SentencePair]:
    """The sentences with every second noun (half 0: the first, the third, …); the halves share no noun."""
    firsts, seconds = pattern.first.split()[half::2], pattern.second.split()[half::2]
    ends = list(zip(pattern.of_first.split(), pattern.of_second.split(), strict=True))
    return [
        SentencePair(a, b, (pattern.text.format(a=a, b=b, c=c), pattern.text.format(a=a, b=b, c=d)))
        for a, b, (c, d) in product(firsts, seconds, ends)
        if a != b
    ]


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    encoder = load_minilm()
    values = resolve_counts(PARAMETERS, size, settings)
    patterns = PATTERNS[: values["templates"]]
    generator = seeded_generator(seed)
    limit = values["pairs"]
    halves = []
    for half in range(2):
        progress(half / 2, f"half {half + 1} of the nouns")
        sampled = [
            pairs[n]
            for pairs in (sentence_pairs(pattern, half) for pattern in patterns)
            for n in torch.randperm(len(pairs), generator=generator)[:limit].tolist()
        ]
        weights = [noun_weights(encoder, pair) for pair in sampled]
        halves.append(torch.stack(weights))  # [items, wordings, nouns, layers, heads]
    right, moved = (torch.stack([rate(half) for half in halves]) for rate in (right_noun_rate, shift_rate))
    right_head, shift_head = argmax_head(right[0]), argmax_head(moved[0])
    progress(1.0, "the sentence itself")
    return {
        "sentences": 2 * len(halves[1]),
        "right": right.tolist(),
        "moved": moved.tolist(),
        "head": right_head,
        "head_right": right[1][tuple(right_head)].item(),
        "head_both": both_right_rate(halves[1])[tuple(right_head)].item(),
        "mover": shift_head,
        "mover_moved": moved[1][tuple(shift_head)].item(),
        "famous": [describe_sentence(encoder, text, [right_head, shift_head]) for text in EXAMPLE_SENTENCES],
    }


def noun_weights(encoder: SentenceEncoder, pair: SentencePair) -> Tensor:
    """The weights from *it* to the two nouns in both wordings, `[wordings, nouns, layers, heads]`.

    The weight of a noun of several tokens is their sum.
    """
    wordings = []
    for text in pair.wordings:
        pieces, weights = pronoun_weights(encoder, text)
        nouns = [weights[..., word_positions(pieces, word)].sum(-1) for word in (pair.first, pair.second)]
        wordings.append(torch.stack(nouns))
    return torch.stack(wordings)


def pronoun_weights(encoder: SentenceEncoder, text: str) -> tuple[list[str], Tensor]:
    """The tokens, and the weights from *it* to each, `[layers, heads, tokens]`."""
    batch = encoder.tokenizer([text])
    pieces = encoder.tokenizer.pieces(batch.tokens[0])
    with torch.no_grad(), watch(encoder.model, weights=True) as views:
        encoder.model(**batch.inputs)
    it = pieces.index("it")
    return pieces, torch.stack([view.weights[0, :, it] for view in views.values()])  # type: ignore[index]


def word_positions(pieces: list[str], word: str) -> list[int]:
    """The positions of the tokens of a word's first occurrence."""
    for start in range(len(pieces)):
        end, joined = start, ""
        while end < len(pieces) and word.startswith(joined + pieces[end].removeprefix("##")):
            joined += pieces[end].removeprefix("##")
            end += 1
            if joined == word:
                return list(range(start, end))
    raise ValueError(f"{word!r} is not among the pieces {pieces}")


def right_noun_rate(weights: Tensor) -> Tensor:
    """How often each head gives the antecedent more weight than the other noun, `[layers, heads]`."""
    return torch.cat([weights[:, 0, 0] > weights[:, 0, 1], weights[:, 1, 1] > weights[:, 1, 0]]).double().mean(0)


def both_right_rate(weights: Tensor) -> Tensor:
    """How often a head is right in both wordings of a sentence, `[layers, heads]`; a quarter by chance."""
    return ((weights[:, 0, 0] > weights[:, 0, 1]) & (weights[:, 1, 1] > weights[:, 1, 0])).double().mean(0)


def shift_rate(weights: Tensor) -> Tensor:
    """How often the first noun gets a larger fraction of the weight where it is the antecedent, `[layers, heads]`.

    The fraction is that of the weight on both nouns. Where it does not change (as in the first layer, whose weights do
    not depend on the wording) a sentence counts half.
    """
    fraction = weights[:, :, 0] / weights.sum(2).clamp(min=1e-12)  # [items, wordings, layers, heads]
    change = fraction[:, 0] - fraction[:, 1]
    return torch.where(change.abs() <= ROUNDING, 0.5, (change > 0).double()).mean(0)


def argmax_head(table: Tensor) -> list[int]:
    """[layer, head] of the largest number."""
    return [int(n) for n in torch.unravel_index(table.argmax(), table.shape)]


def describe_sentence(encoder: SentenceEncoder, text: str, heads: list[list[int]]) -> Measurements:
    """The tokens of a sentence and the weights from *it* in the given heads and in the mean of all."""
    pieces, weights = pronoun_weights(encoder, text)
    rows = [weights[layer, head].tolist() for layer, head in heads] + [weights.mean((0, 1)).tolist()]
    animal, street = (weights[..., pieces.index(word)] for word in ("animal", "street"))
    return {"pieces": pieces, "weights": rows, "animal": int((animal > street).sum()), "heads": animal.numel()}


def lower_bound(rate: float, count: int) -> float:
    """The lower end of the 95 % confidence interval of a rate over `count` sentences."""
    return rate - 1.96 * math.sqrt(0.25 / count)


def verdict(numbers: Measurements) -> Verdict:
    right, moved = numbers["head_right"], numbers["mover_moved"]
    pairs = numbers["sentences"] // 2  # the two wordings of a sentence are not independent
    (layer, head), (moving_layer, moving_head) = numbers["head"], numbers["mover"]
    tired, wide = numbers["famous"]
    animal, street = (tired["weights"][0][tired["pieces"].index(noun)] for noun in ("animal", "street"))
    low, moved_low = lower_bound(right, pairs), lower_bound(moved, pairs)
    measured = {
        "sentence": (
            animal / max(street, 1e-9),
            Bilingual(f"{animal:.4f} against {street:.4f}", f"{animal:.4f}，street {street:.4f}"),
        ),
        "chance": (
            low,
            Bilingual(
                f"{format_percent(right)}, at least {format_percent(low)}",
                f"{format_percent(right)}，至少 {format_percent(low)}",
            ),
        ),
        "moves": (
            moved_low,
            Bilingual(
                f"{format_percent(moved)}, at least {format_percent(moved_low)}",
                f"{format_percent(moved)}，至少 {format_percent(moved_low)}",
            ),
        ),
        "reliable": (right, Bilingual.same(format_percent(right))),
    }
    key = Bilingual(
        f"the best head prefers the correct noun in {format_percent(right)} (chance 50 %)",
        f"最好的头偏向正确名词的比例 {format_percent(right)}（随机 50 %）",
    )
    return judge(CLAIM, measured, key, Bilingual(
        f"The selected head (layer {layer + 1}, head {head + 1}) is correct in {format_percent(right)} of {numbers['sentences']}"
        " other "
        f"sentences (both versions: {format_percent(numbers['head_both'])}, chance 25 %). The head whose weights move most (layer "
        f"{moving_layer + 1}, head {moving_head + 1}) moves them towards the correct noun in {format_percent(moved)}. In the sentence itself *it* gives "
        "*animal* "
        f"more weight than *street* in {tired['animal']} of {tired['heads']} heads with 'tired', and in {wide['animal']} "
        "with 'wide'.",
        f"选出的头（第 {layer + 1} 层第 {head + 1} 个）在另外 {numbers['sentences']} 句中准确率 {format_percent(right)}（两"
        f"个版本都对：{format_percent(numbers['head_both'])}，随机为 25 %）。"
        f"权重移动最明显的头（第 {moving_layer + 1} 层第 {moving_head + 1} 个）有 {format_percent(moved)} 移向正确名词。在原句中，"
        f"{tired['heads']} 个头里有 {tired['animal']} 个中 it 给 animal 的权重大于 street（tired），"
        f"换成 wide 时有 {wide['animal']} 个。",
    ))  # fmt: skip


def draw(numbers: Measurements, language: Language) -> Figure:
    tr = localizer(language)
    with subplots(language, 3, width=4.6, height=4.0) as (figure, (left, middle, right)):
        figure.suptitle(tr("Attention of *it* in MiniLM", "MiniLM 中 it 的注意力"))
        image = left.imshow(numbers["right"][1], cmap="RdBu", vmin=0.25, vmax=0.75, aspect="auto")
        left.set_xticks(range(12), [str(n + 1) for n in range(12)])
        left.set_yticks(range(6), [str(n + 1) for n in range(6)])
        left.grid(False)
        left.plot(numbers["head"][1], numbers["head"][0], marker="s", markersize=15, mfc="none", mec="black")
        figure.colorbar(
            image, ax=left, label=tr("fraction of sentences correct (0.5: chance)", "正确句子的比例（0.5：随机）")
        )
        label_axes(
            left,
            tr("Correct noun preferred, held-out nouns", "偏向正确名词（留出的名词）"),
            tr("head", "头"),
            tr("layer", "层"),
        )
        draw_halves(middle, numbers, tr)
        draw_sentence(right, numbers, tr)
    return figure


def draw_halves(axes: Axes, numbers: Measurements, tr: Localizer) -> None:
    """Every head's rate on the validation half and on the test half."""
    rates = (
        ("right", tr("correct noun preferred", "偏向正确名词")),
        ("moved", tr("moves with the version", "随版本移动")),
    )
    for n, (name, text) in enumerate(rates):
        x, y = ([v for row in half for v in row] for half in numbers[name])
        axes.plot(x, y, linestyle="", marker="os"[n], color=COLOURS[n], alpha=0.7, label=text)
    axes.axhline(0.5, color="#666666", linewidth=0.8)
    axes.axvline(0.5, color="#666666", linewidth=0.8)
    axes.axhline(0.75, color="#666666", linewidth=0.8, linestyle="--", label=tr("threshold: 75 %", "判据：75 %"))
    label_axes(axes, tr("All heads, on both halves of the nouns", "所有头，在两半名词上"),
              tr("fraction, nouns for selection", "比例（用于选择的名词）"), tr("fraction, held-out nouns", "比例（留出的名词）"))  # fmt: skip
    axes.legend(fontsize=7)


def draw_sentence(axes: Axes, numbers: Measurements, tr: Localizer) -> None:
    """The weights of the best head in the example sentence, in both wordings."""
    tired, wide = numbers["famous"]
    width, labels = 0.4, tired["pieces"][1:-1]
    labels[labels.index("tired")] = "tired / wide"
    for n, (sentence, text) in enumerate(((tired, "tired"), (wide, "wide"))):
        y = [m + (n - 0.5) * width for m in range(len(labels))]
        axes.barh(
            y,
            sentence["weights"][0][1:-1],
            width,
            label=text,
            color=COLOURS[n],
            hatch=HATCHES[n],
            edgecolor="white",
        )
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    layer, head = numbers["head"]
    label_axes(
        axes,
        tr(f"*it* in layer {layer + 1}, head {head + 1}", f"it：第 {layer + 1} 层第 {head + 1} 个头"),
        tr("weight (the rest is on [CLS] and [SEP])", "权重（其余在 [CLS] 和 [SEP] 上）"),
        "",
    )
    axes.legend()
