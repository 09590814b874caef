"""Finding one slightly grey ball among white ones: networks by number of balls, and the choice of the query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...attention.attend import attend
from ...attention.parts.scores import Additive
from ...nn import Convolution, FullyConnected, Recurrent, Stack, StackConfig
from ..experiment import Bilingual, Claim, Criterion, Language, Measurements, Size, Verdict, judge
from ..parameters import (
    NO_SETTINGS,
    SEEDS_TEXT,
    STEPS_TEXT,
    Parameter,
    Settings,
    constant,
    count,
    resolve_counts,
    resolve_settings,
)
from ..progress import ProgressCallback, nth_subprogress, subprogress
from ..toolkit.figures import COLOURS, line_style, subplots
from ..toolkit.metrics import summarize
from ..toolkit.training import fit, seeded_generator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=2,
    name="grey-ball",
    title=Bilingual("The slightly grey ball", "略微发灰的小球"),
    claim=Bilingual(
        "To find one slightly grey ball among white ones, a fully connected network gropes in the bag by memory, "
        "while attention holds a white ball in the left hand, takes out the others one by one with the right hand "
        "and compares: the ball in the left hand is the query.",
        "从一堆白色小球中找到一个略微发灰的：全连接网络是凭记忆和感觉在袋子里乱抓；而注意力是左手拿一个白色小球，"
        "右手从袋子里一个一个抓出来对比颜色，左手的那个白色小球就是查询。",
    ),
    setup=Bilingual(
        "A bag of balls under light of random colour; each ball has three features with 1 % noise, the grey one is 5 "
        "% darker. Networks of 11 to 15 thousand parameters (fully connected: 93 thousand, as it has separate "
        "weights for each position) are trained on bags of 10 to classify each ball as grey or not; a bag counts as "
        "correct if every ball is classified correctly. They are tested on 5 to 100 balls. The fully connected "
        "network has 10 inputs: smaller bags are padded with zeros, of larger bags it receives the first 10. Then "
        "one query identifies a ball that is darker only, or darker or lighter: the query is a white ball held in "
        "the hand, the mean of the bag, or a learned vector that is the same for every bag (memory).",
        "一袋小球在随机颜色的灯光下，每个球有三个特征（噪声 1%），灰球暗 5%。"
        "1.1 万到 1.5 万个参数的网络（全连接有 9.3 万个，因为每个位置有单独的权重）用 10 个球的袋子训练，"
        "判断每个球是不是灰球；全部判断正确才算正确；测试时用 5 到 100 个球。全连接网络只有 10 个输入：球少时补零，"
        "球多时只接收前 10 个。另外用一个查询找出不同的球，它只会更暗，或者更暗或更亮：查询是手中的白球、整袋的平均，"
        "或对所有袋子都相同的可学习向量（记忆）。",
    ),
    criteria=(
        Criterion(
            "query",
            Bilingual(
                "A white ball held as the query finds a ball that is darker or lighter (at least 95 %)",
                "以手中的白球为查询，能找到更暗或更亮的球（不低于 95%）",
            ),
            ">=",
            0.95,
            core=True,
        ),
        Criterion(
            "memory",
            Bilingual(
                "A learned vector, the same for every bag, does not (at most 75 %)",
                "对所有袋子都相同的可学习向量（记忆）找不到（不高于 75%）",
            ),
            "<=",
            0.75,
        ),
        Criterion(
            "fixed-size",
            Bilingual(
                "The fully connected network fails at other numbers of balls (below 95 % at worst)",
                "全连接网络在别的球数下失败（最低处低于 95%）",
            ),
            "<=",
            0.95,
            core=True,
        ),
        Criterion(
            "any-size",
            Bilingual(
                "Attention finds the grey ball at every number of balls (at least 95 %)",
                "注意力在每种球数下都能找到灰球（不低于 95%）",
            ),
            ">=",
            0.95,
        ),
        Criterion(
            "best",
            Bilingual(
                "Attention is the best of all networks: none without attention is better at worst",
                "注意力是所有网络中最好的：不用注意力的网络在最低处都不比它高",
            ),
            ">=",
            0,
        ),
    ),
)

BALLS, COUNTS, NOISE, GREY = 10, (5, 10, 20, 50, 100), 0.01, 0.05
STEPS: dict[Size, int] = {"toy": 20, "usual": 500, "full": 3000}
SEEDS: dict[Size, int] = {"toy": 1, "usual": 3, "full": 5}
BAGS = {"toy": 50, "usual": 1000, "full": 5000}
QUERIES = ("held", "mean", "learned")
PARAMETERS = (
    Parameter("grey", Bilingual("how much darker the grey ball is", "灰球暗多少"), 0.002, 0.5, constant(GREY)),
    Parameter("noise", Bilingual("noise of each colour", "每个颜色的噪声"), 0.0, 0.2, constant(NOISE)),
    count("balls", Bilingual("balls in a training bag", "训练用袋中的球数"), 3, 30, BALLS),
    count("steps", STEPS_TEXT, 1, 20000, STEPS),
    count("seeds", SEEDS_TEXT, 1, 20, SEEDS),
)


@dataclass(frozen=True)
class Bags:
    """The bags of a run: balls of a training bag, noise of each colour, how much darker the grey ball is."""

    balls: int = BALLS
    noise: float = NOISE
    grey: float = GREY


USUAL_BAGS = Bags()


def sample_bags(
    batch: int, balls: int, both_ways: bool, generator: torch.Generator, bags: Bags = USUAL_BAGS
) -> tuple[Tensor, Tensor, Tensor]:
    """Colours `[batch, balls, 3]` , which ball is odd `[batch]`, and one more white ball `[batch, 3]`."""
    light = 0.5 + 0.5 * torch.rand(batch, 1, 3, generator=generator)
    colours = light * (1 + bags.noise * torch.randn(batch, balls + 1, 3, generator=generator))
    odd = torch.randint(balls, (batch,), generator=generator)
    sign = torch.where(torch.rand(batch, generator=generator) < 0.5, 1.0, -1.0) if both_ways else -torch.ones(batch)
    colours[torch.arange(batch), odd] *= 1 + bags.grey * sign[:, None]
    colours = (colours - 0.75) / 0.15
    return colours[:, :balls], odd, colours[:, balls]


class BallFinder(nn.Module):
    """A logit for each ball: embedding, `body`, linear head."""

    def __init__(self, body: nn.Module, dim: int, max_balls: int | None = None) -> None:
        super().__init__()
        self.embed, self.body, self.head, self.max_balls = nn.Linear(3, dim), body, nn.Linear(dim, 1), max_balls

    def forward(self, colours: Tensor) -> Tensor:
        visible = colours[:, : self.max_balls]
        logits = self.head(self.body(self.embed(visible))).squeeze(-1)
        return nn.functional.pad(logits, (0, colours.shape[1] - visible.shape[1]), value=-9.0)


def build_finders(balls: int = BALLS) -> dict[str, BallFinder]:
    """The four networks; three have about as many parameters, the fully connected one has more."""
    return {
        "fully connected": BallFinder(FullyConnected(24, 2, balls, hidden=96), 24, max_balls=balls),
        "convolution": BallFinder(Convolution(40, 3, kernel=3), 40),
        "recurrent": BallFinder(Recurrent(48, 1, cell="gru", bidirectional=True), 48),
        "attention": BallFinder(Stack(StackConfig(dim=32, layers=1, heads=2)), 32),
    }


class Pointer(nn.Module):
    """Attention weights of one query over the balls; the query is one of `QUERIES`."""

    def __init__(self, query: str, dim: int = 32) -> None:
        super().__init__()
        self.query = query
        self.q, self.k = nn.Linear(3, dim), nn.Linear(3, dim)
        self.learned_query = nn.Parameter(torch.zeros(3))
        self.weight = nn.Parameter(torch.randn(1, dim) * dim**-0.5)

    def forward(self, colours: Tensor, white: Tensor) -> Tensor:
        """The weight of each ball, `[batch, balls]`."""
        query_colour = {"held": white, "mean": colours.mean(1), "learned": self.learned_query.expand_as(white)}[
            self.query
        ]
        one_hot = torch.eye(colours.shape[1]).expand(colours.shape[0], 1, -1, -1)  # the value of a ball is its index
        q, k = self.q(query_colour)[:, None, None], self.k(colours)[:, None]
        return attend(q, k, one_hot, score=Additive(self.weight)).flatten(1)


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    counts, values = resolve_counts(PARAMETERS, size, settings), resolve_settings(PARAMETERS, size, settings)
    bags = Bags(counts["balls"], values["noise"], values["grey"])
    finder_runs: list[dict[str, list[float]]] = []
    pointer_runs: list[dict[str, float]] = []
    steps, seeds, tested = counts["steps"], counts["seeds"], BAGS[size]
    for n in range(seeds):
        start, end = n / seeds, (n + 1) / seeds
        split = start + 0.7 * (end - start)
        finder_runs.append(run_finders(bags, steps, tested, seed + n, subprogress(progress, start, split)))
        pointer_runs.append(run_pointers(bags, steps, tested, seed + n, subprogress(progress, split, end)))
    return {
        "balls": list(COUNTS),
        "trained": bags.balls,
        "found": {
            name: [summarize(values) for values in zip(*(run[name] for run in finder_runs), strict=True)]
            for name in finder_runs[0]
        },
        "pointed": {name: summarize([run[name] for run in pointer_runs]) for name in pointer_runs[0]},
        "weights": {
            name: sum(p.numel() for p in model.parameters()) for name, model in build_finders(bags.balls).items()
        },
    }


def run_finders(bags: Bags, steps: int, tested: int, seed: int, progress: ProgressCallback) -> dict[str, list[float]]:
    """The accuracy of each network and of the median rule by number of balls."""
    torch.manual_seed(seed)
    rule = partial(median_rule, grey=bags.grey)
    accuracies = {"rule": [bag_accuracy(rule, balls, bags, tested, seed) for balls in COUNTS]}
    models = build_finders(bags.balls)
    for n, (name, model) in enumerate(models.items()):
        train_finder(model, bags, steps, seed, nth_subprogress(progress, n, len(models), name))
        accuracies[name] = [bag_accuracy(model, balls, bags, tested, seed) for balls in COUNTS]
    return accuracies


def train_finder(model: BallFinder, bags: Bags, steps: int, seed: int, progress: ProgressCallback) -> None:
    generator = seeded_generator(seed)

    def loss() -> Tensor:
        colours, odd, _ = sample_bags(64, bags.balls, False, generator, bags)
        targets = nn.functional.one_hot(odd, bags.balls).float()
        return nn.functional.binary_cross_entropy_with_logits(model(colours), targets)

    fit(model, loss, steps, 1e-2, progress)


@torch.no_grad()
def bag_accuracy(model: Callable[[Tensor], Tensor], balls: int, bags: Bags, tested: int, seed: int) -> float:
    """The fraction of new bags with every ball classified right."""
    colours, odd, _ = sample_bags(tested, balls, False, seeded_generator(seed + 1000), bags)
    predicted = model(colours) > 0
    return (predicted == nn.functional.one_hot(odd, balls).bool()).all(1).float().mean().item()


def median_rule(colours: Tensor, grey: float = GREY) -> Tensor:
    """Positive where a ball is more than half the difference darker than the bag's median: nearly optimal."""
    brightness = (colours * 0.15 + 0.75).mean(-1)
    return 1 - grey / 2 - brightness / brightness.median(1, keepdim=True).values


