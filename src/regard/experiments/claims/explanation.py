"""Attention as explanation: attributions of tokens beside the effect of ablating them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...models.model import Model
from ...nn.block import Stack, StackConfig
from ...nn.explain import gradient_times_attention, rollout, value_norms, weights_of
from ...nn.hooks.edit import edit
from ...nn.hooks.watch import watch
from ...nn.pooling import AttentionPooling, Mean
from ...tasks.metrics.rank_correlation import rank_correlation
from ..experiment import Bilingual, Claim, Criterion, Language, Measurements, Size, Verdict, judge
from ..parameters import NO_SETTINGS, Parameter, Settings, constant, count, resolve_counts, resolve_settings
from ..progress import ProgressCallback, subprogress
from ..toolkit.figures import COLOURS, Localizer, draw_reference_line, label_axes, localizer, plot_bars, subplots
from ..toolkit.metrics import accuracy, format_percent, summarize
from ..toolkit.minilm import SentenceEncoder, load_minilm
from ..toolkit.training import choose_by_size, fit, seeded_generator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=20,
    name="explanation",
    title=Bilingual("Do attention weights explain predictions?", "注意力权重能解释模型吗？"),
    claim=Bilingual(
        "Attention is interpretable: its weights can be plotted and show which tokens the output depends on.",
        "注意力的可解释性较强：权重可以画出来，说明输出依赖于哪些词。",
    ),
    setup=Bilingual(
        "A small classifier of synthetic reviews (two layers of self-attention, attention pooling) and the sentence "
        "embeddings of MiniLM. Each token is ablated and the change of the output is measured. This change is "
        "rank-correlated with the weights, rollout, value-weighted norms, gradient × weight, and random numbers. In "
        "the classifier the pooling weights are also shuffled, made uniform, and replaced by the most different "
        "weights found that give the same prediction (probability within 1 %).",
        "一个对合成评论分类的小模型（两层自注意力加注意力池化），以及 MiniLM 的句向量。逐个消融词元，测量输出的变化，"
        "再求该变化与权重、rollout、按值加权的范数、梯度 × 权重以及随机数的秩相关。分类器的池化权重还会被打乱、"
        "变成均匀，并换成预测相同（概率相差 1 % 以内）但尽量不同的权重。",
    ),
    criteria=(
        Criterion(
            "related",
            Bilingual(
                "In at least one model the weights are related to the effect of ablating a token (mean rank correlation at least 0.3)",
                "至少一个模型中，权重与消融词元的影响有关（平均秩相关不低于 0.3）",
            ),
            ">=",
            0.3,
            core=True,
        ),
        Criterion(
            "classifier",
            Bilingual("In the classifier they show it well (at least 0.7)", "在分类器中能很好地反映（不低于 0.7）"),
            ">=",
            0.7,
        ),
        Criterion(
            "encoder",
            Bilingual("In MiniLM they show it well (at least 0.7)", "在 MiniLM 中能很好地反映（不低于 0.7）"),
            ">=",
            0.7,
        ),
        Criterion(
            "unique",
            Bilingual(
                "Very different weights with the same prediction exist for less than half of the reviews",
                "不到一半的评论存在预测相同却差别很大的权重",
            ),
            "<=",
            0.5,
        ),
    ),
)

POLAR, FILLER, TOKENS, DIM = 10, 30, 16, 32
NOT = 2 * POLAR
VOCABULARY = NOT + 1 + FILLER
PARAMETERS = (
    count(
        "steps",
        Bilingual("training steps of the classifier", "分类器的训练步数"),
        1,
        20000,
        {"toy": 10, "usual": 1500, "full": 3000},
    ),
    count(
        "reviews",
        Bilingual("reviews that are explained", "被解释的评论数"),
        4,
        2000,
        {"toy": 8, "usual": 120, "full": 500},
    ),
    Parameter(
        "divergence",
        Bilingual("divergence of “very different” weights (nats)", "“差别很大”的权重的散度（nat）"),
        0.01,
        0.69,
        constant(0.3),
    ),
)
ATTRIBUTIONS = ("weights", "rollout", "value norms", "gradient × weight", "random")
ATTRIBUTIONS_ZH = dict(zip(ATTRIBUTIONS, ("权重", "rollout", "按值加权\n的范数", "梯度 × \n权重", "随机"), strict=True))
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


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    torch.manual_seed(seed)
    encoder, counts = load_minilm(), resolve_counts(PARAMETERS, size, settings)
    divergence = resolve_settings(PARAMETERS, size, settings)["divergence"]
    model, test_accuracy = train_classifier(counts["steps"], subprogress(progress, 0.0, 0.6, "classifier"))
    reviews, _ = sample_reviews(counts["reviews"])
    progress(0.7, "ablating tokens")
    effects, attributions = attribute_reviews(model, reviews)
    texts = SENTENCES[: choose_by_size(size, 2, len(SENTENCES))]
    encoder_rows = encoder_correlations(encoder, list(texts), subprogress(progress, 0.75, 1.0, "MiniLM"))
    return {
        "accuracy": test_accuracy,
        "classifier": {
            name: summarize([rank_correlation(a, b) for a, b in zip(attribution, effects, strict=True)])
            for name, attribution in attributions.items()
        },
        "encoder": encoder_rows,
        "changed": {change: changed_predictions(model, reviews, change, seed) for change in ("shuffle", "uniform")},
        "adversarial": find_adversarial_weights(model, reviews, divergence),
    }


class ReviewClassifier(nn.Module):
    """Two blocks with rotary positions, attention pooling, and two logits."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, DIM)
        self.stack = Stack(StackConfig(dim=DIM, layers=2, heads=2, hidden=64, position="Rotary()"))
        self.pool = AttentionPooling(DIM, score="additive")
        self.head = nn.Linear(DIM, 2)

    def encode(self, tokens: Tensor) -> Tensor:
        """The input of the pooling, `[batch, tokens, dim]`."""
        return self.stack(self.words(tokens))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.pool(self.encode(tokens)))


