"""Word vectors: similarity of categories in one-hot vectors and in learned vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...nn.embeddings.word_vectors import OneHot
from ..experiment import Bilingual, Claim, Criterion, Language, Measurements, Size, Verdict, judge
from ..parameters import DIM_TEXT, NO_SETTINGS, SEEDS_TEXT, STEPS_TEXT, Settings, count, resolve_counts
from ..progress import ProgressCallback, nth_subprogress, subprogress
from ..toolkit.figures import COLOURS, MARKERS, draw_reference_line, label_axes, localizer, plot_summaries, subplots
from ..toolkit.metrics import accuracy, format_percent, summarize
from ..toolkit.training import fit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=22,
    name="meaning",
    title=Bilingual("One-hot vectors and learned embeddings", "独热向量与学到的词嵌入"),
    claim=Bilingual(
        "One-hot vectors encode no semantic relation between words; learned embeddings do, so what is learned from "
        "frequent words transfers to rare ones.",
        "独热编码没有语义关系，词嵌入有语义关系；因此从常见词学到的东西也能用于罕见词。",
    ),
    setup=Bilingual(
        "A synthetic corpus of sentences about five categories of things; some words are frequent, some occur 1 to "
        "16 times. Embeddings are trained on it by predicting neighbouring words, without category labels. Then a "
        "linear classifier is trained on the categories of the frequent words and tested on the rare ones: with "
        "one-hot vectors, with embeddings trained on the classification task itself, and with embeddings trained on "
        "the corpus.",
        "合成语料，句子涉及五类事物，有的词常见，有的只出现 1 到 16 次。词嵌入通过预测相邻的词训练，不使用类别标签。"
        "然后线性分类器只用常见词的类别训练，在罕见词上测试：分别用独热向量、分类任务自身学到的嵌入、语料学到的嵌入。",
    ),
    criteria=(
        Criterion(
            "neighbours",
            Bilingual(
                "With learned embeddings the nearest words are of the same category (at least 80 %)",
                "用学到的嵌入，最近的词同类（不低于 80%）",
            ),
            ">=",
            0.8,
            core=True,
        ),
        Criterion(
            "one-hot",
            Bilingual(
                "With one-hot vectors they are not (at most 10 points above chance)",
                "用独热向量则不然（最多比随机高 10 个百分点）",
            ),
            "<=",
            0.1,
            core=True,
        ),
        Criterion(
            "seen-16-times",
            Bilingual(
                "A word seen 16 times is classified at least 30 points better than with one-hot vectors",
                "出现 16 次的词，分类准确率比独热向量至少高 30 个百分点",
            ),
            ">=",
            0.3,
            core=True,
        ),
        Criterion(
            "rare",
            Bilingual(
                "So is a word seen at every smaller count, down to once", "出现次数更少的词也是如此，直到只出现一次"
            ),
            ">=",
            0.3,
        ),
    ),
)

CATEGORIES = {
    "fruit": "apple:苹果 banana:香蕉 pear:梨 grape:葡萄 kiwi:猕猴桃 plum:李子 fig:无花果 mango:芒果 melon:甜瓜",
    "furniture": "chair:椅子 table:桌子 bed:床 shelf:架子 stool:凳子 couch:沙发 desk:书桌 bench:长凳 wardrobe:衣柜",
    "animal": "cat:猫 dog:狗 horse:马 cow:牛 otter:水獭 goat:山羊 heron:鹭 mole:鼹鼠 deer:鹿",
    "vehicle": "car:汽车 bus:公交车 train:火车 bicycle:自行车 tram:电车 barge:驳船 van:面包车 ferry:渡轮 sledge:雪橇",
    "tool": "hammer:锤子 saw:锯子 knife:刀 drill:钻 chisel:凿子 rasp:锉刀 pliers:钳子 wrench:扳手 trowel:泥铲",
}
NOUNS = [tuple(word.split(":")) for words in CATEGORIES.values() for word in words.split()]
NOUNS_PER_CATEGORY, FREQUENT = 9, 4
COUNTS = [1, 2, 4, 8, 16]
"""How often the rare nouns of a category occur."""
OWN_WORDS, SHARED_WORDS = 8, 20
VOCABULARY = len(NOUNS) + OWN_WORDS * len(CATEGORIES) + SHARED_WORDS
PARAMETERS = (
    count("dim", DIM_TEXT, 1, 64, 16),
    count(
        "frequent",
        Bilingual("occurrences of a frequent word", "常见词出现的次数"),
        10,
        5000,
        {"toy": 60, "usual": 300, "full": 1000},
    ),
    count("steps", STEPS_TEXT, 4, 20000, {"toy": 60, "usual": 600, "full": 2000}),
    count("seeds", SEEDS_TEXT, 1, 20, {"toy": 1, "usual": 5, "full": 10}),
)
CATEGORIES_ZH = {"fruit": "水果", "furniture": "家具", "animal": "动物", "vehicle": "车船", "tool": "工具"}


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    values = resolve_counts(PARAMETERS, size, settings)
    seeds = values["seeds"]
    runs = [run_seed(values, seed * 1000 + n, nth_subprogress(progress, n, seeds, f"seed {n}")) for n in range(seeds)]
    methods = list(runs[0]["rare"])
    return {
        "counts": COUNTS,
        "neighbours": {method: summarize([run["neighbours"][method] for run in runs]) for method in methods},
        "chance": (NOUNS_PER_CATEGORY - 1) / (len(NOUNS) - 1),
        "rare": {
            method: {str(c): summarize([run["rare"][method][str(c)] for run in runs]) for c in COUNTS}
            for method in methods
        },
        "alike": {method: runs[0]["alike"][method] for method in methods},
        "map": runs[0]["map"],
    }


def run_seed(values: dict[str, int], seed: int, progress: ProgressCallback) -> Measurements:
    torch.manual_seed(seed)
    steps = values["steps"]
    centre, context = sample_corpus(values["frequent"])
    vectors_by_method = {
        "one-hot": torch.eye(len(NOUNS)),
        "own task": task_vectors(steps // 4),
        "corpus": corpus_vectors(centre, context, steps, subprogress(progress, 0.0, 1.0), values["dim"]),
    }
    return {
        "neighbours": {method: same_category_rate(vectors) for method, vectors in vectors_by_method.items()},
        "rare": {method: rare_word_accuracy(vectors, steps // 4) for method, vectors in vectors_by_method.items()},
        "alike": {method: example_similarities(vectors) for method, vectors in vectors_by_method.items()},
        "map": project_to_plane(vectors_by_method["corpus"]),
    }


def category_of(nouns: Tensor) -> Tensor:
    """The index of each noun's category."""
    return nouns // NOUNS_PER_CATEGORY