def run_pointers(bags: Bags, steps: int, tested: int, seed: int, progress: ProgressCallback) -> dict[str, float]:
    """How often the largest weight is on the odd ball, by query and by whether it may be lighter."""
    torch.manual_seed(seed)
    accuracies, cases = {}, [(query, both_ways) for both_ways in (False, True) for query in QUERIES]
    for n, (query, both_ways) in enumerate(cases):
        name = f"{query}, {'darker or lighter' if both_ways else 'darker'}"
        generator, model = seeded_generator(seed), Pointer(query)
        sample = partial(sample_bags, balls=bags.balls, both_ways=both_ways, generator=generator, bags=bags)
        train_pointer(model, sample, steps, nth_subprogress(progress, n, 6, name))
        with torch.no_grad():
            colours, odd, white = sample(tested)
            accuracies[name] = (model(colours, white).argmax(1) == odd).float().mean().item()
    return accuracies


def train_pointer(
    model: Pointer, sample: Callable[[int], tuple[Tensor, Tensor, Tensor]], steps: int, progress: ProgressCallback
) -> None:
    def loss() -> Tensor:
        colours, odd, white = sample(64)
        return nn.functional.nll_loss(model(colours, white).clamp(min=1e-9).log(), odd)

    fit(model, loss, steps, 2e-2, progress)


