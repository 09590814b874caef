"""Why embeddings are multiplied by √dim: their size beside that of the positions, and what it does to learning."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ...nn import Stack, StackConfig, sinusoids
from ..experiment import Both, Claim, Language, Size, Tell, Verdict
from ..learning import drawing, fit, panels, part, style, training_of

CLAIM = Claim(
    number=5,
    name="embedding-scaling",
    title=Both("Embeddings times √dim", "嵌入乘以 √dim"),
    claim=Both(
        "Embeddings begin with numbers of spread 1/√dim, so their length is about 1; times √dim it is about that of "
        "the "
        "position's vector. Without it the positions drown the words, and training is slower.",
        "词嵌入初始化时各数的标准差约为 1/√dim，向量长度约为 1；乘以 √dim 后与位置编码量级匹配。若不乘，"
        "嵌入会太小，位置编码影响过大，训练会慢。",
    ),
    setup=Both(
        "Lengths of 1000 fresh embeddings and of the sinusoidal vectors of 512 places, dims 32 to 1024. Then a "
        "two-layer "
        "encoder of dim 64 learns, in rows of 16 tokens, to name the token after a marker: with spread 1/√dim as it "
        "is, "
        "times √dim, and with spread 1 (which torch's own embedding begins with) as it is; the same data and first "
        "weights otherwise.",
        "测量 1000 个新嵌入和 512 个位置的正弦编码的长度，dim 从 32 到 1024。之后，dim 为 64 的两层编码器学习在 16 "
        "个词元中说出标记之后的那个词元：标准差 1/√dim 不乘、乘以 √dim，以及标准差 1（torch 自带嵌入的初始值）不乘；"
        "数据与其余初始权重相同。",
    ),
    threshold=Both(
        "Holds if at every dim the scaled embedding's length is between half and twice the position's and the unscaled "
        "one's at most a third of it, and the mean loss over training (all seeds) is at least 10 % higher unscaled. "
        "Limited if only the part about training is missed. Fails otherwise.",
        "若在每个 dim 上，缩放后的嵌入长度在位置编码长度的一半到两倍之间，未缩放的至多为其三分之一，"
        "且不缩放时整个训练过程的平均损失（所有随机种子）至少高 10%，则成立。若只有训练一条不满足，则有条件成立。"
        "否则不成立。",
    ),
)

DIMS, DIM, TOKENS, VOCABULARY = (32, 64, 128, 256, 512, 1024), 64, 16, 64
KINDS = {"unscaled": (DIM**-0.5, 1.0), "scaled": (DIM**-0.5, math.sqrt(DIM)), "spread 1": (1.0, 1.0)}
"""The spread that embeddings begin with, and what they are multiplied by."""
STEPS = {"toy": 10, "usual": 400, "full": 3000}
SEEDS = {"toy": 1, "usual": 3, "full": 5}


class AfterMarker(nn.Module):
    """Reads a row of tokens and says which comes after the marker (token 0)."""

    def __init__(self, begin: float, scale: float) -> None:
        super().__init__()
        self.body, self.head = Stack(StackConfig(dim=DIM, layers=2, heads=2, hidden=128)), nn.Linear(DIM, VOCABULARY)
        self.embedding, self.scale = nn.Embedding(VOCABULARY, DIM), scale
        nn.init.normal_(self.embedding.weight, std=begin)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) * self.scale + sinusoids(torch.arange(TOKENS), DIM)
        marker = (tokens == 0).long().argmax(1)
        return self.head(self.body(x)[torch.arange(len(tokens)), marker])


def rows(batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens with one marker each, not at the end, and the token after it."""
    tokens = torch.randint(1, VOCABULARY, (batch, TOKENS), generator=generator)
    at = torch.randint(TOKENS - 1, (batch, 1), generator=generator)
    tokens.scatter_(1, at, 0)
    return tokens, tokens.gather(1, at + 1).flatten()


