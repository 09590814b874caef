"""The other scaling: embeddings times √dim beside the position code."""

from __future__ import annotations

import numpy as np

from ....experiments.experiment import Bilingual
from ...controls import Choice, Slider
from ...pictures import Bars, Lines
from ...step import Evidence, Finding, Result, Step

PARTS = (
    Bilingual("embedding", "嵌入"),
    Bilingual("embedding × √dim", "嵌入 × √dim"),
    Bilingual("position code", "位置编码"),
)


def compute_embedding_scale(log_dim: int, start: str, position: int) -> Result:
    dim, rng = 2**log_dim, np.random.default_rng(0)
    deviation = {"root": 1 / np.sqrt(dim), "one": 1.0, "small": 0.02}[start]
    words = rng.normal(0, deviation, (200, dim))  # embeddings of 200 words as they are initialised
    angles = position / 10000 ** (np.arange(0, dim, 2) / dim)
    code = np.stack([np.sin(angles), np.cos(angles)], axis=1).ravel()
    scaled = np.sqrt(dim) * words
    norms = np.array([np.linalg.norm(x, axis=-1).mean() for x in (words, scaled, code)])
    pairs = [(words, code), (scaled, code), (words, code / np.sqrt(dim))]
    shares = np.array([(x**2).sum() / ((x**2).sum() + len(x) * (c**2).sum()) for x, c in pairs])
    ratio = norms[:2] / norms[2]
    return dict(
        norms=norms, shares=shares, plain=ratio[0], scaled=ratio[1], norm=norms[0], code_norm=norms[2], dim=dim,
        root=np.sqrt(dim), half=np.sqrt(dim / 2), component=np.arange(32), word=words[0, :32], large=scaled[0, :32],
        code=code[:32], share=shares[0], share_scaled=shares[1], smaller=shares[2],
    )  # fmt: skip


EMBEDDING_SCALE = Step(
    name="embedding-scale",
    title=Bilingual("Embedding × √dim beside the position code", "嵌入 × √dim 与位置编码"),
    claim=Bilingual(
        "The Transformer scales in two places. Scores are divided by √d_k; embeddings are multiplied by √dim before "
        "the position code is added. Embeddings start with standard deviation 1/√dim, so their norm is about 1, and "
        "× √dim brings them to the magnitude of the position code instead of letting it drown them.",
        "Transformer 有两处缩放：分数除以 √d_k；嵌入先乘 √dim 再加位置编码。嵌入初始化的标准差是 1/√dim，范数约为 1，"
        "乘 √dim 后与位置编码量级相当，不会被它淹没。",
    ),
    task=Bilingual(
        "Compare the three bars, then choose another initialisation: with standard deviation 1 the factor makes the "
        "position code vanish beside the word.",
        "比较三根条形，再换一种初始化：标准差为 1 时，再乘 √dim 反而让位置编码微不足道。",
    ),
    controls=(
        Slider("log_dim", Bilingual("log₂ dim", "log₂ 维度"), 9, 5, 10, 1, whole=True),
        Choice(
            "start",
            Bilingual("embeddings start with standard deviation", "嵌入初始化的标准差"),
            "root",
            (
                ("root", Bilingual("1/√dim", "1/√dim")),
                ("one", Bilingual("1 (torch)", "1（torch 默认）")),
                ("small", Bilingual("0.02 (BERT)", "0.02（BERT）")),
            ),
        ),
        Slider("position", Bilingual("position", "位置"), 10, 0, 100, 1, whole=True),
    ),
    compute=compute_embedding_scale,
    answer="norms",
    pictures=(
        Bars(Bilingual("norms (mean of 200 words)", "范数（200 个词的均值）"), "norms", PARTS, role="plain", low=0),
        Bars(
            Bilingual("share of the word in the sum", "词在和向量里的份额"),
            "shares",
            (
                Bilingual("word + code", "词 + 编码"),
                Bilingual("√dim·word + code", "√dim·词 + 编码"),
                Bilingual("word + code/√dim", "词 + 编码/√dim"),
            ),
            role="value",
            low=0,
            high=1,
        ),
        Lines(
            Bilingual("the first 32 components", "前 32 个分量"),
            "component",
            (
                ("word", Bilingual("embedding of a word", "一个词的嵌入")),
                ("large", Bilingual("the same × √dim", "同一嵌入 × √dim")),
                ("code", Bilingual("position code", "位置编码")),
            ),
            Bilingual("component", "分量"),
            Bilingual("value", "数值"),
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "Unscaled, an embedding of dim {dim} has norm {norm:.2f} beside a code of norm {code_norm:.1f}: "
                "{plain:.2f} times. The word has {share:.1%} of the sum; × √dim {share_scaled:.0%}.",
                "不缩放时，{dim} 维嵌入的范数是 {norm:.2f}，位置编码是 {code_norm:.1f}，前者是后者的 {plain:.2f} 倍，"
                "词只占和向量的 {share:.1%}；乘 √dim 后占 {share_scaled:.0%}。",
            ),
            lambda result: abs(result["norm"] - 1) < 0.1 and result["plain"] < 0.3 and result["share_scaled"] > 0.6,
        ),
        Finding(
            Bilingual(
                "The code's norm is √(dim/2) = {half:.1f}, not √dim = {root:.1f}: each pair sin² + cos² adds 1. So "
                "the scaled word is {scaled:.2f} = √2 times as long. A norm of 1 is also not “as large as a code in "
                "[−1, 1]”: one is the length of a vector, the other the size of a component.",
                "位置编码的范数是 √(dim/2) = {half:.1f}，而不是 √dim = {root:.1f}：每一对 sin² + cos² 只贡献 1。所以"
                "缩放后的词是它的 {scaled:.2f} = √2 倍长。另外，范数为 1 并不等于“与 [−1, 1] 的编码相当”：一个是整个"
                "向量的长度，一个是单个分量的大小。",
            ),
            lambda result: abs(result["code_norm"] - result["half"]) < 1e-9 and abs(result["scaled"] - 2**0.5) < 0.05,
        ),
        Finding(
            Bilingual(
                "Dividing the code by √dim instead gives the word the same share, {smaller:.0%}: what matters is the "
                "ratio. The sum is then √dim times smaller.",
                "改为把位置编码除以 √dim，词的份额同样是 {smaller:.0%}：要紧的是比例，只是和向量小了 √dim 倍。",
            ),
            lambda result: abs(result["smaller"] - result["share_scaled"]) < 1e-9,
        ),
    ),
    evidence=(Evidence("embedding-scaling"),),
)
