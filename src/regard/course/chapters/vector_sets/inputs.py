"""What goes in and what comes out: sets of vectors, labels for each, for all, or for as many as the model decides."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import regard as rg

from ....experiments.experiment import Bilingual
from ...controls import Numbers, Slider, Words
from ...pictures import Bars, Drawing, Heatmap, Lines, NumberTable, Plane
from ...step import Evidence, Finding, Result, Step

ROYALS = (
    Bilingual("king", "国王"),
    Bilingual("queen", "王后"),
    Bilingual("man", "男人"),
    Bilingual("woman", "女人"),
    Bilingual("apple", "苹果"),
)


def compute_one_hot(embeddings: np.ndarray, vocabulary: int) -> Result:
    one_hot = np.eye(len(embeddings))
    one_hot_cosines = one_hot @ one_hot.T
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    directions = embeddings / np.maximum(lengths, 1e-9)
    cosines = directions @ directions.T
    guess = embeddings[0] - embeddings[2] + embeddings[3]  # king − man + woman
    distances = np.linalg.norm(embeddings - guess, axis=1)
    king_queen, king_apple, zeros = cosines[0, 1], cosines[0, 4], vocabulary - 1
    return dict(
        one_hot_cosines=one_hot_cosines,
        cosines=cosines,
        guess=guess,
        distances=distances,
        miss=distances[1],
        king_queen=king_queen,
        king_apple=king_apple,
        zeros=zeros,
        vocabulary=vocabulary,
        one_hot_off_diagonal=np.abs(one_hot_cosines - one_hot).max(),
    )


ONE_HOT = Step(
    name="one-hot",
    title=Bilingual("Numbers for words: one-hot and embeddings", "把词变成数：独热向量与词嵌入"),
    claim=Bilingual(
        "A one-hot vector is as long as the vocabulary and says nothing about meaning: king and queen are orthogonal. "
        "In an embedding, words with related meanings have vectors that lie close together.",
        "独热向量与词表一样长，却不含语义：国王与王后互相正交。在词嵌入里，意思相关的词，向量也相近。",
    ),
    task=Bilingual(
        "These vectors are set by hand: to the right is royal, up is male. Drag the queen and compare the two tables: "
        "only the right one moves. The arrow “guess” is king − man + woman; where does it end?",
        "这些向量是手工设定的：向右表示王室，向上表示男性。拖动王后，比较两张表：只有右边那张会变。"
        "“推测”这支箭头是 国王 − 男人 + 女人，它指到哪里？",
    ),
    controls=(
        Numbers(
            "embeddings",
            Bilingual("embeddings", "词嵌入"),
            ((2.0, 1.0), (2.0, -1.0), (0.4, 1.1), (0.4, -0.9), (-2.0, 0.2)),
            -3,
            3,
            rows=ROYALS,
        ),
        Slider("vocabulary", Bilingual("words in the vocabulary", "词表大小"), 20000, 1000, 50000, 1000, whole=True),
    ),
    compute=compute_one_hot,
    pictures=(
        Plane(
            Bilingual("embeddings of two dimensions", "二维的词嵌入"),
            (("embeddings", "key"), ("guess", "output")),
            (("embeddings", ROYALS), ("guess", (Bilingual("guess", "推测"),))),
        ),
        Heatmap(Bilingual("cosines of one-hot vectors", "独热向量的余弦"), "one_hot_cosines", ROYALS, ROYALS, "score"),
        Heatmap(Bilingual("cosines of embeddings", "词嵌入的余弦"), "cosines", ROYALS, ROYALS, "score"),
        Bars(Bilingual("distance of each word to the guess", "各词到推测的距离"), "distances", ROYALS, role="plain"),
    ),
    findings=(
        Finding(
            Bilingual(
                "With one-hot vectors every two words have the cosine {one_hot_off_diagonal:.0f}, and each word takes "
                "{vocabulary:,} numbers, {zeros:,} of them zero.",
                "用独热向量时，任何两个词的余弦都是 {one_hot_off_diagonal:.0f}；"
                "每个词要 {vocabulary:,} 个数，其中 {zeros:,} 个是零。",
            ),
            lambda result: result["one_hot_off_diagonal"] == 0,
        ),
        Finding(
            Bilingual(
                "As embeddings, king and queen have the cosine {king_queen:.2f}, king and apple {king_apple:.2f}.",
                "用词嵌入时，国王与王后的余弦是 {king_queen:.2f}，国王与苹果是 {king_apple:.2f}。",
            ),
            lambda result: result["king_queen"] > 0.5 > result["king_apple"],
        ),
        Finding(
            Bilingual(
                "The word nearest to king − man + woman is queen, {miss:.2f} away.",
                "离 国王 − 男人 + 女人 最近的词是王后，相距 {miss:.2f}。",
            ),
            lambda result: result["distances"].argmin() == 1,
        ),
    ),
    evidence=(Evidence("meaning", ("neighbours", "one-hot", "seen-16-times")),),
)


def compute_frames(sentence: str, atoms: str, side: int, seconds: float, pitch: float) -> Result:
    rate, width, hop, bins = 8000, 200, 80, 16  # frames of 25 ms, one every 10 ms
    time = np.arange(int(seconds * rate)) / rate
    sound = np.sin(2 * np.pi * pitch * (time + time**2 / seconds))  # a tone that rises
    starts = np.arange(0, len(sound) - width + 1, hop)
    frames = sound[starts[:, None] + np.arange(width)] * np.hanning(width)
    power = np.abs(np.fft.rfft(frames)) ** 2
    vectors = np.log10(1 + power[:, :96].reshape(len(frames), bins, -1).sum(2))
    spectrum = vectors.T[::-1]  # high tones above
    return dict(
        spectrum=spectrum,
        sizes=np.array(
            [
                [len(sentence.split()), 64],  # a vector for each word
                [len(vectors), bins],  # for each frame
                [(side // 4) ** 2, 4 * 4 * 3],  # for each patch of 4 × 4 pixels in three colours
                [len(atoms.split()), 9],  # for each atom: its element among nine
            ]
        ),
        frames=len(vectors),
        bins=bins,
        seconds=seconds,
        patches=(side // 4) ** 2,
    )


VECTOR_INPUTS = Step(
    name="vector-inputs",
    title=Bilingual("Text, sound, images and graphs are sets of vectors", "文本、语音、图像和图都是向量集合"),
    claim=Bilingual(
        "Much of what a model reads is a set of vectors whose number varies: words of a sentence, short frames of a "
        "recording, patches of an image, nodes of a graph such as the atoms of a molecule.",
        "模型读入的许多东西都是一组向量，而且个数不定：句子里的词、录音里的短帧、图像里的图块、"
        "图里的节点（比如分子里的原子）。",
    ),
    task=Bilingual(
        "Make the recording longer, or change the sentence. The number of vectors changes, their size does not. In "
        "the spectrum each column is the vector of one frame of 25 ms.",
        "把录音调长，或者改一改句子：变的是向量的个数，不是向量的大小。频谱图的每一列，就是一帧（25 毫秒）的向量。",
    ),
    controls=(
        Words("sentence", Bilingual("sentence", "句子"), Bilingual("the cat sat down", "猫 坐 在 垫子 上"), 12),
        Slider("seconds", Bilingual("seconds of sound", "录音秒数"), 0.2, 0.1, 0.6, 0.05),
        Slider("pitch", Bilingual("pitch in Hz", "音高（Hz）"), 600, 200, 1200, 50),
        Slider("side", Bilingual("side of the image in pixels", "图像边长（像素）"), 32, 8, 128, 4, whole=True),
        Words("atoms", Bilingual("atoms of a molecule", "分子里的原子"), Bilingual("C C O", "C C O"), 12),
    ),
    compute=compute_frames,
    pictures=(
        NumberTable(
            Bilingual("how many vectors, and how long", "向量的个数与大小"),
            "sizes",
            (
                Bilingual("words of the sentence", "句子的词"),
                Bilingual("frames of the sound", "语音的帧"),
                Bilingual("patches of the image", "图像的图块"),
                Bilingual("atoms of the molecule", "分子的原子"),
            ),
            (Bilingual("vectors", "向量个数"), Bilingual("numbers in each", "每个的大小")),
        ),
        Heatmap(
            Bilingual("the sound: a column for each frame, high tones above", "语音：每一列是一帧，上方是高音"),
            "spectrum",
            role="key",
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "{seconds:.2f} s of sound are {frames} vectors of {bins} numbers; the image is {patches} vectors.",
                "{seconds:.2f} 秒的语音是 {frames} 个 {bins} 维向量；这张图像是 {patches} 个向量。",
            ),
            lambda result: result["frames"] == int((result["seconds"] * 8000 - 200) // 80) + 1,
        ),
    ),
    link="sound",
)


def compute_outputs(count: int, readout: np.ndarray, stop: float) -> Result:
    vectors = np.random.default_rng(4).normal(size=(12, 2))[:count]
    weights = np.exp(vectors @ vectors.T)
    context = weights / weights.sum(1, keepdims=True) @ vectors  # each vector has seen all of them
    each = (context @ readout).argmax(1)  # N → N: a label for each vector
    whole = int((context.mean(0) @ readout).argmax())  # N → 1: a label for the mean
    turn = np.array([[0.6, -0.6], [0.6, 0.6]])  # the decoder's step
    state, free = context.sum(0), []  # N → M: labels until the state fades
    while np.linalg.norm(state) > stop and len(free) < 24:
        free.append(int((state @ readout).argmax()))
        state = turn @ state
    counts = np.array([count, len(each), 1, len(free)])
    return dict(each=each, whole=whole, free=np.array(free, int), counts=counts, count=count, written=len(free))


OUTPUT_COUNTS = Step(
    name="output-counts",
    title=Bilingual("How many labels come out", "输出多少个标签"),
    claim=Bilingual(
        "There are three kinds of tasks on a set of N vectors: a label for each vector (tagging), one label for the "
        "whole set (sentiment, a spoken word), and a sequence whose length M the model decides (translation).",
        "输入 N 个向量的任务有三类：每个向量一个标签（词性标注），整个集合一个标签（情感分析、单词语音识别），"
        "以及长度 M 由模型自己决定的序列（机器翻译）。",
    ),
    task=Bilingual(
        "Change the number of vectors: the first row grows with it, the second stays one label, the third stops when "
        "the model has nothing left to say. This is a toy; each row links to a trained model that does it for real.",
        "改变向量的个数：第一行跟着变长，第二行始终只有一个标签，第三行在模型没有内容可写时停下。"
        "这里只是玩具；每一行都链接到一个真正训练好的模型。",
    ),
    controls=(
        Slider("count", Bilingual("N, vectors that go in", "N，输入向量数"), 5, 1, 12, 1, whole=True),
        Slider("stop", Bilingual("size at which the model stops", "模型停下的阈值"), 0.5, 0.3, 2, 0.1),
        Numbers(
            "readout",
            Bilingual("output layer, a column for each label", "输出层，每列一个标签"),
            ((1.0, -1.0, 0.0), (0.0, 0.5, 1.0)),
            -2,
            2,
            columns=(Bilingual("label 1", "标签 1"), Bilingual("label 2", "标签 2"), Bilingual("label 3", "标签 3")),
        ),
    ),
    compute=compute_outputs,
    pictures=(Drawing(Bilingual("N → N, N → 1, N → M", "N → N、N → 1、N → M"), "output_counts"),),
    findings=(
        Finding(
            Bilingual(
                "{count} vectors give {count} labels, or 1, or {written}: the last number is the model's decision.",
                "{count} 个向量可以得到 {count} 个标签、1 个标签，或 {written} 个标签：最后这个数由模型决定。",
            ),
            lambda result: len(result["each"]) == result["count"] and 0 < result["written"] < 24,
        ),
    ),
    link="alignment?model=translator",
)


def compute_window(tokens: int, reach: int, dim: int) -> Result:
    values = np.zeros(tokens)
    values[0] = 1.0  # what the last token needs stands in the first one
    distance = tokens - 1 - np.arange(tokens)
    seen = (distance <= reach).astype(float)
    window_answer = seen @ values  # all that a layer over the window can read
    scores = np.where(values > 0, 6.0, 0.0)  # the last token's query matches the first one's key
    weights = np.exp(scores) / np.exp(scores).sum()
    answer = weights @ values
    lengths = np.arange(2, 41)
    window_sizes = (2 * (lengths - 1) + 1) * dim**2  # a window that covers the text from either end
    attention_sizes = np.full(len(lengths), 3 * dim**2)
    return dict(
        both=np.stack([seen, weights]),
        answer=answer,
        window_answer=window_answer,
        lengths=lengths,
        window_sizes=window_sizes,
        attention_sizes=attention_sizes,
        tokens=tokens,
        reach=reach,
        window_size=(2 * reach + 1) * dim**2,
        attention_size=3 * dim**2,
        covering_size=(2 * tokens - 1) * dim**2,
    )


def attend_window(tokens: int, reach: int, dim: int) -> Tensor:
    k = torch.zeros(1, 1, tokens, 1, dtype=torch.float64)
    k[..., 0, :] = 6.0
    q = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    return rg.attend(q, k, k / 6, score=rg.Dot(scale=1.0)).squeeze()


WINDOW_LAYER = Step(
    name="window-layer",
    title=Bilingual("A layer over a window, and the whole sequence", "只看窗口的层，与整个序列"),
    claim=Bilingual(
        "To label a word, a fully connected layer can read its neighbours through a window. To read the whole "
        "sequence the window would have to cover it: more parameters for longer texts. Attention reads all of it with "
        "the same parameters.",
        "标注一个词时，全连接层可以通过窗口读取邻近的词。要读完整个序列，窗口就得覆盖它：文本越长，参数越多。"
        "注意力用同样的参数就能读到全部。",
    ),
    task=Bilingual(
        "The last word needs what the first one says. Widen the window until the layer sees it; compare the "
        "parameters. Then make the text longer.",
        "最后一个词需要第一个词里的信息。把窗口调宽，直到这一层能看到它，比较参数量；然后把文本调长。",
    ),
    controls=(
        Slider("tokens", Bilingual("words in the text", "文本词数"), 12, 2, 40, 1, whole=True),
        Slider("reach", Bilingual("words on either side of the window", "窗口每侧的词数"), 3, 0, 39, 1, whole=True),
        Slider("dim", Bilingual("size of a vector, d", "向量大小 d"), 64, 8, 512, 8, whole=True),
    ),
    compute=compute_window,
    attend=attend_window,
    answer="answer",
    pictures=(
        Bars(
            Bilingual("what the last word reads, from the first word on", "最后一个词读到什么（从第一个词排起）"),
            "both",
            groups=(
                Bilingual("window: words in it", "窗口：其中的词"),
                Bilingual("attention: weights", "注意力：权重"),
            ),
            low=0,
            high=1,
        ),
        Lines(
            Bilingual("parameters to read the whole text", "读完整个文本所需的参数"),
            "lengths",
            (
                ("window_sizes", Bilingual("window over all words", "覆盖全文的窗口")),
                ("attention_sizes", Bilingual("attention, 3 d²", "注意力，3 d²")),
            ),
            Bilingual("words", "词数"),
            Bilingual("parameters", "参数量"),
            marker="tokens",
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "A window of {reach} words on either side has {window_size:,} parameters and reads "
                "{window_answer:.0f}; attention has {attention_size:,} and reads {answer:.3f} of 1.",
                "每侧 {reach} 个词的窗口有 {window_size:,} 个参数，读到 {window_answer:.0f}；"
                "注意力有 {attention_size:,} 个参数，读到 {answer:.3f}（应为 1）。",
            ),
            lambda result: result["window_answer"] == 0 and result["answer"] > 0.9,
        ),
        Finding(
            Bilingual(
                "A window over all {tokens} words would have {covering_size:,} parameters.",
                "覆盖全部 {tokens} 个词的窗口要 {covering_size:,} 个参数。",
            ),
            lambda result: result["covering_size"] > result["attention_size"],
        ),
    ),
    evidence=(Evidence("long-range", ("attention", "convolution-shallow")),),
)

STEPS = (ONE_HOT, VECTOR_INPUTS, OUTPUT_COUNTS, WINDOW_LAYER)
