"""The one slightly grey ball among white ones: who finds it among how many, and what the query is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...attention.attend import attend
from ...attention.parts.scores import Additive
from ...nn import Convolution, FullyConnected, Recurrent, Stack, StackConfig
from ..experiment import Both, Claim, Language, Size, Tell, Verdict
from ..learning import COLOURS, drawing, fit, panels, part, spread, style

CLAIM = Claim(
    number=2,
    name="grey-ball",
    title=Both("The slightly grey ball", "略微发灰的小球"),
    claim=Both(
        "To find one slightly grey ball among white ones, a fully connected network gropes about by memory and "
        "feeling, "
        "while attention holds a white ball in the left hand, takes the others out one by one with the right, and "
        "compares: the ball in the left hand is the query.",
        "从一堆白色小球中找到一个略微发灰的：全连接是在里面随便乱抓，凭记忆和感觉找；"
        "而 attention 是左手拿一个白色小球，"
        "右手从袋子里一个一个抓出来两两对比颜色，左手的那个白色小球就是 Query。",
    ),
    setup=Both(
        "A bag of balls under a lamp of random colour; each ball has three numbers with 1 % of noise, the grey one is "
        "5 % darker. Networks of 11 to 15 thousand weights (fully connected: 93, its own for each place) learn on bags "
        "of 10 to say of each ball whether it is the grey "
        "one; a bag counts when every ball is judged right; tested on 5 to 100 balls. The fully connected network has "
        "10 inputs: fewer balls are filled up with zeros, of more it sees the first 10. Then one query points at a "
        "ball that is only darker, or darker or lighter: a white ball held in the hand, the mean of the bag, or a "
        "learned vector that is the same for every bag (memory).",
        "一袋小球在随机颜色的灯光下，每个球有三个数（噪声 1%），灰球暗 5%。"
        "一万一千到一万五千个权重的网络（全连接有九万三千个，因为权重属于位置）在 10 个球的袋子上学习，"
        "判断每个球是不是那个灰球；全部判断正确才算找到；检验时用 5 到 100 个球。全连接网络只有 10 个输入：球少时补零，"
        "球多时只看前 10 个。另外让一个 Query 指出那个球，它可能只会更暗，也可能更暗或更亮：Query 是手中的白球、"
        "整袋的平均，或对所有袋子都相同的可学习向量（记忆）。",
    ),
    threshold=Both(
        "Holds if, in the mean of the seeds, attention finds at least 95 % at every number of balls, none of the other "
        "three does, and a held white ball as the query finds at least 95 % of balls that are darker or lighter where "
        "the learned vector finds at most 75 %. Limited if attention finds at least 95 % everywhere, but another does "
        "too or the query is no better than memory. Fails otherwise.",
        "若按随机种子的平均，attention 在每种球数下都至少找到 95%，其余三者都做不到，"
        "且以手中白球为 Query 能找到至少 95% "
        "更暗或更亮的球，而可学习向量至多 75%，则成立。若 attention 处处不低于 95%，但别的网络也能做到，"
        "或白球 Query 不优于记忆，则有条件成立。否则不成立。",
    ),
)

BALLS, COUNTS, NOISE, GREY = 10, (5, 10, 20, 50, 100), 0.01, 0.05
STEPS = {"toy": 20, "usual": 500, "full": 3000}
SEEDS = {"toy": 1, "usual": 3, "full": 5}
BAGS = {"toy": 50, "usual": 1000, "full": 5000}
QUERIES = ("held", "mean", "learned")


def bags(batch: int, balls: int, both_ways: bool, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Colours `[batch, balls, 3]` , which ball is odd `[batch]`, and one more white ball `[batch, 3]`."""
    lamp = 0.5 + 0.5 * torch.rand(batch, 1, 3, generator=generator)
    colours = lamp * (1 + NOISE * torch.randn(batch, balls + 1, 3, generator=generator))
    odd = torch.randint(balls, (batch,), generator=generator)
    sign = torch.where(torch.rand(batch, generator=generator) < 0.5, 1.0, -1.0) if both_ways else -torch.ones(batch)
    colours[torch.arange(batch), odd] *= 1 + GREY * sign[:, None]
    colours = (colours - 0.75) / 0.15
    return colours[:, :balls], odd, colours[:, balls]


class Finder(nn.Module):
    """Says of each ball how likely it is the grey one: embed, let the balls meet in `body`, judge."""

    def __init__(self, body: nn.Module, dim: int, most: int | None = None) -> None:
        super().__init__()
        self.embed, self.body, self.judge, self.most = nn.Linear(3, dim), body, nn.Linear(dim, 1), most

    def forward(self, colours: Tensor) -> Tensor:
        seen = colours[:, : self.most]
        logits = self.judge(self.body(self.embed(seen))).squeeze(-1)
        return nn.functional.pad(logits, (0, colours.shape[1] - seen.shape[1]), value=-9.0)


