"""Experiment 22: one-hot vectors and learned ones: which of them know that an apple is like a banana."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...nn.embeddings.word_vectors import OneHot
from ..comparing import accuracy, by_size, level, line, name_axes, nth, percent, speaker
from ..experiment import Both, Claim, Language, Size, Tell, Verdict
from ..learning import COLOURS, MARKERS, fit, panels, part, spread

CLAIM = Claim(
    number=22,
    name="meaning",
    title=Both("One-hot vectors and learned vectors", "独热向量与学到的词向量"),
    claim=Both(
        "One-hot vectors hold no relation of meaning between words; learned vectors do, so what is learned of frequent "
        "words also serves rare ones.",
        "独热编码没有语义关系，词嵌入有语义关系；因此从常见词学到的东西也能用于罕见词。",
    ),
    setup=Both(
        "A made corpus of sentences about five kinds of things, some named often, some 1 to 16 times. Vectors are "
        "learned from it by predicting a word's neighbours, without being told the kinds. Then a linear classifier "
        "learns the kind from the frequent words alone and is asked about the rare ones: from one-hot vectors, from "
        "vectors learned by the classifier's own task, and from vectors learned from the corpus.",
        "人造语料，句子涉及五类事物，有的词常见，有的只出现 1 到 16 次。词向量由预测相邻的词学得，不告知类别。"
        "然后线性分类器只从常见词学习类别，再问罕见词：分别用独热向量、分类任务自身学到的向量、语料学到的向量。",
    ),
    threshold=Both(
        "Holds if at least 80 % of the three nearest words are of the same kind with vectors from the corpus and at "
        "most chance + 10 points with one-hot vectors, and rare words are classified at least 30 points better than "
        "with one-hot vectors whatever their count. Limited if the latter is true of some counts only, 16 among them. "
        "Fails otherwise.",
        "成立：用语料向量时，三个最近的词中至少 80 % 同类，用独热向量时至多比随机高 10 个百分点；且不论出现几次，"
        "罕见词的分类正确率都比独热向量高 30 个百分点以上。"
        "有条件成立：后者只在部分次数（包括 16 次）上成立。其余为不成立。",
    ),
)

KINDS = {
    "fruit": "apple:苹果 banana:香蕉 pear:梨 grape:葡萄 kiwi:猕猴桃 plum:李子 fig:无花果 mango:芒果 melon:甜瓜",
    "furniture": "chair:椅子 table:桌子 bed:床 shelf:架子 stool:凳子 couch:沙发 desk:书桌 bench:长凳 wardrobe:衣柜",
    "animal": "cat:猫 dog:狗 horse:马 cow:牛 otter:水獭 goat:山羊 heron:鹭 mole:鼹鼠 deer:鹿",
    "vehicle": "car:汽车 bus:公交车 train:火车 bicycle:自行车 tram:电车 barge:驳船 van:面包车 ferry:渡轮 sledge:雪橇",
    "tool": "hammer:锤子 saw:锯子 knife:刀 drill:钻 chisel:凿子 rasp:锉刀 pliers:钳子 wrench:扳手 trowel:泥铲",
}
NOUNS = [tuple(word.split(":")) for words in KINDS.values() for word in words.split()]
EACH, FREQUENT = 9, 4
COUNTS = [1, 2, 4, 8, 16]
"""How often the rare nouns of a kind are named; the frequent ones come first."""
OWN, SHARED = 8, 20
VOCABULARY = len(NOUNS) + OWN * len(KINDS) + SHARED
CHINESE = {"fruit": "水果", "furniture": "家具", "animal": "动物", "vehicle": "车船", "tool": "工具"}


def measure(size: Size, seed: int, tell: Tell) -> dict[str, Any]:
    seeds = by_size(size, 1, 5, 10)
    runs = [one_seed(size, seed * 1000 + n, nth(tell, n, seeds, f"seed {n}")) for n in range(seeds)]
    ways = list(runs[0]["rare"])
    return {
        "counts": COUNTS,
        "neighbours": {way: spread([run["neighbours"][way] for run in runs]) for way in ways},
        "chance": (EACH - 1) / (len(NOUNS) - 1),
        "rare": {way: {str(c): spread([run["rare"][way][str(c)] for run in runs]) for c in COUNTS} for way in ways},
        "alike": {way: runs[0]["alike"][way] for way in ways},
        "map": runs[0]["map"],
    }


def one_seed(size: Size, seed: int, tell: Tell) -> dict[str, Any]:
    torch.manual_seed(seed)
    names = by_size(size, 60, 300, 1000)
    steps = by_size(size, 60, 600, 2000)
    centre, beside = corpus(names)
    ways = {
        "one-hot": torch.eye(len(NOUNS)),
        "own task": task_vectors(steps // 4),
        "corpus": corpus_vectors(centre, beside, steps, part(tell, 0.0, 1.0)),
    }
    return {
        "neighbours": {way: same_kind(vectors) for way, vectors in ways.items()},
        "rare": {way: rare_words(vectors, steps // 4) for way, vectors in ways.items()},
        "alike": {way: likeness(vectors) for way, vectors in ways.items()},
        "map": flat(ways["corpus"]),
    }


def kind_of(noun: Any) -> Any:
    """The number of the kind that a noun is of."""
    return noun // EACH


def common() -> Tensor:
    """The nouns that the corpus names often."""
    nouns = torch.arange(len(NOUNS))
    return nouns[nouns % EACH < FREQUENT]


def corpus(frequent: int) -> tuple[Tensor, Tensor]:
    """Pairs of a noun and a word beside it, `[pairs]` each: four words stand around a noun, most of its kind's own."""
    counts = torch.tensor(([frequent] * FREQUENT + COUNTS) * len(KINDS))
    nouns = torch.arange(len(NOUNS)).repeat_interleave(counts)
    own = len(NOUNS) + OWN * kind_of(nouns)[:, None] + torch.randint(OWN, (len(nouns), 4))
    shared = VOCABULARY - SHARED + torch.randint(SHARED, own.shape)
    beside = torch.where(torch.rand(own.shape) < 0.6, own, shared)
    return nouns.repeat_interleave(4), beside.flatten()


