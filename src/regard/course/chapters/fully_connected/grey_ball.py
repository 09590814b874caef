"""The slightly grey ball: a query in the left hand, compared with each ball of a bag."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import regard as rg

from ....experiments.experiment import Bilingual
from ...controls import Choice, Numbers, Slider
from ...pictures import Drawing, Heatmap, NumberTable
from ...step import Evidence, Finding, Result, Step

BALLS = tuple(Bilingual(f"ball {n}", f"球 {n}") for n in range(1, 10))
NUMBERS = tuple(Bilingual(str(n), str(n)) for n in range(1, 10))


def compute_grey_ball(
    balls: np.ndarray, odd: int, darkness: float, light: str, hand: float, search: str, sharpness: float
) -> Result:
    paint = balls.copy()
    paint[odd - 1] *= 1 - darkness  # one ball is a little darker
    lamps = dict(day=(1, 1, 1), evening=(1, 0.78, 0.55), shade=(0.6, 0.68, 0.8))
    lamp = np.array(lamps[light])
    # the colours that are seen: red, green, blue
    keys, query = paint[:, None] * lamp, hand * lamp

    def compare(query):
        scores = sharpness * np.abs(keys - query).sum(-1)
        scores = scores if search == "different" else -scores
        weights = np.exp(scores - scores.max())
        return weights / weights.sum()

    differences, weights = np.abs(keys - query), compare(query)
    # each ball of the bag in the left hand, in turn
    held_in_turn = np.array([compare(key) for key in keys])
    # white as it was learned by day: the same for any bag and any lamp
    memory = compare(np.full(3, 0.95))
    pick, memory_pick = weights.argmax() + 1, memory.argmax() + 1
    output = weights @ keys
    return dict(
        keys=keys,
        query=query,
        paint=paint,
        differences=np.vstack([differences.T, differences.sum(-1)]),
        weights=weights,
        memory=memory,
        both=np.array([weights, memory]),
        held_in_turn=held_in_turn,
        own_weight=held_in_turn[odd - 1, odd - 1],
        pick=int(pick),
        memory_pick=int(memory_pick),
        odd=odd,
        peak=weights.max(),
        memory_peak=memory.max(),
        output=output,
        table=[
            [str(n) for n in row] for row in ((len(balls), len(balls)), (0, 1), (0, len(balls)), (memory_pick, pick))
        ],
    )


def attend_grey_ball(
    balls: Tensor, odd: int, darkness: float, light: str, hand: float, search: str, sharpness: float
) -> Tensor:
    paint = balls.clone()
    paint[odd - 1] *= 1 - darkness
    lamps = dict(day=(1, 1, 1), evening=(1, 0.78, 0.55), shade=(0.6, 0.68, 0.8))
    lamp = torch.tensor(lamps[light], dtype=balls.dtype)
    keys, query = paint[:, None] * lamp, hand * lamp
    # |q - k| = relu(q - k) + relu(k - q): an additive score with ReLU
    q = torch.cat([query, -query])[None, None, None]
    k, v = torch.cat([-keys, keys], -1)[None, None], keys[None, None]
    weight = keys.new_full((1, 6), sharpness if search == "different" else -sharpness)
    score = rg.Additive(weight, activation="leaky_relu", slope=0.0)
    return rg.attend(q, k, v, score=score).flatten()


GREY_BALL = Step(
    name="grey-ball",
    title=Bilingual("The slightly grey ball", "略微发灰的小球"),
    claim=Bilingual(
        "Find the slightly grey ball in a bag of white ones. A fully connected layer gropes by memory of what white "
        "looked like. Attention holds a white ball in the left hand (the query), takes the others out one by one with "
        "the right (keys), compares, and answers with a mix of the bag (values), weighted by the comparison.",
        "在一袋白球里找出略微发灰的那一个。全连接层凭记忆摸索：它记得训练时的白色是什么样。"
        "注意力则左手拿一个白球，右手把袋里的球一个一个取出来比颜色。左手的球是查询，袋里的球是键和值，"
        "答案是按比较结果加权的混合。",
    ),
    task=Bilingual(
        "Press “compare one by one”. Make the grey ball paler with the darkness slider until you cannot see it: the "
        "comparison still can. Drag another ball into the left hand: another query, another answer. Then switch to the "
        "evening lamp and make the odd ball lighter (darkness below 0): the hand still finds it, memory does not.",
        "点“一个一个比”。用“暗多少”把灰球调到肉眼看不出来，比较仍然找得到。把另一个球拖到左手：查询变了，答案也变。"
        "再换成傍晚的灯，并让那个球更亮（“暗多少”小于 0）：左手比得出来，凭记忆就找错了。",
    ),
    controls=(
        Slider("hand", Bilingual("left hand: how white the ball is", "左手：球有多白"), 0.95, 0.0, 1.0, 0.005),
        Slider("darkness", Bilingual("how much darker the odd ball is", "特殊的球暗多少"), 0.06, -0.05, 0.6, 0.005),
        Slider("odd", Bilingual("which ball is odd", "哪个球特殊"), 6, 1, 9, 1, whole=True),
        Choice(
            "light",
            Bilingual("lamp", "灯光"),
            "day",
            (
                ("day", Bilingual("daylight", "日光")),
                ("evening", Bilingual("evening lamp", "傍晚的灯")),
                ("shade", Bilingual("shade", "阴影")),
            ),
        ),
        Choice(
            "search",
            Bilingual("look for the ball that is", "要找的球"),
            "different",
            (
                ("different", Bilingual("unlike the one in the hand", "与左手的不同")),
                ("alike", Bilingual("like the one in the hand", "与左手的相似")),
            ),
        ),
        Slider("sharpness", Bilingual("sharpness of the comparison", "比较的锐度"), 40.0, 0.0, 100.0, 1.0),
        Numbers(
            "balls",
            Bilingual("the paint of the balls (1 is the purest white)", "各个球的白度（1 为纯白）"),
            (0.95, 0.955, 0.945, 0.95, 0.96, 0.95, 0.94, 0.955, 0.945),
            0.0,
            1.0,
            0.005,
            columns=NUMBERS,
        ),
    ),
    compute=compute_grey_ball,
    attend=attend_grey_ball,
    pictures=(
        Drawing(Bilingual("the bag and the two hands", "袋子和两只手"), "grey_ball"),
        Heatmap(
            Bilingual("the comparison: difference to the ball in the hand", "比较：与左手的球相差多少"),
            "differences",
            (
                Bilingual("red", "红"),
                Bilingual("green", "绿"),
                Bilingual("blue", "蓝"),
                Bilingual("together", "合计"),
            ),
            NUMBERS,
        ),
        Heatmap(
            Bilingual("weight of each ball", "各个球的权重"),
            "both",
            (Bilingual("with the hand", "与左手比"), Bilingual("with a memory", "与记忆比")),
            NUMBERS,
        ),
        Heatmap(
            Bilingual("weights, with each ball of the bag held in turn", "依次把袋中每个球拿在左手时的权重"),
            "held_in_turn",
            tuple(Bilingual(f"holding {n}", f"拿着 {n}") for n in range(1, 10)),
            NUMBERS,
        ),
        NumberTable(
            Bilingual("the picture and the formula", "比喻与公式的对应"),
            "table",
            (
                Bilingual("the bag: balls that are read", "袋子：读入的球"),
                Bilingual("the left hand: queries", "左手：查询的个数"),
                Bilingual("the right hand: comparisons of query and key", "右手：查询与键的比较次数"),
                Bilingual("the result: ball with the largest weight", "结果：权重最大的球"),
            ),
            (Bilingual("by memory (fixed weights)", "凭记忆（固定权重）"), Bilingual("attention", "注意力")),
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "The odd ball is number {odd}. The comparison gives the largest weight, {peak:.2f}, to ball {pick}.",
                "特殊的是 {odd} 号球。比较的结果是 {pick} 号球权重最大，为 {peak:.2f}。",
            ),
            lambda result: result["pick"] == result["odd"] and result["peak"] > 0.5,
        ),
        Finding(
            Bilingual(
                "Memory of white by daylight points at ball {memory_pick}, with {memory_peak:.2f}.",
                "凭日光下对白色的记忆，指向 {memory_pick} 号球，权重 {memory_peak:.2f}。",
            ),
            lambda result: result["memory_pick"] == result["odd"],
        ),
        Finding(
            Bilingual(
                "With the odd ball itself in the left hand its own weight is {own_weight:.3f}, and all the others look "
                "odd: the query decides the answer.",
                "若左手拿的就是特殊的球，它自己的权重只有 {own_weight:.3f}，其余的球反倒都显得特殊：答案由查询决定。",
            ),
            lambda result: result["own_weight"] < 0.01,
        ),
    ),
    evidence=(Evidence("grey-ball"),),
)