def frequent_nouns() -> Tensor:
    """The nouns that are frequent in the corpus."""
    nouns = torch.arange(len(NOUNS))
    return nouns[nouns % NOUNS_PER_CATEGORY < FREQUENT]


def sample_corpus(frequent: int) -> tuple[Tensor, Tensor]:
    """Pairs of a noun and a context word, `[pairs]` each: four context words per noun, mostly of its category."""
    counts = torch.tensor(([frequent] * FREQUENT + COUNTS) * len(CATEGORIES))
    nouns = torch.arange(len(NOUNS)).repeat_interleave(counts)
    own = len(NOUNS) + OWN_WORDS * category_of(nouns)[:, None] + torch.randint(OWN_WORDS, (len(nouns), 4))
    shared = VOCABULARY - SHARED_WORDS + torch.randint(SHARED_WORDS, own.shape)
    context = torch.where(torch.rand(own.shape) < 0.6, own, shared)
    return nouns.repeat_interleave(4), context.flatten()


def corpus_vectors(centre: Tensor, context: Tensor, steps: int, progress: ProgressCallback, dim: int = 16) -> Tensor:
    """Noun vectors that predict their context words, `[nouns, dim]`."""
    model = nn.ModuleDict({"words": OneHot(len(NOUNS), dim), "context": nn.Linear(dim, VOCABULARY)})

    def loss() -> Tensor:
        chosen = torch.randint(len(centre), (512,))
        vectors = model["words"](centre[chosen][None])[0]
        return nn.functional.cross_entropy(model["context"](vectors), context[chosen])

    fit(model, loss, steps, 3e-2, progress)
    return trained_vectors(model["words"])


def task_vectors(steps: int, dim: int = 16) -> Tensor:
    """Noun vectors trained with the classifier of the frequent nouns' categories, `[nouns, dim]`."""
    words, head = OneHot(len(NOUNS), dim), nn.Linear(dim, len(CATEGORIES))
    frequent = frequent_nouns()

    def loss() -> Tensor:
        return nn.functional.cross_entropy(head(words(frequent[None])[0]), category_of(frequent))

    fit(nn.ModuleList([words, head]), loss, steps, 1e-2)
    return trained_vectors(words)


