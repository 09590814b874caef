"""Experiment 19: which heads of a pretrained encoder link *it* with what it stands for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ...nn.hooks.watch import watch
from ..comparing import HATCHES, by_size, name_axes, percent, speaker
from ..experiment import Both, Claim, Language, Size, Tell, Verdict
from ..learning import COLOURS, drawing, panels
from ..minilm import minilm

CLAIM = Claim(
    number=19,
    name="coreference",
    title=Both("What does *it* look at?", "it 在看谁？"),
    claim=Both(
        'In "The animal didn\'t cross the street because it was too tired" self-attention links *it* with *animal*.',
        "在句子 “The animal didn't cross the street because it was too tired.” 中，自注意力可明确关联 “it” 与 "
        "“animal”。",
    ),
    setup=Both(
        "MiniLM (six layers of twelve heads, pretrained). Many sentences of five patterns, each in two wordings that "
        "change what *it* is (too tired: the animal, too wide: the street). For each head: does *it* give the right "
        "noun more weight than the other one? The head that does best on half of the nouns is tested on the other "
        "half. Taking the first noun, the nearest one, or either by chance gives 50 % by construction.",
        "MiniLM（六层，每层十二个头，已预训练）。五种句型的许多句子，每句有两种说法，使 it 指代不同的词（too tired："
        "动物；too wide：街道）。"
        "对每个头：it 给正确名词的权重是否大于另一个名词？在一半名词上最好的头，用另一半名词检验。总选第一个、"
        "总选最近的或随便选，都恰好是 50 %。",
    ),
    threshold=Both(
        "Holds if the chosen head is right in at least 75 % of the sentences it was not chosen on. Limited if it is "
        "right more often than chance there, or its weights move towards the right noun when the wording changes more "
        "often than chance (95 % interval above 50 %). Fails otherwise.",
        "成立：选出的头在未参与挑选的句子中至少 75 % 正确。有条件成立：在那里正确率高于随机，"
        "或说法改变时其权重移向正确名词的比例高于随机"
        "（95 % 区间在 50 % 之上）。其余为不成立。",
    ),
)


@dataclass(frozen=True)
class Pattern:
    """Sentences about two nouns; the last word says which of them is meant."""

    text: str
    first: str
    second: str
    of_first: str
    of_second: str


@dataclass(frozen=True)
class Item:
    """A sentence in two wordings: *it* is the first noun, then the second one."""

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
FAMOUS = ("The animal didn't cross the street because it was too tired.",
          "The animal didn't cross the street because it was too wide.")  # fmt: skip

STAYS = 1e-5
"""A change of a share that rounding can make."""


def items(pattern: Pattern, half: int) -> list[Item]:
    """The sentences with every second noun (half 0: the first, the third, …), so that halves share no noun."""
    firsts, seconds = pattern.first.split()[half::2], pattern.second.split()[half::2]
    ends = list(zip(pattern.of_first.split(), pattern.of_second.split(), strict=True))
    return [
        Item(a, b, (pattern.text.format(a=a, b=b, c=c), pattern.text.format(a=a, b=b, c=d)))
        for a, b, (c, d) in product(firsts, seconds, ends)
        if a != b
    ]


def measure(size: Size, seed: int, tell: Tell) -> dict[str, Any]:
    model = minilm()
    patterns = PATTERNS[: by_size(size, 1, 5)]
    generator = drawing(seed)
    most = by_size(size, 4, 27)
    halves = []
    for half in range(2):
        tell(half / 2, f"half {half + 1} of the nouns")
        found = [one for pattern in patterns for one in chosen(items(pattern, half), most, generator)]
        halves.append(torch.stack([shares(model, one) for one in found]))  # [items, wordings, nouns, layers, heads]
    right, moved = (torch.stack([how(half) for half in halves]) for how in (right_of, moved_of))
    pick, move = best(right[0]), best(moved[0])
    tell(1.0, "the sentence itself")
    return {
        "sentences": 2 * len(halves[1]),
        "right": right.tolist(),
        "moved": moved.tolist(),
        "head": pick,
        "head_right": right[1][tuple(pick)].item(),
        "head_both": both_of(halves[1])[tuple(pick)].item(),
        "mover": move,
        "mover_moved": moved[1][tuple(move)].item(),
        "famous": [of_it(model, text, [pick, move]) for text in FAMOUS],
    }


def chosen(every: list[Item], most: int, generator: torch.Generator) -> list[Item]:
    """At most so many of them, in a drawn order."""
    return [every[n] for n in torch.randperm(len(every), generator=generator)[:most].tolist()]


def shares(model: Any, item: Item) -> Tensor:
    """What *it* gives the two nouns in both wordings, `[wordings, nouns, layers, heads]`."""
    return torch.stack([nouns(*of_text(model, text), item) for text in item.wordings])


def of_text(model: Any, text: str) -> tuple[list[str], Tensor]:
    """The pieces, and the weights that *it* gives each of them, `[layers, heads, pieces]`."""
    batch = model.tokenizer([text])
    pieces = model.tokenizer.pieces(batch.tokens[0])
    with torch.no_grad(), watch(model, weights=True) as seen:
        model(**batch.inputs)
    it = pieces.index("it")
    return pieces, torch.stack([view.weights[0, :, it] for view in seen.values()])  # type: ignore[index]


def nouns(pieces: list[str], weights: Tensor, item: Item) -> Tensor:
    """The weights on the two nouns, `[nouns, layers, heads]`; one of several pieces counts as their sum."""
    return torch.stack([weights[..., places(pieces, word)].sum(-1) for word in (item.first, item.second)])


def places(pieces: list[str], word: str) -> list[int]:
    """Where the pieces of a word stand, the first time that it does."""
    for start in range(len(pieces)):
        end, joined = start, ""
        while end < len(pieces) and word.startswith(joined + pieces[end].removeprefix("##")):
            joined += pieces[end].removeprefix("##")
            end += 1
            if joined == word:
                return list(range(start, end))
    raise ValueError(f"{word!r} is not among the pieces {pieces}")


def right_of(found: Tensor) -> Tensor:
    """How often each head gives the right noun more than the other one, `[layers, heads]`."""
    return torch.cat([found[:, 0, 0] > found[:, 0, 1], found[:, 1, 1] > found[:, 1, 0]]).double().mean(0)


def both_of(found: Tensor) -> Tensor:
    """How often a head is right in both wordings of a sentence, `[layers, heads]`; a quarter by chance."""
    return ((found[:, 0, 0] > found[:, 0, 1]) & (found[:, 1, 1] > found[:, 1, 0])).double().mean(0)


def moved_of(found: Tensor) -> Tensor:
    """How often the first noun's share of the two is larger where it is meant, `[layers, heads]`.

    A share that stays (all do in the first layer, which has not yet read the wording) counts half.
    """
    share = found[:, :, 0] / found.sum(2).clamp(min=1e-12)  # [items, wordings, layers, heads]
    grown = share[:, 0] - share[:, 1]
    return torch.where(grown.abs() <= STAYS, 0.5, (grown > 0).double()).mean(0)


def best(table: Tensor) -> list[int]:
    """[layer, head] of the largest number."""
    return [int(n) for n in torch.unravel_index(table.argmax(), table.shape)]


def of_it(model: Any, text: str, heads: list[list[int]]) -> dict[str, Any]:
    """The words of a sentence and the weights that *it* gives them in the given heads, and in the mean of all."""
    pieces, weights = of_text(model, text)
    rows = [weights[layer, head].tolist() for layer, head in heads] + [weights.mean((0, 1)).tolist()]
    animal, street = (weights[..., pieces.index(word)] for word in ("animal", "street"))
    return {"pieces": pieces, "weights": rows, "animal": int((animal > street).sum()), "heads": animal.numel()}


def lowest(share: float, count: int) -> float:
    """The lower end of the 95 % interval around a share of `count` sentences, were it a coin's."""
    return share - 1.96 * math.sqrt(0.25 / count)