def measure(size: Size, seed: int, tell: Tell) -> dict[str, Any]:
    generator = drawing(seed)
    count = SEEDS[size] * len(KINDS)
    losses: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    for n in range(count):
        kind = list(KINDS)[n % len(KINDS)]
        now = part(tell, n / count, (n + 1) / count, kind)
        losses[kind].append(learn(kind, STEPS[size], seed + n // len(KINDS), now))
    return {
        "dims": list(DIMS),
        "lengths": lengths(generator),
        "learning": {k: training_of(v) for k, v in losses.items()},
    }


def lengths(generator: torch.Generator) -> dict[str, list[float]]:
    """The mean length of an embedding, scaled or not, and of a position's vector, at every dim."""
    found: dict[str, list[float]] = {"unscaled": [], "scaled": [], "position": []}
    for dim in DIMS:
        length = (torch.randn(1000, dim, generator=generator) * dim**-0.5).norm(dim=1).mean().item()
        found["unscaled"].append(length)
        found["scaled"].append(length * math.sqrt(dim))
        found["position"].append(sinusoids(torch.arange(512), dim).norm(dim=1).mean().item())
    return found


def learn(kind: str, steps: int, seed: int, tell: Tell) -> list[float]:
    torch.manual_seed(seed)
    generator, model = drawing(seed), AfterMarker(*KINDS[kind])

    def loss() -> Tensor:
        tokens, answer = rows(64, generator)
        return nn.functional.cross_entropy(model(tokens), answer)

    return fit(model, loss, steps, 2e-3, tell)


def verdict(numbers: dict[str, Any]) -> Verdict:
    held = numbers["lengths"]
    scaled, unscaled = (
        [length / place for length, place in zip(held[kind], held["position"], strict=True)]
        for kind in ("scaled", "unscaled")
    )
    loss = {kind: one["mean loss"]["mean"] for kind, one in numbers["learning"].items()}
    times = loss["unscaled"] / loss["scaled"]
    matches = min(scaled) >= 0.5 and max(scaled) <= 2 and max(unscaled) <= 1 / 3
    kind = "fails" if not matches else "holds" if times >= 1.1 else "limited"
    return Verdict(
        kind,
        Both(
            f"{max(unscaled):.2f} times a position's length at most unscaled, {min(scaled):.2f} at least scaled",
            f"与位置编码长度之比：不缩放至多 {max(unscaled):.2f}，缩放至少 {min(scaled):.2f}",
        ),
        Both(
            f"Scaled, an embedding is {min(scaled):.2f} to {max(scaled):.2f} times as long as a position's vector, "
            f"whose "
            f"length is √(dim/2); unscaled {min(unscaled):.2f} to {max(unscaled):.2f} times. The mean loss of training "
            f"is {loss['unscaled']:.2f} unscaled and {loss['scaled']:.2f} scaled ({times:.2f} times); embeddings that "
            f"begin with spread 1 need no scaling ({loss['spread 1']:.2f}).",
            f"缩放后，嵌入的长度是位置编码长度（√(dim/2)）的 {min(scaled):.2f} 到 {max(scaled):.2f} 倍；不缩放时是 "
            f"{min(unscaled):.2f} 到 {max(unscaled):.2f} 倍。训练的平均损失：不缩放 {loss['unscaled']:.2f}，"
            f"缩放 {loss['scaled']:.2f}（{times:.2f} 倍）；初始标准差为 1 的嵌入不需要缩放（{loss['spread 1']:.2f}）。",
        ),
    )


LABELS = {
    "unscaled": Both("embedding, spread 1/√dim", "嵌入，标准差 1/√dim"),
    "scaled": Both("embedding, spread 1/√dim, times √dim", "嵌入，标准差 1/√dim，乘以 √dim"),
    "position": Both("position (sinusoidal)", "位置编码（正弦）"),
    "spread 1": Both("embedding, spread 1", "嵌入，标准差 1"),
}


def draw(numbers: dict[str, Any], language: Language) -> Any:
    zh = language == "zh"
    order = list(LABELS)
    with panels(language, 2, width=4.8) as (figure, (left, right)):
        for kind, held in numbers["lengths"].items():
            left.plot(numbers["dims"], held, label=LABELS[kind](language), **style(order.index(kind)))
        left.set_xscale("log", base=2)
        left.set_yscale("log", base=2)
        left.set_xticks(numbers["dims"], map(str, numbers["dims"]))
        left.set_yticks([1, 2, 4, 8, 16, 32], ["1", "2", "4", "8", "16", "32"])
        left.set_xlabel("dim（维数）" if zh else "dim (numbers in a vector)")
        left.set_ylabel("向量长度（L2 范数）" if zh else "length of the vector (L2)")
        left.set_title("缩放前后的嵌入与位置编码" if zh else "Embeddings before and after, and positions")
        left.legend()
        draw_learning(right, numbers["learning"], language)
        return figure


def draw_learning(axes: Any, learning: dict[str, Any], language: Language) -> None:
    zh = language == "zh"
    for kind, held in learning.items():
        share = [100 * (at + 0.5) / len(held["curve"]) for at in range(len(held["curve"]))]
        look = style(list(LABELS).index(kind))
        axes.plot(share, held["curve"], label=LABELS[kind](language), markevery=8, **look)
    axes.set_ylim(0, 6.2)
    axes.set_xlabel("训练进度（%）" if zh else "training done (%)")
    axes.set_ylabel("损失（nats）" if zh else "loss (nats)")
    axes.set_title("学习“标记之后是什么”（dim 64）" if zh else "Learning what follows the marker (dim 64)")
    axes.legend(loc="upper left")
