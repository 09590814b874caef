"""Experiment 20: do weights explain? What they say of each token against what removing it does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...nn.block import Stack, StackConfig
from ...nn.explain import gradient_times_attention, rollout, value_norms, weights_of
from ...nn.hooks.edit import edit
from ...nn.hooks.watch import watch
from ...nn.pooling import AttentionPooling, Mean
from ..comparing import accuracy, bars, by_size, level, name_axes, percent, rank_correlation, speaker
from ..experiment import Both, Claim, Language, Size, Tell, Verdict
from ..learning import COLOURS, drawing, fit, panels, part, spread
from ..minilm import minilm

CLAIM = Claim(
    number=20,
    name="explanation",
    title=Both("Do attention weights explain?", "注意力权重能解释模型吗？"),
    claim=Both(
        "Attention can be interpreted: its weights, which can be drawn, show which tokens the output depends on.",
        "注意力的解释性较强：可以画出来的权重说明输出依赖于哪些词。",
    ),
    setup=Both(
        "A small classifier of made reviews (two layers of self-attention, attention pooling) and MiniLM's sentence "
        "vectors. Each token is removed and the change of the output measured. Rank correlation of that change with "
        "the weights, rollout, value-weighted norms, gradient × weight, and random numbers. In the classifier the "
        "pooling weights are also shuffled, made uniform, and replaced by others as different as can be found that "
        "give the same answer (probability within 1 %).",
        "一个对人造评论分类的小模型（两层自注意力加注意力池化），以及 MiniLM 的句向量。逐个删去词，测量输出的变化，"
        "再求该变化与权重、rollout、按值加权的范数、梯度 × 权重以及随机数的秩相关。分类器的池化权重还会被打乱、"
        "变成均匀，并换成尽量不同而答案相同（概率相差 1 % 以内）的权重。",
    ),
    threshold=Both(
        "Holds if the weights' mean rank correlation with the measured effect is at least 0.7 in both models and very "
        "different weights (divergence ≥ 0.3 nats) with the same answer exist for less than half of the reviews. "
        "Limited if the correlation is at least 0.3 in one of the models. Fails otherwise.",
        "成立：两个模型中权重与实测影响的平均秩相关都至少 0.7，且不到一半的评论存在答案相同却很不同（散度 ≥ 0.3 "
        "奈特）的权重。"
        "有条件成立：至少一个模型中相关达到 0.3。其余为不成立。",
    ),
)

POLAR, FILLER, TOKENS, DIM = 10, 30, 16, 32
NOT = 2 * POLAR
VOCABULARY = NOT + 1 + FILLER
WAYS = ("weights", "rollout", "value norms", "gradient × weight", "random")
CHINESE = dict(zip(WAYS, ("权重", "rollout", "按值加权\n的范数", "梯度\n× 权重", "随机"), strict=True))
SENTENCES = (
    "The cat sat on the mat and watched the rain.",
    "The animal didn't cross the street because it was too tired.",
    "Stocks fell sharply on Monday after the bank raised its rates.",
    "My sister plays the violin in a small orchestra.",
    "Fresh bread smells best early in the morning.",
    "The committee will publish its report next week.",
    "He forgot his umbrella on the train to London.",
    "Scientists found water under the surface of the planet.",
    "The children built a castle of sand near the sea.",
    "Please send me the invoice before the end of the month.",
    "A new bridge connects the two parts of the city.",
    "The film was far too long, but the music was wonderful.",
    "She studies how birds find their way across oceans.",
    "The old computer takes ten minutes to start.",
    "Farmers fear that the dry summer will ruin the harvest.",
    "The teacher explained the problem with a simple drawing.",
    "Our team lost the game in the last minute.",
    "The hotel by the lake has no rooms left for July.",
    "Doctors advise walking for half an hour every day.",
    "The museum bought a painting by an unknown artist.",
)


def measure(size: Size, seed: int, tell: Tell) -> dict[str, Any]:
    torch.manual_seed(seed)
    encoder = minilm()
    model, right = train(by_size(size, 10, 1500, 3000), part(tell, 0.0, 0.6, "classifier"))
    reviews, _ = made(by_size(size, 8, 120, 500))
    tell(0.7, "removing tokens")
    classifier = correlations(*explained(model, reviews))
    texts = SENTENCES[: by_size(size, 2, len(SENTENCES))]
    of_encoder = encoder_correlations(encoder, list(texts), part(tell, 0.75, 1.0, "MiniLM"))
    return {
        "accuracy": right,
        "classifier": classifier,
        "encoder": of_encoder,
        "changed": {how: changed(model, reviews, how, seed) for how in ("shuffle", "uniform")},
        "adversarial": adversarial(model, reviews),
    }


class Reader(nn.Module):
    """Words through two blocks that turn with their places, pooled by attention; one logit for each of two answers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, DIM)
        self.stack = Stack(StackConfig(dim=DIM, layers=2, heads=2, hidden=64, position="Rotary()"))
        self.pool = AttentionPooling(DIM, score="additive")
        self.answer = nn.Linear(DIM, 2)

    def states(self, tokens: Tensor) -> Tensor:
        """What is pooled, `[batch, tokens, dim]`."""
        return self.stack(self.words(tokens))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.answer(self.pool(self.states(tokens)))