def finders() -> dict[str, Finder]:
    """The four networks, three of about as many weights (the fully connected one has more: they belong to places)."""
    return {
        "fully connected": Finder(FullyConnected(24, 2, BALLS, hidden=96), 24, most=BALLS),
        "convolution": Finder(Convolution(40, 3, kernel=3), 40),
        "recurrent": Finder(Recurrent(48, 1, kind="gru", bidirectional=True), 48),
        "attention": Finder(Stack(StackConfig(dim=32, layers=1, heads=2)), 32),
    }


class Pointer(nn.Module):
    """One query points at a ball: its weights over the balls are the answer. The query is one of `QUERIES`."""

    def __init__(self, query: str, dim: int = 32) -> None:
        super().__init__()
        self.query = query
        self.q, self.k = nn.Linear(3, dim), nn.Linear(3, dim)
        self.memory = nn.Parameter(torch.zeros(3))
        self.weight = nn.Parameter(torch.randn(1, dim) * dim**-0.5)

    def forward(self, colours: Tensor, white: Tensor) -> Tensor:
        """The weight of each ball, `[batch, balls]`."""
        held = {"held": white, "mean": colours.mean(1), "learned": self.memory.expand_as(white)}[self.query]
        numbers = torch.eye(colours.shape[1]).expand(colours.shape[0], 1, -1, -1)  # as values: which ball it is
        q, k = self.q(held)[:, None, None], self.k(colours)[:, None]
        return attend(q, k, numbers, score=Additive(self.weight)).flatten(1)


def measure(size: Size, seed: int, tell: Tell) -> dict[str, Any]:
    found: list[dict[str, list[float]]] = []
    pointed: list[dict[str, float]] = []
    for n in range(SEEDS[size]):
        start, end = n / SEEDS[size], (n + 1) / SEEDS[size]
        found.append(search(size, seed + n, part(tell, start, start + 0.7 * (end - start))))
        pointed.append(point(size, seed + n, part(tell, start + 0.7 * (end - start), end)))
    return {
        "balls": list(COUNTS),
        "found": {
            name: [spread(values) for values in zip(*(run[name] for run in found), strict=True)] for name in found[0]
        },
        "pointed": {name: spread([run[name] for run in pointed]) for name in pointed[0]},
        "weights": {name: sum(p.numel() for p in model.parameters()) for name, model in finders().items()},
    }


def search(size: Size, seed: int, tell: Tell) -> dict[str, list[float]]:
    """The share of bags that each network judges right, by number of balls; and a rule that knows the answer's form."""
    torch.manual_seed(seed)
    shares = {"rule": [right(rule, balls, size, seed) for balls in COUNTS]}
    models = finders()
    for n, (name, model) in enumerate(models.items()):
        train_finder(model, STEPS[size], seed, part(tell, n / len(models), (n + 1) / len(models), name))
        shares[name] = [right(model, balls, size, seed) for balls in COUNTS]
    return shares


def train_finder(model: Finder, steps: int, seed: int, tell: Tell) -> None:
    generator = drawing(seed)

    def loss() -> Tensor:
        colours, odd, _ = bags(64, BALLS, False, generator)
        wanted = nn.functional.one_hot(odd, BALLS).float()
        return nn.functional.binary_cross_entropy_with_logits(model(colours), wanted)

    fit(model, loss, steps, 1e-2, tell)


@torch.no_grad()
def right(model: Any, balls: int, size: Size, seed: int) -> float:
    """The share of fresh bags of which every ball is judged right."""
    colours, odd, _ = bags(BAGS[size], balls, False, drawing(seed + 1000))
    judged = model(colours) > 0
    return (judged == nn.functional.one_hot(odd, balls).bool()).all(1).float().mean().item()


def rule(colours: Tensor) -> Tensor:
    """Positive where a ball is more than half the difference darker than the bag's median: hardly to be bettered."""
    light = (colours * 0.15 + 0.75).mean(-1)
    return 1 - GREY / 2 - light / light.median(1, keepdim=True).values


def point(size: Size, seed: int, tell: Tell) -> dict[str, float]:
    """How often the largest weight is on the odd ball, by query and by whether it may be lighter too."""
    torch.manual_seed(seed)
    shares, cases = {}, [(query, both_ways) for both_ways in (False, True) for query in QUERIES]
    for n, (query, both_ways) in enumerate(cases):
        name = f"{query}, {'darker or lighter' if both_ways else 'darker'}"
        shares[name] = point_once(query, both_ways, size, seed, part(tell, n / 6, (n + 1) / 6, name))
    return shares


def point_once(query: str, both_ways: bool, size: Size, seed: int, tell: Tell) -> float:
    generator, model = drawing(seed), Pointer(query)

    def loss() -> Tensor:
        colours, odd, white = bags(64, BALLS, both_ways, generator)
        return nn.functional.nll_loss(model(colours, white).clamp(min=1e-9).log(), odd)

    fit(model, loss, STEPS[size], 2e-2, tell)
    with torch.no_grad():
        colours, odd, white = bags(BAGS[size], BALLS, both_ways, generator)
        return (model(colours, white).argmax(1) == odd).float().mean().item()


