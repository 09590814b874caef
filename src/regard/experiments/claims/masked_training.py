"""Training on all next words at once: what the causal mask makes equal, and what happens without it."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ...models.baselines.ngram import NgramModel
from ...models.heads import IGNORED
from ...nn.block import StackConfig
from ..experiment import Both, Claim, Language, Size, Tell, Verdict
from ..learning import drawing, fit, panels, part, processor_times, smooth, style
from ..sequences import tagger

CLAIM = Claim(
    number=13,
    name="masked-training",
    title=Both("Learning all next words in one pass", "掩码自注意力：一次学习所有下一个词"),
    claim=Both(
        "With the causal mask a model learns from every next word of a text in one parallel pass, the same as step by "
        "step, like an n-gram model; without the mask it sees the answers.",
        "有了掩码，模型可以并行地一次学习文本中所有的下一个词，与逐步进行相同，就像 n-gram 那样；没有掩码，它就看到了答案。",
    ),
    setup=Both(
        "Sentences of a small made grammar, “<BOS> I like you <EOS>” among them; later clauses repeat the first "
        "subject. Losses of one masked pass are compared with those of prefix after prefix. The same model then learns "
        "with and without the mask; both are tested with prefixes alone and write sentences, and n-gram models are "
        "counted on as many sentences.",
        "句子来自一个自编的小语法，其中有“<BOS> I like you <EOS>”；后面的分句重复最前的主语。比较一次带掩码计算与逐个前缀计算的损失。"
        "然后同一模型分别在有掩码和无掩码下学习；两者都只用前缀来测试并写句子，n-gram 模型在同样多的句子上计数。",
    ),
    threshold=Both(
        "Holds if the losses agree to 1e-5 nats; without the mask the training loss falls below 0.05 nats while the loss "
        "on prefixes is at least 1 nat above the masked model's, and less than half as many of its sentences are right; "
        "and the masked model's loss is at most that of the best n-gram. Limited if only the n-gram is not reached; "
        "else it does not hold.",
        "若损失之差不超过 1e-5 奈特；无掩码时训练损失低于 0.05 奈特，而只给前缀时的损失比有掩码的模型至少高 1 奈特，写对的句子不到后者的一半；"
        "且有掩码的模型的损失不高于最好的 n-gram，则成立。若只差最后一条，则有条件成立；否则不成立。",
    ),
)

SUBJECTS = {"I": "", "you": "", "we": "", "they": "", "he": "s", "she": "s"}
VERBS, ADVERBS, OBJECTS = ("like", "see", "know"), ("really", "always"), ("me", "you", "him", "her", "them")
WORDS = ["<BOS>", "<EOS>", *SUBJECTS, "me", "him", "her", "them", *VERBS, *(verb + "s" for verb in VERBS), *ADVERBS, "because"]  # fmt: skip
NUMBERS = {word: n for n, word in enumerate(WORDS)}
EXAMPLE = ["<BOS>", "I", "like", "you", "<EOS>"]
LONGEST = 16
KINDS = {"masked": Both("with the mask", "有掩码"), "open": Both("without the mask", "无掩码")}
SIZES: dict[Size, dict[str, Any]] = {
    "toy": {"dim": 16, "steps": 10, "batch": 8, "tested": 8, "orders": [2, 3]},
    "usual": {"dim": 48, "steps": 500, "batch": 32, "tested": 128, "orders": [1, 2, 3, 4, 5]},
    "full": {"dim": 128, "steps": 4000, "batch": 64, "tested": 1024, "orders": [1, 2, 3, 4, 5, 6]},
}


def measure(size: Size, seed: int, tell: Tell) -> dict[str, Any]:
    """`difference` and `table`: one pass against prefixes; by kind: curves, losses, sentences; `ngrams`; `times`."""
    set_up, draws = SIZES[size], random.Random(seed)
    test = [sentence(draws) for _ in range(set_up["tested"])]
    learned = [sentence(draws) for _ in range(set_up["steps"] * set_up["batch"])]
    kinds: dict[str, dict[str, Any]] = {}
    models = {}
    for n, kind in enumerate(KINDS):
        models[kind], curve = trained(kind, learned, set_up, seed, part(tell, 0.45 * n, 0.45 * (n + 1), kind))
        kinds[kind] = {"curve": smooth(curve), "trained": sum(curve[-10:]) / len(curve[-10:])}
        kinds[kind] |= tested(models[kind], test, seed)
    tell(0.9, "one pass and prefix after prefix, n-grams")
    at_once, one_by_one = (losses(models["masked"], test) for losses in (pass_losses, prefix_losses))
    real = at_once >= 0
    return {
        "difference": (at_once - one_by_one)[real].abs().max().item(),
        "table": table(models["masked"]),
        "kinds": kinds,
        "ngrams": {str(order): ngram_loss(order, learned, test) for order in set_up["orders"]},
        "times": timed(models["masked"], test),
    }


def sentence(draws: random.Random) -> list[str]:
    """Clauses joined by “because”, all with the subject of the first, whose verb agrees with it."""
    subject = draws.choice(list(SUBJECTS))
    clauses = [clause(subject, draws) for _ in range(draws.choice((1, 2)))]
    middle = [word for n, words in enumerate(clauses) for word in (["because"] * (n > 0) + words)]
    return ["<BOS>", *middle, "<EOS>"]


def clause(subject: str, draws: random.Random) -> list[str]:
    adverbs = [draws.choice(ADVERBS) for _ in range(draws.choice((0, 0, 1, 2)))]
    return [subject, *adverbs, draws.choice(VERBS) + SUBJECTS[subject], draws.choice(OBJECTS)]


def right(words: list[str]) -> bool:
    """Whether the grammar could have made this sentence."""
    if len(words) < 3 or words[0] != "<BOS>" or words[-1] != "<EOS>":
        return False
    inner = " ".join(words[1:-1]).split(" because ")
    subject = words[1]
    return subject in SUBJECTS and len(inner) <= 2 and all(right_clause(text.split(), subject) for text in inner)


def right_clause(words: list[str], subject: str) -> bool:
    """Whether this is a clause of that subject."""
    if len(words) < 3 or words[0] != subject or words[-1] not in OBJECTS:
        return False
    adverbs = words[1:-2]
    agrees = words[-2] in [verb + SUBJECTS[subject] for verb in VERBS]
    return agrees and len(adverbs) <= 2 and all(word in ADVERBS for word in adverbs)


def batch_of(sentences: list[list[str]]) -> dict[str, Tensor]:
    """Tokens, their next words as labels, and lengths."""
    numbers = [[NUMBERS[word] for word in words] for words in sentences]
    longest = max(map(len, numbers))
    tokens = torch.tensor([row[:-1] + [0] * (longest - len(row)) for row in numbers])
    labels = torch.tensor([row[1:] + [IGNORED] * (longest - len(row)) for row in numbers])
    return {"tokens": tokens, "labels": labels, "lengths": torch.tensor([len(row) - 1 for row in numbers])}


def trained(
    kind: str, learned: list[list[str]], set_up: dict[str, Any], seed: int, tell: Tell
) -> tuple[Any, list[float]]:
    """A model and its losses on the way."""
    torch.manual_seed(seed)
    stack = StackConfig(set_up["dim"], 2, 4, mask="Causal()" if kind == "masked" else None)
    model = tagger(stack, len(WORDS), len(WORDS), places=LONGEST)
    size = set_up["batch"]
    batches = iter(learned[n : n + size] for n in range(0, len(learned), size))

    def loss() -> Tensor:
        return model(**batch_of(next(batches))).loss

    return model, fit(model, loss, set_up["steps"], 5e-3, tell, repeats=False)


@torch.no_grad()
def pass_losses(model: nn.Module, sentences: list[list[str]]) -> Tensor:
    """−ln p of each next word `[sentences, words]` from one pass; −1 in the padding."""
    batch = batch_of(sentences)
    found = cross_entropy(model(**batch).logits.mT, batch["labels"], ignore_index=IGNORED, reduction="none")
    return found.masked_fill(batch["labels"] == IGNORED, -1.0)


@torch.no_grad()
def prefix_losses(model: nn.Module, sentences: list[list[str]]) -> Tensor:
    """The same, each from a pass over what stands before the word and nothing else."""
    batch = batch_of(sentences)
    found = torch.full(batch["tokens"].shape, -1.0)
    for n in range(found.shape[1]):
        rows = (batch["labels"][:, n] != IGNORED).nonzero().squeeze(1)
        logits = model(tokens=batch["tokens"][rows, : n + 1]).logits[:, -1]
        found[rows, n] = cross_entropy(logits, batch["labels"][rows, n], reduction="none")
    return found


def table(model: nn.Module) -> list[dict[str, Any]]:
    """The rows of the example: what is seen, what comes next, and its loss from one pass and from the prefix alone."""
    at_once, alone = pass_losses(model, [EXAMPLE])[0], prefix_losses(model, [EXAMPLE])[0]
    return [
        {"seen": EXAMPLE[: n + 1], "next": EXAMPLE[n + 1], "pass": at_once[n].item(), "prefix": alone[n].item()}
        for n in range(len(EXAMPLE) - 1)
    ]


def tested(model: nn.Module, test: list[list[str]], seed: int) -> dict[str, Any]:
    """Its mean loss on next words from prefixes, and what it writes."""
    found = prefix_losses(model, test)
    written = [write(model, drawing(seed + n)) for n in range(len(test))]
    share = sum(right(words) for words in written) / len(written)
    return {"loss": found[found >= 0].mean().item(), "right": share, "written": [" ".join(w) for w in written[:3]]}


@torch.no_grad()
def write(model: nn.Module, generator: torch.Generator) -> list[str]:
    """A sentence, word by word, each drawn by its chance."""
    words = ["<BOS>"]
    while words[-1] != "<EOS>" and len(words) < LONGEST:
        tokens = torch.tensor([[NUMBERS[word] for word in words]])
        chances = model(tokens=tokens).logits[0, -1].softmax(-1)
        words.append(WORDS[int(torch.multinomial(chances, 1, generator=generator))])
    return words


def ngram_loss(order: int, learned: list[list[str]], test: list[list[str]]) -> float:
    """The mean loss of a counted model on next words; a sentence's first token is no next word."""
    text, unseen = (torch.tensor([NUMBERS[w] for words in some for w in words]) for some in (learned, test))
    losses = NgramModel.counted(text, len(WORDS), order).losses(unseen)
    return losses[unseen[1:] != NUMBERS["<BOS>"]].mean().item()