def sample_reviews(count: int) -> tuple[Tensor, Tensor]:
    """Reviews `[count, TOKENS]` of filler with good and bad words, some of them negated,
    and the prevailing polarity, `[count]`."""
    tokens = torch.randint(NOT + 1, VOCABULARY, (3 * count, TOKENS))
    polar = torch.rand(tokens.shape) < 0.25
    tokens = torch.where(polar, torch.randint(NOT, tokens.shape), tokens)
    tokens = torch.where(~polar & (torch.rand(tokens.shape) < 0.2), NOT, tokens)
    polarity = torch.where(polar, 1 - 2 * (tokens >= POLAR).long(), 0)
    negated = torch.zeros_like(polar)
    negated[:, 1:] = tokens[:, :-1] == NOT
    total = torch.where(negated, -polarity, polarity).sum(1)
    decided = (total != 0).nonzero().squeeze(1)[:count]
    return tokens[decided], (total[decided] > 0).long()


def train_classifier(steps: int, progress: ProgressCallback) -> tuple[ReviewClassifier, float]:
    """A trained classifier and its accuracy on new reviews."""
    model = ReviewClassifier()

    def loss() -> Tensor:
        tokens, labels = sample_reviews(64)
        return nn.functional.cross_entropy(model(tokens), labels)

    fit(model, loss, steps, 3e-3, progress, cuda_graph=False)
    tokens, labels = sample_reviews(1000)
    with torch.no_grad():
        return model, accuracy(model(tokens), labels)


