"""What holds a deep stack of blocks together: the residual connection and layer normalisation."""

from __future__ import annotations

import numpy as np

from ....experiments.experiment import Bilingual
from ...controls import Slider
from ...pictures import Heatmap, Lines
from ...step import Evidence, Finding, Result, Step


def compute_block(layers: int, strength: float) -> Result:
    def cosines(x):
        unit = x / np.linalg.norm(x, axis=1, keepdims=True)
        return unit @ unit.T

    def run(residual, normalise):
        rng, x, stats = np.random.default_rng(3), np.random.default_rng(4).normal(size=(6, 64)), []
        for half in ("attention", "feed-forward") * layers:
            weights = np.exp(np.clip(x @ x.T / 64, -50, 50))
            mixed = weights / weights.sum(axis=1, keepdims=True) @ x
            new = (mixed if half == "attention" else np.maximum(0, x)) @ rng.normal(size=(64, 64)) / 8
            x = residual * x + strength * new
            x = (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True) if normalise else x
            stats.append(((cosines(x).sum() - 6) / 30, np.linalg.norm(x, axis=1).mean()))
        return cosines(x), *np.array(stats[1::2]).T

    similarity, likeness, size = run(residual=1, normalise=True)
    (bare, bare_likeness, _), (_, _, wild_size) = run(0, True), run(1, False)
    return dict(
        layer=np.arange(1, layers + 1), similarity=similarity, bare=bare, likeness=likeness,
        bare_likeness=bare_likeness, size=size, wild_size=wild_size, last=likeness[-1], bare_last=bare_likeness[-1],
        last_size=size[-1], wild_last=wild_size[-1], layers=layers,
    )  # fmt: skip


BLOCK = Step(
    name="block",
    title=Bilingual("Residual and layer normalisation", "残差与层归一化"),
    claim=Bilingual(
        "Each half of a block is wrapped in a residual connection and layer normalisation: x ← LayerNorm(x + half(x)).",
        "模块的每一半外面都有残差连接和层归一化：x ← LayerNorm(x + half(x))。",
    ),
    task=Bilingual(
        "Stack untrained layers. Without the residual six tokens soon are one and the same vector; without the "
        "normalisation their size runs away. Make the halves stronger and both happen sooner.",
        "叠加未经训练的层。没有残差，六个词元很快变成同一个向量；没有层归一化，向量的大小失控。把每一半的强度调大，两"
        "者来得更快。",
    ),
    controls=(
        Slider("layers", Bilingual("layers", "层数"), 6, 2, 12, 1, whole=True),
        Slider("strength", Bilingual("strength of the halves", "每一半的强度"), 0.7, 0.2, 1.0, 0.05),
    ),
    compute=compute_block,
    answer="similarity",
    pictures=(
        Heatmap(
            Bilingual(
                "cosine of the six tokens, with residual",
                "六个词元的余弦，有残差",
            ),
            "similarity",
            role="score",
        ),
        Heatmap(Bilingual("cosine of the six tokens, without", "六个词元的余弦，没有残差"), "bare", role="score"),
        Lines(
            Bilingual("how alike the tokens are", "词元之间有多相似"),
            "layer",
            (("likeness", Bilingual("with residual", "有残差")), ("bare_likeness", Bilingual("without", "没有残差"))),
            Bilingual("layer", "层"),
            Bilingual("mean cosine of two tokens", "两个词元的平均余弦"),
        ),
        Lines(
            Bilingual("how long the vectors are", "向量有多长"),
            "layer",
            (
                (
                    "size",
                    Bilingual(
                        "with layer normalisation",
                        "有层归一化",
                    ),
                ),
                (
                    "wild_size",
                    Bilingual(
                        "without",
                        "没有层归一化",
                    ),
                ),
            ),
            Bilingual("layer", "层"),
            Bilingual("mean norm", "平均范数"),
            log_y=True,
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "After {layers} layers two tokens have a mean cosine of {last:.2f} with the residual and "
                "{bare_last:.4f} without: attention averages, and averages of averages are all the same.",
                "{layers} 层之后，两个词元的平均余弦在有残差时是 {last:.2f}，没有时是 {bare_last:.4f}：注意力在求平均，"
                "平均的平均都一样。",
            ),
            lambda result: result["last"] < 0.7 and result["bare_last"] > 0.99,
        ),
        Finding(
            Bilingual(
                "With layer normalisation the mean norm stays at {last_size:.1f} (√64 = 8); without it is "
                "{wild_last:.1f}.",
                "有层归一化，平均范数保持在 {last_size:.1f}（√64 = 8）；没有则是 {wild_last:.1f}。",
            ),
            lambda result: abs(result["last_size"] - 8) < 0.1 and result["wild_last"] > 2 * result["last_size"],
        ),
    ),
    evidence=(Evidence("normalisation", ("growth", "layer-norm", "training")),),
)