def verdict(numbers: dict[str, Any]) -> Verdict:
    right, moved = numbers["head_right"], numbers["mover_moved"]
    pairs = numbers["sentences"] // 2  # the two wordings of a sentence are not independent
    above = lowest(right, pairs) > 0.5 or lowest(moved, pairs) > 0.5
    kind = "holds" if right >= 0.75 else "limited" if above else "fails"
    (layer, head), (mlayer, mhead) = numbers["head"], numbers["mover"]
    tired, wide = numbers["famous"]
    key = Both(
        f"the best head finds the noun in {percent(right)} (chance 50 %)",
        f"最好的头找对名词的比例 {percent(right)}（随机 50 %）",
    )
    return Verdict(kind, key, Both(
        f"The head chosen (layer {layer + 1}, head {head + 1}) is right in {percent(right)} of {numbers['sentences']}"
        " other "
        f"sentences (both wordings: {percent(numbers['head_both'])}, by chance 25 %). The head that moves most (layer "
        f"{mlayer + 1}, head {mhead + 1}) moves the right way in {percent(moved)}. In the sentence itself *it* gives "
        "*animal* "
        f"more than *street* in {tired['animal']} of {tired['heads']} heads with 'tired', and in {wide['animal']} "
        "with 'wide'.",
        f"选出的头（第 {layer + 1} 层第 {head + 1} 个）在另外 {numbers['sentences']} 句中正确率 {percent(right)}（两"
        f"种说法都对：{percent(numbers['head_both'])}，随机为 25 %）。"
        f"移动最明显的头（第 {mlayer + 1} 层第 {mhead + 1} 个）有 {percent(moved)} 移向正确名词。在原句中，"
        f"{tired['heads']} 个头里有 {tired['animal']} 个让 it 更关注 animal 而非 street（tired），"
        f"换成 wide 时有 {wide['animal']} 个。",
    ))  # fmt: skip