def verdict(numbers: dict[str, Any]) -> Verdict:
    worst = {name: min(at["mean"] for at in found) for name, found in numbers["found"].items() if name != "rule"}
    held, learned = (numbers["pointed"][f"{query}, darker or lighter"]["mean"] for query in ("held", "learned"))
    others = [name for name, value in worst.items() if name != "attention" and value >= 0.95]
    finds, compares = worst["attention"] >= 0.95, held >= 0.95 and learned <= 0.75
    kind = "fails" if not finds else "limited" if others or not compares else "holds"
    where = {name: weakest(numbers, name) for name in worst}
    english = told(worst, where, held, learned) + beside(others, finds)
    chinese = told_zh(worst, where, held, learned) + beside_zh(others, finds)
    best = max(value for name, value in worst.items() if name != "attention")
    key = Both(
        f"found at the worst number of balls: attention {worst['attention']:.0%}, the best other {best:.0%}",
        f"最不利球数下找到的比例：注意力 {worst['attention']:.0%}，其余最好 {best:.0%}",
    )
    return Verdict(kind, key, Both(english, chinese))


def weakest(numbers: dict[str, Any], name: str) -> int:
    """The number of balls at which a network finds the fewest."""
    means = [at["mean"] for at in numbers["found"][name]]
    return numbers["balls"][means.index(min(means))]


def beside(others: list[str], finds: bool) -> str:
    """Who else does it."""
    names = " and ".join(others)
    return f" At least 95 % everywhere {'also' if finds else 'only'}, without attention: {names}." if others else ""


def beside_zh(others: list[str], finds: bool) -> str:
    names = "、".join(NAMES_ZH[name] for name in others)
    return f"不用注意力而处处达到 95% 的{'还' if finds else '只'}有：{names}。" if others else ""


NAMES_ZH = {
    "fully connected": "全连接",
    "convolution": "卷积",
    "recurrent": "循环网络",
    "attention": "注意力",
    "rule": "与中位数比较的规则",
}


def told(worst: dict[str, float], where: dict[str, int], held: float, learned: float) -> str:
    """The numbers of the verdict in a sentence."""
    each = ", ".join(f"{name} {value:.0%} (of {where[name]} balls)" for name, value in worst.items())
    return (
        f"Found at each one's worst number of balls: {each}. Where the ball may be darker or lighter, a held white "
        f"ball "
        f"as the query points right in {held:.0%}, a learned vector in {learned:.0%}."
    )


def told_zh(worst: dict[str, float], where: dict[str, int], held: float, learned: float) -> str:
    each = "，".join(f"{NAMES_ZH[name]} {value:.0%}（{where[name]} 个球）" for name, value in worst.items())
    return (
        f"各自在最不利的球数下找到的比例：{each}。若球可能更暗或更亮，手中的白球作 Query 指对 {held:.0%}，"
        f"可学习向量 {learned:.0%}。"
    )


def draw(numbers: dict[str, Any], language: Language) -> Any:
    zh = language == "zh"
    with panels(language, 2) as (figure, (left, right)):
        for n, (name, found) in enumerate(sorted(numbers["found"].items())):
            means, spreads = [at["mean"] for at in found], [at["spread"] for at in found]
            left.errorbar(
                numbers["balls"],
                means,
                spreads,
                capsize=2,
                label=NAMES_ZH[name] if zh else name.replace("rule", "rule: compare with the median"),
                **style(n),
            )
        left.set_xscale("log")
        left.set_xticks(numbers["balls"], map(str, numbers["balls"]))
        left.minorticks_off()
        left.axvline(BALLS, color="#999999", linewidth=0.8)
        left.set_ylim(-0.03, 1.65)
        left.set_xlabel("袋中球数（在 10 个球上训练，竖线）" if zh else "balls in the bag (trained on 10, the line)")
        left.set_ylabel("全部判断正确的袋子比例" if zh else "share of bags judged right")
        left.set_title("找到灰球的比例" if zh else "How often the grey ball is found")
        left.legend(loc="upper left")
        draw_queries(right, numbers["pointed"], zh)
        return figure


def draw_queries(axes: Any, pointed: dict[str, Any], zh: bool) -> None:
    """How often each kind of query points at the odd ball."""
    kinds = ("darker", "darker or lighter")
    labels = ("只会更暗", "更暗或更亮") if zh else kinds
    for n, kind in enumerate(kinds):
        held = [pointed[f"{query}, {kind}"] for query in QUERIES]
        means, spreads = [one["mean"] for one in held], [one["spread"] for one in held]
        at = [place + 0.4 * n for place in range(3)]
        bars = axes.bar(
            at,
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
    axes.set_ylabel("指对的比例" if zh else "share pointed at right")
    axes.set_title("Query 是什么" if zh else "What the query is")
    axes.legend(title="那个球" if zh else "the odd ball is", ncols=2, loc="upper center")
