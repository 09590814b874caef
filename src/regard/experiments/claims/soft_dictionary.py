"""Attention as a soft dictionary: a query that matches several keys returns a mix of their values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...attention.attend import attend
from ..experiment import Bilingual, Claim, Criterion, Language, Measurements, Size, Verdict, judge
from ..parameters import DIM_TEXT, NO_SETTINGS, SEEDS_TEXT, STEPS_TEXT, Settings, count, resolve_counts
from ..progress import ProgressCallback, nth_subprogress
from ..toolkit.concepts import CONCEPTS
from ..toolkit.figures import COLOURS, subplots
from ..toolkit.metrics import summarize
from ..toolkit.training import fit, seeded_generator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=1,
    name="soft-dictionary",
    title=Bilingual("A soft dictionary", "软字典"),
    claim=Bilingual(
        "A query for a concept that covers several keys returns a mix of their values (fruit: 0.6 apple + 0.4 banana "
        "+ 0 chair = 8); a hard dictionary cannot do that.",
        "若查询是一个包含多个键的概念，注意力会把这些键的值组合起来（水果：0.6 苹果 + 0.4 香蕉 + 0 椅子 = 8）；"
        "硬字典做不到。",
    ),
    setup=Bilingual(
        "Words belong to concepts with given shares (fruit: apple 0.6, banana 0.4; the others drawn by the seed). "
        "Query and key vectors are trained on random dictionaries of 3 to 8 words with random values, queried with a "
        "concept or a word; the target is the mean of the values weighted by the shares of the words present. The "
        "test uses new dictionaries, and {apple: 10, banana: 5, chair: 2} queried with fruit. The hard dictionary "
        "receives the true shares and returns the value of the best single key.",
        "每个词以一定比例属于某个概念（水果：苹果 0.6、香蕉 0.4；其余由随机种子给出）。查询与键的向量用随机字典训练："
        "每个字典有 3 到 8 个词和随机的值，用概念或词去查询，目标是按字典中各词的比例求得的加权平均。"
        "之后用新的字典测试，并用“水果”查询 {苹果: 10, 香蕉: 5, 椅子: 2}。硬字典已知真实比例，"
        "返回最合适的那一个键的值。",
    ),
    criteria=(
        Criterion(
            "mix",
            Bilingual("Fruit gives 8 to within 0.1 with every seed", "对每个种子，“水果”的结果与 8 相差不超过 0.1"),
            "<=",
            0.1,
        ),
        Criterion(
            "chair",
            Bilingual("The chair gets a weight of at most 0.01", "椅子的权重不超过 0.01"),
            "<=",
            0.01,
        ),
        Criterion(
            "error",
            Bilingual(
                "On new dictionaries (values from 0 to 10) the mean error is at most 0.1, for concepts and for single words",
                "在新字典上（值在 0 到 10 之间），对概念和单个词的平均误差都不超过 0.1",
            ),
            "<=",
            0.1,
        ),
        Criterion(
            "hard",
            Bilingual(
                "The error of a hard dictionary for concepts is at least five times that of the soft one",
                "硬字典对概念的误差至少是软字典的五倍",
            ),
            ">=",
            5,
            core=True,
        ),
    ),
)

WORDS = [word for members in CONCEPTS.values() for word in members]
EXAMPLE = {"apple": 10.0, "banana": 5.0, "chair": 2.0}
STEPS: dict[Size, int] = {"toy": 60, "usual": 1500, "full": 6000}
SEEDS: dict[Size, int] = {"toy": 1, "usual": 3, "full": 5}
PARAMETERS = (
    count("dim", DIM_TEXT, 1, 128, 16),
    count("steps", STEPS_TEXT, 1, 20000, STEPS),
    count("seeds", SEEDS_TEXT, 1, 20, SEEDS),
)


class SoftDictionary(nn.Module):
    """Learned vectors of queries (words, then concepts) and keys; the values are given."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.queries = nn.Embedding(len(WORDS) + len(CONCEPTS), dim)
        self.keys = nn.Embedding(len(WORDS), dim)

    def forward(self, queries: Tensor, words: Tensor, values: Tensor) -> Tensor:
        """`queries [batch]`, `words` and `values [batch, keys]` → the answer `[batch]`."""
        q = self.queries(queries)[:, None, None]  # [batch, 1, 1, dim]
        return attend(q, self.keys(words)[:, None], values[:, None, :, None]).flatten()