def attribute_reviews(model: ReviewClassifier, reviews: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The ablation effect of every token and its attributions, `[reviews, TOKENS]` each."""
    # cuDNN has no LSTM backward in evaluation mode
    with watch(model, weights=True) as views, torch.backends.cudnn.flags(enabled=False):
        logits = model(reviews)
        (logits[:, 1] - logits[:, 0]).abs().sum().backward()
    *layers, pool = list(views)
    weights = weights_of(views, pool)[:, 0, 0].detach()
    lengths = value_norms(views, {name: torch.eye(DIM) for name in [pool]})[pool][:, 0, 0].detach()
    flow = torch.einsum("bi,bij->bj", weights, rollout(views, layers).detach())
    gradients = gradient_times_attention(views)[pool][:, 0, 0].abs()
    attributions = (weights, flow, lengths, gradients, torch.rand(reviews.shape))
    return ablation_effects(model, reviews, logits.detach()), dict(zip(ATTRIBUTIONS, attributions, strict=True))


def ablation_effects(model: ReviewClassifier, reviews: Tensor, logits: Tensor) -> Tensor:
    """The change of the logit difference when a token is removed, `[reviews, tokens]`."""
    tokens = reviews.shape[1]
    remaining = torch.stack([torch.cat([torch.arange(n), torch.arange(n + 1, tokens)]) for n in range(tokens)])
    with torch.no_grad():
        without = model(reviews[:, remaining].flatten(0, 1)).unflatten(0, (len(reviews), tokens))
    return ((without[..., 1] - without[..., 0]) - (logits[:, 1] - logits[:, 0])[:, None]).abs()


def changed_predictions(model: ReviewClassifier, reviews: Tensor, change: str, seed: int) -> float:
    """The fraction of predictions that change when the pooling weights are shuffled or made uniform."""
    with torch.no_grad():
        before = model(reviews).argmax(-1)
        with edit(model, {"pool": {0: change}}, generator=seeded_generator(seed)):
            after = model(reviews).argmax(-1)
    return (before != after).float().mean().item()


def find_adversarial_weights(
    model: ReviewClassifier, reviews: Tensor, bound: float = 0.3, steps: int = 200
) -> Measurements:
    """Pooling weights as different as possible with the same prediction: divergence and change of probability."""
    with torch.no_grad(), watch(model, weights=True) as views:
        model(reviews)
        hidden = model.encode(reviews)
        weights = weights_of(views, "pool")[:, 0, 0]
        # a token's contribution to the difference of the logits
        token_logits = hidden @ (model.head.weight[1] - model.head.weight[0])
        bias = model.head.bias[1] - model.head.bias[0]
    before = ((weights * token_logits).sum(1) + bias).sigmoid()
    logits = (weights + 1e-3).log().neg().requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        adversarial = logits.softmax(-1)
        difference = ((adversarial * token_logits).sum(1) + bias).sigmoid() - before
        (1000 * difference.square() - js_divergence(weights, adversarial)).sum().backward()
        optimizer.step()
    adversarial = logits.detach().softmax(-1)
    difference = (((adversarial * token_logits).sum(1) + bias).sigmoid() - before).abs()
    divergence = js_divergence(weights, adversarial)
    return {
        "divergence": divergence.tolist(),
        "off": difference.tolist(),
        "share": ((divergence >= bound) & (difference <= 0.01)).double().mean().item(),
        "example": {"own": weights[0].tolist(), "other": adversarial[0].tolist(), "off": difference[0].item()},
    }


def js_divergence(p: Tensor, q: Tensor) -> Tensor:
    """The Jensen–Shannon divergence in nats: 0 for equal rows, ln 2 for disjoint ones."""
    middle = (p + q) / 2
    sides = [(x * (x.clamp(min=1e-12) / middle.clamp(min=1e-12)).log()).sum(-1) for x in (p, q)]
    return (sides[0] + sides[1]) / 2


def encoder_correlations(encoder: SentenceEncoder, texts: list[str], progress: ProgressCallback) -> Measurements:
    """The rank correlations of attributions of sentence vectors with the effect of ablating each token."""
    correlations: dict[str, list[float]] = {}
    for n, text in enumerate(texts):
        progress(n / len(texts), text)
        effect, attributions = attribute_sentence(encoder.model, encoder.tokenizer([text]).tokens)
        for name, attribution in attributions.items():
            correlations.setdefault(name, []).append(rank_correlation(attribution, effect))
    return {name: summarize(values) for name, values in correlations.items()}


def attribute_sentence(model: Model, tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """(1 − cosine of the sentence vector without each token, attributions), `[tokens]` each."""
    pool, count = Mean(), tokens.shape[1]
    words = range(1, count - 1)  # without [CLS] and [SEP]
    with torch.no_grad(), watch(model, weights=True) as views:
        sentence = pool(model(tokens=tokens).hidden)
    without = torch.stack([torch.cat([tokens[0, :n], tokens[0, n + 1 :]]) for n in words])
    with torch.no_grad():
        effect = 1 - torch.cosine_similarity(pool(model(tokens=without).hidden), sentence)
    received = torch.stack([weights_of(views, name)[0].mean((0, 1)) for name in views]).mean(0)
    lengths = torch.stack([norms[0].mean((0, 1)) for norms in value_norms(views).values()]).mean(0)
    attributions = {
        "weights": received,
        "rollout": rollout(views)[0].mean(0),
        "value norms": lengths,
        "random": torch.rand(count),
    }
    return effect, {name: attribution[1:-1] for name, attribution in attributions.items()}


def verdict(numbers: Measurements) -> Verdict:
    small, large = (numbers[model]["weights"]["mean"] for model in ("classifier", "encoder"))
    other = numbers["adversarial"]["share"]
    measured = {
        "related": (max(small, large), Bilingual(f"{small:+.2f} and {large:+.2f}", f"{small:+.2f} 和 {large:+.2f}")),
        "classifier": (small, Bilingual.same(f"{small:+.2f}")),
        "encoder": (large, Bilingual.same(f"{large:+.2f}")),
        "unique": (other, Bilingual.same(format_percent(other))),
    }
    rows = {
        model: ", ".join(f"{name} {summary['mean']:+.2f}" for name, summary in numbers[model].items())
        for model in ("classifier", "encoder")
    }
    chinese = {
        model: "，".join(
            f"{ATTRIBUTIONS_ZH[name].replace(chr(10), '')} {summary['mean']:+.2f}"
            for name, summary in numbers[model].items()
        )
        for model in rows
    }
    shuffled, uniform = numbers["changed"]["shuffle"], numbers["changed"]["uniform"]
    key = Bilingual(
        f"rank correlation with ablation {small:+.2f} and {large:+.2f}; other weights give the same in {format_percent(other)}",
        f"与消融影响的秩相关 {small:+.2f} 和 {large:+.2f}；{format_percent(other)} 换别的权重预测不变",
    )
    return judge(CLAIM, measured, key, Bilingual(
        f"Mean rank correlation with the ablation effect, classifier (accuracy {format_percent(numbers['accuracy'])}): "
        f"{rows['classifier']}; MiniLM: {rows['encoder']}. Shuffled weights change {format_percent(shuffled)} of the "
        "predictions, uniform "
        f"ones {format_percent(uniform)}; for {format_percent(other)} of the reviews very different weights give the same prediction.",
        f"与消融影响的平均秩相关，分类器（准确率 {format_percent(numbers['accuracy'])}）：{chinese['classifier']}；MiniLM："
        f"{chinese['encoder']}。"
        f"打乱权重改变 {format_percent(shuffled)} 的预测，均匀权重改变 {format_percent(uniform)}；{format_percent(other)} "
        "的评论存在预测相同却差别很大的权重。",
    ))  # fmt: skip


def draw(numbers: Measurements, language: Language) -> Figure:
    tr = localizer(language)
    with subplots(language, 3, width=4.6) as (figure, (left, middle, right)):
        figure.suptitle(tr("Attention weights and the effect of ablating tokens", "注意力权重与消融词元的影响"))
        series = {
            tr("classifier", "分类器"): [numbers["classifier"][attribution] for attribution in ATTRIBUTIONS],
            "MiniLM": [
                numbers["encoder"].get(attribution, {"mean": float("nan"), "spread": 0.0})
                for attribution in ATTRIBUTIONS
            ],
        }
        plot_bars(
            left,
            [tr(attribution.replace(" ", "\n", 1), ATTRIBUTIONS_ZH[attribution]) for attribution in ATTRIBUTIONS],
            series,
        )
        draw_reference_line(left, 0.7, tr("threshold: 0.7", "判据：0.7"))
        left.tick_params(axis="x", labelsize=7)
        label_axes(
            left,
            tr("Agreement with the ablation effect", "与消融影响的一致程度"),
            "",
            tr("rank correlation", "秩相关"),
        )
        left.legend(fontsize=7)
        draw_divergence(middle, numbers, tr)
        draw_example(right, numbers, tr)
    return figure


def draw_divergence(axes: Axes, numbers: Measurements, tr: Localizer) -> None:
    """Divergence of the adversarial weights and change of probability, for each review."""
    adversarial = numbers["adversarial"]
    axes.plot(adversarial["divergence"], [max(v, 1e-6) for v in adversarial["off"]], "o", color=COLOURS[0], alpha=0.6)
    axes.axvline(0.3, color="#666666", linewidth=0.9, linestyle="--")
    draw_reference_line(axes, 0.01, tr("1 %", "1 %"))
    axes.set(yscale="log", xlim=(0, 0.7))
    label_axes(axes, tr("Other weights, same prediction", "不同的权重，相同的预测"), tr("divergence from the model's weights, nats (at most 0.69)", "与模型权重的散度，nat（最大 0.69）"),
              tr("change of probability", "概率的变化"))  # fmt: skip


def draw_example(axes: Axes, numbers: Measurements, tr: Localizer) -> None:
    """The model's and the adversarial pooling weights of one review."""
    example = numbers["adversarial"]["example"]
    groups = [str(n + 1) for n in range(len(example["own"]))]
    series = {
        tr("weights of the model", "模型的权重"): example["own"],
        tr("other weights, same prediction", "其他权重，预测相同"): example["other"],
    }
    plot_bars(axes, groups, {name: [summarize([weight]) for weight in row] for name, row in series.items()})
    label_axes(
        axes, tr("Pooling weights of one review", "一条评论的池化权重"), tr("word", "第几个词"), tr("weight", "权重")
    )
    axes.legend(fontsize=7)