def verdict(numbers: Measurements) -> Verdict:
    worst = {
        name: min(at["mean"] for at in summaries) for name, summaries in numbers["found"].items() if name != "rule"
    }
    held_ball, learned = (numbers["pointed"][f"{query}, darker or lighter"]["mean"] for query in ("held", "learned"))
    others = [name for name, value in worst.items() if name != "attention" and value >= 0.95]
    finds = worst["attention"] >= 0.95
    means = {name: [at["mean"] for at in numbers["found"][name]] for name in worst}
    worst_counts = {name: numbers["balls"][values.index(min(values))] for name, values in means.items()}
    english, chinese = (
        describe_en(worst, worst_counts, held_ball, learned),
        describe_zh(worst, worst_counts, held_ball, learned),
    )
    if others:
        english += f" Networks with at least 95 % at every number of balls, {'also' if finds else 'only'}, without "
        english += f"attention: {' and '.join(others)}."
        chinese += (
            f"不用注意力而处处达到 95% 的{'还' if finds else '只'}有：{'、'.join(NAMES_ZH[name] for name in others)}。"
        )
    best = max(value for name, value in worst.items() if name != "attention")
    connected, attention = worst["fully connected"], worst["attention"]
    measured = {
        "query": (
            held_ball,
            Bilingual(f"{held_ball:.0%} against {learned:.0%} by memory", f"{held_ball:.0%}，凭记忆为 {learned:.0%}"),
        ),
        "memory": (learned, Bilingual.same(f"{learned:.0%}")),
        "fixed-size": (
            connected,
            Bilingual(
                f"{connected:.0%} of {worst_counts['fully connected']} balls",
                f"{worst_counts['fully connected']} 个球时 {connected:.0%}",
            ),
        ),
        "any-size": (
            attention,
            Bilingual(
                f"{attention:.0%} of {worst_counts['attention']} balls at worst",
                f"最低 {attention:.0%}（{worst_counts['attention']} 个球）",
            ),
        ),
        "best": (
            attention - best,
            Bilingual(
                f"attention {attention:.0%}, the best other {best:.0%}", f"注意力 {attention:.0%}，其余最好 {best:.0%}"
            ),
        ),
    }
    key = Bilingual(
        f"accuracy at the worst number of balls: attention {worst['attention']:.0%}, the best other {best:.0%}",
        f"最不利球数下的准确率：注意力 {worst['attention']:.0%}，其余最好 {best:.0%}",
    )
    return judge(CLAIM, measured, key, Bilingual(english, chinese))


