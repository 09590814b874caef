"""Experiment 16: attention that looks at fewer pairs, or at fewer numbers, and what that costs in quality."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...attention.attend import attend
from ...attention.look import look
from ...nn.block import Stack, StackConfig
from ...nn.embeddings.text import sinusoids
from ...nn.parts import read_mask
from ..comparing import accuracy, by_size, name_axes, nth, percent, speaker
from ..experiment import Both, Claim, Language, Size, Tell, Verdict
from ..learning import drawing, fit, now, panels, part, spread, style

CLAIM = Claim(
    number=16,
    name="sparse",
    title=Both("Fewer pairs: sparse and approximate attention", "更少的配对：稀疏与近似注意力"),
    claim=Both(
        "Attention need not look at every pair: a truncated window, Longformer, BigBird, Linformer, Nyström and "
        "Performer keep the quality at a fraction of the cost, and block-wise computation costs no quality at all.",
        "注意力不必计算所有配对：截断窗口、Longformer、BigBird、Linformer、Nyström 和 Performer "
        "用一小部分代价保持质量，而分块计算完全不损失质量。",
    ),
    setup=Both(
        "Made frames of speech: each frame's sound is noisy, so its neighbours are needed to name it (near), and who "
        "speaks is heard in the first eight frames only, yet asked at every frame (far). The same two-layer encoder is "
        "trained with each attention. Cost: multiplications for weights and mixing, relative to full attention.",
        "人造语音帧：单帧带噪声，需要邻近帧才能辨认（近）；说话人只在最前八帧里能听出，却要在每一帧回答（远）。"
        "同一个两层编码器分别用每种注意力训练。代价：计算权重与混合所需的乘法次数，相对于全注意力。",
    ),
    threshold=Both(
        "Holds if block-wise equals the formula to 1e-5 (relative), every alternative costs at most half, the window "
        "loses at most 5 points near and all five others at most 5 points near and far. Limited if block-wise is exact "
        "and at least one alternative at half the cost or less loses at most 5 points both near and far. Fails "
        "otherwise.",
        "成立：分块计算与公式的相对误差不超过 1e-5，每种替代方法的代价不超过一半，窗口在“近”上至多损失 5 个百分点，"
        "其余五种在“近”和“远”上都至多损失 5 个百分点。"
        "有条件成立：分块计算精确，且至少有一种代价不超过一半的方法在两方面都至多损失 5 个百分点。其余为不成立。",
    ),
)

PHONES, SPEAKERS, BINS, HEARD = 8, 4, 12, 8
DIM, HEADS = 32, 2
NEAR_ONLY = "window"
CHINESE = {"full": "全注意力", "window": "窗口"}


@dataclass(frozen=True)
class Way:
    """How an encoder attends: its mask's line, its method's line, and what it costs of full attention's n²."""

    mask: str | None = None
    method: str = "Exact()"

    def cost(self, tokens: int) -> float:
        """Multiplications of one head, relative to full attention's 2 · tokens² · head_dim."""
        head_dim = DIM // HEADS
        full = 2 * tokens**2 * head_dim
        if self.mask is not None:
            return pairs(self.mask, tokens) / tokens**2
        number = int(self.method.split("=")[-1].rstrip(")")) if "=" in self.method else tokens
        if self.method.startswith("Nystrom"):  # three thin softmaxes, six steps of four products for the inverse
            return (4 * tokens * number * head_dim + tokens * number**2 + 24 * number**3) / full
        return 1.0 if self.method == "Exact()" else 4 * tokens * number * head_dim / full


def ways(tokens: int) -> dict[str, Way]:
    """Every attention that is compared, its sizes in proportion to the sequence."""
    near, few = tokens // 16, tokens // 8
    return {
        "full": Way(),
        "window": Way(f"Window(before={near}, after={near})"),
        "Longformer": Way(f"longformer(window={2 * near}, tokens={HEARD})"),
        "BigBird": Way(f"bigbird(block={max(tokens // 32, 1)}, random=2, tokens={HEARD})"),
        "Linformer": Way(method=f"Linformer(tokens={tokens}, rank={few})"),
        "Nyström": Way(method=f"Nystrom(landmarks={near})"),
        "Performer": Way(method=f"Performer(features={few})"),
    }


def pairs(line: str, tokens: int) -> int:
    """How many pairs a mask allows."""
    x = torch.zeros(1, 1, tokens, 1)
    weights = look(x, x, mask=read_mask(line), weights=True).weights
    return int((weights > 0).sum()) if weights is not None else 0


def measure(size: Size, seed: int, tell: Tell) -> dict[str, Any]:
    tokens, seeds = by_size(size, 64, 128, 512), by_size(size, 1, 2, 4)
    steps, batch = by_size(size, 6, 600, 2000), by_size(size, 4, 12, 32)
    compared = ways(tokens)
    near, far = ({name: [] for name in compared} for _ in range(2))
    times = dict.fromkeys(compared, 0.0)
    for n in range(seeds):
        for m, (name, way) in enumerate(compared.items()):
            began = now()
            told = nth(part(tell, n / seeds, (n + 1) / seeds), m, len(compared), name)
            found = train(way, tokens, steps, batch, seed * 1000 + n, told)
            near[name].append(found[0])
            far[name].append(found[1])
            times[name] += (now() - began) / seeds
    return {
        "tokens": tokens,
        "cost": {name: way.cost(tokens) for name, way in compared.items()},
        "near": {name: spread(values) for name, values in near.items()},
        "far": {name: spread(values) for name, values in far.items()},
        "blockwise": blockwise_error(tokens, seed),
        "times": times,
    }


