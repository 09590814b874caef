"""The comparison tables of attention and fully connected layers, with a measured number in each cell."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import regard as rg

from ....experiments.experiment import Bilingual
from ...controls import Slider
from ...pictures import NumberTable
from ...step import Evidence, Finding, Result, Step

COLUMNS = (Bilingual("fully connected", "全连接层"), Bilingual("attention", "注意力"))
WORDS = Slider("words", Bilingual("words n", "词数 n"), 20, 2, 200, 1, whole=True)


def compute_comparison(words: int, dim: int) -> Result:
    from regard.course import find_step
    from regard.experiments.results import published_result

    experiments = ("fixed-weights", "grey-ball")
    results = {name: published_result(name) or {} for name in experiments}
    weights = results["fixed-weights"]["numbers"]["change"]
    balls = results["grey-ball"]["numbers"]["found"]
    reading = find_step("readable-weights").run()
    names = ("fully connected", "attention")
    change = [f"{weights[name]['mean']:.2f}" for name in names]
    computed = ["0", f"{words**2:,}"]
    # a window of two words on each side
    layers = [str(int(np.ceil((words - 1) / 2))), "1"]
    unclear = [f"{reading['fixed_misplaced']:.0%}", f"{reading['misplaced']:.0%}"]
    products = np.array([(words * dim) ** 2, 4 * words * dim**2 + 2 * words**2 * dim])
    accuracy = [f"{min(size['mean'] for size in balls[name]):.0%}" for name in names]
    return dict(
        table=[change, computed, layers, unclear, [f"{n:,}" for n in products], accuracy],
        links=[
            "experiment:fixed-weights",
            "step:fixed-weights",
            "step:reach",
            "step:readable-weights",
            "step:parameters",
            "experiment:grey-ball",
        ],
        products=products,
        ratio=products[0] / products[1],
        words=words,
        accuracy=accuracy[1],
        fixed_accuracy=accuracy[0],
    )


def attend_comparison(words: int, dim: int) -> Tensor:
    q = k = v = torch.empty(1, 1, words, dim)
    # a multiplication and an addition are two operations
    attention = rg.plan(q, k, v).operations / 2
    counts = [(words * dim) ** 2, 4 * words * dim**2 + attention]
    return torch.tensor(counts, dtype=torch.float64)


COMPARISON = Step(
    name="comparison",
    title=Bilingual("The comparison, measured", "对比表：每一格都是实测"),
    claim=Bilingual(
        "Fixed or dynamic connections, learned or computed weights, distant words hard or easy, hard or easy to read, "
        "O(d_in · d_out) or O(n² · d), unfit or fit for sequences: the usual table, with a number in each cell.",
        "连接固定还是动态，权重来自学习还是计算，远距离难还是易，解释性差还是强，O(d_in · d_out) 还是 O(n² · d)，"
        "不适合还是适合序列：常见的对比表，这里每一格都是一个数。",
    ),
    task=Bilingual(
        "Change the number of words and the size of a word vector: the rows about weights, layers and work follow. The "
        "link of a row leads to where its numbers were measured.",
        "改变词数和词向量的维度，关于权重、层数和计算量的几行会跟着变。每行的链接指向测得这些数的地方。",
    ),
    controls=(WORDS, Slider("dim", Bilingual("size of a word vector d", "词向量的维度 d"), 64, 8, 512, 8, whole=True)),
    compute=compute_comparison,
    attend=attend_comparison,
    answer="products",
    pictures=(
        NumberTable(
            Bilingual("fully connected layer and attention", "全连接层与注意力"),
            "table",
            (
                Bilingual("connections: change of the weights between two inputs", "连接方式：两个输入之间权重的改变"),
                Bilingual("source of the weights: computed from the input", "权重来源：由输入算出的权重个数"),
                Bilingual("distant words: layers that connect all", "长距离：连通所有词需要的层数"),
                Bilingual("reading: weight that is not where the effect is", "可解释性：与实际作用不符的权重"),
                Bilingual("work: multiplications for a sentence", "计算量：一句话的乘法次数"),
                Bilingual("sequences: bags correct at the worst size", "序列：最不利长度下的准确率"),
            ),
            COLUMNS,
            links="links",
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "At {words} words a fully connected layer over the sentence multiplies {ratio:.1f} times as often as "
                "attention.",
                "{words} 个词时，覆盖整句的全连接层的乘法次数是注意力的 {ratio:.1f} 倍。",
            ),
            lambda result: result["ratio"] > 1,
        ),
        Finding(
            Bilingual(
                "Tested at other sizes than in training, attention is right in at least {accuracy}, the fully "
                "connected network in as little as {fixed_accuracy}.",
                "换成训练时没有的长度，注意力的准确率不低于 {accuracy}，全连接网络最低只有 {fixed_accuracy}。",
            ),
            lambda result: float(result["accuracy"][:-1]) > float(result["fixed_accuracy"][:-1]),
        ),
    ),
    evidence=(
        Evidence("fixed-weights", ("fixed", "dynamic")),
        Evidence("grey-ball", ("fixed-size", "any-size")),
        Evidence("cost", ("time", "memory")),
    ),
)


def compute_query_table(words: int) -> Result:
    from regard.course import find_step
    from regard.experiments.results import published_result

    experiments = ("fixed-weights", "grey-ball")
    results = {name: published_result(name) or {} for name in experiments}
    lookup, balls = (result["numbers"] for result in results.values())
    names, accuracies = ("fully connected", "attention"), balls["found"]
    frozen = find_step("frozen-query").run()
    # each word as a query, with each word as a key
    comparisons = ["0", f"{words**2:,}"]
    trained = lookup["pairs"].index(8)
    selection = [f"{lookup['accuracy'][name][trained]['mean']:.0%}" for name in names]
    linearity = [f"{frozen['frozen_error']:.1g}", f"{frozen['error']:.2f}"]
    trained_size = balls["balls"].index(10)
    fixed_size = [f"{accuracies[name][trained_size]['mean']:.0%}" for name in names]
    other_size = [f"{accuracies[name][-1]['mean']:.0%}" for name in names]
    return dict(
        table=[comparisons, selection, linearity, fixed_size, other_size],
        links=[
            "step:query-key-value",
            "experiment:fixed-weights",
            "step:frozen-query",
            "experiment:grey-ball",
            "experiment:grey-ball",
        ],
        comparisons=words**2,
        selection=selection[1],
        fixed_selection=selection[0],
    )


QUERY_TABLE = Step(
    name="query-table",
    title=Bilingual("With and without queries, measured", "有没有查询：实测对比"),
    claim=Bilingual(
        "A fully connected layer needs no query and no key: it maps by a fixed combination and suits tasks of fixed "
        "size, such as classification. Attention compares queries with keys, so it can select, and suits sequences.",
        "全连接层不需要查询和键：它按固定的组合做映射，适合分类这类输入大小固定的任务。"
        "注意力拿查询与键作比较，因此能够选择，适合序列。",
    ),
    task=Bilingual(
        "Change the number of words and follow the links. Where the size is fixed, both are equally good; the "
        "difference appears when something has to be selected, or when the size changes.",
        "改变词数，再沿着链接看。输入大小固定时两者一样好；一旦需要选择，或大小改变，差别就显出来了。",
    ),
    controls=(WORDS,),
    compute=compute_query_table,
    pictures=(
        NumberTable(
            Bilingual("fully connected layer and attention", "全连接层与注意力"),
            "table",
            (
                Bilingual("query and key: comparisons in a layer", "查询和键：一层中的比较次数"),
                Bilingual("selection: asked-for value found among 8 pairs", "选择：从 8 对中找到所问的值"),
                Bilingual("goal: distance from a fixed linear map", "目标：与固定线性映射的差距"),
                Bilingual("use, fixed size: bags of 10 balls correct", "应用，大小固定：10 个球的袋子"),
                Bilingual("use, another size: bags of 100 balls correct", "应用，大小改变：100 个球的袋子"),
            ),
            COLUMNS,
            links="links",
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "Attention finds the value that is asked for in {selection}, the fully connected network in "
                "{fixed_selection}.",
                "问什么取什么：注意力的准确率是 {selection}，全连接网络是 {fixed_selection}。",
            ),
            lambda result: float(result["selection"][:-1]) > float(result["fixed_selection"][:-1]),
        ),
    ),
    evidence=(Evidence("fixed-weights", ("any-length", "one-length")), Evidence("grey-ball", ("query", "memory"))),
)
