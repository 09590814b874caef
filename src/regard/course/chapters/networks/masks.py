"""Self-attention and its masks: attention(x, x, x), a painted mask, all next words in one pass."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import regard as rg

from ....experiments.experiment import Bilingual
from ...controls import Choice, MaskGrid, Numbers, Words
from ...pictures import Bars, Heatmap, NumberTable, Plane
from ...step import Evidence, Finding, Result, Step

TOKENS = (Bilingual("I", "I"), Bilingual("like", "like"), Bilingual("you", "you"))
SOURCE = (Bilingual("我", "我"), Bilingual("喜欢", "喜欢"), Bilingual("你", "你"))


def compute_attention_xxx(
    x: np.ndarray, encoded: np.ndarray, w_q: np.ndarray, w_k: np.ndarray, w_v: np.ndarray
) -> Result:
    def attention(q, k, v):
        scores = q @ k.T / np.sqrt(q.shape[1])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = weights / weights.sum(-1, keepdims=True)
        return weights, weights @ v

    plain, _ = attention(x, x, x)  # the whole trick: one input, three times
    # with three matrices, as in an encoder
    own, output = attention(x @ w_q, x @ w_k, x @ w_v)
    # a decoder asks the encoder
    cross, cross_output = attention(x @ w_q, encoded @ w_k, encoded @ w_v)
    scores, projected = x @ x.T, (x @ w_q) @ (x @ w_k).T
    return dict(
        plain=plain,
        own=own,
        cross=cross,
        output=output,
        cross_output=cross_output,
        symmetry=np.abs(scores - scores.T).max(),
        asymmetry=np.abs(projected - projected.T).max(),
        selfish=int((plain.argmax(-1) == np.arange(3)).sum()),
        projected_selfish=int((own.argmax(-1) == np.arange(3)).sum()),
    )


def attend_attention_xxx(x: Tensor, encoded: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
    q, k, v = (x @ w for w in (w_q, w_k, w_v))
    return rg.attend(q[None, None], k[None, None], v[None, None])[0, 0]


IDENTITY = ((1.0, 0.0), (0.0, 1.0))

ATTENTION_XXX = Step(
    name="attention-xxx",
    title=Bilingual("attention(x, x, x)", "attention(x, x, x)"),
    claim=Bilingual(
        "Often there are no separate values: a sentence asks itself. Queries, keys and values are the same input "
        "times three matrices; in code the input is passed three times. In a decoder the queries come from its own "
        "words, the keys and values from the encoder.",
        "实际中往往没有另外的“值”：句子向自己提问。Q、K、V 由同一个输入分别乘三个矩阵得到，"
        "代码里就是把同一个输入传三次。在解码器里，Q 来自它自己的词，K 和 V 来自编码器的输出。",
    ),
    task=Bilingual(
        "Drag a word. Compare attention(x, x, x) with the map after W_q and W_k: without matrices the scores are "
        "symmetric, and words like themselves best. Change W_q.",
        "拖动一个词。比较 attention(x, x, x) 与乘上 W_q、W_k 之后的图：没有矩阵时分数是对称的，词往往最关注自己。"
        "再改动 W_q。",
    ),
    controls=(
        Numbers("x", Bilingual("the sentence x", "句子 x"), ((1.6, 0.4), (0.3, 1.8), (-1.6, 0.9)), -3, 3, rows=TOKENS),
        Numbers("w_q", Bilingual("W_q", "W_q"), ((0.0, -1.5), (1.5, 0.0)), -3, 3),
        Numbers("w_k", Bilingual("W_k", "W_k"), IDENTITY, -3, 3),
        Numbers("w_v", Bilingual("W_v", "W_v"), IDENTITY, -3, 3),
        Numbers(
            "encoded",
            Bilingual("output of an encoder", "编码器的输出"),
            ((0.4, 1.5), (-1.4, 0.8), (0.6, -1.4)),
            -3,
            3,
            rows=SOURCE,
        ),
    ),
    compute=compute_attention_xxx,
    attend=attend_attention_xxx,
    pictures=(
        Plane(Bilingual("the words", "各个词"), (("x", "key"),), (("x", TOKENS),)),
        Heatmap(Bilingual("attention(x, x, x)", "attention(x, x, x)"), "plain", TOKENS, TOKENS),
        Heatmap(Bilingual("attention(x·W_q, x·W_k, x·W_v)", "attention(x·W_q, x·W_k, x·W_v)"), "own", TOKENS, TOKENS),
        Heatmap(Bilingual("decoder to encoder", "解码器对编码器"), "cross", TOKENS, SOURCE),
    ),
    findings=(
        Finding(
            Bilingual(
                "Without matrices {selfish} of 3 words attend most to themselves, and score(i, j) and score(j, i) "
                "differ by {symmetry:.1f}; with them {projected_selfish} of 3, and they differ by up to "
                "{asymmetry:.1f}.",
                "没有矩阵时，3 个词中有 {selfish} 个最关注自己，(i, j) 与 (j, i) 的分数相差 {symmetry:.1f}；"
                "有矩阵时是 {projected_selfish} 个，最多相差 {asymmetry:.1f}。",
            ),
            lambda result: result["selfish"] == 3 > result["projected_selfish"] and result["asymmetry"] > 0.1,
        ),
    ),
    evidence=(Evidence("three-vectors", ("all-three", "same-query-key")),),
    link="heads?model=tagger",
)

SENTENCE = tuple(Bilingual(word, word) for word in ("<BOS>", "I", "like", "you", "<EOS>"))


def compute_painted_mask(mask: np.ndarray) -> Result:
    x, other = np.random.default_rng(2).normal(size=(2, 5, 4))

    def attention(x):
        # what may not be seen scores minus infinity
        scores = np.where(mask, x @ x.T / 2, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-1e9))
        # a row without keys is 0
        weights = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300)
        return weights, weights @ x

    weights, output = attention(x)
    moved = np.zeros((5, 5))
    for j in range(5):  # put another word at position j: whose output moves?
        changed = np.where(np.arange(5)[:, None] == j, other, x)
        moved[:, j] = np.linalg.norm(attention(changed)[1] - output, axis=-1)
    future = np.triu(np.ones((5, 5), dtype=bool), 1)
    return dict(
        weights=weights,
        hidden=~mask,
        moved=moved,
        output=output,
        leaks=int((mask & future).sum()),
        leak=moved[future].max(),
        seen=int(mask.sum()),
    )


def attend_painted_mask(mask: Tensor) -> Tensor:
    x = torch.from_numpy(np.random.default_rng(2).normal(size=(2, 5, 4)))[:1, None]
    return rg.attend(x, x, x, mask=rg.Pairs(mask))[0, 0]


PAINTED_MASK = Step(
    name="painted-mask",
    title=Bilingual("Masked self-attention: paint the mask", "掩码自注意力：自己涂掩码"),
    claim=Bilingual(
        "A mask hides positions: what is hidden scores −∞, gets the weight 0 and is ignored. To predict the next "
        "word, a position may see only itself and what stands before it: the lower triangle.",
        "掩码遮住一些位置：被遮住的分数为 −∞，权重为 0，完全被忽略。要预测下一个词，每个位置只能看到自己和前面的词："
        "下三角。",
    ),
    task=Bilingual(
        "Paint a cell above the diagonal: a word looks into the future, and the right map shows the leak. Clear a "
        "whole row: its output is 0, not an error.",
        "在对角线上方涂一格：这个词偷看到了后面，右边的图会显示泄漏。把一整行都擦掉：它的输出是 0，而不是出错。",
    ),
    controls=(
        MaskGrid(
            "mask",
            Bilingual("who may look at whom", "谁可以看谁"),
            (
                (True, False, False, False, False),
                (True, True, False, False, False),
                (True, True, True, False, False),
                (True, True, True, True, False),
                (True, True, True, True, True),
            ),
            SENTENCE,
            SENTENCE,
        ),
    ),
    compute=compute_painted_mask,
    attend=attend_painted_mask,
    pictures=(
        Heatmap(Bilingual("weights", "权重"), "weights", SENTENCE, SENTENCE, masked="hidden"),
        Heatmap(
            Bilingual("how far output i moves when word j is replaced", "换掉词 j 时，输出 i 移动多远"),
            "moved",
            SENTENCE,
            SENTENCE,
            role="output",
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "{seen} of 25 pairs are allowed, {leaks} of them look ahead; a later word moves an earlier output by "
                "up to {leak:.2f}.",
                "25 对中允许 {seen} 对，其中 {leaks} 对看向后面；后面的词最多让前面的输出移动 {leak:.2f}。",
            ),
            lambda result: result["leaks"] == 0 and result["leak"] == 0,
        ),
    ),
    evidence=(Evidence("masked-training", ("leak", "prefixes")),),
)


def compute_one_pass(sentence: str, masked: str) -> Result:
    words = sentence.split()
    rngs = [np.random.default_rng([ord(sign) for sign in word]) for word in words]
    x = np.array([rng.normal(size=8) for rng in rngs])  # a vector for each word

    def layer(x):
        scores = x @ x.T / np.sqrt(8)
        if masked == "yes":
            scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = weights / weights.sum(-1, keepdims=True)
        return weights, weights @ x

    weights, output = layer(x)  # one pass over the whole sentence
    # one pass for each prefix
    steps = np.array([layer(x[: n + 1])[1][-1] for n in range(len(x))])
    differences = np.linalg.norm(output - steps, axis=-1)
    return dict(
        words=words,
        weights=weights,
        hidden=np.triu(np.ones((len(x), len(x)), dtype=bool), 1) & (masked == "yes"),
        table=[
            [word if j <= n else "▨" for j, word in enumerate(words)] + ["→ " + words[n + 1]]
            for n in range(len(words) - 1)
        ],
        table_columns=[str(n + 1) for n in range(len(words))] + ["→"],
        steps=[str(n + 1) for n in range(len(words) - 1)],
        differences=differences,
        difference=differences.max(),
        passes=len(words) - 1,
        output=output,
    )


def attend_one_pass(sentence: str, masked: str) -> Tensor:
    rngs = [np.random.default_rng([ord(sign) for sign in word]) for word in sentence.split()]
    x = torch.from_numpy(np.array([rng.normal(size=8) for rng in rngs]))[None, None]
    return rg.attend(x, x, x, mask=rg.Causal() if masked == "yes" else None)[0, 0]


ONE_PASS = Step(
    name="one-pass",
    title=Bilingual("All next words in one pass", "一次算出所有的下一个词"),
    claim=Bilingual(
        "An n-gram model goes step by step: <BOS> → I, <BOS> I → like, <BOS> I like → you. With the mask each row of "
        "one pass is such a step: row n sees only the first n words. The steps no longer wait for each other.",
        "n-gram 模型要一步一步来：<BOS> → I，<BOS> I → like，<BOS> I like → you。有了掩码，"
        "一次计算的每一行就是其中一步：第 n 行只看得到前 n 个词。各步不必再互相等待，可以并行。",
    ),
    task=Bilingual(
        "Type a sentence. Each row of the table is one step. Then take the mask away: the rows of the single pass see "
        "the whole sentence, also the word they should predict, and no longer agree with the steps.",
        "写一句话。表中每行是一步。再去掉掩码：一次计算的各行都看到了整句，包括要预测的词，与逐步的结果不再一致。",
    ),
    controls=(
        Words(
            "sentence",
            Bilingual("sentence", "句子"),
            Bilingual("<BOS> I like you <EOS>", "<BOS> 我 喜欢 你 <EOS>"),
            most=8,
        ),
        Choice(
            "masked",
            Bilingual("mask", "掩码"),
            "yes",
            (("yes", Bilingual("lower triangle", "下三角")), ("no", Bilingual("none", "无"))),
        ),
    ),
    compute=compute_one_pass,
    attend=attend_one_pass,
    pictures=(
        NumberTable(Bilingual("the steps", "逐步来看"), "table", "steps", "table_columns"),
        Heatmap(
            Bilingual("weights of the single pass", "一次计算的权重"), "weights", "words", "words", masked="hidden"
        ),
        Bars(
            Bilingual("difference between the pass and the step", "一次计算与逐步计算之差"),
            "differences",
            "words",
            role="output",
            low=0,
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "One pass replaces {passes} steps; the results differ by {difference:.1g}.",
                "一次计算代替 {passes} 步；结果相差 {difference:.1g}。",
            ),
            lambda result: result["difference"] < 1e-12,
        ),
    ),
    evidence=(Evidence("masked-training", ("one-pass", "sentences", "n-gram")),),
    link="heads?model=shakespeare",
)