def sample_memberships(generator: torch.Generator) -> Tensor:
    """The membership of each word in each query, `[queries, words]`: 1 for itself, fractions for a concept's words."""
    memberships = torch.zeros(len(WORDS) + len(CONCEPTS), len(WORDS))
    memberships[: len(WORDS)] = torch.eye(len(WORDS))
    start = 0
    for n, members in enumerate(CONCEPTS.values()):
        random = torch.rand(len(members), generator=generator) + 0.2
        memberships[len(WORDS) + n, start : start + len(members)] = torch.tensor([0.6, 0.4]) if n == 0 else random
        start += len(members)
    return memberships / memberships.sum(1, keepdim=True)


def sample_dictionaries(
    memberships: Tensor, batch: int, concepts: bool | None, generator: torch.Generator
) -> tuple[Tensor, ...]:
    """Random dictionaries: queries, words, values, and the true weights of the keys."""
    keys = int(torch.randint(3, 9, (), generator=generator))
    words = torch.rand(batch, len(WORDS), generator=generator).argsort(1)[:, :keys]
    values = torch.rand(batch, keys, generator=generator) * 10
    single = words[:, 0]
    concept_of_word = torch.tensor([n for n, members in enumerate(CONCEPTS.values()) for _ in members])
    concept = len(WORDS) + concept_of_word[single]  # of a word in the dictionary, so that there is a target
    choose = torch.rand(batch, generator=generator) < 0.5 if concepts is None else torch.full((batch,), concepts)
    queries = torch.where(choose, concept, single)
    weights = memberships[queries].gather(1, words)
    return queries, words, values, weights / weights.sum(1, keepdim=True)


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    values = resolve_counts(PARAMETERS, size, settings)
    seeds = values["seeds"]
    runs = [run_seed(seed + n, values, nth_subprogress(progress, n, seeds, f"seed {seed + n}")) for n in range(seeds)]
    return {
        "answer": summarize([run["answer"] for run in runs]),
        "weights": [run["weights"] for run in runs],
        "errors": {name: summarize([run["errors"][name] for run in runs]) for name in runs[0]["errors"]},
    }


def run_seed(seed: int, values: dict[str, int], progress: ProgressCallback) -> Measurements:
    """Train the vectors; returns the answer for fruit, its weights, and the errors on new dictionaries."""
    torch.manual_seed(seed)
    generator = seeded_generator(seed)
    memberships, model = sample_memberships(generator), SoftDictionary(values["dim"])

    def loss() -> Tensor:
        queries, words, given, weights = sample_dictionaries(memberships, 256, None, generator)
        return (model(queries, words, given) - (weights * given).sum(1)).square().mean()

    fit(model, loss, values["steps"], 3e-2, progress, cuda_graph=False)
    names = [word for word, _ in WORDS]
    words = torch.tensor([[names.index(word) for word in EXAMPLE]]).expand(3, -1)
    with torch.no_grad():
        # the weights of fruit on apple, banana and chair: the answers for one-hot values
        weights = model(torch.full((3,), len(WORDS)), words, torch.eye(3)).tolist()
        errors = mean_errors(model, memberships, True, generator) | mean_errors(model, memberships, False, generator)
    answer = sum(weight * value for weight, value in zip(weights, EXAMPLE.values(), strict=True))
    return {"weights": weights, "answer": answer, "errors": errors}


def mean_errors(
    model: SoftDictionary, memberships: Tensor, concepts: bool, generator: torch.Generator
) -> dict[str, float]:
    """Mean absolute error of the soft dictionary and of the best single key."""
    sums, rounds = torch.zeros(2), 20
    for _ in range(rounds):
        queries, words, values, weights = sample_dictionaries(memberships, 200, concepts, generator)
        targets = (weights * values).sum(1)
        hard = values.gather(1, weights.argmax(1, keepdim=True)).flatten()
        sums += torch.stack([(answers - targets).abs().mean() for answers in (model(queries, words, values), hard)])
    query_type = "concept" if concepts else "word"
    return {f"soft, {query_type}": float(sums[0]) / rounds, f"hard, {query_type}": float(sums[1]) / rounds}