NAMES_ZH = {
    "fully connected": "全连接",
    "convolution": "卷积",
    "recurrent": "循环网络",
    "attention": "注意力",
    "rule": "与中位数比较的规则",
}


def describe_en(worst: dict[str, float], worst_counts: dict[str, int], held_ball: float, learned: float) -> str:
    """The numbers of the verdict."""
    accuracies = ", ".join(f"{name} {value:.0%} (of {worst_counts[name]} balls)" for name, value in worst.items())
    return (
        f"Accuracy at the worst number of balls of each: {accuracies}. When the ball is darker or lighter, a held white "
        f"ball "
        f"as the query is correct in {held_ball:.0%}, a learned vector in {learned:.0%}."
    )


def describe_zh(worst: dict[str, float], worst_counts: dict[str, int], held_ball: float, learned: float) -> str:
    accuracies = "，".join(
        f"{NAMES_ZH[name]} {value:.0%}（{worst_counts[name]} 个球）" for name, value in worst.items()
    )
    return (
        f"各自在最不利的球数下的准确率：{accuracies}。若球可能更暗或更亮，以手中的白球为查询，准确率 {held_ball:.0%}，"
        f"可学习向量 {learned:.0%}。"
    )


def draw(numbers: Measurements, language: Language) -> Figure:
    zh = language == "zh"
    with subplots(language, 2) as (figure, (left, right)):
        for n, (name, summaries) in enumerate(sorted(numbers["found"].items())):
            means, spreads = [at["mean"] for at in summaries], [at["spread"] for at in summaries]
            left.errorbar(
                numbers["balls"],
                means,
                spreads,
                capsize=2,
                label=NAMES_ZH[name] if zh else name.replace("rule", "rule: compare with the median"),
                **line_style(n),
            )
        left.set_xscale("log")
        left.set_xticks(numbers["balls"], map(str, numbers["balls"]))
        left.minorticks_off()
        left.axvline(numbers.get("trained", BALLS), color="#999999", linewidth=0.8)
        left.set_ylim(-0.03, 1.65)
        left.set_xlabel("袋中球数（竖线：训练用的球数）" if zh else "balls in the bag (vertical line: as trained)")
        left.set_ylabel("全部判断正确的袋子比例" if zh else "fraction of bags correct")
        left.set_title("不同球数下的准确率" if zh else "Accuracy by number of balls")
        left.legend(loc="upper left")
        draw_queries(right, numbers["pointed"], zh)
        return figure


