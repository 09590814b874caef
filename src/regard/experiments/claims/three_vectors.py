"""Query, key and value: what is lost when two of the three vectors are made equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...attention.attend import attend
from ..experiment import Claim, Criterion, Measurements, Verdict, judge
from ..parameters import (
    DIM_TEXT,
    NO_SETTINGS,
    SEEDS_TEXT,
    STEPS_TEXT,
    TOKENS_TEXT,
    Bilingual,
    Language,
    Settings,
    Size,
    from_sizes,
    resolve_counts,
)
from ..progress import ProgressCallback, nth_subprogress
from ..toolkit.figures import draw_reference_line, label_axes, plot_bars, subplots
from ..toolkit.metrics import summarize
from ..toolkit.training import fit, seeded_generator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=25,
    name="three-vectors",
    title=Bilingual("Why three vectors", "为什么要三个向量"),
    claim=Bilingual(
        "A token needs three vectors: a query to ask, a key to be found by, a value to give. With one of the "
        "projections missing or shared, attention loses what it can express.",
        "每个词元需要三个向量：查询用来提问，键用来被找到，值是要给出的内容。少了其中一个投影，或让两个投影相同，"
        "注意力的表达能力就会下降。",
    ),
    setup=Bilingual(
        "Every token has a name, a content out of 8 and the name of another token; it must predict the content of that "
        "token (one-way pointers: a token that is pointed at points elsewhere). One layer of attention with one head "
        "and a linear head is trained with all three projections, with W_q = W_k, with W_k = W_v, and without W_v "
        "(the value is the token itself). The token has as many dimensions as the name, content and pointer together "
        "need, or a quarter as many (narrow).",
        "每个词元有名字、8 种内容之一，以及另一个词元的名字；它要预测那个词元的内容（单向指针：被指向的词元指向别处）。"
        "一层单头注意力加线性输出，分别用三个投影、W_q = W_k、W_k = W_v、不用 W_v（值就是词元本身）训练。"
        "词元的维度足以容纳名字、内容和指针，或只有四分之一（窄）。",
    ),
    criteria=(
        Criterion(
            "all-three",
            Bilingual(
                "With three projections the content is found (at least 95 %)", "用三个投影能找到内容（不低于 95%）"
            ),
            ">=",
            0.95,
            core=True,
        ),
        Criterion(
            "same-query-key",
            Bilingual("W_q = W_k loses at least 10 points", "W_q = W_k 时至少损失 10 个百分点"),
            ">=",
            0.1,
        ),
        Criterion(
            "same-key-value",
            Bilingual("W_k = W_v loses at least 10 points", "W_k = W_v 时至少损失 10 个百分点"),
            ">=",
            0.1,
        ),
        Criterion(
            "no-value",
            Bilingual("Without W_v at least 10 points are lost", "不用 W_v 时至少损失 10 个百分点"),
            ">=",
            0.1,
        ),
        Criterion(
            "narrow-key-value",
            Bilingual(
                "With a quarter of the dimensions W_k = W_v loses at least 10 points",
                "维度只有四分之一时，W_k = W_v 至少损失 10 个百分点",
            ),
            ">=",
            0.1,
        ),
    ),
)

CONTENTS = 8
VARIANTS = {
    "all": Bilingual("W_q, W_k, W_v", "W_q、W_k、W_v"),
    "q = k": Bilingual("W_q = W_k", "W_q = W_k"),
    "k = v": Bilingual("W_k = W_v", "W_k = W_v"),
    "no v": Bilingual("no W_v", "无 W_v"),
}
WIDTHS = {"wide": Bilingual("wide", "宽"), "narrow": Bilingual("narrow (a quarter)", "窄（四分之一）")}
SIZES: dict[Size, dict[str, int]] = {
    "toy": {"tokens": 5, "dim": 24, "steps": 8, "seeds": 1},
    "usual": {"tokens": 12, "dim": 32, "steps": 600, "seeds": 2},
    "full": {"tokens": 12, "dim": 32, "steps": 4000, "seeds": 5},
}
PARAMETERS = (
    from_sizes(SIZES, "tokens", TOKENS_TEXT, 3, 48),
    from_sizes(SIZES, "dim", DIM_TEXT, 8, 256, multiple=4),
    from_sizes(SIZES, "steps", STEPS_TEXT, 1, 20000),
    from_sizes(SIZES, "seeds", SEEDS_TEXT, 1, 20),
)


class Lookup(nn.Module):
    """One head of attention over tokens of name, content and pointer; a logit for each content."""

    def __init__(self, variant: str, tokens: int, dim: int) -> None:
        super().__init__()
        self.variant = variant
        self.embed = nn.Linear(2 * tokens + CONTENTS, dim)
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.head = nn.Linear(dim, CONTENTS)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        k = self.k(x)
        q = k if self.variant == "q = k" else self.q(x)
        v = {"k = v": k, "no v": x}.get(self.variant)
        v = self.v(x) if v is None else v
        return self.head(attend(q[:, None], k[:, None], v[:, None]).squeeze(1))


def sample_pointers(batch: int, tokens: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens `[batch, tokens, 2 · tokens + contents]` and the content that each points at, `[batch, tokens]`.

    The pointers of a row are a cycle through all tokens in random order, so that no two point at each other.
    """
    order = torch.rand(batch, tokens, generator=generator).argsort(1)
    pointers = torch.zeros_like(order).scatter(1, order, order.roll(-1, 1))
    contents = torch.randint(CONTENTS, (batch, tokens), generator=generator)
    names = torch.eye(tokens).expand(batch, -1, -1)
    one_hot = nn.functional.one_hot
    x = torch.cat([names, one_hot(pointers, tokens).float(), one_hot(contents, CONTENTS).float()], -1)
    return x, contents.gather(1, pointers)


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    """`accuracy[width][variant]`, summarized over seeds."""
    config = SIZES[size] | resolve_counts(PARAMETERS, size, settings)
    dims = {"wide": config["dim"], "narrow": config["dim"] // 4}
    jobs = [(width, variant, n) for width in WIDTHS for variant in VARIANTS for n in range(config["seeds"])]
    accuracies: dict[str, dict[str, list[float]]] = {width: {variant: [] for variant in VARIANTS} for width in WIDTHS}
    for m, (width, variant, n) in enumerate(jobs):
        run_progress = nth_subprogress(progress, m, len(jobs), f"{variant}, {width}")
        accuracies[width][variant].append(train_lookup(variant, dims[width], config, seed + n, run_progress))
    return {
        "dims": dims,
        "accuracy": {width: {v: summarize(values) for v, values in rows.items()} for width, rows in accuracies.items()},
        "chance": 1 / CONTENTS,
    }


def train_lookup(variant: str, dim: int, config: dict[str, int], seed: int, progress: ProgressCallback) -> float:
    """Train a variant; returns its accuracy on new rows."""
    torch.manual_seed(seed)
    generator, model = seeded_generator(seed), Lookup(variant, config["tokens"], dim)

    def loss() -> Tensor:
        x, targets = sample_pointers(64, config["tokens"], generator)
        return nn.functional.cross_entropy(model(x).flatten(0, 1), targets.flatten())

    fit(model, loss, config["steps"], 1e-2, progress)
    x, targets = sample_pointers(512, config["tokens"], generator)
    with torch.no_grad():
        return (model(x).argmax(-1) == targets).float().mean().item()


def verdict(numbers: Measurements) -> Verdict:
    accuracy = {width: {v: row["mean"] for v, row in rows.items()} for width, rows in numbers["accuracy"].items()}
    wide, narrow = accuracy["wide"], accuracy["narrow"]
    losses = {
        "same-query-key": (wide["all"], wide["q = k"]),
        "same-key-value": (wide["all"], wide["k = v"]),
        "no-value": (wide["all"], wide["no v"]),
        "narrow-key-value": (narrow["all"], narrow["k = v"]),
    }
    measured = {"all-three": (wide["all"], Bilingual.same(f"{wide['all']:.0%}"))}
    for name, (whole, part) in losses.items():
        text = Bilingual(f"{part:.0%} against {whole:.0%}", f"{part:.0%}，三个投影时 {whole:.0%}")
        measured[name] = whole - part, text
    rows = {
        width: [f"{VARIANTS[variant].en} {value:.0%}" for variant, value in values.items()]
        for width, values in accuracy.items()
    }
    dims = numbers["dims"]
    return judge(
        CLAIM,
        measured,
        Bilingual(
            f"accuracy: three projections {wide['all']:.0%}, W_q = W_k {wide['q = k']:.0%}, W_k = W_v {wide['k = v']:.0%}",
            f"准确率：三个投影 {wide['all']:.0%}，W_q = W_k {wide['q = k']:.0%}，W_k = W_v {wide['k = v']:.0%}",
        ),
        Bilingual(
            f"Accuracy with {dims['wide']} dimensions: {', '.join(rows['wide'])}; with {dims['narrow']}: "
            f"{', '.join(rows['narrow'])} (chance {numbers['chance']:.0%}). W_q = W_k makes the scores symmetric: a token "
            "attends to the one it points at and to the one that points at it.",
            f"{dims['wide']} 维时的准确率：{'，'.join(rows['wide'])}；{dims['narrow']} 维时："
            f"{'，'.join(rows['narrow'])}（随机 {numbers['chance']:.0%}）。W_q = W_k 使分数对称："
            "一个词元既关注它指向的，也关注指向它的。".replace("no W_v", "无 W_v"),
        ),
    )


def draw(numbers: Measurements, language: Language) -> Figure:
    zh = language == "zh"
    with subplots(language, 1, width=6.4) as (figure, (axes,)):
        rows = numbers["accuracy"]
        names = {width: f"{WIDTHS[width](language)}, dim {numbers['dims'][width]}" for width in WIDTHS}
        plot_bars(
            axes,
            [label(language) for label in VARIANTS.values()],
            {names[width]: [rows[width][variant] for variant in VARIANTS] for width in WIDTHS},
        )
        draw_reference_line(axes, numbers["chance"], "随机" if zh else "chance")
        axes.set_ylim(0, 1.3)
        label_axes(
            axes,
            "去掉或共用一个投影" if zh else "A projection shared or missing",
            "投影" if zh else "projections",
            "准确率" if zh else "accuracy",
        )
        axes.legend(ncols=3, loc="upper center")
        return figure
