"""Attention added to a convolutional and to a recurrent network: recall by length."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...nn.baselines.convolution import Convolution
from ...nn.baselines.recurrent import Recurrent
from ..experiment import Bilingual, Claim, Criterion, Language, Measurements, Size, Verdict, judge
from ..parameters import NO_SETTINGS, SEEDS_TEXT, STEPS_TEXT, Settings, count, resolve_counts
from ..progress import ProgressCallback, nth_subprogress
from ..toolkit.figures import draw_reference_line, label_axes, localizer, plot_summaries, subplots
from ..toolkit.metrics import accuracy, count_parameters, format_percent, summarize
from ..toolkit.training import choose_by_size, fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=21,
    name="plugged",
    title=Bilingual("Attention added to CNN and RNN", "把注意力加入 CNN 和 RNN"),
    claim=Bilingual(
        "Attention is a module that can be added to convolutional and recurrent networks and improves their "
        "long-range dependencies.",
        "注意力是即插即用的模块，可以加入 CNN、RNN，增强其长程依赖能力。",
    ),
    setup=Bilingual(
        "Four names with one value each, then filler tokens, then one of the names; the target is its value. A "
        "convolution of three layers (receptive field 7 tokens) and a GRU: alone, alone but wider (at least as many "
        "parameters as with attention), and with attention; trained and tested at increasing lengths with the same "
        "number of steps.",
        "先是四个名字各带一个值，然后是填充词元，最后给出其中一个名字，目标是它的值。"
        "三层卷积（感受野为 7 个词元）和 GRU：单独、单独但更宽（参数不少于加注意力的）、加入注意力；"
        "在递增的长度上用同样的步数训练和测试。",
    ),
    criteria=(
        Criterion(
            "cnn",
            Bilingual(
                "Attention adds at least 20 points to the convolution at the largest length",
                "在最大长度上，注意力使卷积至少提高 20 个百分点",
            ),
            ">=",
            0.2,
        ),
        Criterion(
            "gru",
            Bilingual("It adds at least 20 points to the GRU", "使 GRU 至少提高 20 个百分点"),
            ">=",
            0.2,
        ),
    ),
)

NAMES, VALUES, PAIRS = 8, 4, 4
FILLER = NAMES + VALUES
VOCABULARY = FILLER + 4
DIM = 32
PARAMETERS = (
    count("length", Bilingual("largest length", "最大长度"), 9, 1024, {"toy": 12, "usual": 48, "full": 288}),
    count("steps", STEPS_TEXT, 1, 20000, {"toy": 3, "usual": 400, "full": 2000}),
    count("seeds", SEEDS_TEXT, 1, 20, {"toy": 1, "usual": 2, "full": 4}),
)
MODELS: dict[str, Callable[[], nn.Module]] = {
    "CNN": lambda: QuestionModel(Convolution(DIM, 3), DIM),
    "CNN, wider": lambda: QuestionModel(Convolution(50, 3), 50),
    "CNN + attention": lambda: QuestionModel(Convolution(DIM, 3, attention=True), DIM),
    "GRU": lambda: QuestionModel(Recurrent(DIM, 1), DIM),
    "GRU, wider": lambda: QuestionModel(Recurrent(42, 1), 42),
    "GRU + attention": lambda: QuestionModel(Recurrent(DIM, 1, attention="dot"), DIM),
}


class QuestionModel(nn.Module):
    """Embedding, body, and a classification of the last token."""

    def __init__(self, body: nn.Module, dim: int) -> None:
        super().__init__()
        self.words, self.body, self.head = nn.Embedding(VOCABULARY, dim), body, nn.Linear(dim, VALUES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.body(self.words(tokens))[:, -1])


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    values = resolve_counts(PARAMETERS, size, settings)
    seeds, steps, longest = values["seeds"], values["steps"], values["length"]
    shorter = choose_by_size(size, [9], [10, 20], [12, 32, 96])
    lengths = [length for length in shorter if length < longest] + [longest]
    plan = [(name, length) for length in lengths for name in MODELS]
    accuracies: dict[str, dict[str, list[float]]] = {name: {str(length): [] for length in lengths} for name in MODELS}
    for n in range(seeds):
        for m, (name, length) in enumerate(plan):
            run_progress = nth_subprogress(nth_subprogress(progress, n, seeds), m, len(plan), f"{name}, {length}")
            accuracies[name][str(length)].append(train(name, length, steps, seed * 1000 + n, run_progress))
    return {
        "lengths": lengths,
        "parameters": {name: count_parameters(make()) for name, make in MODELS.items()},
        "accuracy": {
            name: {length: summarize(values) for length, values in by_length.items()}
            for name, by_length in accuracies.items()
        },
    }


def train(name: str, length: int, steps: int, seed: int, progress: ProgressCallback) -> float:
    """Train a model; returns its accuracy on new questions."""
    torch.manual_seed(seed)
    model = MODELS[name]()

    def loss() -> Tensor:
        tokens, values = sample_questions(32, length)
        return nn.functional.cross_entropy(model(tokens), values)

    fit(model, loss, steps, 5e-3, progress)
    torch.manual_seed(seed + 500)
    tokens, values = sample_questions(500, length)
    with torch.no_grad():
        return accuracy(model(tokens), values)


def sample_questions(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Tokens `[batch, length]`: alternating names and values, filler, a name; and the value of that name, `[batch]`."""
    names = torch.rand(batch, NAMES).argsort(1)[:, :PAIRS]
    values = torch.randint(VALUES, (batch, PAIRS))
    tokens = torch.randint(FILLER, VOCABULARY, (batch, length))
    tokens[:, 0 : 2 * PAIRS : 2], tokens[:, 1 : 2 * PAIRS : 2] = names, NAMES + values
    query = torch.randint(PAIRS, (batch, 1))
    tokens[:, -1] = names.gather(1, query).squeeze(1)
    return tokens, values.gather(1, query).squeeze(1)