def corpus_vectors(centre: Tensor, beside: Tensor, steps: int, tell: Tell, dim: int = 16) -> Tensor:
    """Vectors of the nouns from which the words beside them are predicted, `[nouns, dim]`."""
    model = nn.ModuleDict({"words": OneHot(len(NOUNS), dim), "beside": nn.Linear(dim, VOCABULARY)})

    def loss() -> Tensor:
        chosen = torch.randint(len(centre), (512,))
        vectors = model["words"](centre[chosen][None])[0]
        return nn.functional.cross_entropy(model["beside"](vectors), beside[chosen])

    fit(model, loss, steps, 3e-2, tell)
    return learned(model["words"])


def task_vectors(steps: int, dim: int = 16) -> Tensor:
    """Vectors learned together with the classifier, from the frequent words' kinds alone, `[nouns, dim]`."""
    words, kinds = OneHot(len(NOUNS), dim), nn.Linear(dim, len(KINDS))
    known = common()

    def loss() -> Tensor:
        return nn.functional.cross_entropy(kinds(words(known[None])[0]), kind_of(known))

    fit(nn.ModuleList([words, kinds]), loss, steps, 1e-2)
    return learned(words)


def learned(words: nn.Module) -> Tensor:
    return words.weight.detach()  # type: ignore[union-attr, return-value]


def cosines(vectors: Tensor) -> Tensor:
    """How alike every two words are, `[nouns, nouns]`."""
    unit = nn.functional.normalize(vectors, dim=-1)
    return unit @ unit.T


def same_kind(vectors: Tensor, nearest: int = 3) -> float:
    """The share of a frequent word's nearest words that are of its kind; equally near ones are drawn."""
    alike = cosines(vectors) + 1e-6 * torch.rand(len(NOUNS), len(NOUNS))
    alike.fill_diagonal_(-torch.inf)
    near = alike[common()].topk(nearest).indices
    return (kind_of(near) == kind_of(common())[:, None]).float().mean().item()


def rare_words(vectors: Tensor, steps: int) -> dict[str, float]:
    """How many rare words a linear classifier that knows the frequent ones gets right, by how often they are named."""
    scaled = vectors / vectors[common()].norm(dim=-1).mean()
    model = nn.Linear(scaled.shape[1], len(KINDS))
    known = common()
    fit(model, lambda: nn.functional.cross_entropy(model(scaled[known]), kind_of(known)), steps, 3e-2)
    with torch.no_grad():
        logits = model(scaled)
    rows = {count: torch.arange(FREQUENT + n, len(NOUNS), EACH) for n, count in enumerate(COUNTS)}
    return {str(count): accuracy(logits[row], kind_of(row)) for count, row in rows.items()}


def likeness(vectors: Tensor) -> dict[str, float]:
    """The cosines of apple with banana and with chair."""
    names = [english for english, _ in NOUNS]
    apple, banana, chair = (names.index(word) for word in ("apple", "banana", "chair"))
    alike = cosines(vectors)
    return {"banana": alike[apple, banana].item(), "chair": alike[apple, chair].item()}


def flat(vectors: Tensor) -> list[list[float]]:
    """The words on the two directions in which they differ most, `[nouns, 2]`."""
    unit = nn.functional.normalize(vectors, dim=-1)
    unit = unit - unit[common()].mean(0)
    _, _, directions = torch.linalg.svd(unit[common()], full_matrices=False)
    return [[round(v, 4) for v in row] for row in (unit @ directions[:2].T).tolist()]


