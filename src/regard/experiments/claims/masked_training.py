"""Masked training: one causal pass equals a pass per prefix, and training without the mask fails."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ...models.baselines.ngram import NgramModel
from ...models.heads import IGNORED
from ...models.model import SequenceModel
from ...nn.block import StackConfig
from ..experiment import Bilingual, Claim, Criterion, Language, Measurements, Size, Verdict, judge
from ..parameters import DIM_TEXT, NO_SETTINGS, STEPS_TEXT, Settings, from_sizes, resolve_counts
from ..progress import ProgressCallback, subprogress
from ..toolkit.figures import line_style, subplots
from ..toolkit.metrics import smooth_curve
from ..toolkit.profiling import median_times
from ..toolkit.tagger import build_tagger
from ..toolkit.training import fit, seeded_generator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=13,
    name="masked-training",
    title=Bilingual("Training on all next words in one pass", "掩码自注意力：一次训练所有下一个词"),
    claim=Bilingual(
        "With the causal mask a model is trained on every next word of a text in one parallel pass, equivalent to "
        "step by step, like an n-gram model; without the mask it sees the targets.",
        "有了掩码，模型可以一次并行地学习文本中所有的下一个词，与逐步进行等价，就像 n-gram 那样；没有掩码，"
        "它就能看到答案。",
    ),
    setup=Bilingual(
        "Sentences of a small artificial grammar, among them “<BOS> I like you <EOS>”; later clauses repeat the "
        "first subject. The losses of one masked pass are compared with those of prefix after prefix. The same model "
        "is then trained with and without the mask; both are evaluated on prefixes only and generate sentences, and "
        "n-gram models are estimated on the same number of sentences.",
        "句子来自一个人造的小语法，其中有“<BOS> I like you <EOS>”；后面的分句重复最前的主语。"
        "比较一次带掩码计算与逐个前缀计算的损失。然后同一模型分别在有掩码和无掩码下训练；"
        "两者都只用前缀来评估并生成句子，n-gram 模型在同样多的句子上估计。",
    ),
    criteria=(
        Criterion(
            "one-pass",
            Bilingual(
                "One masked pass gives the losses of prefix after prefix (to within 1e-5 nats)",
                "一次带掩码的计算与逐个前缀的损失相同（相差不超过 1e-5 nat）",
            ),
            "<=",
            1e-5,
            core=True,
        ),
        Criterion(
            "leak",
            Bilingual(
                "Without the mask the model sees the targets: its training loss falls below 0.05 nats",
                "无掩码时模型能看到答案：训练损失低于 0.05 nat",
            ),
            "<=",
            0.05,
            core=True,
        ),
        Criterion(
            "prefixes",
            Bilingual(
                "On prefixes its loss is at least 1 nat higher than with the mask",
                "只给前缀时，它的损失比有掩码时至少高 1 nat",
            ),
            ">=",
            1,
            core=True,
        ),
        Criterion(
            "sentences",
            Bilingual(
                "It generates less than half as many grammatical sentences", "它生成的正确句子不到有掩码时的一半"
            ),
            "<=",
            0.5,
            core=True,
        ),
        Criterion(
            "n-gram",
            Bilingual(
                "The masked model is at least as good as the best n-gram (loss)",
                "有掩码的模型不差于最好的 n-gram（按损失）",
            ),
            "<=",
            0,
        ),
    ),
)

SUBJECTS = {"I": "", "you": "", "we": "", "they": "", "he": "s", "she": "s"}
VERBS, ADVERBS, OBJECTS = ("like", "see", "know"), ("really", "always"), ("me", "you", "him", "her", "them")
WORDS = ["<BOS>", "<EOS>", *SUBJECTS, "me", "him", "her", "them", *VERBS, *(verb + "s" for verb in VERBS), *ADVERBS, "because"]  # fmt: skip
WORD_IDS = {word: n for n, word in enumerate(WORDS)}
EXAMPLE = ["<BOS>", "I", "like", "you", "<EOS>"]
MAX_WORDS = 16
MASKINGS = {"masked": Bilingual("with the mask", "有掩码"), "open": Bilingual("without the mask", "无掩码")}
NGRAM_ORDERS: dict[Size, list[int]] = {"toy": [2, 3], "usual": [1, 2, 3, 4, 5], "full": [1, 2, 3, 4, 5, 6]}
SIZES: dict[Size, dict[str, int]] = {
    "toy": {"dim": 16, "steps": 10, "batch": 8, "tested": 8},
    "usual": {"dim": 48, "steps": 500, "batch": 32, "tested": 128},
    "full": {"dim": 128, "steps": 4000, "batch": 64, "tested": 1024},
}
PARAMETERS = (
    from_sizes(SIZES, "dim", DIM_TEXT, 8, 256, multiple=8),
    from_sizes(SIZES, "steps", STEPS_TEXT, 1, 20000),
    from_sizes(SIZES, "tested", Bilingual("test sentences", "测试句子数"), 2, 4096),
)


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    """`difference` and `table`: one pass against prefixes; by masking: curves, losses, sentences; `ngrams`; `times`."""
    config, rng = SIZES[size] | resolve_counts(PARAMETERS, size, settings), random.Random(seed)
    test = [sample_sentence(rng) for _ in range(config["tested"])]
    training = [sample_sentence(rng) for _ in range(config["steps"] * config["batch"])]
    by_masking: dict[str, Measurements] = {}
    models = {}
    for n, masking in enumerate(MASKINGS):
        models[masking], curve = train_model(
            masking, training, config, seed, subprogress(progress, 0.45 * n, 0.45 * (n + 1), masking)
        )
        by_masking[masking] = {"curve": smooth_curve(curve), "trained": sum(curve[-10:]) / len(curve[-10:])}
        by_masking[masking] |= evaluate(models[masking], test, seed)
    progress(0.9, "one pass and prefix after prefix, n-grams")
    calls = {
        "pass": lambda: pass_losses(models["masked"], test),
        "prefixes": lambda: prefix_losses(models["masked"], test),
    }
    pass_loss, prefix_loss = (call() for call in calls.values())
    valid = pass_loss >= 0
    return {
        "difference": (pass_loss - prefix_loss)[valid].abs().max().item(),
        "table": prefix_table(models["masked"]),
        "kinds": by_masking,
        "ngrams": {str(order): ngram_loss(order, training, test) for order in NGRAM_ORDERS[size]},
        "times": median_times(calls, budget=0.1),
    }


def sample_sentence(rng: random.Random) -> list[str]:
    """Clauses joined by “because”, all with the subject of the first, whose verb agrees with it."""
    subject, words = rng.choice(list(SUBJECTS)), ["<BOS>"]
    for n in range(rng.choice((1, 2))):
        adverbs = [rng.choice(ADVERBS) for _ in range(rng.choice((0, 0, 1, 2)))]
        clause = [subject, *adverbs, rng.choice(VERBS) + SUBJECTS[subject], rng.choice(OBJECTS)]
        words += ["because", *clause] if n else clause
    return [*words, "<EOS>"]


def is_grammatical(words: list[str]) -> bool:
    """Whether the grammar generates this sentence."""
    if len(words) < 3 or words[0] != "<BOS>" or words[-1] != "<EOS>":
        return False
    inner = " ".join(words[1:-1]).split(" because ")
    subject = words[1]
    return subject in SUBJECTS and len(inner) <= 2 and all(is_clause(text.split(), subject) for text in inner)


def is_clause(words: list[str], subject: str) -> bool:
    """Whether this is a clause with that subject."""
    if len(words) < 3 or words[0] != subject or words[-1] not in OBJECTS:
        return False
    adverbs = words[1:-2]
    agrees = words[-2] in [verb + SUBJECTS[subject] for verb in VERBS]
    return agrees and len(adverbs) <= 2 and all(word in ADVERBS for word in adverbs)


def collate(sentences: list[list[str]]) -> dict[str, Tensor]:
    """Tokens, their next words as labels, and lengths."""
    numbers = [[WORD_IDS[word] for word in words] for words in sentences]
    longest = max(map(len, numbers))
    tokens = torch.tensor([row[:-1] + [0] * (longest - len(row)) for row in numbers])
    labels = torch.tensor([row[1:] + [IGNORED] * (longest - len(row)) for row in numbers])
    return {"tokens": tokens, "labels": labels, "lengths": torch.tensor([len(row) - 1 for row in numbers])}


def train_model(
    masking: str, training: list[list[str]], config: dict[str, int], seed: int, progress: ProgressCallback
) -> tuple[SequenceModel, list[float]]:
    """A trained model and its training losses."""
    torch.manual_seed(seed)
    stack = StackConfig(config["dim"], 2, 4, mask="Causal()" if masking == "masked" else None)
    model = build_tagger(stack, len(WORDS), len(WORDS), positions=MAX_WORDS)
    size = config["batch"]
    batches = iter(training[n : n + size] for n in range(0, len(training), size))

    def loss() -> Tensor:
        return model(**collate(next(batches))).loss

    return model, fit(model, loss, config["steps"], 5e-3, progress, cuda_graph=False)


@torch.no_grad()
def pass_losses(model: nn.Module, sentences: list[list[str]]) -> Tensor:
    """−ln p of each next word `[sentences, words]` from one pass; −1 in the padding."""
    batch = collate(sentences)
    losses = cross_entropy(model(**batch).logits.mT, batch["labels"], ignore_index=IGNORED, reduction="none")
    return losses.masked_fill(batch["labels"] == IGNORED, -1.0)


@torch.no_grad()
def prefix_losses(model: nn.Module, sentences: list[list[str]]) -> Tensor:
    """The same, each from a pass over the prefix only."""
    batch = collate(sentences)
    losses = torch.full(batch["tokens"].shape, -1.0)
    for n in range(losses.shape[1]):
        rows = (batch["labels"][:, n] != IGNORED).nonzero().squeeze(1)
        logits = model(tokens=batch["tokens"][rows, : n + 1]).logits[:, -1]
        losses[rows, n] = cross_entropy(logits, batch["labels"][rows, n], reduction="none")
    return losses


def prefix_table(model: nn.Module) -> list[Measurements]:
    """The prefixes of the example, the next word, and its loss from one pass and from the prefix alone."""
    pass_loss, prefix_loss = pass_losses(model, [EXAMPLE])[0], prefix_losses(model, [EXAMPLE])[0]
    return [
        {"seen": EXAMPLE[: n + 1], "next": EXAMPLE[n + 1], "pass": pass_loss[n].item(), "prefix": prefix_loss[n].item()}
        for n in range(len(EXAMPLE) - 1)
    ]


def evaluate(model: nn.Module, test: list[list[str]], seed: int) -> Measurements:
    """The mean loss on next words from prefixes, and generated sentences."""
    losses = prefix_losses(model, test)
    generated = [generate(model, seeded_generator(seed + n)) for n in range(len(test))]
    grammatical = sum(is_grammatical(words) for words in generated) / len(generated)
    return {
        "loss": losses[losses >= 0].mean().item(),
        "right": grammatical,
        "written": [" ".join(w) for w in generated[:3]],
    }


@torch.no_grad()
def generate(model: nn.Module, generator: torch.Generator) -> list[str]:
    """A sentence sampled word by word."""
    words = ["<BOS>"]
    while words[-1] != "<EOS>" and len(words) < MAX_WORDS:
        tokens = torch.tensor([[WORD_IDS[word] for word in words]])
        probabilities = model(tokens=tokens).logits[0, -1].softmax(-1)
        words.append(WORDS[int(torch.multinomial(probabilities, 1, generator=generator))])
    return words


def ngram_loss(order: int, training: list[list[str]], test: list[list[str]]) -> float:
    """The mean loss of an n-gram model on next words, without the first token of a sentence."""
    text, test_tokens = (
        torch.tensor([WORD_IDS[w] for words in sentences for w in words]) for sentences in (training, test)
    )
    losses = NgramModel.from_tokens(text, len(WORDS), order).losses(test_tokens)
    return losses[test_tokens[1:] != WORD_IDS["<BOS>"]].mean().item()


def verdict(numbers: Measurements) -> Verdict:
    masked, unmasked = numbers["kinds"]["masked"], numbers["kinds"]["open"]
    order, best = min(numbers["ngrams"].items(), key=lambda pair: pair[1])
    measured = {
        "one-pass": (numbers["difference"], Bilingual.same(f"{numbers['difference']:.0e} nat")),
        "leak": (unmasked["trained"], Bilingual.same(f"{unmasked['trained']:.3f} nat")),
        "prefixes": (
            unmasked["loss"] - masked["loss"],
            Bilingual(
                f"{unmasked['loss']:.2f} against {masked['loss']:.2f}",
                f"{unmasked['loss']:.2f}，有掩码 {masked['loss']:.2f}",
            ),
        ),
        "sentences": (
            unmasked["right"] / max(masked["right"], 1e-9),
            Bilingual(
                f"{unmasked['right']:.0%} against {masked['right']:.0%}",
                f"{unmasked['right']:.0%}，有掩码 {masked['right']:.0%}",
            ),
        ),
        "n-gram": (
            masked["loss"] - best,
            Bilingual(f"{masked['loss']:.2f} against {best:.2f}", f"{masked['loss']:.2f}，n-gram {best:.2f}"),
        ),
    }
    ratio = numbers["times"]["prefixes"] / numbers["times"]["pass"]
    return judge(
        CLAIM,
        measured,
        Bilingual(
            f"grammatical sentences: {masked['right']:.0%} with the mask, {unmasked['right']:.0%} without",
            f"正确的句子：有掩码 {masked['right']:.0%}，无掩码 {unmasked['right']:.0%}",
        ),
        Bilingual(
            f"One pass and prefix after prefix differ by at most {numbers['difference']:.0e} nats; the pass is "
            f"{ratio:.1f} times as fast. Without the mask the training loss falls to {unmasked['trained']:.3f} nats, but "
            f"on prefixes the loss is {unmasked['loss']:.2f} (with it {masked['loss']:.2f}), and {unmasked['right']:.0%} of "
            f"the generated sentences are grammatical (with it {masked['right']:.0%}). The best n-gram (order {order}) has "
            f"{best:.2f}.",
            f"一次计算与逐个前缀计算的损失最多相差 {numbers['difference']:.0e} nat，前者快 {ratio:.1f} 倍。无掩码时训练损失降到 "
            f"{unmasked['trained']:.3f} nat，但只给前缀时损失为 {unmasked['loss']:.2f}（有掩码为 {masked['loss']:.2f}），生成的句子 "
            f"{unmasked['right']:.0%} 正确（有掩码为 {masked['right']:.0%}）。最好的 n-gram（{order} 元）为 {best:.2f}。",
        ),
    )


def draw(numbers: Measurements, language: Language) -> Figure:
    """The example's rows, training curves, losses on prefixes."""
    with subplots(language, 3, width=4.3, height=3.8) as (figure, axes):
        draw_table(axes[0], numbers["table"], language)
        for n, (masking, label) in enumerate(MASKINGS.items()):
            curve = numbers["kinds"][masking]["curve"]
            x = [(n_point + 0.5) / len(curve) for n_point in range(len(curve))]
            axes[1].plot(x, curve, label=label(language), **line_style(n, marker=""))
        axes[1].set_ylim(bottom=0)
        axes[1].set_xlabel(Bilingual("training progress", "训练进度（比例）")(language))
        axes[1].set_ylabel(Bilingual("training loss (nats per word)", "训练损失（nat/词）")(language))
        axes[1].set_title(Bilingual("Training with and without the mask", "有掩码与无掩码的训练")(language))
        axes[1].legend(frameon=False)
        draw_losses(axes[2], numbers, language)
    return figure


