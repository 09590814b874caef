"""Sparse and approximate attention: accuracy and cost beside full attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...attention.attend import attend
from ...attention.look import look
from ...nn.block import Stack, StackConfig
from ...nn.embeddings.text import sinusoids
from ...nn.parts.parse import parse_mask
from ..experiment import Bilingual, Claim, Criterion, Language, Measurements, Size, Verdict, judge
from ..parameters import (
    NO_SETTINGS,
    SEEDS_TEXT,
    STEPS_TEXT,
    TOKENS_TEXT,
    Parameter,
    Settings,
    constant,
    count,
    resolve_counts,
    resolve_settings,
)
from ..progress import ProgressCallback, nth_subprogress
from ..toolkit.figures import label_axes, line_style, localizer, subplots
from ..toolkit.metrics import accuracy, format_percent, summarize
from ..toolkit.profiling import read_clock
from ..toolkit.training import choose_by_size, fit, seeded_generator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=16,
    name="sparse",
    title=Bilingual("Sparse and approximate attention", "稀疏与近似注意力"),
    claim=Bilingual(
        "Attention does not need every query-key pair: a truncated window, Longformer, BigBird, Linformer, Nyström "
        "and Performer keep the quality at a fraction of the cost, and blockwise computation costs no quality at all.",
        "注意力不必计算所有查询-键对：截断窗口、Longformer、BigBird、Linformer、"
        "Nyström 和 Performer 用一小部分开销保持质量，而分块计算完全不损失质量。",
    ),
    setup=Bilingual(
        "Synthetic speech frames: each frame is noisy, so its neighbours are needed to classify its sound (near), "
        "and the speaker can be identified only from the first eight frames but must be predicted at every frame "
        "(far). The same two-layer encoder is trained with each attention. Cost: multiplications for weights and "
        "mixing, relative to full attention.",
        "合成语音帧：单帧带噪声，需要邻近帧才能辨认其音（近）；说话人只能从最前八帧辨认，却要在每一帧预测（远）。"
        "同一个两层编码器分别用每种注意力训练。开销：计算权重与加权求和所需的乘法次数，相对于全注意力。",
    ),
    criteria=(
        Criterion(
            "blockwise",
            Bilingual(
                "Blockwise computation equals the formula (to within 1e-5)", "分块计算与公式相同（相对误差不超过 1e-5）"
            ),
            "<=",
            1e-5,
            core=True,
        ),
        Criterion(
            "cost",
            Bilingual("Every alternative costs at most half", "每种替代方法的开销不超过一半"),
            "<=",
            0.5,
        ),
        Criterion(
            "window",
            Bilingual("A window loses at most 5 points on what is near", "窗口在“近”上最多损失 5 个百分点"),
            "<=",
            0.05,
        ),
        Criterion(
            "longformer",
            Bilingual(
                "Longformer loses at most 5 points near and far", "Longformer 在“近”和“远”上都最多损失 5 个百分点"
            ),
            "<=",
            0.05,
        ),
        Criterion(
            "bigbird",
            Bilingual("BigBird loses at most 5 points near and far", "BigBird 在“近”和“远”上都最多损失 5 个百分点"),
            "<=",
            0.05,
        ),
        Criterion(
            "linformer",
            Bilingual("Linformer loses at most 5 points near and far", "Linformer 在“近”和“远”上都最多损失 5 个百分点"),
            "<=",
            0.05,
        ),
        Criterion(
            "nystrom",
            Bilingual("Nyström loses at most 5 points near and far", "Nyström 在“近”和“远”上都最多损失 5 个百分点"),
            "<=",
            0.05,
        ),
        Criterion(
            "performer",
            Bilingual("Performer loses at most 5 points near and far", "Performer 在“近”和“远”上都最多损失 5 个百分点"),
            "<=",
            0.05,
        ),
    ),
)

PHONES, SPEAKERS, BINS, VOICED_FRAMES = 8, 4, 12, 8
DIM, HEADS = 32, 2
NEAR_ONLY = "window"
CHINESE = {"full": "全注意力", "window": "窗口"}
PARAMETERS = (
    count("tokens", TOKENS_TEXT, 64, 512, {"toy": 64, "usual": 128, "full": 512}, multiple=32),
    Parameter("noise", Bilingual("noise of a frame", "每帧的噪声"), 0.0, 5.0, constant(1.5)),
    count("steps", STEPS_TEXT, 1, 20000, {"toy": 6, "usual": 600, "full": 2000}),
    count("seeds", SEEDS_TEXT, 1, 20, {"toy": 1, "usual": 2, "full": 4}),
)


@dataclass(frozen=True)
class AttentionVariant:
    """The mask and the method of an encoder."""

    mask: str | None = None
    method: str = "Exact()"

    def cost(self, tokens: int) -> float:
        """Multiplications of one head, relative to full attention's 2 · tokens² · head_dim."""
        head_dim = DIM // HEADS
        full = 2 * tokens**2 * head_dim
        if self.mask is not None:
            x = torch.zeros(1, 1, tokens, 1)
            weights = look(x, x, mask=parse_mask(self.mask), weights=True).weights
            assert weights is not None
            return int((weights > 0).sum()) / tokens**2
        number = int(self.method.split("=")[-1].rstrip(")")) if "=" in self.method else tokens
        if self.method.startswith("Nystrom"):  # three softmaxes, six iterations of four products for the inverse
            return (4 * tokens * number * head_dim + tokens * number**2 + 24 * number**3) / full
        return 1.0 if self.method == "Exact()" else 4 * tokens * number * head_dim / full


