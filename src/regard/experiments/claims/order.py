"""Order: without positions "A 打了 B" and "B 打了 A" are the same bag of words; which positions tell them apart."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...nn import Learned, Sinusoidal, Stack, StackConfig
from ..experiment import Both, Claim, Language, Size, Tell, Verdict
from ..learning import COLOURS, drawing, fit, panels, part, spread

CLAIM = Claim(
    number=6,
    name="order",
    title=Both("Who hit whom", "谁打了谁"),
    claim=Both(
        "Self-attention knows nothing of order: shuffle the words and the outputs are the same, shuffled. “A hit B” "
        "(A打了B) and “B hit A” (B打了A) cannot be told apart until positions are added: sinusoidal, learned, "
        "relative (T5), rotary or ALiBi.",
        "自注意力本身不包含位置或顺序的信息：打乱输入，输出也只是相应地打乱。“A打了B”和“B打了A”的词向量集合相同，"
        "模型无法区分，直到加入位置编码：正弦、可学习、相对（T5）、旋转或 ALiBi。",
    ),
    setup=Both(
        "A two-layer encoder in float64 is given random sentences and shuffled ones. Then it learns sentences of three "
        "words, name, verb, name, to say who did it, the same for every kind of position, from the mean of its "
        "outputs; "
        "it is tested on pairs of names that it has not seen. And how far apart are its vectors for “A打了B” and "
        "“B打了A”? A causal mask, with and without ALiBi, is tried as well.",
        "给双精度的两层编码器随机句子及其打乱后的句子。之后它学习由三个词组成的句子（名字、动词、名字），"
        "从输出的平均中说出是谁做的，各种位置编码的条件相同，用没有见过的名字组合检验；并测量它对“A打了B”与“B打了A”"
        "给出的向量相差多远。另外也试验因果掩码，带与不带 ALiBi。",
    ),
    threshold=Both(
        "Holds if without positions shuffling the input shuffles the outputs to within 1e-9 and the accuracy is at "
        "most "
        "0.6 (0.5 is a guess between the two names), and each of the five kinds of position reaches 0.95 (means of the "
        "seeds). Limited if one or more of the five do not. Fails otherwise.",
        "若没有位置时打乱输入与打乱输出相差不超过 1e-9，准确率至多 0.6（在两个名字中猜是 0.5），"
        "且五种位置编码都达到 0.95"
        "（各随机种子的平均），则成立。若五种之中有达不到的，则有条件成立。否则不成立。",
    ),
)

NAMES, VERBS, DIM = 20, 5, 32
SCHEMES: dict[str, dict[str, Any]] = {
    "none": {},
    "sinusoidal": {},
    "learned": {},
    "relative (T5)": {"position": "T5Bias()"},
    "rotary": {"position": "Rotary()"},
    "ALiBi": {"position": "Alibi()"},
    "none, causal": {"mask": "Causal()"},
    "ALiBi, causal": {"position": "Alibi()", "mask": "Causal()"},
}
FIVE = ("sinusoidal", "learned", "relative (T5)", "rotary", "ALiBi")
STEPS = {"toy": 10, "usual": 200, "full": 2000}
SEEDS = {"toy": 1, "usual": 3, "full": 5}


class Reader(nn.Module):
    """A sentence as one vector, and who did it."""

    def __init__(self, scheme: str) -> None:
        super().__init__()
        self.words = nn.Embedding(NAMES + VERBS, DIM)
        added = {"sinusoidal": Sinusoidal(DIM), "learned": Learned(3, DIM)}
        self.places = added.get(scheme)
        self.body = Stack(StackConfig(dim=DIM, layers=2, heads=2, hidden=64, **SCHEMES[scheme]))
        self.head = nn.Linear(DIM, NAMES)

    def each(self, words: Tensor) -> Tensor:
        """A vector for every word in its sentence."""
        x = self.words(words)
        return self.body(x if self.places is None else x + self.places(torch.arange(words.shape[1])).to(x.dtype))

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.each(words).mean(1))


def sentences(pairs: Tensor, batch: int, generator: torch.Generator) -> Tensor:
    """Name, verb, name: `[batch, 3]`, the names drawn from the pairs."""
    first, second = pairs[torch.randint(len(pairs), (batch,), generator=generator)].unbind(1)
    return torch.stack([first, torch.randint(NAMES, NAMES + VERBS, (batch,), generator=generator), second], 1)


def split_pairs(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pairs of two names to learn from and, a quarter, to test with; a pair and its reverse stay together."""
    together = torch.combinations(torch.arange(NAMES))
    together = together[torch.randperm(len(together), generator=generator)]
    both = [torch.cat([half, half.flip(1)]) for half in together.split(len(together) * 3 // 4)]
    return both[0], torch.cat(both[1:])


def measure(size: Size, seed: int, tell: Tell) -> dict[str, Any]:
    runs: dict[str, list[tuple[float, float]]] = {scheme: [] for scheme in SCHEMES}
    count = SEEDS[size] * len(SCHEMES)
    for n in range(count):
        scheme = list(SCHEMES)[n % len(SCHEMES)]
        now = part(tell, n / count, (n + 1) / count, scheme)
        runs[scheme].append(learn(scheme, STEPS[size], seed + n // len(SCHEMES), now))
    return {
        "shuffled": {scheme: shuffled(scheme, seed) for scheme in SCHEMES},
        "accuracy": {scheme: spread([right for right, _ in held]) for scheme, held in runs.items()},
        "apart": {scheme: spread([apart for _, apart in held]) for scheme, held in runs.items()},
    }


@torch.no_grad()
def shuffled(scheme: str, seed: int) -> float:
    """The largest difference between outputs of a shuffled sentence and shuffled outputs, before any training."""
    torch.manual_seed(seed)
    model = Reader(scheme).double().eval()
    words, order = torch.randint(NAMES + VERBS, (8, 3)), torch.tensor([2, 0, 1])
    return (model.each(words[:, order]) - model.each(words)[:, order]).abs().max().item()


def learn(scheme: str, steps: int, seed: int, tell: Tell) -> tuple[float, float]:
    """Accuracy on unseen pairs, and how far apart the vectors of a sentence and its reverse are, of their length."""
    torch.manual_seed(seed)
    generator = drawing(seed)
    (known, unseen), model = split_pairs(generator), Reader(scheme)

    def loss() -> Tensor:
        words = sentences(known, 128, generator)
        return nn.functional.cross_entropy(model(words), words[:, 0])

    fit(model, loss, steps, 3e-3, tell)
    with torch.no_grad():
        words = sentences(unseen, 1000, generator)
        right = (model(words).argmax(1) == words[:, 0]).float().mean().item()
        there, back = (model.each(one).mean(1) for one in (words, words.flip(1)))
        return right, ((there - back).norm(dim=1) / there.norm(dim=1)).mean().item()


def verdict(numbers: dict[str, Any]) -> Verdict:
    right = {scheme: held["mean"] for scheme, held in numbers["accuracy"].items()}
    blind = numbers["shuffled"]["none"] <= 1e-9 and right["none"] <= 0.6
    short = [scheme for scheme in FIVE if right[scheme] < 0.95]
    kind = "fails" if not blind else "limited" if short else "holds"
    best, worst = (choose(right[scheme] for scheme in FIVE) for choose in (max, min))
    key = Both(
        f"who hit whom: {right['none']:.0%} without positions, {worst:.0%} to {best:.0%} with",
        f"谁打了谁：无位置 {right['none']:.0%}，有位置 {worst:.0%} 到 {best:.0%}",
    )
    return Verdict(kind, key, Both(told(numbers, right, short), told_zh(numbers, right, short)))


def told(numbers: dict[str, Any], right: dict[str, float], short: list[str]) -> str:
    each = ", ".join(f"{scheme} {right[scheme]:.0%}" for scheme in FIVE)
    limit = f" Not enough: {', '.join(short)}." if short else ""
    if "ALiBi" in short:
        limit += (
            " ALiBi's penalty |i − j| is the same in both directions, so a sentence and its mirror image are alike."
        )
    return (
        f"Without positions a shuffled input gives the shuffled output to within {numbers['shuffled']['none']:.0e}, "
        f"and "
        f"who hit whom is right in {right['none']:.0%}; with them: {each}.{limit} A causal mask without any position "
        f"reaches {right['none, causal']:.0%}, ALiBi with it {right['ALiBi, causal']:.0%}."
    )


def told_zh(numbers: dict[str, Any], right: dict[str, float], short: list[str]) -> str:
    each = "，".join(f"{NAMES_ZH[scheme]} {right[scheme]:.0%}" for scheme in FIVE)
    limit = f"不够的是：{'、'.join(NAMES_ZH[scheme] for scheme in short)}。" if short else ""
    if "ALiBi" in short:
        limit += "ALiBi 的惩罚 |i − j| 两个方向相同，因此一句话与它的镜像没有区别。"
    return (
        f"没有位置时，打乱输入与打乱输出只差 {numbers['shuffled']['none']:.0e}，"
        f"判断谁打了谁的准确率为 {right['none']:.0%}；"
        f"有位置时：{each}。{limit}只用因果掩码、不加位置可达 {right['none, causal']:.0%}，"
        f"ALiBi 加因果掩码 {right['ALiBi, causal']:.0%}。"
    )


NAMES_ZH = {
    "none": "无位置",
    "sinusoidal": "正弦",
    "learned": "可学习",
    "relative (T5)": "相对（T5）",
    "rotary": "旋转",
    "ALiBi": "ALiBi",
    "none, causal": "无位置，因果掩码",
    "ALiBi, causal": "ALiBi，因果掩码",
}


def draw(numbers: dict[str, Any], language: Language) -> Any:
    zh = language == "zh"
    names = [NAMES_ZH[scheme] if zh else scheme for scheme in SCHEMES]
    with panels(language, 2, width=4.6) as (figure, (left, right)):
        draw_bars(left, numbers["accuracy"], names, "{:.2f}")
        left.axvline(0.5, color=COLOURS[1], linestyle="--", label="在两个名字中猜" if zh else "a guess between the two")
        left.set_xlim(0, 1.18)
        left.set_xlabel("没见过的名字组合上的准确率" if zh else "accuracy on unseen pairs of names")
        left.set_title("说出是谁打的" if zh else "Saying who did it")
        left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18))
        draw_bars(right, numbers["apart"], names, "{:.2g}")
        right.set_xlim(0, 1.3 * max(held["mean"] + held["spread"] for held in numbers["apart"].values()) + 1e-9)
        right.set_xlabel("两个向量的距离 / 长度" if zh else "distance of the two vectors / length")
        right.set_title("“A打了B”与“B打了A”相差多远" if zh else "How far apart “A hit B” and “B hit A” are")
        return figure


def draw_bars(axes: Any, held: dict[str, Any], names: list[str], form: str) -> None:
    means, spreads = ([held[scheme][what] for scheme in SCHEMES] for what in ("mean", "spread"))
    bars = axes.barh(names, means, xerr=spreads, color=COLOURS[0], capsize=2)
    axes.bar_label(bars, [form.format(mean) for mean in means], fontsize=8, padding=3)
    axes.invert_yaxis()