def made(count: int) -> tuple[Tensor, Tensor]:
    """Reviews `[count, TOKENS]` of filler with good and bad words, some of them negated, and which prevail, "
    "`[count]`."""
    tokens = torch.randint(NOT + 1, VOCABULARY, (3 * count, TOKENS))
    polar = torch.rand(tokens.shape) < 0.25
    tokens = torch.where(polar, torch.randint(NOT, tokens.shape), tokens)
    tokens = torch.where(~polar & (torch.rand(tokens.shape) < 0.2), NOT, tokens)
    side = torch.where(polar, 1 - 2 * (tokens >= POLAR).long(), 0)
    negated = torch.zeros_like(polar)
    negated[:, 1:] = tokens[:, :-1] == NOT
    total = torch.where(negated, -side, side).sum(1)
    kept = (total != 0).nonzero().squeeze(1)[:count]
    return tokens[kept], (total[kept] > 0).long()


def train(steps: int, tell: Tell) -> tuple[Reader, float]:
    """A classifier, and its share of new reviews right."""
    model = Reader()

    def loss() -> Tensor:
        tokens, labels = made(64)
        return nn.functional.cross_entropy(model(tokens), labels)

    fit(model, loss, steps, 3e-3, tell, repeats=False)
    tokens, labels = made(1000)
    with torch.no_grad():
        return model, accuracy(model(tokens), labels)