def attention_variants(tokens: int) -> dict[str, AttentionVariant]:
    """The compared variants, with sizes in proportion to the sequence."""
    near, few = tokens // 16, tokens // 8
    return {
        "full": AttentionVariant(),
        "window": AttentionVariant(f"Window(before={near}, after={near})"),
        "Longformer": AttentionVariant(f"longformer(window={2 * near}, tokens={VOICED_FRAMES})"),
        "BigBird": AttentionVariant(f"bigbird(block={max(tokens // 32, 1)}, random=2, tokens={VOICED_FRAMES})"),
        "Linformer": AttentionVariant(method=f"Linformer(tokens={tokens}, rank={few})"),
        "Nyström": AttentionVariant(method=f"Nystrom(landmarks={near})"),
        "Performer": AttentionVariant(method=f"Performer(features={few})"),
    }


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    counts = resolve_counts(PARAMETERS, size, settings)
    noise = resolve_settings(PARAMETERS, size, settings)["noise"]
    tokens, seeds, batch = counts["tokens"], counts["seeds"], choose_by_size(size, 4, 12, 32)
    variants = attention_variants(tokens)
    near, far = ({name: [] for name in variants} for _ in range(2))
    times = dict.fromkeys(variants, 0.0)
    for n in range(seeds):
        for m, (name, variant) in enumerate(variants.items()):
            start = read_clock()
            run_progress = nth_subprogress(nth_subprogress(progress, n, seeds), m, len(variants), name)
            accuracies = train_listener(variant, counts, noise, batch, seed * 1000 + n, run_progress)
            near[name].append(accuracies[0])
            far[name].append(accuracies[1])
            times[name] += (read_clock() - start) / seeds
    return {
        "tokens": tokens,
        "cost": {name: variant.cost(tokens) for name, variant in variants.items()},
        "near": {name: summarize(values) for name, values in near.items()},
        "far": {name: summarize(values) for name, values in far.items()},
        "blockwise": blockwise_error(tokens, seed),
        "times": times,
    }


def train_listener(
    variant: AttentionVariant, counts: dict[str, int], noise: float, batch: int, seed: int, progress: ProgressCallback
) -> tuple[float, float]:
    """Train; returns the accuracies of phones (near) and of speakers (far)."""
    torch.manual_seed(seed)
    model, tokens = SpeechModel(variant), counts["tokens"]
    voices = torch.randn(PHONES, BINS), torch.randn(SPEAKERS, BINS)

    def loss() -> Tensor:
        frames, phones, speakers = sample_speech(batch, tokens, *voices, noise)
        phone_logits, speaker_logits = model(frames)
        cross_entropy = nn.functional.cross_entropy
        return cross_entropy(phone_logits.flatten(0, 1), phones.flatten()) + cross_entropy(
            speaker_logits.flatten(0, 1), speakers.flatten()
        )

    fit(model, loss, counts["steps"], 4e-3, progress)
    torch.manual_seed(seed + 500)
    frames, phones, speakers = sample_speech(32, tokens, *voices, noise)
    with torch.no_grad():
        phone_logits, speaker_logits = model(frames)
    return accuracy(phone_logits, phones), accuracy(speaker_logits, speakers)


def sample_speech(
    batch: int, tokens: int, phones: Tensor, speakers: Tensor, noise: float = 1.5
) -> tuple[Tensor, Tensor, Tensor]:
    """Frames `[batch, tokens, bins]`, and the phone and the speaker of each, `[batch, tokens]`."""
    starts = torch.rand(batch, tokens) < 1 / 8
    starts[:, 0] = True
    segments = torch.randint(PHONES, (batch, tokens))
    labels = segments.gather(1, starts.cumsum(1) - 1)
    loud = 1 + 0.3 * torch.sin(torch.arange(tokens) / 9 + 6 * torch.rand(batch, 1))
    frames = phones[labels] * loud[..., None] + noise * torch.randn(batch, tokens, BINS)
    speaker_ids = torch.randint(SPEAKERS, (batch, 1)).expand(-1, tokens)
    voiced = torch.zeros(tokens, 1)
    voiced[:VOICED_FRAMES] = 1.5
    return torch.cat([frames, speakers[speaker_ids] * voiced], -1), labels, speaker_ids


