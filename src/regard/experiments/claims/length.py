"""Longer than in training: which positions still work on sequences that are longer than any that was learned from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...models.heads import IGNORED
from ...nn.block import StackConfig
from ..experiment import Both, Claim, Language, Size, Tell, Verdict
from ..learning import drawing, fit, panels, part, spread, style
from ..sequences import accuracy, lengths_axis, means, tagger

CLAIM = Claim(
    number=7,
    name="length",
    title=Both("Longer sequences than in training", "比训练时更长的序列"),
    claim=Both(
        "Positions made of sines and cosines let a model work on sequences longer than those it was trained on.",
        "由正弦、余弦函数构成的位置编码，使模型可以泛化到比训练时更长的序列。",
    ),
    setup=Both(
        "Each token of a random text depends on the two before it, in their order. Causal models of two layers that "
        "differ in their position alone learn to continue texts of one length and are tested on texts 2, 4 and 8 times "
        "as long. Counted is how often they name the likeliest next token in the second half of a text. Learned places "
        "beyond the trained length exist but were never trained.",
        "随机文本的每个词元取决于它前面的两个词元及其先后。若干两层因果模型只有位置方式不同，在同一长度的文本上学习续写，"
        "再在 2、4、8 倍长的文本上测试：统计在文本后半部分说中最可能的下一个词元的比例。可学习位置编码在训练长度之外的向量存在，但从未被训练过。",
    ),
    threshold=Both(
        "Holds if the accuracy with sinusoids is at least 0.8 at the trained length and stays at 90 % or more of that up "
        "to 8 times the length; limited if up to 2 times only; else it does not hold. The means of all seeds count.",
        "若使用正弦编码时，训练长度上的准确率不低于 0.8，且直到 8 倍长度都不低于其 90%，则成立；若只到 2 倍，则有条件成立；否则不成立。"
        "以各随机种子的平均值为准。",
    ),
)

NAMES = {
    "sinusoidal": Both("sinusoidal", "正弦"),
    "learned": Both("learned", "可学习"),
    "T5": Both("T5 bias", "T5 偏置"),
    "rotary": Both("rotary", "旋转"),
    "ALiBi": Both("ALiBi", "ALiBi"),
    "none": Both("none", "无"),
}
POSITIONS = {
    "T5": "T5Bias(buckets=16, max_distance=32, bidirectional=False)",
    "rotary": "Rotary()",
    "ALiBi": "Alibi()",
}
SYMBOLS = 6
SIZES: dict[Size, dict[str, Any]] = {
    "toy": {"tokens": 8, "steps": 12, "batch": 8, "seeds": 1, "dim": 16, "texts": 4},
    "usual": {"tokens": 32, "steps": 350, "batch": 16, "seeds": 2, "dim": 32, "texts": 32},
    "full": {"tokens": 128, "steps": 3000, "batch": 32, "seeds": 5, "dim": 64, "texts": 128},
}


def measure(size: Size, seed: int, tell: Tell) -> dict[str, Any]:
    """`accuracy[scheme][length]`, spread over seeds."""
    set_up = SIZES[size]
    lengths = [set_up["tokens"] * times for times in (1, 2, 4, 8)]
    runs = [(scheme, seed + n) for n in range(set_up["seeds"]) for scheme in NAMES]
    found: dict[str, list[list[float]]] = {scheme: [] for scheme in NAMES}
    for n, (scheme, own) in enumerate(runs):
        told = part(tell, n / len(runs), (n + 1) / len(runs), f"{scheme}, seed {own}")
        found[scheme].append(tested(scheme, lengths, set_up, own, told))
    by_length = {scheme: [spread(column) for column in zip(*rows, strict=True)] for scheme, rows in found.items()}
    return {"lengths": lengths, "accuracy": by_length, "chance": 1 / SYMBOLS}


def tested(scheme: str, lengths: list[int], set_up: dict[str, Any], seed: int, tell: Tell) -> list[float]:
    """The accuracy at each length of a model that has learned at the first."""
    generator = drawing(seed)
    torch.manual_seed(seed)
    chain = torch.softmax(3 * torch.randn(SYMBOLS, SYMBOLS, SYMBOLS, generator=generator), -1)
    places = {"sinusoidal": "sinusoidal", "learned": lengths[-1]}.get(scheme)
    stack = StackConfig(set_up["dim"], 2, 4, mask="Causal()", position=POSITIONS.get(scheme))
    model = tagger(stack, SYMBOLS, SYMBOLS, places)

    written = texts(chain, set_up["batch"] * set_up["steps"], lengths[0] + 1, generator).split(set_up["batch"])
    batches, at = torch.stack(written), torch.zeros(1, dtype=torch.long)  # counted where the texts are

    def loss() -> Tensor:
        text = batches[at].squeeze(0)
        at.add_(1)
        return model(tokens=text[:, :-1], labels=text[:, 1:]).loss

    fit(model, loss, set_up["steps"], 5e-3, tell)
    return [accuracy(model, likeliest(chain, texts(chain, set_up["texts"], tokens, generator))) for tokens in lengths]


def texts(chain: Tensor, count: int, tokens: int, generator: torch.Generator) -> Tensor:
    """Texts `[count, tokens]` of a chain `[symbols, symbols, symbols]`: p(next | the one before the last, the last)."""
    text = torch.randint(SYMBOLS, (count, 2), generator=generator)
    for _ in range(tokens - 2):
        following = torch.multinomial(chain[text[:, -2], text[:, -1]], 1, generator=generator)
        text = torch.cat([text, following], 1)
    return text


def likeliest(chain: Tensor, text: Tensor) -> dict[str, Tensor]:
    """Texts with the likeliest next token as the label of each place of the second half."""
    labels = torch.full_like(text, IGNORED)
    labels[:, 1:] = chain.argmax(-1)[text[:, :-1], text[:, 1:]]
    labels[:, : text.shape[1] // 2] = IGNORED
    return {"tokens": text, "labels": labels}


def kept(numbers: dict[str, Any], scheme: str) -> list[float]:
    """Accuracy at each length over that at the trained one."""
    found = means(numbers["accuracy"][scheme])
    return [value / max(found[0], 1e-9) for value in found]


def verdict(numbers: dict[str, Any]) -> Verdict:
    share = kept(numbers, "sinusoidal")
    long = {scheme: kept(numbers, scheme)[-1] for scheme in NAMES}
    good = [scheme for scheme in NAMES if long[scheme] >= 0.9]
    first = numbers["accuracy"]["sinusoidal"][0]["mean"]
    kind = "fails" if first < 0.8 or share[1] < 0.9 else "holds" if min(share) >= 0.9 else "limited"
    return Verdict(
        kind,
        Both(
            f"sinusoids keep {', '.join(f'{value:.0%}' for value in share[1:])} at 2, 4, 8 times the length",
            f"正弦编码在 2、4、8 倍长度上保留 {'、'.join(f'{value:.0%}' for value in share[1:])}",
        ),
        Both(
            f"With sinusoids accuracy is {first:.2f} at {numbers['lengths'][0]} tokens, and of that "
            f"{', '.join(f'{value:.0%}' for value in share[1:])} are left at 2, 4 and 8 times the length. At 8 times "
            f"{', '.join(f'{NAMES[scheme].en} keeps {value:.0%}' for scheme, value in long.items())}. "
            f"90 % or more: {', '.join(NAMES[scheme].en for scheme in good) or 'none'}.",
            f"使用正弦编码时，{numbers['lengths'][0]} 个词元上的准确率为 {first:.2f}；在 2、4、8 倍长度上分别保留其 "
            f"{'、'.join(f'{value:.0%}' for value in share[1:])}。8 倍长度时的保留比例："
            f"{'，'.join(f'{NAMES[scheme].zh} {value:.0%}' for scheme, value in long.items())}。"
            f"不低于 90% 的有：{'、'.join(NAMES[scheme].zh for scheme in good) or '无'}。",
        ),
    )


def draw(numbers: dict[str, Any], language: Language) -> Any:
    """Accuracy against length, a line a scheme."""
    lengths = numbers["lengths"]
    with panels(language, width=7.6, height=4.4) as (figure, (axes,)):
        for n, (scheme, name) in enumerate(NAMES.items()):
            values = numbers["accuracy"][scheme]
            bars = [one["spread"] for one in values]
            axes.errorbar(lengths, means(values), bars, label=name(language), capsize=2, **style(n))
        axes.axhline(numbers["chance"], color="#777777", linewidth=0.8, label=Both("chance", "随机猜测")(language))
        lengths_axis(axes, lengths)
        axes.set_ylim(0, 1.05)
        below = Both("tokens of the tested text (trained on the shortest)", "测试文本的词元数（训练时为最短者）")
        axes.set_xlabel(below(language))
        axes.set_ylabel(Both("likeliest next token named (share)", "说中最可能的下一个词元（比例）")(language))
        title = Both("Accuracy on texts up to 8 times the trained length", "在最长 8 倍于训练长度的文本上的准确率")
        axes.set_title(title(language))
        figure.legend(loc="outside right upper", frameon=False, title=Both("position", "位置方式")(language))
    return figure