def timed(model: nn.Module, test: list[list[str]]) -> dict[str, float]:
    """Seconds for the losses of the test's sentences."""
    calls = {"pass": lambda: pass_losses(model, test), "prefixes": lambda: prefix_losses(model, test)}
    return processor_times(calls, budget=0.1)


def verdict(numbers: dict[str, Any]) -> Verdict:
    masked, opened = numbers["kinds"]["masked"], numbers["kinds"]["open"]
    order, best = min(numbers["ngrams"].items(), key=lambda pair: pair[1])
    cheats = opened["trained"] < 0.05 and opened["loss"] - masked["loss"] >= 1 and opened["right"] < masked["right"] / 2
    main = numbers["difference"] <= 1e-5 and cheats
    kind = "fails" if not main else "holds" if masked["loss"] <= best else "limited"
    ratio = numbers["times"]["prefixes"] / numbers["times"]["pass"]
    return Verdict(
        kind,
        Both(
            f"right sentences: {masked['right']:.0%} with the mask, {opened['right']:.0%} without",
            f"正确的句子：有掩码 {masked['right']:.0%}，无掩码 {opened['right']:.0%}",
        ),
        Both(
            f"One pass and prefix after prefix differ by at most {numbers['difference']:.0e} nats; the pass is "
            f"{ratio:.1f} times as quick. Without the mask the training loss falls to {opened['trained']:.3f} nats, but "
            f"on prefixes the loss is {opened['loss']:.2f} (with it {masked['loss']:.2f}), and {opened['right']:.0%} of "
            f"the sentences it writes are right (with it {masked['right']:.0%}). The best n-gram (order {order}) has "
            f"{best:.2f}.",
            f"一次计算与逐个前缀计算的损失最多相差 {numbers['difference']:.0e} 奈特，前者快 {ratio:.1f} 倍。无掩码时训练损失降到 "
            f"{opened['trained']:.3f} 奈特，但只给前缀时损失为 {opened['loss']:.2f}（有掩码为 {masked['loss']:.2f}），写出的句子 "
            f"{opened['right']:.0%} 正确（有掩码为 {masked['right']:.0%}）。最好的 n-gram（{order} 元）为 {best:.2f}。",
        ),
    )