def draw(numbers: dict[str, Any], language: Language) -> Any:
    say = speaker(language)
    with panels(language, 3, width=4.6, height=4.0) as (figure, (left, middle, right)):
        figure.suptitle(say("Where *it* looks in MiniLM", "MiniLM 中 it 在看哪里"))
        image = left.imshow(numbers["right"][1], cmap="RdBu", vmin=0.25, vmax=0.75, aspect="auto")
        left.set_xticks(range(12), [str(n + 1) for n in range(12)])
        left.set_yticks(range(6), [str(n + 1) for n in range(6)])
        left.grid(False)
        left.plot(numbers["head"][1], numbers["head"][0], marker="s", markersize=15, mfc="none", mec="black")
        figure.colorbar(
            image, ax=left, label=say("share of sentences right (0.5: chance)", "正确句子的比例（0.5：随机）")
        )
        name_axes(
            left,
            say("Right noun preferred, second half of nouns", "偏向正确名词（另一半名词）"),
            say("head", "头"),
            say("layer", "层"),
        )
        against(middle, numbers, say)
        words(right, numbers, say)
    return figure


def against(axes: Any, numbers: dict[str, Any], say: Any) -> None:
    """Every head's score on the half it could be chosen on against the half it is tested on."""
    kinds = (
        ("right", say("right noun preferred", "偏向正确名词")),
        ("moved", say("moves with the wording", "随说法移动")),
    )
    for n, (name, text) in enumerate(kinds):
        x, y = ([v for row in half for v in row] for half in numbers[name])
        axes.plot(x, y, linestyle="", marker="os"[n], color=COLOURS[n], alpha=0.7, label=text)
    axes.axhline(0.5, color="#666666", linewidth=0.8)
    axes.axvline(0.5, color="#666666", linewidth=0.8)
    axes.axhline(0.75, color="#666666", linewidth=0.8, linestyle="--", label=say("wanted: 75 %", "要求：75 %"))
    name_axes(axes, say("All heads, on both halves of the nouns", "所有的头，在两半名词上"),
              say("share, nouns to choose by", "比例（用于挑选的名词）"), say("share, other nouns", "比例（另一半名词）"))  # fmt: skip
    axes.legend(fontsize=7)


def words(axes: Any, numbers: dict[str, Any], say: Any) -> None:
    """The weights that the chosen head gives in the famous sentence, in both wordings."""
    tired, wide = numbers["famous"]
    width, labels = 0.4, tired["pieces"][1:-1]
    labels[labels.index("tired")] = "tired / wide"
    for n, (one, text) in enumerate(((tired, "tired"), (wide, "wide"))):
        places_of = [m + (n - 0.5) * width for m in range(len(labels))]
        axes.barh(
            places_of,
            one["weights"][0][1:-1],
            width,
            label=text,
            color=COLOURS[n],
            hatch=HATCHES[n],
            edgecolor="white",
        )
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    layer, head = numbers["head"]
    name_axes(
        axes,
        say(f"*it* in layer {layer + 1}, head {head + 1}", f"it：第 {layer + 1} 层第 {head + 1} 个头"),
        say("weight (the rest is on [CLS] and [SEP])", "权重（其余在 [CLS] 和 [SEP] 上）"),
        "",
    )
    axes.legend()