def trained_vectors(words: nn.Module) -> Tensor:
    return words.weight.detach()  # type: ignore[union-attr, return-value]


def cosine_similarities(vectors: Tensor) -> Tensor:
    """The cosine similarities, `[nouns, nouns]`."""
    unit = nn.functional.normalize(vectors, dim=-1)
    return unit @ unit.T


def same_category_rate(vectors: Tensor, nearest: int = 3) -> float:
    """The fraction of a frequent word's nearest words that share its category; ties are broken at random."""
    similarities = cosine_similarities(vectors) + 1e-6 * torch.rand(len(NOUNS), len(NOUNS))
    similarities.fill_diagonal_(-torch.inf)
    near = similarities[frequent_nouns()].topk(nearest).indices
    return (category_of(near) == category_of(frequent_nouns())[:, None]).float().mean().item()


def rare_word_accuracy(vectors: Tensor, steps: int) -> dict[str, float]:
    """The accuracy on rare words of a linear classifier trained on frequent ones, by frequency."""
    scaled = vectors / vectors[frequent_nouns()].norm(dim=-1).mean()
    model = nn.Linear(scaled.shape[1], len(CATEGORIES))
    frequent = frequent_nouns()
    fit(model, lambda: nn.functional.cross_entropy(model(scaled[frequent]), category_of(frequent)), steps, 3e-2)
    with torch.no_grad():
        logits = model(scaled)
    rows = {count: torch.arange(FREQUENT + n, len(NOUNS), NOUNS_PER_CATEGORY) for n, count in enumerate(COUNTS)}
    return {str(count): accuracy(logits[row], category_of(row)) for count, row in rows.items()}


def example_similarities(vectors: Tensor) -> dict[str, float]:
    """The cosines of apple with banana and with chair."""
    names = [english for english, _ in NOUNS]
    apple, banana, chair = (names.index(word) for word in ("apple", "banana", "chair"))
    similarities = cosine_similarities(vectors)
    return {"banana": similarities[apple, banana].item(), "chair": similarities[apple, chair].item()}


def project_to_plane(vectors: Tensor) -> list[list[float]]:
    """The words on their first two principal components, `[nouns, 2]`."""
    unit = nn.functional.normalize(vectors, dim=-1)
    unit = unit - unit[frequent_nouns()].mean(0)
    _, _, directions = torch.linalg.svd(unit[frequent_nouns()], full_matrices=False)
    return [[round(v, 4) for v in row] for row in (unit @ directions[:2].T).tolist()]


def verdict(numbers: Measurements) -> Verdict:
    near = {method: summary["mean"] for method, summary in numbers["neighbours"].items()}
    chance = numbers["chance"]
    rare = {
        method: {count: summary["mean"] for count, summary in summaries.items()}
        for method, summaries in numbers["rare"].items()
    }
    gains = {count: rare["corpus"][count] - rare["one-hot"][count] for count in rare["corpus"]}
    often, least = gains[str(numbers["counts"][-1])], min(gains.values())
    measured = {
        "neighbours": (near["corpus"], Bilingual.same(format_percent(near["corpus"]))),
        "one-hot": (
            near["one-hot"] - chance,
            Bilingual(
                f"{format_percent(near['one-hot'])}, chance {format_percent(chance)}",
                f"{format_percent(near['one-hot'])}，随机 {format_percent(chance)}",
            ),
        ),
        "seen-16-times": (often, Bilingual(f"{100 * often:+.0f} points", f"{100 * often:+.0f} 个百分点")),
        "rare": (least, Bilingual(f"{100 * least:+.0f} points at worst", f"最低 {100 * least:+.0f} 个百分点")),
    }
    by_count = ", ".join(f"{count}×: {format_percent(rare['corpus'][count])}" for count in gains)
    similarity = numbers["alike"]["corpus"]
    means = {method: sum(values.values()) / len(values) for method, values in rare.items()}
    key = Bilingual(
        f"nearest words of the same category: {format_percent(near['corpus'])} learned, {format_percent(near['one-hot'])} one-hot",
        f"最近的词同类：学到的嵌入 {format_percent(near['corpus'])}，独热 {format_percent(near['one-hot'])}",
    )
    return judge(CLAIM, measured, key, Bilingual(
        f"Nearest words of the same category: corpus {format_percent(near['corpus'])}, own task {format_percent(near['own task'])}, "
        "one-hot "
        f"{format_percent(near['one-hot'])} (chance {format_percent(chance)}). Accuracy on rare words: one-hot "
        f"{format_percent(means['one-hot'])}, own task "
        f"{format_percent(means['own task'])}, corpus by count {by_count}. The similarity of apple is {similarity['banana']:.2f} to banana "
        "and "
        f"{similarity['chair']:.2f} to chair; one-hot gives 0 and 0.",
        f"最近的词同类的比例：语料 {format_percent(near['corpus'])}，分类任务自身 {format_percent(near['own task'])}，独热 "
        f"{format_percent(near['one-hot'])}（随机 {format_percent(chance)}）。"
        f"罕见词准确率：独热 {format_percent(means['one-hot'])}，分类任务自身 {format_percent(means['own task'])}，语料按出现次数 "
        f"{by_count}。"
        f"苹果与香蕉的相似度 {similarity['banana']:.2f}，与椅子 {similarity['chair']:.2f}；独热都是 0。",
    ))  # fmt: skip


