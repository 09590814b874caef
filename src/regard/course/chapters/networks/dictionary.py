"""Queries, keys and values: the soft dictionary, dot products, many queries at once."""

from __future__ import annotations

import numpy as np
from torch import Tensor

import regard as rg

from ....experiments.experiment import Bilingual
from ...controls import Numbers
from ...pictures import Bars, Heatmap, NumberTable, Plane
from ...step import Evidence, Finding, Result, Step

WORDS = (Bilingual("apple", "苹果"), Bilingual("banana", "香蕉"), Bilingual("chair", "椅子"))


def compute_soft_dictionary(query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> Result:
    scores = keys @ query
    weights = np.exp(scores - scores.max())
    weights = weights / weights.sum()
    answer = weights @ values
    return dict(scores=scores, weights=weights, answer=answer, chair=weights[2])


def attend_soft_dictionary(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    q, k, v = query.view(1, 1, 1, -1), keys[None, None], values.view(1, 1, -1, 1)
    return rg.attend(q, k, v, score=rg.Dot(scale=1.0)).squeeze()


SOFT_DICTIONARY = Step(
    name="soft-dictionary",
    title=Bilingual("A dictionary that answers with a mix", "会给出混合答案的字典"),
    claim=Bilingual(
        "Attention goes to what matters. The query “fruit” is no key of the dictionary. It should return mostly "
        "apple, some banana and no chair: 0.6 · 10 + 0.4 · 5 + 0 · 2 = 8.",
        "注意力只放在重点上。“水果”不是字典里的键。它应当主要取苹果，部分取香蕉，不取椅子：0.6 · 10 + 0.4 · 5 + 0 · 2 "
        "= 8。",
    ),
    task=Bilingual(
        "Drag the arrow of the query towards the chair and watch the answer move from 8 to 2.",
        "把查询的箭头拖向椅子，看答案怎样从 8 变为 2。",
    ),
    controls=(
        Numbers("query", Bilingual("query “fruit”", "查询“水果”"), (2.0, 1.0), -6, 6),
        Numbers("keys", Bilingual("keys", "键"), ((2.0, 0.6), (1.9, 0.4), (-2.5, -1.5)), -6, 6, rows=WORDS),
        Numbers("values", Bilingual("values", "值"), (10.0, 5.0, 2.0), 0, 20, columns=WORDS),
    ),
    compute=compute_soft_dictionary,
    attend=attend_soft_dictionary,
    answer="answer",
    pictures=(
        Plane(
            Bilingual("query and keys", "查询与键"), (("query", "query"), ("keys", "key")), (("keys", WORDS),), extent=4
        ),
        Bars(Bilingual("weights", "权重"), "weights", WORDS, low=0, high=1),
    ),
    findings=(
        Finding(
            Bilingual(
                "The answer is {answer:.2f}, with {chair:.4f} of the chair.",
                "答案是 {answer:.2f}，椅子占 {chair:.4f}。",
            ),
            lambda result: abs(result["answer"] - 8) < 0.1 and result["chair"] < 0.001,
        ),
    ),
    evidence=(Evidence("soft-dictionary"),),
)

THINGS = (
    Bilingual("apple", "苹果"),
    Bilingual("banana", "香蕉"),
    Bilingual("Tuesday", "星期二"),
    Bilingual("chair", "椅子"),
)


def compute_dot_sign(query: np.ndarray, keys: np.ndarray) -> Result:
    from regard.experiments.results import published_result

    dots = keys @ query
    lengths = np.linalg.norm(keys, axis=-1) * np.linalg.norm(query)
    angles = np.degrees(np.arccos(np.clip(dots / np.maximum(lengths, 1e-12), -1, 1)))
    # cosines with the apple in embeddings that were trained
    alike = (published_result("meaning") or {})["numbers"]["alike"]
    trained = [[alike[name][word] for word in ("banana", "chair")] for name in ("own task", "corpus")]
    return dict(
        dots=dots,
        angles=angles,
        trained=np.array(trained),
        apple=dots[0],
        chair=dots[3],
        tuesday=dots[2],
        tuesday_angle=angles[2],
        own_chair=trained[0][1],
        corpus_chair=trained[1][1],
        corpus_banana=trained[1][0],
    )


def attend_dot_sign(query: Tensor, keys: Tensor) -> Tensor:
    q, k = query[None, None, None], keys[None, None]
    return rg.Dot(scale=1.0).similarity(q, k).flatten()


DOT_SIGN = Step(
    name="dot-sign",
    title=Bilingual("The sign of a dot product", "点积的正负"),
    claim=Bilingual(
        "Similarity is measured by the dot product: vectors of like meaning should have a positive one, unlike "
        "meaning a negative one. In the plane this is an angle: below 90° positive, at 90° zero, above 90° negative.",
        "相似性用点积来衡量：语义相近，点积应大于 0；语义不同，应小于 0。在平面上看就是夹角：小于 90° 为正，等于 90° "
        "为零，大于 90° 为负。",
    ),
    task=Bilingual(
        "Turn the query once around the circle and watch the bars change sign. Then make it longer without turning it: "
        "the numbers grow, the signs stay. These vectors are set by hand; the last picture has trained ones.",
        "把查询转一圈，看各条的正负怎样变化。再只拉长、不转动：数值变大，正负不变。这些向量是手工设定的；"
        "最后一幅图是训练得到的。",
    ),
    controls=(
        Numbers("query", Bilingual("query “fruit”", "查询“水果”"), (2.0, 1.0), -4, 4),
        Numbers(
            "keys", Bilingual("keys", "键"), ((2.0, 0.6), (1.3, 1.6), (-0.8, 1.6), (-1.8, -1.2)), -4, 4, rows=THINGS
        ),
    ),
    compute=compute_dot_sign,
    attend=attend_dot_sign,
    answer="dots",
    pictures=(
        Plane(
            Bilingual("query and keys", "查询与键"),
            (("query", "query"), ("keys", "key")),
            (("keys", THINGS),),
            extent=4,
        ),
        Bars(Bilingual("dot product with the query", "与查询的点积"), "dots", THINGS, role="score", low=-8, high=8),
        Bars(
            Bilingual("angle with the query in degrees", "与查询的夹角（度）"),
            "angles",
            THINGS,
            role="plain",
            low=0,
            high=180,
        ),
        Heatmap(
            Bilingual("trained embeddings: cosine with the apple", "训练得到的词嵌入：与苹果的余弦"),
            "trained",
            (Bilingual("on a task", "在任务中训练"), Bilingual("on a corpus", "在语料上训练")),
            (THINGS[1], THINGS[3]),
            role="score",
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "The dot product with the apple is {apple:+.2f}, with the chair {chair:+.2f}; Tuesday stands at "
                "{tuesday_angle:.0f}° and has {tuesday:+.2f}.",
                "与苹果的点积是 {apple:+.2f}，与椅子的是 {chair:+.2f}；星期二的夹角是 {tuesday_angle:.0f}°，点积 "
                "{tuesday:+.2f}。",
            ),
            lambda result: result["apple"] > 0 > result["chair"] and abs(result["tuesday"]) < 0.1,
        ),
        Finding(
            Bilingual(
                "In embeddings trained on a corpus the apple and the chair have {corpus_chair:+.2f} (banana "
                "{corpus_banana:+.2f}), in those trained on a task {own_chair:+.2f}: unlike words are near 0, not "
                "always below it.",
                "在语料上训练的词嵌入里，苹果与椅子是 {corpus_chair:+.2f}（香蕉 {corpus_banana:+.2f}），"
                "在任务中训练的是 {own_chair:+.2f}：不相似的词接近 0，但不一定小于 0。",
            ),
            lambda result: max(result["corpus_chair"], result["own_chair"]) < 0.5 * result["corpus_banana"],
        ),
    ),
    evidence=(Evidence("meaning", ("neighbours", "one-hot")),),
)

QUERIES = (Bilingual("fruit", "水果"), Bilingual("furniture", "家具"))
PROPERTIES = (Bilingual("price", "价格"), Bilingual("sweetness", "甜度"), Bilingual("weight", "重量"))


def compute_many_queries(queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> Result:
    def softmax(scores):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True)

    weights = softmax(queries @ keys.T)  # all queries at once: one row for each
    output = weights @ values  # every value is a vector
    one_by_one = np.array([softmax(keys @ query) @ values for query in queries])
    # a common slip: V inside the softmax
    inside = softmax(queries @ keys.T @ values)
    return dict(
        weights=weights,
        output=output,
        difference=np.abs(output - one_by_one).max(),
        inside=inside,
        inside_sum=inside[0].sum(),
        price=output[0, 0],
        inside_price=inside[0, 0],
    )


def attend_many_queries(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    q, k, v = queries[None, None], keys[None, None], values[None, None]
    return rg.attend(q, k, v, score=rg.Dot(scale=1.0))[0, 0]


MANY_QUERIES = Step(
    name="many-queries",
    title=Bilingual("Many queries at once, values that are vectors", "一次多个查询，值也是向量"),
    claim=Bilingual(
        "Stack the queries to a matrix Q and let each value be a vector: softmax(Q·Kᵀ)·V answers all of them at once. "
        "V stands outside the softmax, which makes weights; it does not touch what is weighed.",
        "把多个查询叠成矩阵 Q，值也换成向量：softmax(Q·Kᵀ)·V 一次回答所有查询。V 在 softmax 外面：softmax 只产生权重，"
        "不碰被加权的内容。",
    ),
    task=Bilingual(
        "Drag a query and see that only its own row changes. Edit the values: the weights do not move.",
        "拖动一个查询，只有它自己那一行会变。改动值：权重不变。",
    ),
    controls=(
        Numbers("queries", Bilingual("queries Q", "查询 Q"), ((2.0, 1.0), (-1.5, -1.5)), -4, 4, rows=QUERIES),
        Numbers("keys", Bilingual("keys K", "键 K"), ((2.0, 0.6), (1.9, 0.4), (-2.5, -1.5)), -4, 4, rows=WORDS),
        Numbers(
            "values",
            Bilingual("values V", "值 V"),
            ((10.0, 6.0, 2.0), (5.0, 8.0, 1.5), (2.0, 0.0, 9.0)),
            0,
            20,
            rows=WORDS,
            columns=PROPERTIES,
        ),
    ),
    compute=compute_many_queries,
    attend=attend_many_queries,
    pictures=(
        Plane(
            Bilingual("queries and keys", "查询与键"),
            (("queries", "query"), ("keys", "key")),
            (("queries", QUERIES), ("keys", WORDS)),
            extent=4,
        ),
        Heatmap(Bilingual("weights", "权重"), "weights", QUERIES, WORDS),
        NumberTable(Bilingual("answers", "答案"), "output", QUERIES, PROPERTIES),
        NumberTable(
            Bilingual("with V inside the softmax (wrong)", "V 误放在 softmax 里面时"), "inside", QUERIES, PROPERTIES
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "All at once and one by one differ by {difference:.1g}. The price of fruit is {price:.2f}.",
                "一次算完与逐个计算相差 {difference:.1g}。水果的价格是 {price:.2f}。",
            ),
            lambda result: result["difference"] < 1e-12,
        ),
        Finding(
            Bilingual(
                "With V inside the softmax every row adds up to {inside_sum:.0f}: “price {inside_price:.2f}” is no "
                "price.",
                "若把 V 放进 softmax，每一行加起来都是 {inside_sum:.0f}：得到的“价格 {inside_price:.2f}”不是价格。",
            ),
            lambda result: abs(result["inside_sum"] - 1) < 1e-12,
        ),
    ),
    evidence=(Evidence("soft-dictionary", ("mix", "error")),),
)
