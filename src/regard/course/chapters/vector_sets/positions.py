"""Order: what attention loses without positions, and the sine code that brings it back."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import regard as rg

from ....experiments.experiment import Bilingual
from ...controls import Choice, Slider, Words
from ...pictures import Bars, Heatmap, Lines
from ...step import Evidence, Finding, Result, Step


def compute_word_order(sentence: str, code: str) -> Result:
    words = sentence.split()
    vocabulary = sorted(set(words))
    table = np.random.default_rng(3).normal(size=(len(vocabulary), 4))  # a vector aⁱ for each word
    position = np.arange(len(words))[:, None]
    sine = np.concatenate([np.sin(position / [1, 100]), np.cos(position / [1, 100])], axis=1)
    learned = np.random.default_rng(7).normal(size=sine.shape)  # a table as it is before training
    added = dict(none=0 * sine, sine=sine, learned=learned)[code]  # eⁱ
    outputs = []
    for order in (words, words[::-1]):
        x = table[[vocabulary.index(word) for word in order]] + added
        weights = np.exp(x @ x.T / 2)
        weights = weights / weights.sum(1, keepdims=True)
        outputs.append(weights @ x)
    output, backward = outputs
    sentences = np.stack([output.mean(0), backward.mean(0)])  # one vector for each sentence
    return dict(
        words=words,
        reversed=words[::-1],
        output=output,
        backward=backward,
        sentences=sentences,
        first=" ".join(words),
        last=" ".join(words[::-1]),
        gap=np.abs(sentences[0] - sentences[1]).max(),
    )


def attend_word_order(sentence: str, code: str) -> Tensor:
    words = sentence.split()
    vocabulary = sorted(set(words))
    table = np.random.default_rng(3).normal(size=(len(vocabulary), 4))
    position = torch.arange(len(words), dtype=torch.float64)[:, None] / torch.tensor([1.0, 100.0])
    sine = torch.cat([position.sin(), position.cos()], dim=1)
    learned = torch.from_numpy(np.random.default_rng(7).normal(size=sine.shape))
    x = torch.from_numpy(table)[[vocabulary.index(word) for word in words]]
    x = (x + {"none": 0 * sine, "sine": sine, "learned": learned}[code])[None, None]
    return rg.attend(x, x, x, score=rg.Dot(scale=0.5))[0, 0]


CODES = (
    ("none", Bilingual("none", "不加")),
    ("sine", Bilingual("sine and cosine", "正弦与余弦")),
    ("learned", Bilingual("a table to be learned", "可学习的表")),
)

WORD_ORDER = Step(
    name="word-order",
    title=Bilingual("A hit B, B hit A", "A 打了 B，B 打了 A"),
    claim=Bilingual(
        "Self-attention has no notion of order: “A hit B” and “B hit A” are the same set of vectors. A code eⁱ that is "
        "different at each position is added to aⁱ, by a formula or learned, and the two sentences become different.",
        "自注意力没有次序的概念：“A 打了 B”与“B 打了 A”是同一个向量集合。给每个 aⁱ 加上各位置不同的编码 eⁱ"
        "（用公式给出，或者学出来），两句话就不同了。",
    ),
    task=Bilingual(
        "Without a code the two sentence vectors have the same bars. Choose sine and cosine: now they differ. Try "
        "your own sentence, words separated by blanks.",
        "不加编码时，两句话的向量一模一样。选“正弦与余弦”：现在不同了。也可以输入你自己的句子，词之间用空格隔开。",
    ),
    controls=(
        Words("sentence", Bilingual("sentence", "句子"), Bilingual("A hit B", "A 打了 B"), 8),
        Choice("code", Bilingual("code added to the words", "加到词上的编码"), "none", CODES),
    ),
    compute=compute_word_order,
    attend=attend_word_order,
    pictures=(
        Bars(
            Bilingual("vector of the whole sentence, forwards and backwards", "整句的向量：正着读与倒着读"),
            "sentences",
            groups=(Bilingual("as written", "原句"), Bilingual("reversed", "倒序")),
            role="output",
        ),
        Heatmap(Bilingual("outputs, as written", "输出：原句"), "output", "words", role="output"),
        Heatmap(Bilingual("outputs, reversed", "输出：倒序"), "backward", "reversed", role="output"),
    ),
    findings=(
        Finding(
            Bilingual(
                "The vectors of “{first}” and “{last}” differ by {gap:.0e}: the model cannot tell them apart.",
                "“{first}”与“{last}”的向量相差 {gap:.0e}：模型分不清谁打了谁。",
            ),
            lambda result: result["gap"] < 1e-12,
        ),
    ),
    evidence=(Evidence("order", ("chance", "sinusoidal", "learned")),),
)


def compute_sine_code(positions: int, dim: int, position: int) -> Result:
    pos = np.arange(positions)[:, None]
    rate = 10000.0 ** (-np.arange(0, dim, 2) / dim)
    code = np.stack([np.sin(pos * rate), np.cos(pos * rate)], axis=2).reshape(positions, dim)
    similarity = code @ code[min(position, positions - 1)]
    products = code @ code.T
    neighbours = np.diagonal(products, 3)  # e(p) · e(p + 3) for every p
    spread = np.ptp(neighbours)
    distances = np.linalg.norm(code[:, None] - code, axis=2) + 1e9 * np.eye(positions)
    return dict(
        code=code.T,
        by_position=code,
        similarity=similarity,
        pos=np.arange(positions),
        fast=code[:, 0],
        slow=code[:, 2 * (dim // 4)],
        slowest=code[:, dim - 2],
        spread=spread,
        nearest=distances.min(),
        marker=min(position, positions - 1),
    )


def attend_sine_code(positions: int, dim: int, position: int) -> Tensor:
    return rg.nn.sinusoids(torch.arange(positions), dim)


SINE_CODE = Step(
    name="sine-code",
    title=Bilingual("Sine and cosine as a position code", "用正弦与余弦给位置编码"),
    claim=Bilingual(
        "Position codes may be designed by hand: sines and cosines of falling frequency give every position a vector "
        "of its own. They exist for any position, so a model should be able to read texts longer than in training.",
        "位置编码可以手工设计：频率逐渐降低的正弦和余弦，给每个位置一个独有的向量。任何位置都算得出来，"
        "所以模型应当能读比训练时更长的文本。",
    ),
    task=Bilingual(
        "Each column of the first picture is the code of a position. Move the position: the curve of similarity moves "
        "along without changing its shape, because the product of two codes depends on their distance only.",
        "第一张图的每一列是一个位置的编码。移动位置：相似度曲线只平移，不变形，因为两个编码的点积只取决于距离。",
    ),
    controls=(
        Slider("positions", Bilingual("positions", "位置数"), 40, 8, 100, 1, whole=True),
        Slider("dim", Bilingual("size of the code, d", "编码大小 d"), 16, 4, 32, 4, whole=True),
        Slider("position", Bilingual("position to compare with", "与哪个位置比较"), 12, 0, 99, 1, whole=True),
    ),
    compute=compute_sine_code,
    attend=attend_sine_code,
    answer="by_position",
    pictures=(
        Heatmap(Bilingual("code: a column for each position", "编码：每一列是一个位置"), "code", role="score"),
        Lines(
            Bilingual("three of the curves", "其中三条曲线"),
            "pos",
            (
                ("fast", Bilingual("first dimension", "第一维")),
                ("slow", Bilingual("a middle one", "中间一维")),
                ("slowest", Bilingual("the slowest sine", "最慢的正弦")),
            ),
            Bilingual("position", "位置"),
            Bilingual("value", "值"),
        ),
        Lines(
            Bilingual("dot product with the chosen position's code", "与所选位置的编码的点积"),
            "pos",
            (("similarity", Bilingual("similarity", "相似度")),),
            Bilingual("position", "位置"),
            Bilingual("dot product", "点积"),
            marker="marker",
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "No two positions share a code: the closest two are {nearest:.2f} apart.",
                "没有两个位置的编码相同：最近的两个相距 {nearest:.2f}。",
            ),
            lambda result: result["nearest"] > 0.1,
        ),
        Finding(
            Bilingual(
                "e(p) · e(p + 3) varies by {spread:.0e} over all p: only the distance counts.",
                "对所有 p，e(p) · e(p + 3) 的变化只有 {spread:.0e}：起作用的只有距离。",
            ),
            lambda result: result["spread"] < 1e-9,
        ),
    ),
    evidence=(Evidence("length"),),
)

STEPS = (WORD_ORDER, SINE_CODE)