def verdict(numbers: Measurements) -> Verdict:
    longest = str(numbers["lengths"][-1])
    accuracies = {name: summaries[longest]["mean"] for name, summaries in numbers["accuracy"].items()}
    gains = {
        network: accuracies[f"{network} + attention"] - max(accuracies[network], accuracies[f"{network}, wider"])
        for network in ("CNN", "GRU")
    }
    measured = {
        network.lower(): (gain, Bilingual(f"{100 * gain:+.0f} points", f"{100 * gain:+.0f} 个百分点"))
        for network, gain in gains.items()
    }
    english = ", ".join(f"{name} {format_percent(accuracy)}" for name, accuracy in accuracies.items())
    chinese = english.replace(", wider", "（更宽）").replace(" + attention", " + 注意力").replace(", ", "，")
    key = Bilingual(
        f"attention adds {100 * gains['CNN']:+.0f} points to the CNN, {100 * gains['GRU']:+.0f} to the GRU",
        f"注意力使 CNN 变化 {100 * gains['CNN']:+.0f} 个百分点，GRU {100 * gains['GRU']:+.0f} 个",
    )
    return judge(CLAIM, measured, key, Bilingual(
        f"Accuracy at length {longest}: {english} (chance {format_percent(1 / VALUES)}). Attention adds "
        f"{100 * gains['CNN']:+.1f} points to "
        f"the convolution and {100 * gains['GRU']:+.1f} to the GRU, over the better form without attention.",
        f"长度 {longest} 时的准确率：{chinese}（随机 {format_percent(1 / VALUES)}）。与没有注意力的较好形式相比，"
        f"注意力使卷积变化 {100 * gains['CNN']:+.1f} 个百分点，"
        f"GRU 变化 {100 * gains['GRU']:+.1f} 个百分点。",
    ))  # fmt: skip


def draw(numbers: Measurements, language: Language) -> Figure:
    tr = localizer(language)
    with subplots(language, 2) as (figure, axes):
        figure.suptitle(tr("Looking up a value given at the beginning", "查找开头给出的值"))
        for panel, network, title in zip(axes, ("CNN", "GRU"), (tr("Convolution", "卷积"), "GRU"), strict=True):
            names = {network: tr("alone", "单独"), f"{network}, wider": tr("alone, wider", "单独，更宽"),
                     f"{network} + attention": tr("with attention", "加注意力")}  # fmt: skip
            for n, (name, text) in enumerate(names.items()):
                count = tr(
                    f"{text}: {numbers['parameters'][name]:,} parameters",
                    f"{text}：{numbers['parameters'][name]:,} 个参数",
                )
                plot_summaries(
                    panel, n, numbers["lengths"], [numbers["accuracy"][name][str(x)] for x in numbers["lengths"]], count
                )
            draw_reference_line(panel, 1 / VALUES, tr("chance", "随机"))
            panel.set_xscale("log")
            panel.set_xticks(numbers["lengths"], [str(x) for x in numbers["lengths"]])
            panel.minorticks_off()
            panel.set_ylim(0, 1.05)
            label_axes(panel, title, tr("tokens", "词元数"), tr("accuracy", "准确率"))
            panel.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, 0.92))
    return figure