def draw(numbers: Measurements, language: Language) -> Figure:
    tr = localizer(language)
    names = {"one-hot": tr("one-hot", "独热"), "own task": tr("learned by the task itself", "分类任务自身学到"),
             "corpus": tr("learned from the corpus", "语料学到")}  # fmt: skip
    with subplots(language, 3, width=4.4) as (figure, (left, middle, right)):
        figure.suptitle(tr("Word vectors: nearest neighbours and rare words", "词向量：近邻与罕见词"))
        draw_word_map(left, numbers, language)
        chance = tr("chance", "随机")
        values = list(numbers["neighbours"].values())
        middle.bar(
            range(3), [v["mean"] for v in values], yerr=[v["spread"] for v in values], color=COLOURS[:3], capsize=3
        )
        middle.set_xticks(range(3), [tr("one-hot", "独热"), tr("own task", "任务自身"), tr("corpus", "语料")])
        draw_reference_line(middle, numbers["chance"], chance)
        label_axes(
            middle, tr("The three nearest words", "三个最近的词"), "", tr("fraction of the same category", "同类的比例")
        )
        middle.legend()
        for n, (method, text) in enumerate(names.items()):
            summaries = [numbers["rare"][method][str(count)] for count in numbers["counts"]]
            plot_summaries(right, n, numbers["counts"], summaries, text)
        draw_reference_line(right, 1 / len(CATEGORIES), chance)
        right.set_xscale("log", base=2)
        right.set_xticks(numbers["counts"], [str(c) for c in numbers["counts"]])
        right.set_ylim(0, 1.05)
        label_axes(right, tr("Category of words without labels", "无标签词的类别"),
                  tr("count in the corpus", "语料中出现的次数"), tr("accuracy", "准确率"))  # fmt: skip
        right.legend(fontsize=7)
    return figure


def draw_word_map(axes: Axes, numbers: Measurements, language: Language) -> None:
    """The words of the corpus on a plane, rare ones hollow."""
    tr = localizer(language)
    for n, category in enumerate(CATEGORIES):
        for frequent in (True, False):
            rows = [
                i
                for i in range(len(NOUNS))
                if i // NOUNS_PER_CATEGORY == n and (i % NOUNS_PER_CATEGORY < FREQUENT) == frequent
            ]
            points = [numbers["map"][i] for i in rows]
            label = tr(category, CATEGORIES_ZH[category]) if frequent else None
            fill = COLOURS[n] if frequent else "none"
            axes.plot(*zip(*points, strict=True), MARKERS[n], color=COLOURS[n], markerfacecolor=fill, label=label)
    for i, below in ((0, -12), (1, 10), (NOUNS_PER_CATEGORY, 6)):  # apple, banana, chair
        axes.annotate(tr(*NOUNS[i]), numbers["map"][i], textcoords="offset points", xytext=(7, below), fontsize=8)
    label_axes(axes, tr("Learned embeddings (hollow: rare words)", "学到的嵌入（空心：罕见词）"),
              tr("first component", "第一主成分"), tr("second component", "第二主成分"))  # fmt: skip
    axes.legend(fontsize=7)