def draw(numbers: dict[str, Any], language: Language) -> Any:
    """The example's rows, training curves, losses on prefixes."""
    with panels(language, 3, width=4.3, height=3.8) as (figure, axes):
        draw_table(axes[0], numbers["table"], language)
        for n, (kind, label) in enumerate(KINDS.items()):
            curve = numbers["kinds"][kind]["curve"]
            at = [(place + 0.5) / len(curve) for place in range(len(curve))]
            looks: dict[str, Any] = style(n) | {"marker": ""}
            axes[1].plot(at, curve, label=label(language), **looks)
        axes[1].set_ylim(bottom=0)
        axes[1].set_xlabel(Both("share of training", "训练进程（比例）")(language))
        axes[1].set_ylabel(Both("training loss (nats a word)", "训练损失（奈特/词）")(language))
        axes[1].set_title(Both("Training with and without the mask", "有掩码与无掩码的训练")(language))
        axes[1].legend(frameon=False)
        draw_losses(axes[2], numbers, language)
    return figure


def draw_table(axes: Any, rows: list[dict[str, Any]], language: Language) -> None:
    """What is seen in each row, what is masked, and the next word's loss."""
    count = len(EXAMPLE)
    for n, row in enumerate(rows):
        for place in range(count):
            seen = place <= n
            face = "#d7e8f4" if seen else "#eeeff3"
            axes.add_patch(rectangle(place, n, face, "" if seen else "///"))
            axes.text(place + 0.5, n + 0.5, EXAMPLE[place] if seen else "", ha="center", va="center", fontsize=8)
        losses = f"{row['next']}: {row['pass']:.3f} | {row['prefix']:.3f}"
        axes.text(count + 0.15, n + 0.5, losses, va="center", fontsize=8)
    axes.set(xlim=(0, count + 3.4), ylim=(len(rows), 0), xticks=[], yticks=[])
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(Both("hatched: masked", "斜线：被遮蔽")(language))
    title = Both(
        "Next word's loss (nats):\nin one pass | from the prefix alone", "下一个词的损失（奈特）：\n一次计算 | 只给前缀"
    )
    axes.set_title(title(language))