def verdict(numbers: dict[str, Any]) -> Verdict:
    near, chance = {way: one["mean"] for way, one in numbers["neighbours"].items()}, numbers["chance"]
    rare = {way: {c: one["mean"] for c, one in by.items()} for way, by in numbers["rare"].items()}
    gains = {c: rare["corpus"][c] - rare["one-hot"][c] for c in rare["corpus"]}
    related = near["corpus"] >= 0.8 and near["one-hot"] <= chance + 0.1
    enough = [c for c, gain in gains.items() if gain >= 0.3]
    most = str(numbers["counts"][-1])
    kind = "fails" if not related or most not in enough else "holds" if len(enough) == len(gains) else "limited"
    by_count = ", ".join(f"{c}×: {percent(rare['corpus'][c])}" for c in gains)
    alike = numbers["alike"]["corpus"]
    means = {way: sum(by.values()) / len(by) for way, by in rare.items()}
    key = Both(
        f"nearest word of the same kind: {percent(near['corpus'])} learned, {percent(near['one-hot'])} one-hot",
        f"最近的词同类：学得的向量 {percent(near['corpus'])}，独热 {percent(near['one-hot'])}",
    )
    return Verdict(kind, key, Both(
        f"Nearest words of the same kind: corpus {percent(near['corpus'])}, own task {percent(near['own task'])}, "
        "one-hot "
        f"{percent(near['one-hot'])} (chance {percent(chance)}). Rare words right: one-hot "
        f"{percent(means['one-hot'])}, own task "
        f"{percent(means['own task'])}, corpus by times seen {by_count}. Apple is {alike['banana']:.2f} like banana "
        "and "
        f"{alike['chair']:.2f} like chair; 0 and 0 in one-hot.",
        f"最近的词同类的比例：语料 {percent(near['corpus'])}，分类任务自身 {percent(near['own task'])}，独热 "
        f"{percent(near['one-hot'])}（随机 {percent(chance)}）。"
        f"罕见词正确率：独热 {percent(means['one-hot'])}，分类任务自身 {percent(means['own task'])}，语料按出现次数 "
        f"{by_count}。"
        f"苹果与香蕉的相似度 {alike['banana']:.2f}，与椅子 {alike['chair']:.2f}；独热都是 0。",
    ))  # fmt: skip


def draw(numbers: dict[str, Any], language: Language) -> Any:
    say = speaker(language)
    names = {"one-hot": say("one-hot", "独热"), "own task": say("learned by the task itself", "分类任务自身学到"),
             "corpus": say("learned from the corpus", "语料学到")}  # fmt: skip
    with panels(language, 3, width=4.4) as (figure, (left, middle, right)):
        figure.suptitle(say("Words as vectors: neighbours, and words seen rarely", "词向量：近邻与罕见词"))
        word_map(left, numbers, language)
        chance = say("chance", "随机")
        values = list(numbers["neighbours"].values())
        middle.bar(
            range(3), [v["mean"] for v in values], yerr=[v["spread"] for v in values], color=COLOURS[:3], capsize=3
        )
        middle.set_xticks(range(3), [say("one-hot", "独热"), say("own task", "任务自身"), say("corpus", "语料")])
        level(middle, numbers["chance"], chance)
        name_axes(
            middle, say("The three nearest words", "三个最近的词"), "", say("share of the same kind", "同类的比例")
        )
        middle.legend()
        for n, (way, text) in enumerate(names.items()):
            line(right, n, numbers["counts"], [numbers["rare"][way][str(c)] for c in numbers["counts"]], text)
        level(right, 1 / len(KINDS), chance)
        right.set_xscale("log", base=2)
        right.set_xticks(numbers["counts"], [str(c) for c in numbers["counts"]])
        right.set_ylim(0, 1.05)
        name_axes(right, say("Kind of a word not in the labelled data", "标注数据中没有的词的类别"),
                  say("times in the corpus", "语料中出现的次数"), say("share right", "正确率"))  # fmt: skip
        right.legend(fontsize=7)
    return figure


def word_map(axes: Any, numbers: dict[str, Any], language: Language) -> None:
    """The words of the corpus on a plane, rare ones hollow."""
    say = speaker(language)
    for n, kind in enumerate(KINDS):
        for frequent in (True, False):
            rows = [i for i in range(len(NOUNS)) if i // EACH == n and (i % EACH < FREQUENT) == frequent]
            points = [numbers["map"][i] for i in rows]
            label = say(kind, CHINESE[kind]) if frequent else None
            look = {
                "marker": MARKERS[n],
                "color": COLOURS[n],
                "linestyle": "",
                "mfc": COLOURS[n] if frequent else "none",
            }
            axes.plot(*zip(*points, strict=True), label=label, **look)
    for i, below in ((0, -12), (1, 10), (EACH, 6)):  # apple, banana, chair
        axes.annotate(say(*NOUNS[i]), numbers["map"][i], textcoords="offset points", xytext=(7, below), fontsize=8)
    name_axes(axes, say("Learned vectors (hollow: rare words)", "学到的向量（空心：罕见词）"),
              say("first direction", "第一方向"), say("second direction", "第二方向"))  # fmt: skip
    axes.legend(fontsize=7)
