"""Sentences: how far a layer reaches, how many parameters it has, and which lengths it can read."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import regard as rg

from ....experiments.experiment import Bilingual
from ...controls import Slider, Words
from ...pictures import Bars, Heatmap, Lines, NumberTable
from ...step import Evidence, Finding, Result, Step

PLACES = tuple(Bilingual(str(n), str(n)) for n in range(1, 13))


def compute_reach(window: int, layers: int) -> Result:
    rng = np.random.default_rng(0)
    # a neuron is connected to the words of its window only
    near = np.abs(np.arange(12)[:, None] - np.arange(12)) <= window
    depths, stacks, stack = np.arange(1, 13), [], np.eye(12)
    for _ in depths:
        weights = rng.random((12, 12)) * near
        stack = weights / weights.sum(-1, keepdims=True) @ stack
        stacks.append(stack)
    influence = stacks[layers - 1]
    # the share of pairs of words of which one influences the other
    reached = np.mean(np.array(stacks) > 0, axis=(1, 2))
    words = rng.normal(size=(12, 4))
    attention = np.exp(words @ words.T / 2)
    attention = attention / attention.sum(-1, keepdims=True)
    return dict(
        influence=influence,
        attention=attention,
        depths=depths,
        reached=reached,
        attention_reached=np.full(12, np.mean(attention > 0)),
        layers=layers,
        share=reached[layers - 1],
        first_to_last=influence[11, 0],
        attention_first_to_last=attention[11, 0],
        needed=int(np.argmax(reached == 1) + 1),
    )


def attend_reach(window: int, layers: int) -> Tensor:
    rng = np.random.default_rng(0)
    # the weights of the twelve fully connected layers come first
    rng.random((12, 12, 12))
    words = torch.from_numpy(rng.normal(size=(1, 1, 12, 4)))
    return rg.attend(words, words, torch.eye(12, dtype=words.dtype)[None, None])[0, 0]


REACH = Step(
    name="reach",
    title=Bilingual("Far words: depth or one look", "远处的词：靠堆叠，还是看一眼"),
    claim=Bilingual(
        "A fully connected layer over a window relates only words that stand near each other; distant words meet only "
        "after many layers, and all of these layers have to be computed. Attention relates any two words in one layer.",
        "窗口上的全连接层只能联系相邻的词；相距很远的词要堆叠许多层才碰得到，每一层都要计算。"
        "注意力在一层之内就能联系任意两个词。",
    ),
    task=Bilingual(
        "Add layers and watch the band of influence widen by one window each. How many does word 12 need to notice "
        "word 1?",
        "增加层数，看影响的带子每层加宽一个窗口。第 12 个词要注意到第 1 个词，需要几层？",
    ),
    controls=(
        Slider("window", Bilingual("window: words on each side", "窗口：左右各几个词"), 2, 1, 11, 1, whole=True),
        Slider("layers", Bilingual("layers", "层数"), 2, 1, 12, 1, whole=True),
    ),
    compute=compute_reach,
    attend=attend_reach,
    answer="attention",
    pictures=(
        Heatmap(
            Bilingual("fully connected: influence of word j on word i", "全连接：第 j 个词对第 i 个词的影响"),
            "influence",
            PLACES,
            PLACES,
            role="plain",
        ),
        Heatmap(Bilingual("attention: one layer", "注意力：一层"), "attention", PLACES, PLACES, role="plain"),
        Lines(
            Bilingual("pairs of words that reach each other", "能互相影响的词对"),
            "depths",
            (
                ("reached", Bilingual("fully connected over the window", "窗口上的全连接")),
                ("attention_reached", Bilingual("attention", "注意力")),
            ),
            Bilingual("layers", "层数"),
            Bilingual("share of pairs", "词对的比例"),
            marker="layers",
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "With these layers {share:.0%} of the pairs are connected; {needed} layers connect all of them. In "
                "attention one layer does: word 12 gives word 1 a weight of {attention_first_to_last:.3f}.",
                "这些层连通了 {share:.0%} 的词对；要连通全部需要 {needed} 层。"
                "注意力只要一层：第 12 个词给第 1 个词的权重是 {attention_first_to_last:.3f}。",
            ),
            lambda result: result["share"] < 1 and result["attention_first_to_last"] > 0,
        ),
        Finding(
            Bilingual(
                "Through {layers} layers, word 1 moves word 12 by {first_to_last:.4f}. (A window of 11 reaches "
                "everything at once; it is then a fully connected layer over the sentence, with a weight for each "
                "pair of places.)",
                "经过 {layers} 层，第 1 个词对第 12 个词的影响是 {first_to_last:.4f}。"
                "（窗口取 11 时一层就够，但那就成了覆盖整句的全连接层，每对位置都有自己的权重。）",
            ),
            lambda result: result["first_to_last"] == 0,
        ),
    ),
    evidence=(
        Evidence("paths", ("attention-path", "convolution-path")),
        Evidence("long-range", ("attention", "convolution-shallow", "convolution-deep")),
    ),
)


def compute_parameters(words: int, dim: int) -> Result:
    def count(n):  # without biases
        return np.array([dim * dim, (n * dim) ** 2, 4 * dim * dim])

    # multiplications for a sentence of n words; two n × n × dim products are attention's own
    def multiply(n):
        projections = 4 * n * dim**2
        pairs = [2 * n * n * dim, 2 * n * np.minimum(n, 9) * dim]
        return [n * dim**2, (n * dim) ** 2, projections + pairs[0], projections + pairs[1]]

    lengths = np.arange(1, 51)
    work = np.array([multiply(n) for n in lengths], dtype=float)
    each_word, sentence, attention, windowed = work.T
    table = np.array([count(5), count(50), count(words)])
    ratio = table[:, 1] / table[:, 2]
    return dict(
        counts=count(words),
        table=table,
        lengths=lengths,
        sentence_parameters=np.array([count(n)[1] for n in lengths], dtype=float),
        attention_parameters=np.array([count(n)[2] for n in lengths], dtype=float),
        each_word=each_word,
        sentence=sentence,
        attention=attention,
        windowed=windowed,
        words=words,
        ratio_5=ratio[0],
        ratio_50=ratio[1],
        growth=table[1, 1] / table[0, 1],
    )


def attend_parameters(words: int, dim: int) -> Tensor:
    with torch.device("meta"):  # shapes without memory
        layers = [
            torch.nn.Linear(dim, dim, bias=False),
            torch.nn.Linear(words * dim, words * dim, bias=False),
            rg.nn.MultiHeadAttention(dim, heads=1, bias=""),
        ]
    counts = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    return torch.tensor(counts)


COLUMNS = (
    Bilingual("fully connected, word by word", "逐词的全连接"),
    Bilingual("fully connected, whole sentence", "整句的全连接"),
    Bilingual("attention", "注意力"),
)

PARAMETERS = Step(
    name="parameters",
    title=Bilingual("Parameters and work at 5 and at 50 words", "5 个词与 50 个词时的参数量和计算量"),
    claim=Bilingual(
        "A fully connected layer has d_in · d_out weights. Attention has projections of d · d each, which is about as "
        "many as a fully connected layer applied word by word, whatever the length. Its work grows with n² · d, which "
        "long sentences feel and sparse attention avoids.",
        "全连接层有 d_in · d_out 个权重。注意力的每个投影是 d · d，与逐词使用的全连接层相近，且与句长无关。"
        "它的计算量随 n² · d 增长，句子长了会成为瓶颈，稀疏注意力可以缓解。",
    ),
    task=Bilingual(
        "Move from 5 to 50 words and read the table: the layer over the whole sentence needs 100 times as many "
        "parameters, attention none more.",
        "把词数从 5 拉到 50，看表：覆盖整句的全连接层参数变成 100 倍，注意力的参数一个也不增加。",
    ),
    controls=(
        Slider("words", Bilingual("words n", "词数 n"), 5, 1, 50, 1, whole=True),
        Slider("dim", Bilingual("size of a word vector d", "词向量的维度 d"), 64, 4, 512, 4, whole=True),
    ),
    compute=compute_parameters,
    attend=attend_parameters,
    answer="counts",
    pictures=(
        NumberTable(
            Bilingual("parameters", "参数量"),
            "table",
            (Bilingual("5 words", "5 个词"), Bilingual("50 words", "50 个词"), Bilingual("n words", "n 个词")),
            COLUMNS,
        ),
        Lines(
            Bilingual("parameters by number of words", "参数量与词数"),
            "lengths",
            (("sentence_parameters", COLUMNS[1]), ("attention_parameters", COLUMNS[2])),
            Bilingual("words", "词数"),
            Bilingual("parameters", "参数量"),
            log_y=True,
            marker="words",
        ),
        Lines(
            Bilingual("multiplications by number of words", "乘法次数与词数"),
            "lengths",
            (
                ("each_word", COLUMNS[0]),
                ("sentence", COLUMNS[1]),
                ("attention", COLUMNS[2]),
                ("windowed", Bilingual("attention, 9 neighbours", "注意力，只看 9 个邻居")),
            ),
            Bilingual("words", "词数"),
            Bilingual("multiplications", "乘法次数"),
            log_y=True,
            marker="words",
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "Over the whole sentence a fully connected layer has {ratio_5:.2f} times the parameters of attention "
                "at 5 words and {ratio_50:.0f} times at 50: {growth:.0f} times as many as at 5.",
                "5 个词时，整句的全连接层参数量是注意力的 {ratio_5:.2f} 倍；50 个词时是 {ratio_50:.0f} 倍，"
                "是 5 个词时的 {growth:.0f} 倍。",
            ),
            lambda result: abs(result["growth"] - 100) < 1e-9 and result["ratio_50"] > 100 * result["ratio_5"] - 1e-9,
        ),
    ),
    evidence=(Evidence("copy", ("weights",)), Evidence("cost")),
)


def compute_fixed_inputs(sentence: str) -> Result:
    words = sentence.split()
    # a random vector for each word, the same wherever the word stands
    rngs = [np.random.default_rng([ord(sign) for sign in word]) for word in words]
    vectors = np.array([rng.normal(size=16) for rng in rngs])
    keys, query = vectors[:-1], vectors[-1]  # has the last word been said before?
    scores = keys @ query
    weights = np.exp(scores - scores.max(initial=0))
    # the last word itself is left out
    weights = np.append(weights / weights.sum(), 0)
    # a fully connected layer made for 5 words has 5 · 16 inputs
    read = np.arange(len(words)) < 5
    return dict(
        words=words,
        both=np.array([weights, read * 1.0]),
        output=weights[:-1] @ keys,
        count=len(words),
        read=int(read.sum()),
        lost=int((~read).sum()),
        match=words[int(weights.argmax())],
        last=words[-1],
        weight=weights.max(),
        padding=max(0, 5 - len(words)),
    )


def attend_fixed_inputs(sentence: str) -> Tensor:
    rngs = [np.random.default_rng([ord(sign) for sign in word]) for word in sentence.split()]
    vectors = np.array([rng.normal(size=16) for rng in rngs])
    words = torch.from_numpy(vectors)[None, None]
    q, k = words[:, :, -1:], words[:, :, :-1]
    return rg.attend(q, k, k, score=rg.Dot(scale=1.0)).flatten()


FIXED_INPUTS = Step(
    name="fixed-inputs",
    title=Bilingual("Sentences of any length", "长短不一的句子"),
    claim=Bilingual(
        "A fully connected layer has a fixed number of inputs, so a longer sentence must be cut and a shorter one "
        "padded. Attention compares one vector with however many there are.",
        "全连接层的输入个数是固定的：句子长了要截断，短了要填充。注意力拿一个向量去和所有向量比较，有多少个都行。",
    ),
    task=Bilingual(
        "Has the last word been said before? Type a longer or a shorter sentence (words separated by blanks). The "
        "layer made for 5 words does not even read the rest.",
        "最后一个词前面出现过吗？试着把句子写长或写短（词之间用空格隔开）。为 5 个词设计的层，后面的词根本没有读到。",
    ),
    controls=(
        Words(
            "sentence",
            Bilingual("a sentence", "一句话"),
            Bilingual("one two cat four five six seven eight cat", "一 二 猫 四 五 六 七 八 猫"),
        ),
    ),
    compute=compute_fixed_inputs,
    attend=attend_fixed_inputs,
    pictures=(
        Bars(
            Bilingual("word by word", "逐词来看"),
            "both",
            "words",
            (
                Bilingual("attention: weight given by the last word", "注意力：最后一个词给出的权重"),
                Bilingual("fully connected for 5 words: 1 if it is read", "5 个词的全连接：读到的词为 1"),
            ),
            low=0,
            high=1,
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "“{last}” finds “{match}” with a weight of {weight:.2f} among {count} words.",
                "“{last}”在 {count} 个词里找到“{match}”，权重 {weight:.2f}。",
            ),
            lambda result: result["match"] == result["last"] and result["weight"] > 0.9,
        ),
        Finding(
            Bilingual(
                "The layer made for 5 words reads {read} of them; {lost} are cut off and {padding} places are padding.",
                "为 5 个词设计的层读到其中 {read} 个，截掉 {lost} 个，填充 {padding} 个位置。",
            ),
            lambda result: result["lost"] > 0,
        ),
    ),
    evidence=(
        Evidence("fixed-weights", ("any-length", "one-length")),
        Evidence("grey-ball", ("fixed-size", "any-size")),
    ),
)
