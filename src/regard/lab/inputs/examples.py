"""Example texts of the lab, in both languages. Each names its model and what it shows there.

`query` is the number of a token, `attention` and `head` say where to look, and the caption (`title`) says which `key`
gets the largest weight, the query's own token aside. Of a translation these numbers are under `alignment`: the
attention is the number of a cross-attention, and the query a token of the output. An example of a model that is not
there is left out.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict

from ..protocol import Translated

POEM = "白日依山尽，黄河入海流。欲穷千里目，更上一层楼。"
ANIMAL = "The animal didn't cross the street because it was too tired."


class Place(TypedDict):
    """Where to look: a cross-attention, its head, and a token of the output."""

    attention: int
    head: int
    query: int


class Example(TypedDict):
    """A text with its model and its caption; `other` is a text to compare it with."""

    name: str
    model: str
    language: str
    text: str
    other: NotRequired[str]
    attention: NotRequired[int]
    head: NotRequired[int]
    query: NotRequired[int]
    alignment: NotRequired[Place]
    token: NotRequired[str]
    key: NotRequired[str]
    title: Translated


EXAMPLES: list[Example] = [
    {
        "name": "animal",
        "model": "tagger",
        "language": "en",
        "text": ANIMAL,
        "attention": 2,
        "head": 2,
        "query": 8,
        "token": "it",
        "key": "street",
        "title": {
            "en": "in this head of a tagger “it” attends most to “street”, the nearest noun, not to “animal”.",
            "zh": "在词性标注模型的这个头里，“it” 最关注最近的名词 “street”，而不是 “animal”。",
        },
    },
    {
        "name": "wide",
        "model": "tagger",
        "language": "en",
        "text": "The animal didn't cross the street because it was too wide.",
        "attention": 2,
        "head": 2,
        "query": 11,
        "token": "wide",
        "key": "was",
        "title": {
            "en": "the adjective “wide” attends most to its verb “was”, two words before it.",
            "zh": "形容词 “wide” 最关注前面隔一个词的系动词 “was”。",
        },
    },
    {
        "name": "negation",
        "model": "tagger",
        "language": "en",
        "text": "The dog did not cross the road.",
        "attention": 2,
        "head": 1,
        "query": 4,
        "token": "cross",
        "key": "not",
        "title": {"en": "the verb “cross” attends most to “not”.", "zh": "动词 “cross” 最关注 “not”。"},
    },
    {
        "name": "meaning",
        "model": "meanings",
        "language": "en",
        "text": ANIMAL,
        "attention": 0,
        "head": 0,
        "query": 7,
        "token": "it",
        "key": "animal",
        "title": {
            "en": "with meanings set by hand, “it” attends most to “animal” after itself: both are living things.",
            "zh": "词义由人工设定：“it” 和 “animal” 都指有生命的东西，所以除自身外 “it” 最关注 “animal”。",
        },
    },
    {
        "name": "grey-ball",
        "model": "meanings",
        "language": "en",
        "text": "white ball white ball white ball grey ball white ball white ball",
        "attention": 0,
        "head": 0,
        "query": 6,
        "token": "grey",
        "key": "white",
        "title": {
            "en": "after itself, “grey” attends most to the other colours, “white”, and to each of them equally.",
            "zh": "除自身外，“grey” 最关注其他颜色词 “white”，而且对每个 “white” 的权重相同。",
        },
    },
    {
        "name": "mat",
        "model": "meanings",
        "language": "zh",
        "text": "猫 坐在 垫子",
        "attention": 0,
        "head": 0,
        "query": 1,
        "token": "坐在",
        "key": "垫子",
        "title": {
            "en": "after itself, “坐在” (sits on) attends most to “垫子” (the mat), the place.",
            "zh": "除自身外，“坐在”最关注“垫子”，也就是坐的地方。",
        },
    },
    {
        "name": "chase",
        "model": "meanings",
        "language": "zh",
        "text": "猫追狗",
        "other": "狗追猫",
        "attention": 0,
        "head": 0,
        "query": 0,
        "token": "猫",
        "key": "狗",
        "title": {
            "en": "“猫” (cat) attends most to “狗” (dog), in either order: head 0 has no positions.",
            "zh": "“猫”最关注“狗”。头 0 不含位置信息，交换词序后权重不变。",
        },
    },
    {
        "name": "hit",
        "model": "meanings",
        "language": "zh",
        "text": "A打了B",
        "other": "B打了A",
        "attention": 0,
        "head": 0,
        "query": 0,
        "token": "A",
        "key": "B",
        "title": {
            "en": "A attends to B as much as to itself, whoever hits whom: without positions, word order is lost.",
            "zh": "无论谁打谁，除自身外 A 最关注的都是 B：没有位置信息，词序就丢失了。",
        },
    },
    {
        "name": "grey-ball-zh",
        "model": "meanings",
        "language": "zh",
        "text": "白球 白球 白球 灰球 白球 白球",
        "attention": 0,
        "head": 0,
        "query": 6,
        "token": "灰",
        "key": "白",
        "title": {
            "en": "after itself, “灰” (grey) attends most to “白” (white), and to each of them equally.",
            "zh": "除自身外，“灰”最关注“白”，而且对每个“白”的权重相同。",
        },
    },
    {
        "name": "table",
        "model": "translator",
        "language": "en",
        "text": "The cat is sleeping on the table.",
        "alignment": {"attention": 1, "head": 2, "query": 2},
        "token": "桌",
        "key": "table",
        "title": {
            "en": "“桌” attends most to “table”, although the two languages order their words differently.",
            "zh": "“桌”最关注 “table”，尽管两种语言的词序不同。",
        },
    },
    {
        "name": "dogs",
        "model": "translator",
        "language": "en",
        "text": "I have two dogs and a cat.",
        "alignment": {"attention": 1, "head": 2, "query": 3},
        "token": "只",
        "key": "dogs",
        "title": {
            "en": "the measure word “只”, which English lacks, attends most to “dogs”, the noun that it counts.",
            "zh": "量词“只”在英文里没有对应的词，它最关注所计数的名词 “dogs”。",
        },
    },
    {
        "name": "chased",
        "model": "translator",
        "language": "en",
        "text": "The dog chased the cat.",
        "alignment": {"attention": 1, "head": 2, "query": 0},
        "token": "狗",
        "key": "dog",
        "title": {"en": "“狗” attends most to “dog”.", "zh": "“狗”最关注 “dog”。"},
    },
    {
        "name": "mat-zh",
        "model": "tagger-zh",
        "language": "zh",
        "text": "小猫坐在垫子上。",
        "attention": 2,
        "head": 1,
        "query": 3,
        "token": "在",
        "key": "上",
        "title": {
            "en": "“在” (at) attends most to “上” (on): the two frame the place, 在…上.",
            "zh": "“在”最关注“上”：“在……上”前后呼应，中间是地点。",
        },
    },
    {
        "name": "street-zh",
        "model": "tagger-zh",
        "language": "zh",
        "text": "他没有穿过马路，因为它太宽了。",
        "attention": 2,
        "head": 2,
        "query": 3,
        "token": "穿",
        "key": "马",
        "title": {
            "en": "“穿”, the start of the verb 穿过 (cross), attends most to “马”, the start of 马路 (street).",
            "zh": "动词的第一个字“穿”最关注宾语“马路”的第一个字“马”。",
        },
    },
    {
        "name": "couplet",
        "model": "poet",
        "language": "zh",
        "text": POEM,
        "attention": 2,
        "head": 7,
        "query": 9,
        "token": "海",
        "key": "尽",
        "title": {
            "en": "the next character must match “尽”, which stands there in the line before: “海” attends most to it.",
            "zh": "“海”之后的字要与上句同一位置的“尽”相对，所以“海”最关注“尽”。",
        },
    },
    {
        "name": "rhyme",
        "model": "poet",
        "language": "zh",
        "text": POEM[:-2],
        "attention": 3,
        "head": 5,
        "query": 21,
        "token": "层",
        "key": "流",
        "title": {
            "en": "the next character must rhyme: “层” attends most to “流”, the rhyme of the couplet before.",
            "zh": "下一个字要押韵：“层”最关注上一联的韵脚“流”。",
        },
    },
    {
        "name": "induction",
        "model": "writer",
        "language": "en",
        "text": "the red house stood on the hill . the red",
        "attention": 2,
        "head": 5,
        "query": 11,
        "token": "red",
        "key": "house",
        "title": {
            "en": "an induction head: the second “red” attends most to “house”, which followed the first one.",
            "zh": "归纳头：第二个 “red” 最关注 “house”，也就是第一个 “red” 后面的词。",
        },
    },
    {
        "name": "table-zh",
        "model": "translator-zh-en",
        "language": "zh",
        "text": "猫在桌子上睡觉。",
        "alignment": {"attention": 1, "head": 2, "query": 6},
        "token": "table",
        "key": "桌",
        "title": {
            "en": "“table” attends most to “桌”, although the two languages order their words differently.",
            "zh": "“table” 最关注“桌”，尽管两种语言的词序不同。",
        },
    },
    {
        "name": "dogs-zh",
        "model": "translator-zh-en",
        "language": "zh",
        "text": "我有两只狗。",
        "alignment": {"attention": 1, "head": 3, "query": 3},
        "token": "dogs",
        "key": "狗",
        "title": {"en": "“dogs” attends most to “狗”.", "zh": "“dogs” 最关注“狗”。"},
    },
]
"""All examples; the order is that of the lab."""


def list_examples(models: set[str]) -> list[Example]:
    """The examples of these models."""
    return [example for example in EXAMPLES if example["model"] in models]
