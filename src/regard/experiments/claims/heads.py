"""One head against several, at equal parameters, where every token has two relations to others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ...attention.look import look
from ...nn.attention import MultiHeadAttention
from ..experiment import Both, Claim, Language, Size, Tell, Verdict
from ..learning import drawing, fit, panels, part, spread, style

CLAIM = Claim(
    number=11,
    name="heads",
    title=Both("One head and several", "单头与多头"),
    claim=Both(
        "Several heads see different relations at once, such as grammar and meaning; one head sees them from one angle "
        "only.",
        "多个头可以同时关注不同的关系（如语法关系与语义关系）；只用一个头，相当于只从一个角度去理解。",
    ),
    setup=Both(
        "Every token points at two others (its relations, drawn at random) and must say the content of both, in order. "
        "One layer of attention of equal width, so of exactly equal parameters, learns it with 1, 2, 4 and 8 heads. The "
        "weight that each head gives to each relation is measured on fresh rows.",
        "每个词元指向另外两个词元（即两种随机的关系），并须按次序说出两者的内容。宽度相同、因而参数量完全相同的一层注意力，分别用 1、2、4、8 个头学习。"
        "在新的数据上测量每个头给予每种关系的权重。",
    ),
    threshold=Both(
        "Holds if two heads name both contents at least 20 points more often than one, and of the two one gives more "
        "than half of its weight to the first relation and the other to the second, in every seed; limited if the "
        "first is so without the second; else it does not hold.",
        "若两个头同时说对两者内容的比例比一个头至少高 20 个百分点，并且每个种子中两个头各把一半以上的权重分别给予第一种和第二种关系，则成立；"
        "若只满足前者，则有条件成立；否则不成立。",
    ),
)

RELATIONS = (Both("first relation", "第一种关系"), Both("second relation", "第二种关系"))
COUNTS = (1, 2, 4, 8)
CONTENTS = 6
SIZES: dict[Size, dict[str, Any]] = {
    "toy": {"tokens": 5, "dim": 16, "steps": 10, "batch": 8, "seeds": 1},
    "usual": {"tokens": 12, "dim": 64, "steps": 700, "batch": 32, "seeds": 3},
    "full": {"tokens": 32, "dim": 128, "steps": 5000, "batch": 64, "seeds": 5},
}


class Pointing(nn.Module):
    """Tokens with a content, a place and two pointers; attention; two answers."""

    def __init__(self, tokens: int, dim: int, heads: int) -> None:
        super().__init__()
        self.content = nn.Embedding(CONTENTS, dim)
        self.places, self.first, self.second = (nn.Embedding(tokens, dim) for _ in range(3))
        self.attention = MultiHeadAttention(dim, heads)
        self.answer = nn.Linear(dim, 2 * CONTENTS)

    def embed(self, content: Tensor, pointers: Tensor) -> Tensor:
        """`[batch, tokens, dim]` of `content [batch, tokens]` and `pointers [batch, tokens, 2]`."""
        first, second = pointers.unbind(-1)
        return self.content(content) + self.places.weight + self.first(first) + self.second(second)

    def forward(self, content: Tensor, pointers: Tensor) -> Tensor:
        """`[batch, tokens, 2, contents]`: what stands where each pointer points."""
        mixed = self.attention(self.embed(content, pointers))
        return self.answer(mixed).unflatten(-1, (2, CONTENTS))


def measure(size: Size, seed: int, tell: Tell) -> dict[str, Any]:
    """`both[heads]`: both contents named; `weights[heads][seed][head]`: of the first and the second relation."""
    set_up = SIZES[size]
    runs = [(heads, seed + n) for heads in COUNTS for n in range(set_up["seeds"])]
    found: dict[int, list[dict[str, Any]]] = {heads: [] for heads in COUNTS}
    for n, (heads, own) in enumerate(runs):
        told = part(tell, n / len(runs), (n + 1) / len(runs), f"{heads} heads, seed {own}")
        found[heads].append(tried(heads, set_up, own, told))
    return {
        "heads": list(COUNTS),
        "both": [spread([run["both"] for run in found[heads]]) for heads in COUNTS],
        "one": [spread([run["one"] for run in found[heads]]) for heads in COUNTS],
        "weights": [[run["weights"] for run in found[heads]] for heads in COUNTS],
        "parameters": [found[heads][0]["parameters"] for heads in COUNTS],
    }


def tried(heads: int, set_up: dict[str, Any], seed: int, tell: Tell) -> dict[str, Any]:
    """What a model with so many heads learns, and where its heads look."""
    torch.manual_seed(seed)
    generator = drawing(seed)
    model = Pointing(set_up["tokens"], set_up["dim"], heads)

    def loss() -> Tensor:
        content, pointers, wanted = rows(set_up["batch"], set_up["tokens"], generator)
        return cross_entropy(model(content, pointers).flatten(0, 2), wanted.flatten())

    fit(model, loss, set_up["steps"], 5e-3, tell)
    content, pointers, wanted = rows(8 * set_up["batch"], set_up["tokens"], generator)
    with torch.no_grad():
        right = model(content, pointers).argmax(-1) == wanted
        weights = relation_weights(model, content, pointers)
    return {
        "both": right.all(-1).float().mean().item(),
        "one": right.float().mean().item(),
        "weights": weights.tolist(),
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def rows(batch: int, tokens: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Contents, two different pointers a token, and what stands where they point."""
    content = torch.randint(CONTENTS, (batch, tokens), generator=generator)
    pointers = torch.rand(batch, tokens, tokens, generator=generator).argsort(-1)[..., :2]
    wanted = content.gather(1, pointers.flatten(1)).unflatten(1, (tokens, 2))
    return content, pointers, wanted


