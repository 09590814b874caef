"""Attention and fully connected layers together: what can be read off, a block of both, attention plugged in."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import regard as rg

from ....experiments.experiment import Bilingual
from ...controls import Choice, Slider
from ...pictures import Bars, Heatmap
from ...step import Evidence, Finding, Result, Step

SOURCE = (
    Bilingual("我 (I)", "我"),
    Bilingual("很 (very)", "很"),
    Bilingual("喜欢 (like)", "喜欢"),
    Bilingual("猫 (cats)", "猫"),
)
TARGET = (
    Bilingual("I", "I"),
    Bilingual("like", "like"),
    Bilingual("cats", "cats"),
    Bilingual("very much", "very much"),
)


def compute_readable_weights(target: str, size: float) -> Result:
    rng = np.random.default_rng(3)
    keys, values = np.eye(4) + 0.2 * rng.normal(size=(4, 4)), rng.normal(size=(4, 4))
    values[3] *= size  # how much 猫 has to say
    # I asks for 我, like for 喜欢, cats for 猫, very much for 很
    queries = 3 * keys[[0, 2, 3, 1]]
    weights = np.exp(queries @ keys.T)
    weights = weights / weights.sum(-1, keepdims=True)
    targets = ["I", "like", "cats", "very much"]
    output, row = weights @ values, weights[targets.index(target)]
    # what the output loses without the word
    effects = np.linalg.norm(row[:, None] * values, axis=-1)
    effects = effects / effects.sum()
    # a fully connected network over 4 words, with random weights
    first, second = rng.normal(size=(16, 4, 4)), rng.normal(size=(4, 16))
    # the sentence without each word, and the whole sentence
    without = values * (1 - np.eye(5, 4))[:, :, None]
    outputs = np.maximum(np.einsum("hwd,nwd->nh", first, without), 0) @ second.T
    fixed_effects = np.linalg.norm(outputs[:4] - outputs[4], axis=-1)
    fixed_weights = np.abs(first).sum((0, 2)) / np.abs(first).sum()
    return dict(
        weights=weights,
        bars=np.array([row, effects, fixed_weights, fixed_effects / fixed_effects.sum()]),
        misplaced=np.abs(row - effects).sum() / 2,
        fixed_misplaced=np.abs(fixed_weights - fixed_effects / fixed_effects.sum()).sum() / 2,
        cat_weight=row[3],
        cat_effect=effects[3],
        output=output,
    )


def attend_readable_weights(target: str, size: float) -> Tensor:
    rng = np.random.default_rng(3)
    keys = torch.eye(4) + 0.2 * torch.from_numpy(rng.normal(size=(4, 4)))
    values = torch.from_numpy(rng.normal(size=(4, 4)))
    values[3] *= size
    q, k, v = 3 * keys[[0, 2, 3, 1]][None, None], keys[None, None], values[None, None]
    return rg.attend(q, k, v, score=rg.Dot(scale=1.0))[0, 0]


READABLE_WEIGHTS = Step(
    name="readable-weights",
    title=Bilingual("Weights that can be read", "看得见的权重"),
    claim=Bilingual(
        "In translation, each target word's weights show which source words it attends to most; a fully connected "
        "layer's matrix is the same for every sentence and shows nothing of the kind. But a weight is not yet an "
        "effect: what a word contributes is its weight times its value.",
        "翻译时，从每个目标词的权重可以看到它最关注哪些源词；全连接层的矩阵对所有句子都一样，看不出这些。"
        "不过权重还不等于作用：一个词的贡献是权重乘以它的值。",
    ),
    task=Bilingual(
        "Choose a target word and look for its row in the map (vectors set by hand). Then take “cats” and shrink the "
        "value of 猫 to 0: the weight stays, the effect is gone.",
        "选一个目标词，在图中找到它那一行（向量是手工设定的）。再选 cats，把“猫”的值缩小到 0：权重还在，作用没有了。",
    ),
    controls=(
        Choice(
            "target",
            Bilingual("target word", "目标词"),
            "cats",
            tuple((word.en, word) for word in TARGET),
        ),
        Slider("size", Bilingual("size of the value of 猫", "“猫”的值的大小"), 1.0, 0.0, 3.0, 0.1),
    ),
    compute=compute_readable_weights,
    attend=attend_readable_weights,
    pictures=(
        Heatmap(Bilingual("weights of the target words", "各目标词的权重"), "weights", TARGET, SOURCE),
        Bars(
            Bilingual("weights and effects", "权重与作用"),
            "bars",
            SOURCE,
            (
                Bilingual("attention: weight", "注意力：权重"),
                Bilingual("attention: effect on the output", "注意力：对输出的作用"),
                Bilingual("fully connected: size of the weights", "全连接：权重的大小"),
                Bilingual("fully connected: effect on the output", "全连接：对输出的作用"),
            ),
            low=0,
            high=1,
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "{misplaced:.0%} of the attention weight is not where the effect is; of the fully connected network's "
                "weights it is {fixed_misplaced:.0%}.",
                "注意力的权重有 {misplaced:.0%} 与实际作用不符；全连接网络的权重有 {fixed_misplaced:.0%} 不符。",
            ),
            lambda result: result["misplaced"] < result["fixed_misplaced"],
        ),
        Finding(
            Bilingual(
                "猫 has {cat_weight:.0%} of the weight and {cat_effect:.0%} of the effect.",
                "“猫”占权重的 {cat_weight:.0%}，占作用的 {cat_effect:.0%}。",
            ),
            lambda result: result["cat_effect"] > 0.5 * result["cat_weight"],
        ),
    ),
    evidence=(Evidence("explanation"),),
    link="alignment?model=translator",
)

WORDS = (Bilingual("the", "这只"), Bilingual("cat", "猫"), Bilingual("likes", "喜欢"), Bilingual("fish", "鱼"))


def compute_block(parts: str, push: float) -> Result:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(4, 3))
    widen, narrow = rng.normal(size=(3, 12)), rng.normal(size=(12, 3)) / 4

    def block(x):
        # attention: each word collects from all words, by computed weights
        if parts != "network":
            weights = np.exp(x @ x.T / np.sqrt(3))
            x = x + weights / weights.sum(-1, keepdims=True) @ x
        # two fully connected layers: each word by itself, by fixed weights
        if parts != "attention":
            x = x + np.maximum(x @ widen, 0) @ narrow
        return x

    # push word j, and see how far each word's output moves
    shifts = push * np.eye(4)[:, :, None]
    moves = np.array([block(x + shift) - block(x) for shift in shifts])
    influence = np.linalg.norm(moves, axis=-1).T
    return dict(
        influence=influence,
        output=block(x),
        across=influence[~np.eye(4, dtype=bool)].max(),
        own=np.diag(influence).min(),
    )


def attend_block(parts: str, push: float) -> Tensor:
    rng = np.random.default_rng(5)
    shapes = ((4, 3), (3, 12), (12, 3))
    x, widen, narrow = (torch.from_numpy(rng.normal(size=shape)) for shape in shapes)
    if parts != "network":
        words = x[None, None]
        x = x + rg.attend(words, words, words)[0, 0]
    if parts != "attention":
        x = x + torch.relu(x @ widen) @ narrow / 4
    return x


BLOCK_OF_BOTH = Step(
    name="block-of-both",
    title=Bilingual("A block of both", "二者合成一个模块"),
    claim=Bilingual(
        "A Transformer's block uses both: attention gathers from the whole sentence, then two fully connected layers "
        "work on each word by itself. Take one away and something is missing.",
        "Transformer 的模块两者都用：注意力先从整句收集信息，再由两层全连接对每个词单独加工。少了哪一个都不完整。",
    ),
    task=Bilingual(
        "Leave out the attention: the map is empty off the diagonal, no word learns of another. Leave out the fully "
        "connected layers: words still mix, and less is lost than is often said (see the verdicts).",
        "去掉注意力：对角线以外全是 0，词与词互不相知。去掉全连接层：词仍会混合，损失比通常说的要小（见实测结论）。",
    ),
    controls=(
        Choice(
            "parts",
            Bilingual("the block has", "模块包含"),
            "both",
            (
                ("both", Bilingual("both", "两者")),
                ("attention", Bilingual("attention only", "只有注意力")),
                ("network", Bilingual("fully connected layers only", "只有全连接层")),
            ),
        ),
        Slider("push", Bilingual("how far a word is pushed", "把一个词推动多远"), 0.5, 0.0, 2.0, 0.1),
    ),
    compute=compute_block,
    attend=attend_block,
    pictures=(
        Heatmap(
            Bilingual("how far the output of word i moves when word j is pushed", "推动词 j 时，词 i 的输出移动多远"),
            "influence",
            WORDS,
            WORDS,
        ),
        Heatmap(Bilingual("output of the block", "模块的输出"), "output", WORDS, (), role="score"),
    ),
    findings=(
        Finding(
            Bilingual(
                "Pushing one word moves another word's output by up to {across:.2f}, and its own by at least "
                "{own:.2f}.",
                "推动一个词，别的词的输出最多移动 {across:.2f}，它自己的至少移动 {own:.2f}。",
            ),
            lambda result: result["across"] > 0.01,
        ),
    ),
    evidence=(Evidence("feed-forward"),),
)

PLACES = tuple(Bilingual(str(n), str(n)) for n in range(1, 13))


def compute_plug_in(place: int, kernel: int, plugged: str) -> Result:
    rng = np.random.default_rng(7)
    x = rng.normal(size=(12, 4))
    taps = rng.normal(size=(kernel, 4, 4)) / np.sqrt(4 * kernel)

    def layer(x):
        padded = np.pad(x, ((kernel // 2, kernel // 2), (0, 0)))
        y = np.sum([padded[n : n + 12] @ taps[n] for n in range(kernel)], axis=0)
        if plugged == "yes":  # attention on top, added to what was there
            weights = np.exp(y @ y.T / 2)
            y = y + weights / weights.sum(-1, keepdims=True) @ y
        return y

    output = layer(x)
    moves = np.array([layer(x + push) - output for push in 0.1 * np.eye(12)[:, :, None]])
    # how far output i moves when input j is pushed
    influence = np.linalg.norm(moves, axis=-1).T / 0.1
    row = influence[place - 1]
    return dict(
        influence=influence,
        row=row,
        reached=int((row > 1e-12).sum()),
        place=place,
        output=output,
        farthest=row[0],
    )


def attend_plug_in(place: int, kernel: int, plugged: str) -> Tensor:
    rng = np.random.default_rng(7)
    x, taps = (torch.from_numpy(rng.normal(size=shape)) for shape in ((12, 4), (kernel, 4, 4)))
    taps = taps.permute(2, 1, 0) / (4 * kernel) ** 0.5
    y = torch.nn.functional.conv1d(x.T, taps, padding=kernel // 2).T
    z = y[None, None]
    return y + rg.attend(z, z, z)[0, 0] if plugged == "yes" else y


PLUG_IN = Step(
    name="plug-in",
    title=Bilingual("Attention plugged into another network", "插进别的网络的注意力"),
    claim=Bilingual(
        "Attention can be plugged into a network that exists: put behind a convolution or a recurrent layer, and "
        "added to its output, it gives each position the whole sequence without touching the layers before it.",
        "注意力是即插即用的：接在卷积层或循环层之后，把结果加到原输出上，每个位置就能用到整个序列，前面的层不必改动。",
    ),
    task=Bilingual(
        "Look at which inputs move the output at position 12. Plug the attention in, then out. Compare with a larger "
        "kernel.",
        "看哪些输入会影响第 12 个位置的输出。把注意力插上，再拔掉，并与更大的卷积核比较。",
    ),
    controls=(
        Choice(
            "plugged",
            Bilingual("attention", "注意力"),
            "no",
            (("no", Bilingual("unplugged", "拔掉")), ("yes", Bilingual("plugged in", "插上"))),
        ),
        Slider("kernel", Bilingual("kernel of the convolution", "卷积核大小"), 3, 1, 7, 2, whole=True),
        Slider("place", Bilingual("position that is looked at", "观察的位置"), 12, 1, 12, 1, whole=True),
    ),
    compute=compute_plug_in,
    attend=attend_plug_in,
    pictures=(
        Bars(
            Bilingual("how much each input moves that output", "各个输入对该输出的影响"),
            "row",
            PLACES,
            role="output",
            low=0,
        ),
        Heatmap(
            Bilingual("how much input j moves output i", "输入 j 对输出 i 的影响"),
            "influence",
            PLACES,
            PLACES,
            role="plain",
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "{reached} of 12 inputs reach the output at position {place}; the first one moves it by "
                "{farthest:.3f}.",
                "12 个输入中有 {reached} 个影响第 {place} 个位置的输出；第 1 个的影响是 {farthest:.3f}。",
            ),
            lambda result: result["reached"] == 2 and result["farthest"] == 0,
        ),
    ),
    evidence=(Evidence("plugged"),),
)
