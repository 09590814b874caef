"""Attention in levels, from words to sentences to a document, and where attention is used."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import regard as rg

from ....experiments.experiment import Bilingual
from ...controls import Choice, Numbers, Slider
from ...pictures import Bars, Drawing, Heatmap
from ...step import Finding, Result, Step

SENTENCES = (
    Bilingual("the food was great", "菜 做得 很 好"),
    Bilingual("the room was cold", "屋里 有点 太 冷"),
    Bilingual("we will come back", "我们 以后 还 来"),
)
WORDS = tuple(Bilingual(f"word {n}", f"词 {n}") for n in range(1, 5))


def compute_levels(word_scores: np.ndarray, feelings: np.ndarray, sentence_scores: np.ndarray) -> Result:
    word_weights = np.exp(word_scores - word_scores.max(1, keepdims=True))
    word_weights = word_weights / word_weights.sum(1, keepdims=True)  # within each sentence
    sentences = (word_weights * feelings).sum(1)  # a sentence from its words
    sentence_weights = np.exp(sentence_scores - sentence_scores.max())
    sentence_weights = sentence_weights / sentence_weights.sum()  # between the sentences
    document = sentence_weights @ sentences  # the document from its sentences
    shares = sentence_weights[:, None] * word_weights  # of each word in the document
    count, length = word_scores.shape
    flat_pairs, level_pairs = (count * length) ** 2, count * length**2 + count**2
    return dict(
        word_weights=word_weights,
        sentences=sentences,
        sentence_weights=sentence_weights,
        document=document,
        shares=shares,
        flat_pairs=flat_pairs,
        level_pairs=level_pairs,
        error=abs(shares.sum() - 1),
    )


def attend_levels(word_scores: Tensor, feelings: Tensor, sentence_scores: Tensor) -> Tensor:
    query, plain = torch.ones(1, 1, 1, 1, dtype=torch.float64), rg.Dot(scale=1.0)
    words = query.expand(len(word_scores), 1, 1, 1)  # a row of the batch for each sentence
    sentences = rg.attend(words, word_scores[:, None, :, None], feelings[:, None, :, None], score=plain)
    return rg.attend(query, sentence_scores[None, None, :, None], sentences.transpose(0, 2), score=plain).squeeze()


LEVELS = Step(
    name="hierarchical",
    title=Bilingual("Words, sentences, document", "词、句子、文档"),
    claim=Bilingual(
        "Hierarchical attention keeps local detail and saves pairs: words attend within their sentence, sentences to "
        "each other, and the document is read from its sentences.",
        "层次化注意力既保留局部细节，又省去许多对：词只在句内互相关注，句子之间再互相关注，文档由句子汇总。",
    ),
    task=Bilingual(
        "Three sentences of a review, with a score and a feeling for each word. Raise the score of the second "
        "sentence: the mood of the document turns. To train a model of this kind on your own texts: regard train "
        "classify --model hierarchical.",
        "一篇评论的三个句子，每个词有分数和情感。提高第二句的分数：整篇的情绪就变了。想用自己的文本训练这样的模型："
        "regard train classify --model hierarchical。",
    ),
    controls=(
        Numbers(
            "sentence_scores",
            Bilingual("scores of the sentences", "句子的分数"),
            (1.0, 0.5, 0.2),
            -4,
            4,
            columns=SENTENCES,
        ),
        Numbers(
            "word_scores",
            Bilingual("scores of the words", "词的分数"),
            ((0.0, 1.0, 0.0, 3.0), (0.0, 1.0, 0.5, 3.0), (0.5, 0.0, 1.0, 1.5)),
            -4,
            4,
            rows=SENTENCES,
            columns=WORDS,
        ),
        Numbers(
            "feelings",
            Bilingual("feeling of each word", "每个词的情感"),
            ((0.0, 0.1, 0.0, 1.0), (0.0, 0.0, -0.1, -1.0), (0.0, 0.0, 0.2, 0.6)),
            -1,
            1,
            rows=SENTENCES,
            columns=WORDS,
        ),
    ),
    compute=compute_levels,
    attend=attend_levels,
    answer="document",
    pictures=(
        Heatmap(Bilingual("weights within each sentence", "句内的权重"), "word_weights", SENTENCES, WORDS),
        Bars(Bilingual("weights of the sentences", "句子的权重"), "sentence_weights", SENTENCES, low=0, high=1),
        Bars(Bilingual("feeling of each sentence", "每句的情感"), "sentences", SENTENCES, role="value", low=-1, high=1),
        Heatmap(Bilingual("share of each word in the document", "每个词在文档中的份额"), "shares", SENTENCES, WORDS),
    ),
    findings=(
        Finding(
            Bilingual(
                "The document feels like {document:+.2f}. Self-attention in two levels compares {level_pairs} pairs, "
                "flat {flat_pairs}.",
                "整篇的情感是 {document:+.2f}。两级自注意力要比较 {level_pairs} 对，不分级要 {flat_pairs} 对。",
            ),
            lambda result: (
                result["document"] > 0 and result["level_pairs"] < result["flat_pairs"] and result["error"] < 1e-12
            ),
        ),
    ),
)

TASKS = (
    ("translation", Bilingual("translation", "机器翻译")),
    ("generation", Bilingual("text generation", "文本生成")),
    ("classification", Bilingual("text classification", "文本分类")),
    ("images", Bilingual("image classification", "图像分类")),
    ("detection", Bilingual("object detection", "目标检测")),
    ("matching", Bilingual("image and text", "图文匹配")),
    ("speech", Bilingual("speech recognition", "语音识别")),
)


def compute_applications(task: str, units: int) -> Result:
    halves = np.arange(units) < units // 2  # half text, half image
    queries = dict(translation=units - 2, classification=1, detection=3, speech=units // 2).get(task, units)
    allowed = np.ones((queries, units), bool)
    if task == "generation":
        allowed = np.tril(allowed)  # no word sees the next
    if task == "matching":
        allowed = halves[:, None] == halves  # two encoders, compared at the end
    q, k, v = np.random.default_rng(1).normal(size=(3, 16, 4))
    weights = np.where(allowed, np.exp(q[:queries] @ k[:units].T / 2), 0)
    weights = weights / weights.sum(1, keepdims=True)
    output = weights @ v[:units]
    return dict(
        weights=weights,
        absent=~allowed,
        output=output,
        queries=queries,
        keys=units,
        pairs=int(allowed.sum()),
        task=task,
    )


def attend_applications(task: str, units: int) -> Tensor:
    q, k, v = torch.from_numpy(np.random.default_rng(1).normal(size=(3, 1, 1, 16, 4)))
    sizes = {"translation": units - 2, "classification": 1, "detection": 3, "speech": units // 2}
    halves = (torch.arange(units) < units // 2)[None].long()
    masks = {"generation": rg.Causal(), "matching": rg.Documents(halves)}
    q, k, v = q[:, :, : sizes.get(task, units)], k[:, :, :units], v[:, :, :units]
    return rg.attend(q, k, v, mask=masks.get(task))[0, 0]


APPLICATIONS = Step(
    name="applications",
    title=Bilingual("One mechanism for text, images and both", "同一种机制，用于文本、图像和跨模态"),
    claim=Bilingual(
        "The same computation serves translation, generation and classification of text, classification and detection "
        "in images, matching of images and text, and speech. What differs is who asks, who answers, and the mask.",
        "同一种计算，用于文本的翻译、生成、分类，图像的分类与目标检测，图文匹配和语音识别。"
        "不同之处只在于：谁提问、谁回答、掩码是什么。",
    ),
    task=Bilingual(
        "Go through the tasks: the picture has a row for each query and a column for each key. The table opens trained "
        "models of each kind in the lab.",
        "依次看看各种任务：图中每行一个查询，每列一个键。表里的链接会在实验室中打开训练好的模型。",
    ),
    controls=(
        Choice("task", Bilingual("task", "任务"), "generation", TASKS),
        Slider("units", Bilingual("words, patches or frames", "词、图块或帧的数目"), 8, 4, 16, 2, whole=True),
    ),
    compute=compute_applications,
    attend=attend_applications,
    pictures=(
        Heatmap(Bilingual("who attends to what", "谁关注什么"), "weights", masked="absent"),
        Drawing(Bilingual("applications, with models to open", "应用，以及可以打开的模型"), "applications"),
    ),
    findings=(
        Finding(
            Bilingual(
                "{queries} queries, {keys} keys, {pairs} pairs; the formula is the same in every case.",
                "{queries} 个查询、{keys} 个键、{pairs} 对；公式始终相同。",
            ),
            lambda result: result["weights"].shape == (result["queries"], result["keys"]),
        ),
    ),
)

STEPS = (LEVELS, APPLICATIONS)