class SpeechModel(nn.Module):
    """A stack over frames with sinusoidal positions; two classifications per frame."""

    def __init__(self, variant: AttentionVariant) -> None:
        super().__init__()
        self.start = nn.Linear(2 * BINS, DIM)
        self.stack = Stack(
            StackConfig(dim=DIM, layers=2, heads=HEADS, hidden=64, mask=variant.mask, method=variant.method)
        )
        self.phones, self.speakers = nn.Linear(DIM, PHONES), nn.Linear(DIM, SPEAKERS)

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        x = self.start(frames) + sinusoids(torch.arange(frames.shape[1]), DIM)
        y = self.stack(x)
        return self.phones(y), self.speakers(y)


def blockwise_error(tokens: int, seed: int) -> float:
    """The relative error of blockwise attention in float32."""
    q, k, v = torch.randn(3, 1, HEADS, tokens, 16, generator=seeded_generator(seed))
    exact = attend(q, k, v, backend="reference")
    return ((attend(q, k, v, backend="blockwise") - exact).norm() / exact.norm()).item()


def verdict(numbers: Measurements) -> Verdict:
    others = [name for name in numbers["cost"] if name != "full"]
    losses = {
        side: {name: numbers[side]["full"]["mean"] - numbers[side][name]["mean"] for name in others}
        for side in ("near", "far")
    }
    cheap = [name for name in others if numbers["cost"][name] <= 0.5]
    accurate = [name for name in cheap if losses["near"][name] <= 0.05 and losses["far"][name] <= 0.05]
    highest = max(numbers["cost"][name] for name in others)
    measured = {
        "blockwise": (numbers["blockwise"], Bilingual.same(f"{numbers['blockwise']:.0e}")),
        "cost": (highest, Bilingual(f"at most {highest:.0%}", f"最多 {highest:.0%}")),
    }
    for name in others:
        worst = losses["near"][name] if name == NEAR_ONLY else max(losses[side][name] for side in losses)
        points = Bilingual(f"{100 * worst:+.1f} points", f"{100 * worst:+.1f} 个百分点")
        measured[name.lower().replace("ö", "o")] = worst, points
    all_points = ", ".join(
        f"{name} {100 * losses['near'][name]:+.1f} / {100 * losses['far'][name]:+.1f} ({numbers['cost'][name]:.2f})"
        for name in others
    )
    names, full = ", ".join(accurate), [format_percent(numbers[side]["full"]["mean"]) for side in ("near", "far")]
    key = Bilingual(
        f"{len(accurate)} of {len(others)} cheaper methods lose at most 5 points near and far",
        f"{len(others)} 种开销较小的方法中有 {len(accurate)} 种在近和远上都最多损失 5 个百分点",
    )
    return judge(CLAIM, measured, key, Bilingual(
        f"Blockwise computation differs by {numbers['blockwise']:.0e}. Full attention: {full[0]} near, {full[1]} far. "
        "Points "
        f"lost near / far (cost): {all_points}. Within 5 points both near and far: {names or 'none'}.",
        f"分块计算相差 {numbers['blockwise']:.0e}。全注意力：近 {full[0]}，远 {full[1]}。近 / "
        f"远损失的百分点（开销）：{all_points.replace('window', '窗口')}。"
        f"两方面都在 5 个百分点以内的：{names.replace('window', '窗口') or '无'}。",
    ))  # fmt: skip


def draw(numbers: Measurements, language: Language) -> Figure:
    tr = localizer(language)
    with subplots(language, 2, width=4.8) as (figure, axes):
        title = tr("Accuracy and cost of each attention", "各种注意力的准确率与开销")
        figure.suptitle(f"{title} ({numbers['tokens']} {tr('frames', '帧')})")
        sides = (("near", tr("near: sound", "近：音")), ("far", tr("far: speaker", "远：说话人")))
        for panel, (side, text) in zip(axes, sides, strict=True):
            for n, (name, cost) in enumerate(numbers["cost"].items()):
                summary = numbers[side][name]
                panel.errorbar(
                    cost,
                    100 * summary["mean"],
                    yerr=100 * summary["spread"],
                    label=tr(name, CHINESE.get(name) or name),
                    capsize=3,
                    **line_style(n, line="", markersize=8),
                )
            label_axes(
                panel,
                text,
                tr("cost relative to full attention", "开销（相对全注意力）"),
                tr("accuracy, %", "准确率，%"),
            )
            panel.set_xlim(0, 1.05)
        axes[1].legend(loc="center right")
    return figure
