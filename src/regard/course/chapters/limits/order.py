"""Order: what reordering does to self-attention, absolute and relative positions, and positions as a separate part."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import regard as rg

from ....experiments.experiment import Bilingual
from ...controls import Choice, Slider, Words
from ...pictures import Bars, Drawing, Heatmap
from ...step import Evidence, Finding, Result, Step


def compute_reorder(sentence: str, code: str) -> Result:
    words = sentence.split()
    x = np.stack([np.random.default_rng(sum(map(ord, word))).normal(size=4) for word in words])
    position = np.arange(len(words))[:, None] / [1, 10]
    added = (code == "sine") * np.concatenate([np.sin(position), np.cos(position)], axis=1)
    outputs = []
    for y in (x[::-1] + added, x + added):  # the sentence from its end, and as it is
        weights = np.exp(y @ y.T / 2)
        weights = weights / weights.sum(1, keepdims=True)
        outputs.append(weights @ y)
    output = outputs[1]
    difference = np.abs(output - outputs[0][::-1]).max()  # of each word in the two
    order = np.argsort(words, kind="stable")  # the same words, always listed in the same order
    listed, by_word = [words[n] for n in order], output[order]
    pair = weights[np.ix_(order, order)]
    return dict(
        words=words,
        weights=weights,
        output=output,
        difference=difference,
        listed=listed,
        by_word=by_word,
        pair=pair,
    )


def attend_reorder(sentence: str, code: str) -> Tensor:
    words = sentence.split()
    x = torch.from_numpy(np.stack([np.random.default_rng(sum(map(ord, word))).normal(size=4) for word in words]))
    if code == "sine":
        position = torch.arange(len(words), dtype=torch.float64)[:, None] / torch.tensor([1.0, 10.0])
        x = x + torch.cat([position.sin(), position.cos()], dim=1)
    x = x[None, None]
    return rg.attend(x, x, x)[0, 0]


REORDER = Step(
    name="reorder",
    title=Bilingual("The cat chases the dog, the dog chases the cat", "猫追狗，狗追猫"),
    claim=Bilingual(
        "Weights depend on content only. If the words are put in another order, the outputs are put in the same other "
        "order and do not change otherwise (permutation equivariance): “cat chases dog” and “dog chases cat” look "
        "alike. That is the price of relating any two words directly.",
        "权重只取决于内容。把词的顺序打乱，输出只是跟着换了位置，本身不变（置换等变性）：“猫追狗”与“狗追猫”看起来一样。"
        "这是任意两词直接相连的代价。",
    ),
    task=Bilingual(
        "Drag the words into another order. The picture by word does not change. Then add a sine code and drag again.",
        "把词拖成别的顺序：按词排列的那张图不变。再加上正弦编码，重新拖一拖。",
    ),
    controls=(
        Words("sentence", Bilingual("words in order", "词的顺序"), Bilingual("cat chases dog", "猫 追 狗"), 7),
        Choice(
            "code",
            Bilingual("position code", "位置编码"),
            "none",
            (("none", Bilingual("none", "不加")), ("sine", Bilingual("sine and cosine", "正弦与余弦"))),
        ),
    ),
    compute=compute_reorder,
    attend=attend_reorder,
    pictures=(
        Drawing(Bilingual("drag the words", "拖动词语"), "reorder"),
        Heatmap(Bilingual("weights in the order of the sentence", "权重：按句中顺序"), "weights", "words", "words"),
        Heatmap(Bilingual("weights by word", "权重：按词排列"), "pair", "listed", "listed"),
        Heatmap(Bilingual("outputs by word", "输出：按词排列"), "by_word", "listed", role="output"),
    ),
    findings=(
        Finding(
            Bilingual(
                "From its end to its start, the sentence gives every word the same output; they differ by "
                "{difference:.0e}.",
                "把句子倒过来，每个词的输出还是一样，相差 {difference:.0e}。",
            ),
            lambda result: result["difference"] < 1e-12,
        ),
    ),
    evidence=(Evidence("order", ("equivariant", "chance")),),
)


def compute_shift(scheme: str, shift: int, decay: float) -> Result:
    content = np.random.default_rng(8).normal(size=(7, 4))
    position = np.arange(7)
    distance = np.abs(position[:, None] - position)
    bias = -decay * distance * (scheme == "relative")  # falls with the distance
    weights = []
    for start in (0, shift):  # the same words at the beginning of a text, and `shift` words later
        angle = (position + start)[:, None] / [1, 100]
        x = content + (scheme == "absolute") * np.concatenate([np.sin(angle), np.cos(angle)], axis=1)
        scores = x @ x.T / 2 + bias
        weights.append(np.exp(scores) / np.exp(scores).sum(1, keepdims=True))
    change = np.abs(weights[0] - weights[1]).max()
    output = weights[1] @ x
    near = weights[1][distance <= 1].mean()
    return dict(early=weights[0], late=weights[1], change=change, output=output, shift=shift, near=near)


def attend_shift(scheme: str, shift: int, decay: float) -> Tensor:
    x = torch.from_numpy(np.random.default_rng(8).normal(size=(7, 4)))
    if scheme == "absolute":
        angle = (torch.arange(7, dtype=torch.float64) + shift)[:, None] / torch.tensor([1.0, 100.0])
        x = x + torch.cat([angle.sin(), angle.cos()], dim=1)
    position = rg.Alibi(torch.tensor([decay], dtype=torch.float64)) if scheme == "relative" else None
    return rg.attend(x[None, None], x[None, None], x[None, None], position=position)[0, 0]


SHIFT = Step(
    name="absolute-relative",
    title=Bilingual("Absolute and relative positions", "绝对位置与相对位置"),
    claim=Bilingual(
        "An absolute code adds a vector of its own to each position. A relative one adds a number to each score that "
        "depends on the distance i − j, for example a penalty that grows with it. For very long texts, and where order "
        "is everything, relative positions are the safer choice; they cost a table of biases.",
        "绝对编码给每个位置加上各自的向量。相对编码在每个分数上加一个只取决于距离 i − j 的数，比如随距离增大的惩罚。"
        "文本很长，或者次序至关重要时，相对位置更稳妥；代价是要存一张偏置表。",
    ),
    task=Bilingual(
        "The same seven words stand at the start of a text and, in the second picture, further on. Move them: with an "
        "absolute code their weights change, with a relative one they do not. Then raise the decay.",
        "同样七个词，一次在文本开头，一次（第二张图）在后面。移动它们：用绝对编码，权重会变；用相对编码，权重不变。"
        "再调大衰减看看。",
    ),
    controls=(
        Choice(
            "scheme",
            Bilingual("positions", "位置"),
            "absolute",
            (
                ("none", Bilingual("none", "不加")),
                ("absolute", Bilingual("absolute: sine and cosine", "绝对：正弦与余弦")),
                ("relative", Bilingual("relative: falls with the distance", "相对：随距离衰减")),
            ),
        ),
        Slider("shift", Bilingual("words before them", "前面的词数"), 100, 0, 500, 5, whole=True),
        Slider("decay", Bilingual("decay per word of distance", "每隔一个词的衰减"), 0.5, 0, 3, 0.1),
    ),
    compute=compute_shift,
    attend=attend_shift,
    pictures=(
        Heatmap(Bilingual("weights at the start of the text", "权重：在文本开头"), "early"),
        Heatmap(Bilingual("weights further on", "权重：在后面"), "late"),
    ),
    findings=(
        Finding(
            Bilingual(
                "{shift} words later the same seven words have other weights: they change by up to {change:.2f}.",
                "往后移 {shift} 个词，同样七个词的权重就变了，最多变化 {change:.2f}。",
            ),
            lambda result: result["change"] > 0.05,
        ),
    ),
    evidence=(Evidence("length"), Evidence("order", ("t5", "rotary", "alibi"))),
)


def compute_separate(part: str, layers: int) -> Result:
    x = np.array([[0, 1, 0, 0.5]] + 5 * [[1, 0, 0.5, 0]])  # a start token, then five words that are the same
    position = np.arange(6)
    angle = position[:, None] / [1, 10]
    x = x + (part == "sine") * np.concatenate([np.sin(angle), np.cos(angle)], axis=1)
    bias = -0.5 * (part == "distance") * np.abs(position[:, None] - position)
    if part == "causal":
        bias = np.where(position > position[:, None], -np.inf, bias)
    weights = np.eye(6)
    for _ in range(layers):
        scores = x @ x.T / 2 + bias
        weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        x = x + weights @ x  # the line of attention is the same in every case
    spread = np.ptp(x[1:], axis=0).max()
    start = weights[:, 0]
    return dict(output=x, spread=spread, start=start, layers=layers)


def attend_separate(part: str, layers: int) -> Tensor:
    x = torch.tensor([[0.0, 1.0, 0.0, 0.5]] + 5 * [[1.0, 0.0, 0.5, 0.0]], dtype=torch.float64)
    if part == "sine":
        angle = torch.arange(6, dtype=torch.float64)[:, None] / torch.tensor([1.0, 10.0])
        x = x + torch.cat([angle.sin(), angle.cos()], dim=1)
    position = rg.Alibi(torch.tensor([0.5], dtype=torch.float64)) if part == "distance" else None
    mask = rg.Causal() if part == "causal" else None
    x = x[None, None]
    for _ in range(layers):
        x = x + rg.attend(x, x, x, position=position, mask=mask)
    return x[0, 0]


SEPARATE = Step(
    name="separate-positions",
    title=Bilingual("Positions are a part of their own", "位置是独立的部件"),
    claim=Bilingual(
        "Positions are not built into attention but added to it, so a task can choose: text generation needs strict "
        "order, image classification less of it. Stacked layers may even learn order without any code.",
        "位置不是注意力自带的，而是另外加上的，所以每个任务可以自己选：生成文本要严格的次序，图像分类则宽松一些。"
        "层数叠起来，甚至不用编码也可能学到次序。",
    ),
    task=Bilingual(
        "Five equal words follow a start token. Which part lets the model tell them apart? Look at the rows of the "
        "outputs; then add layers without any part: they stay equal however many there are. A causal mask alone is "
        "enough, because the n-th word sees n words.",
        "开始符之后是五个一样的词。加上哪种部件，模型才分得清它们？看输出的各行；再试试什么都不加、只增加层数："
        "无论多少层都一样。只用因果掩码也行，因为第 n 个词看得到 n 个词。",
    ),
    controls=(
        Choice(
            "part",
            Bilingual("part added to attention", "加到注意力上的部件"),
            "none",
            (
                ("none", Bilingual("nothing", "不加")),
                ("sine", Bilingual("sine code on the words", "词上加正弦编码")),
                ("distance", Bilingual("bias by distance", "按距离的偏置")),
                ("causal", Bilingual("causal mask only", "只加因果掩码")),
            ),
        ),
        Slider("layers", Bilingual("layers", "层数"), 1, 1, 4, 1, whole=True),
    ),
    compute=compute_separate,
    attend=attend_separate,
    pictures=(
        Heatmap(Bilingual("outputs, a row for each word", "输出，每行一个词"), "output", role="output"),
        Bars(Bilingual("weight of each word on the start token", "每个词给开始符的权重"), "start"),
    ),
    findings=(
        Finding(
            Bilingual(
                "The outputs of the five equal words differ by {spread:.3f} after {layers} layers.",
                "{layers} 层之后，五个相同的词的输出相差 {spread:.3f}。",
            ),
            lambda result: result["spread"] < 1e-9,
        ),
    ),
    evidence=(
        Evidence("positions"),
        Evidence("order", ("sinusoidal", "learned", "t5", "rotary")),
    ),
)

STEPS = (REORDER, SHIFT, SEPARATE)