def explained(model: Reader, reviews: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The measured effect of every token and what each explanation says of it, `[reviews, TOKENS]` each."""
    with watch(model, weights=True) as seen, torch.backends.cudnn.flags(enabled=False):  # whose LSTM must be learning
        logits = model(reviews)
        gap(logits).sum().backward()
    *layers, pool = list(seen)
    weights = weights_of(seen, pool)[:, 0, 0].detach()
    lengths = value_norms(seen, {name: torch.eye(DIM) for name in [pool]})[pool][:, 0, 0].detach()
    flow = torch.einsum("bi,bij->bj", weights, rollout(seen, layers).detach())
    worth = gradient_times_attention(seen)[pool][:, 0, 0].abs()
    ways = (weights, flow, lengths, worth, torch.rand(reviews.shape))
    return effects(model, reviews, logits.detach()), dict(zip(WAYS, ways, strict=True))


def gap(logits: Tensor) -> Tensor:
    """How far the given answer stands above the other one, `[batch]`."""
    return (logits[:, 1] - logits[:, 0]).abs()


def effects(model: Reader, reviews: Tensor, logits: Tensor) -> Tensor:
    """How much the difference of the two logits changes when a token is taken out, `[reviews, tokens]`."""
    tokens = reviews.shape[1]
    kept = torch.stack([torch.cat([torch.arange(n), torch.arange(n + 1, tokens)]) for n in range(tokens)])
    with torch.no_grad():
        without = model(reviews[:, kept].flatten(0, 1)).unflatten(0, (len(reviews), tokens))
    return ((without[..., 1] - without[..., 0]) - (logits[:, 1] - logits[:, 0])[:, None]).abs()


def correlations(effect: Tensor, ways: dict[str, Tensor]) -> dict[str, Any]:
    """The rank correlation of every explanation with the effect, over the rows."""
    return {
        name: spread([rank_correlation(a, b) for a, b in zip(way, effect, strict=True)]) for name, way in ways.items()
    }


def changed(model: Reader, reviews: Tensor, how: str, seed: int) -> float:
    """The share of answers that change when the pooling weights are shuffled or made uniform."""
    with torch.no_grad():
        before = model(reviews).argmax(-1)
        with edit(model, {"pool": {0: how}}, generator=drawing(seed)):
            after = model(reviews).argmax(-1)
    return (before != after).float().mean().item()


def adversarial(model: Reader, reviews: Tensor, steps: int = 200) -> dict[str, Any]:
    """Pooling weights as different as can be found that give the same answer: divergence and change of probability."""
    with torch.no_grad(), watch(model, weights=True) as seen:
        model(reviews)
        states = model.states(reviews)
        own = weights_of(seen, "pool")[:, 0, 0]
        each = states @ (model.answer.weight[1] - model.answer.weight[0])  # what a token alone adds to the difference
        bias = model.answer.bias[1] - model.answer.bias[0]
    before = ((own * each).sum(1) + bias).sigmoid()
    free = (own + 1e-3).log().neg().requires_grad_()
    optimizer = torch.optim.Adam([free], lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        other = free.softmax(-1)
        off = ((other * each).sum(1) + bias).sigmoid() - before
        (1000 * off.square() - divergence(own, other)).sum().backward()
        optimizer.step()
    other = free.detach().softmax(-1)
    off = (((other * each).sum(1) + bias).sigmoid() - before).abs()
    apart = divergence(own, other)
    return {
        "divergence": apart.tolist(),
        "off": off.tolist(),
        "share": ((apart >= 0.3) & (off <= 0.01)).double().mean().item(),
        "example": {"own": own[0].tolist(), "other": other[0].tolist(), "off": off[0].item()},
    }


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """Jensen–Shannon's, in nats: 0 for equal rows, ln 2 for rows that share nothing."""
    middle = (p + q) / 2
    sides = [(x * (x.clamp(min=1e-12) / middle.clamp(min=1e-12)).log()).sum(-1) for x in (p, q)]
    return (sides[0] + sides[1]) / 2


def encoder_correlations(model: Any, texts: list[str], tell: Tell) -> dict[str, Any]:
    """The rank correlations of explanations of sentence vectors with the effect of removing each piece."""
    found: dict[str, list[float]] = {}
    for n, text in enumerate(texts):
        tell(n / len(texts), text)
        effect, ways = of_sentence(model, model.tokenizer([text]).tokens)
        for name, way in ways.items():
            found.setdefault(name, []).append(rank_correlation(way, effect))
    return {name: spread(values) for name, values in found.items()}


def of_sentence(model: Any, tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """(1 − cosine of the sentence's vector without each piece, what explanations say of it), `[pieces]` each."""
    pool, count = Mean(), tokens.shape[1]
    inner = range(1, count - 1)  # the first and the last are no words
    with torch.no_grad(), watch(model, weights=True) as seen:
        whole = pool(model(tokens=tokens).hidden)
    without = torch.stack([torch.cat([tokens[0, :n], tokens[0, n + 1 :]]) for n in inner])
    with torch.no_grad():
        effect = 1 - torch.cosine_similarity(pool(model(tokens=without).hidden), whole)
    received = torch.stack([weights_of(seen, name)[0].mean((0, 1)) for name in seen]).mean(0)
    lengths = torch.stack([one[0].mean((0, 1)) for one in value_norms(seen).values()]).mean(0)
    ways = {
        "weights": received,
        "rollout": rollout(seen)[0].mean(0),
        "value norms": lengths,
        "random": torch.rand(count),
    }
    return effect, {name: way[1:-1] for name, way in ways.items()}


def verdict(numbers: dict[str, Any]) -> Verdict:
    small, large = (numbers[where]["weights"]["mean"] for where in ("classifier", "encoder"))
    other = numbers["adversarial"]["share"]
    kind = "holds" if min(small, large) >= 0.7 and other < 0.5 else "limited" if max(small, large) >= 0.3 else "fails"
    rows = {
        where: ", ".join(f"{name} {one['mean']:+.2f}" for name, one in numbers[where].items())
        for where in ("classifier", "encoder")
    }
    chinese = {
        where: "，".join(
            f"{CHINESE[name].replace(chr(10), '')} {one['mean']:+.2f}" for name, one in numbers[where].items()
        )
        for where in rows
    }
    shuffled, even = numbers["changed"]["shuffle"], numbers["changed"]["uniform"]
    key = Both(
        f"rank correlation with the effect {small:+.2f} and {large:+.2f}; other weights serve in {percent(other)}",
        f"与实测影响的秩相关 {small:+.2f} 和 {large:+.2f}；{percent(other)} 可换别的权重",
    )
    return Verdict(kind, key, Both(
        f"Mean rank correlation with the measured effect, classifier ({percent(numbers['accuracy'])} right): "
        f"{rows['classifier']}; MiniLM: {rows['encoder']}. Shuffled weights change {percent(shuffled)} of the "
        "answers, uniform "
        f"ones {percent(even)}; for {percent(other)} of the reviews very different weights give the same answer.",
        f"与实测影响的平均秩相关，分类器（正确率 {percent(numbers['accuracy'])}）：{chinese['classifier']}；MiniLM："
        f"{chinese['encoder']}。"
        f"打乱权重改变 {percent(shuffled)} 的答案，均匀权重改变 {percent(even)}；{percent(other)} "
        "的评论存在答案相同却很不同的权重。",
    ))  # fmt: skip


def draw(numbers: dict[str, Any], language: Language) -> Any:
    say = speaker(language)
    with panels(language, 3, width=4.6) as (figure, (left, middle, right)):
        figure.suptitle(
            say("What weights say of tokens, and what removing tokens does", "权重怎样评价词，删去词又有什么影响")
        )
        series = {
            say("classifier", "分类器"): [numbers["classifier"][way] for way in WAYS],
            "MiniLM": [numbers["encoder"].get(way, {"mean": float("nan"), "spread": 0.0}) for way in WAYS],
        }
        bars(left, [say(way.replace(" ", "\n", 1), CHINESE[way]) for way in WAYS], series)
        level(left, 0.7, say("wanted: 0.7", "要求：0.7"))
        left.tick_params(axis="x", labelsize=7)
        name_axes(
            left,
            say("Agreement with the effect of removing", "与删除影响的一致程度"),
            "",
            say("rank correlation", "秩相关"),
        )
        left.legend(fontsize=7)
        scatter(middle, numbers, say)
        example(right, numbers, say)
    return figure


def scatter(axes: Any, numbers: dict[str, Any], say: Any) -> None:
    """Every review: how different the found weights are, and how much the probability changes."""
    found = numbers["adversarial"]
    axes.plot(found["divergence"], [max(v, 1e-6) for v in found["off"]], "o", color=COLOURS[0], alpha=0.6)
    axes.axvline(0.3, color="#666666", linewidth=0.9, linestyle="--")
    level(axes, 0.01, say("1 %", "1 %"))
    axes.set(yscale="log", xlim=(0, 0.7))
    name_axes(axes, say("Other weights, the same answer", "不同的权重，相同的答案"), say("divergence from the model's weights, nats (at most 0.69)", "与模型权重的散度，奈特（最大 0.69）"),
              say("change of probability", "概率的变化"))  # fmt: skip


def example(axes: Any, numbers: dict[str, Any], say: Any) -> None:
    """One review's pooling weights beside the others that were found."""
    one = numbers["adversarial"]["example"]
    groups = [str(n + 1) for n in range(len(one["own"]))]
    series = {say("the model's", "模型的"): one["own"], say("found, same answer", "找到的，答案相同"): one["other"]}
    bars(axes, groups, {name: [{"mean": v, "spread": 0.0} for v in row] for name, row in series.items()})
    name_axes(
        axes, say("Pooling weights of one review", "一条评论的池化权重"), say("word", "第几个词"), say("weight", "权重")
    )
    axes.legend(fontsize=7)