def verdict(numbers: Measurements) -> Verdict:
    errors = {name: summary["all"] for name, summary in numbers["errors"].items()}
    max_error = max(abs(answer - 8) for answer in numbers["answer"]["all"])
    chair = max(weights[2] for weights in numbers["weights"])
    error = max(errors["soft, concept"] + errors["soft, word"])
    ratio = min(hard / soft for hard, soft in zip(errors["hard, concept"], errors["soft, concept"], strict=True))
    answer = numbers["answer"]["mean"]
    measured = {
        "mix": (
            max_error,
            Bilingual(f"{answer:.2f}, off by at most {max_error:.3f}", f"{answer:.2f}，最多相差 {max_error:.3f}"),
        ),
        "chair": (chair, Bilingual.same(f"{chair:.1e}")),
        "error": (error, Bilingual(f"at most {error:.3f}", f"最多 {error:.3f}")),
        "hard": (ratio, Bilingual(f"{ratio:.0f} times", f"{ratio:.0f} 倍")),
    }
    means = {name: summary["mean"] for name, summary in numbers["errors"].items()}
    return judge(
        CLAIM,
        measured,
        Bilingual(
            f"fruit gives {numbers['answer']['mean']:.2f} (expected 8); the error of a hard dictionary is {ratio:.0f} times as large",
            f"水果得 {numbers['answer']['mean']:.2f}（应为 8）；硬字典误差为 {ratio:.0f} 倍",
        ),
        Bilingual(
            f"Fruit gives {numbers['answer']['mean']:.3f} (at most {max_error:.3f} from 8; the nearest single value, 10, is "
            f"2 away), with a weight of up to {chair:.1e} on the chair: small, but never 0. On new dictionaries the mean error for "
            f"concepts is {means['soft, concept']:.3f} soft and {means['hard, concept']:.2f} hard ({ratio:.0f} times "
            f"or more), for single words {means['soft, word']:.3f} soft.",
            f"“水果”得到 {numbers['answer']['mean']:.3f}（与 8 最多相差 {max_error:.3f}；最接近的单个值 10 相差 2），"
            f"椅子的权重最多 "
            f"{chair:.1e}：很小，但永远不是 0。在新字典上，对概念的平均误差：软字典 {means['soft, concept']:.3f}，"
            f"硬字典 {means['hard, concept']:.2f}（至少 {ratio:.0f} 倍）；对单个词，软字典 {means['soft, word']:.3f}。",
        ),
    )


def draw(numbers: Measurements, language: Language) -> Figure:
    zh = language == "zh"
    names = [next(zh_word if zh else en for en, zh_word in WORDS if en == word) for word in EXAMPLE]
    with subplots(language, 2) as (figure, (left, right)):
        weights = torch.tensor(numbers["weights"]).mean(0).tolist()
        bars = left.bar(
            [f"{n}\n= {v:g}" for n, v in zip(names, EXAMPLE.values(), strict=True)], weights, color=COLOURS[0]
        )
        left.bar_label(bars, [f"{weight:.3f}" for weight in weights])
        mean = numbers["answer"]["mean"]
        left.set_title(
            f"“水果”给每个键的权重，结果 {mean:.2f}" if zh else f"Weights of the query fruit; result {mean:.2f}"
        )
        left.set_ylabel("权重（0–1）" if zh else "weight (0–1)")
        left.set_ylim(0, 0.75)
        draw_errors(right, numbers["errors"], zh)
        return figure


def draw_errors(axes: Axes, errors: Measurements, zh: bool) -> None:
    """Errors of the two dictionaries for concepts and for words, on a logarithmic axis."""
    labels = ("概念", "单个词") if zh else ("concept", "single word")
    for n, dictionary in enumerate(("soft", "hard")):
        summaries = [errors[f"{dictionary}, {query_type}"] for query_type in ("concept", "word")]
        x, heights = [group + 0.4 * n for group in (0, 1)], [max(summary["mean"], 5e-5) for summary in summaries]
        label = (("软字典", "硬字典") if zh else ("soft (attention)", "hard (best single key)"))[n]
        bars = axes.bar(x, heights, 0.38, color=COLOURS[n], hatch=("", "//")[n], edgecolor="white", label=label)
        axes.bar_label(bars, [f"{summary['mean']:.3g}" for summary in summaries], fontsize=8)
    axes.set_xticks([0.2, 1.2], labels)
    axes.set_yscale("log")
    axes.set_ylim(5e-5, 30)
    axes.set_ylabel("平均误差（值的单位，0–10）" if zh else "mean error (in units of the values, 0–10)")
    axes.set_title("新字典上的误差，按查询类型" if zh else "Error on new dictionaries, by type of query")
    axes.legend()