def train(way: Way, tokens: int, steps: int, batch: int, seed: int, tell: Tell) -> tuple[float, float]:
    """(near, far): the shares of frames whose sound and whose speaker the encoder names."""
    torch.manual_seed(seed)
    model = Listener(way)
    voices = torch.randn(PHONES, BINS), torch.randn(SPEAKERS, BINS)

    def loss() -> Tensor:
        frames, phones, who = speech(batch, tokens, *voices)
        said, speaking = model(frames)
        wrong = nn.functional.cross_entropy
        return wrong(said.flatten(0, 1), phones.flatten()) + wrong(speaking.flatten(0, 1), who.flatten())

    fit(model, loss, steps, 4e-3, tell)
    torch.manual_seed(seed + 500)
    frames, phones, who = speech(32, tokens, *voices)
    with torch.no_grad():
        said, speaking = model(frames)
    return accuracy(said, phones), accuracy(speaking, who)


def speech(batch: int, tokens: int, phones: Tensor, speakers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Frames `[batch, tokens, bins]`, each one's phone and its speaker, `[batch, tokens]`."""
    starts = torch.rand(batch, tokens) < 1 / 8
    starts[:, 0] = True
    drawn = torch.randint(PHONES, (batch, tokens))
    said = drawn.gather(1, starts.cumsum(1) - 1)
    loud = 1 + 0.3 * torch.sin(torch.arange(tokens) / 9 + 6 * torch.rand(batch, 1))
    frames = phones[said] * loud[..., None] + 1.5 * torch.randn(batch, tokens, BINS)
    who = torch.randint(SPEAKERS, (batch, 1)).expand(-1, tokens)
    heard = torch.zeros(tokens, 1)
    heard[:HEARD] = 1.5
    return torch.cat([frames, speakers[who] * heard], -1), said, who


class Listener(nn.Module):
    """Frames with their places through a stack; two answers for each frame."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self.start = nn.Linear(2 * BINS, DIM)
        self.stack = Stack(StackConfig(dim=DIM, layers=2, heads=HEADS, hidden=64, mask=way.mask, method=way.method))
        self.phones, self.speakers = nn.Linear(DIM, PHONES), nn.Linear(DIM, SPEAKERS)

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        x = self.start(frames) + sinusoids(torch.arange(frames.shape[1]), DIM)
        y = self.stack(x)
        return self.phones(y), self.speakers(y)


def blockwise_error(tokens: int, seed: int) -> float:
    """How far block-wise attention is from the formula, relative, in float32."""
    q, k, v = torch.randn(3, 1, HEADS, tokens, 16, generator=drawing(seed))
    exact = attend(q, k, v, backend="reference")
    return ((attend(q, k, v, backend="blockwise") - exact).norm() / exact.norm()).item()


def verdict(numbers: dict[str, Any]) -> Verdict:
    others = [name for name in numbers["cost"] if name != "full"]
    lost = {
        side: {name: numbers[side]["full"]["mean"] - numbers[side][name]["mean"] for name in others}
        for side in ("near", "far")
    }
    exact = numbers["blockwise"] <= 1e-5
    cheap = [name for name in others if numbers["cost"][name] <= 0.5]
    kept = [name for name in cheap if lost["near"][name] <= 0.05 and lost["far"][name] <= 0.05]
    whole = set(others) - {NEAR_ONLY} <= set(kept) and NEAR_ONLY in cheap and lost["near"][NEAR_ONLY] <= 0.05
    kind = "holds" if exact and whole else "limited" if exact and kept else "fails"
    each = ", ".join(
        f"{name} {100 * lost['near'][name]:+.1f} / {100 * lost['far'][name]:+.1f} ({numbers['cost'][name]:.2f})"
        for name in others
    )
    names, full = ", ".join(kept), [percent(numbers[side]["full"]["mean"]) for side in ("near", "far")]
    key = Both(
        f"{len(kept)} of {len(others)} cheaper forms lose at most 5 points near and far",
        f"{len(others)} 种较省的形式中有 {len(kept)} 种远近都至多损失 5 个百分点",
    )
    return Verdict(kind, key, Both(
        f"Block-wise differs by {numbers['blockwise']:.0e}. Full attention gets {full[0]} near and {full[1]} far. "
        "Points "
        f"lost near / far (cost): {each}. Within 5 points both near and far: {names or 'none'}.",
        f"分块计算相差 {numbers['blockwise']:.0e}。全注意力：近 {full[0]}，远 {full[1]}。近 / "
        f"远损失的百分点（代价）：{each.replace('window', '窗口')}。"
        f"两方面都在 5 个百分点以内的：{names.replace('window', '窗口') or '无'}。",
    ))  # fmt: skip


def draw(numbers: dict[str, Any], language: Language) -> Any:
    say = speaker(language)
    with panels(language, 2, width=4.8) as (figure, axes):
        title = say("What each attention gets right, and what it costs", "各种注意力的正确率与代价")
        figure.suptitle(f"{title} ({numbers['tokens']} {say('frames', '帧')})")
        sides = (("near", say("near: which sound", "近：哪个音")), ("far", say("far: who speaks", "远：谁在说话")))
        for panel, (side, text) in zip(axes, sides, strict=True):
            for n, (name, cost) in enumerate(numbers["cost"].items()):
                look_of = style(n) | {"linestyle": "", "markersize": 8}
                found = numbers[side][name]
                panel.errorbar(
                    cost,
                    100 * found["mean"],
                    yerr=100 * found["spread"],
                    label=say(name, CHINESE.get(name) or name),
                    capsize=3,
                    **look_of,
                )
            name_axes(
                panel,
                text,
                say("cost, of full attention's", "代价（相对全注意力）"),
                say("frames right, %", "正确帧，%"),
            )
            panel.set_xlim(0, 1.05)
        axes[1].legend(loc="center right")
    return figure