def draw_queries(axes: Axes, pointed: Measurements, zh: bool) -> None:
    """How often the odd ball has the largest weight, by query."""
    cases = ("darker", "darker or lighter")
    labels = ("只会更暗", "更暗或更亮") if zh else cases
    for n, case in enumerate(cases):
        summaries = [pointed[f"{query}, {case}"] for query in QUERIES]
        means, spreads = [summary["mean"] for summary in summaries], [summary["spread"] for summary in summaries]
        x = [group + 0.4 * n for group in range(3)]
        bars = axes.bar(
            x,
            means,
            0.38,
            yerr=spreads,
            capsize=2,
            color=COLOURS[n],
            hatch=("", "//")[n],
            edgecolor="white",
            label=labels[n],
        )
        axes.bar_label(bars, [f"{mean:.2f}" for mean in means], fontsize=8)
    queries = (
        ("手中的白球", "整袋的平均", "可学习向量\n（记忆）")
        if zh
        else ("a white ball\nin the hand", "mean of\nthe bag", "learned vector\n(memory)")
    )
    axes.set_xticks([0.2, 1.2, 2.2], queries)
    axes.set_ylim(0, 1.35)
    axes.set_ylabel("准确率" if zh else "accuracy")
    axes.set_title("不同的查询" if zh else "Accuracy by query")
    axes.legend(title="不同的球" if zh else "the odd ball is", ncols=2, loc="upper center")