def rectangle(x: float, y: float, face: str, hatch: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), 1, 1, facecolor=face, edgecolor="#b9bdca", hatch=hatch)


def draw_losses(axes: Any, numbers: dict[str, Any], language: Language) -> None:
    """Loss on prefixes of both models and of n-grams."""
    bars = [(label(language), numbers["kinds"][kind]["loss"]) for kind, label in KINDS.items()]
    bars += [(f"{order}-gram", loss) for order, loss in numbers["ngrams"].items()]
    for n, (_, loss) in enumerate(bars):
        axes.bar(n, loss, 0.7, color=style(min(n, 2))["color"], hatch=("", "//", "..")[min(n, 2)])
        axes.text(n, loss, f"{loss:.2f}", ha="center", va="bottom", fontsize=8)
    axes.set_xticks(
        range(len(bars)), [name.replace("out the", "out\nthe") for name, _ in bars], rotation=35, ha="right"
    )
    axes.set_ylim(0, 1.1 * max(loss for _, loss in bars))
    axes.set_ylabel(Both("loss (nats a word)", "损失（奈特/词）")(language))
    shares = [f"{numbers['kinds'][kind]['right']:.0%}" for kind in KINDS]
    title = Both(
        f"Next word from the prefix alone\n(sentences written right: {shares[0]} with, {shares[1]} without)",
        f"只给前缀时的下一个词\n（写对的句子：有掩码 {shares[0]}，无掩码 {shares[1]}）",
    )
    axes.set_title(title(language))