def draw_table(axes: Axes, rows: list[Measurements], language: Language) -> None:
    """The visible and the masked words of each row, and the loss of the next word."""
    from matplotlib.patches import Rectangle

    count = len(EXAMPLE)
    for n, row in enumerate(rows):
        for column, word in enumerate(EXAMPLE):
            visible = column <= n
            face, hatch = ("#d7e8f4", "") if visible else ("#eeeff3", "///")
            axes.add_patch(Rectangle((column, n), 1, 1, facecolor=face, edgecolor="#b9bdca", hatch=hatch))
            axes.text(column + 0.5, n + 0.5, word if visible else "", ha="center", va="center", fontsize=8)
        losses = f"{row['next']}: {row['pass']:.3f} | {row['prefix']:.3f}"
        axes.text(count + 0.15, n + 0.5, losses, va="center", fontsize=8)
    axes.set(xlim=(0, count + 3.4), ylim=(len(rows), 0), xticks=[], yticks=[])
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(Bilingual("hatched: masked", "斜线：已掩码")(language))
    title = Bilingual(
        "Loss of the next word (nats):\none pass | prefix only", "下一个词的损失（nat）：\n一次计算 | 只给前缀"
    )
    axes.set_title(title(language))


def draw_losses(axes: Axes, numbers: Measurements, language: Language) -> None:
    """Loss on prefixes of both models and of n-grams."""
    bars = [(label(language), numbers["kinds"][masking]["loss"]) for masking, label in MASKINGS.items()]
    bars += [(f"{order}-gram", loss) for order, loss in numbers["ngrams"].items()]
    for n, (_, loss) in enumerate(bars):
        axes.bar(n, loss, 0.7, color=line_style(min(n, 2))["color"], hatch=("", "//", "..")[min(n, 2)])
        axes.text(n, loss, f"{loss:.2f}", ha="center", va="bottom", fontsize=8)
    axes.set_xticks(
        range(len(bars)), [name.replace("out the", "out\nthe") for name, _ in bars], rotation=35, ha="right"
    )
    axes.set_ylim(0, 1.1 * max(loss for _, loss in bars))
    axes.set_ylabel(Bilingual("loss (nats per word)", "损失（nat/词）")(language))
    grammatical = [f"{numbers['kinds'][masking]['right']:.0%}" for masking in MASKINGS]
    title = Bilingual(
        f"Next word from the prefix only\n(grammatical sentences: {grammatical[0]} with, {grammatical[1]} without)",
        f"只给前缀时的下一个词\n（生成的正确句子：有掩码 {grammatical[0]}，无掩码 {grammatical[1]}）",
    )
    axes.set_title(title(language))