def relation_weights(model: Pointing, content: Tensor, pointers: Tensor) -> Tensor:
    """`[heads, 2]`: the mean weight that a head gives to the first and the second relation."""
    x, layer = model.embed(content, pointers), model.attention
    q, k = (layer.split(make(x), layer.heads, None) for make in (layer.q, layer.k))
    weights = look(q, k, weights=True).weights  # [batch, heads, tokens, tokens]
    assert weights is not None
    places = pointers[:, None].expand(-1, layer.heads, -1, -1)
    return weights.gather(-1, places).mean((0, 2))


def divided(pair: list[list[float]]) -> bool:
    """Whether one of two heads looks at the first relation and the other at the second."""
    (a, b), (c, d) = pair
    return min(a, d) > 0.5 or min(b, c) > 0.5


def verdict(numbers: dict[str, Any]) -> Verdict:
    one, two = (numbers["both"][numbers["heads"].index(heads)]["mean"] for heads in (1, 2))
    pairs = numbers["weights"][numbers["heads"].index(2)]
    share = sum(divided(pair) for pair in pairs)
    kind = "fails" if two - one < 0.2 else "holds" if share == len(pairs) else "limited"
    every = " / ".join(f"{value['mean']:.0%}" for value in numbers["both"])
    counts = " / ".join(str(heads) for heads in numbers["heads"])
    alone = numbers["weights"][0][0][0]
    return Verdict(
        kind,
        Both(
            f"both relations right: one head {one:.0%}, two heads {two:.0%}",
            f"两种关系都对：一个头 {one:.0%}，两个头 {two:.0%}",
        ),
        Both(
            f"Both contents named with {counts} heads and {numbers['parameters'][0]:,} parameters each: {every}. The one "
            f"head (first seed) gives {alone[0]:.0%} of its weight to the first relation and {alone[1]:.0%} to the "
            f"second; two heads divided the relations between each other in {share} of {len(pairs)} seeds.",
            f"头数为 {counts}、参数量均为 {numbers['parameters'][0]:,} 时，同时说对两者内容的比例：{every}。单个头（第一个种子）把 "
            f"{alone[0]:.0%} 的权重给予第一种关系，{alone[1]:.0%} 给予第二种；{len(pairs)} 个种子中有 {share} 个由两个头各管一种关系。",
        ),
    )


def draw(numbers: dict[str, Any], language: Language) -> Any:
    """Accuracy by number of heads, and what each head of the first seed looks at."""
    with panels(language, 4, width=3.2, height=3.7) as (_, axes):
        places = range(len(numbers["heads"]))
        shown = (("both", Both("both contents", "两者都对")), ("one", Both("each content", "单个内容")))
        for n, (name, label) in enumerate(shown):
            means = [one["mean"] for one in numbers[name]]
            axes[0].errorbar(places, means, [one["spread"] for one in numbers[name]], label=label(language), **style(n))
        axes[0].set_xticks(places, [str(heads) for heads in numbers["heads"]])
        axes[0].set_ylim(0, 1.05)
        axes[0].set_xlabel(Both("heads (equal parameters)", "头数（参数量相同）")(language))
        axes[0].set_ylabel(Both("right (share)", "正确率")(language))
        axes[0].set_title(Both("What is answered", "回答情况")(language))
        axes[0].legend(frameon=False)
        for axis, heads in zip(axes[1:], (1, 2, 4), strict=True):
            draw_heads(axis, numbers["weights"][numbers["heads"].index(heads)][0], language)
    return axes[0].figure


def draw_heads(axes: Any, weights: list[list[float]], language: Language) -> None:
    """Two bars a head: its weight on either relation."""
    for n, relation in enumerate(RELATIONS):
        at = [place + 0.4 * n - 0.2 for place in range(len(weights))]
        values = [head[n] for head in weights]
        axes.bar(at, values, 0.38, label=relation(language), color=style(n)["color"], hatch=("", "//")[n])
    axes.set_xticks(range(len(weights)), [str(head + 1) for head in range(len(weights))])
    axes.set_xlim(-0.6, len(weights) - 0.4)
    axes.set_ylim(0, 1.25)
    axes.set_xlabel(Both("head", "头")(language))
    axes.set_ylabel(Both("mean weight on it", "平均权重")(language))
    axes.set_title(
        Both(
            "Where one head looks" if len(weights) == 1 else f"Where {len(weights)} heads look",
            f"{len(weights)} 个头各看什么",
        )(language)
    )
    axes.legend(frameon=False, loc="upper center", fontsize=7)
