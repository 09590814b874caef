"""Convolution beside attention: fixed kernels and dynamic weights, local and global layers, images as patches."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import regard as rg

from ....experiments.experiment import Bilingual
from ...controls import MaskGrid, Numbers, Slider
from ...pictures import Drawing, Heatmap, Lines, Plane
from ...step import Evidence, Finding, Result, Step

TOKENS = tuple(Bilingual(f"token {n}", f"词元 {n}") for n in range(1, 7))
PICTURE = (
    "##..#...",
    "##..#...",
    "..##....",
    "..##..#.",
    ".#....##",
    "......##",
    "#...##..",
    ".#..##..",
)


def compute_dynamic_weights(tokens: np.ndarray, kernel: np.ndarray) -> Result:
    n = len(tokens)
    fixed = kernel[1] * np.eye(n) + kernel[0] * np.eye(n, k=-1) + kernel[2] * np.eye(n, k=1)

    def weigh(x):
        scores = x @ x.T / np.sqrt(2)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

    weights = weigh(tokens)
    output = weights @ tokens
    other = tokens.copy()
    other[0] = -other[0]  # another input: the first token is turned around
    changed = np.abs(weigh(other) - weights).max()
    moved = np.abs(fixed[1:-1] @ np.roll(tokens, 1, axis=0) - np.roll(fixed @ tokens, 1, axis=0)[1:-1])[1:].max()
    far = max(weights[i, j] for i in range(n) for j in range(n) if abs(i - j) > 1)
    return dict(
        fixed=fixed, weights=weights, output=output, convolved=fixed @ tokens, changed=changed, far=far,
        near=np.abs(np.triu(fixed, 2) + np.tril(fixed, -2)).max(), moved=moved,
    )  # fmt: skip


def attend_dynamic_weights(tokens: Tensor, kernel: Tensor) -> Tensor:
    x = tokens[None, None]
    return rg.attend(x, x, x)[0, 0]


DYNAMIC_WEIGHTS = Step(
    name="dynamic-weights",
    title=Bilingual("A kernel is fixed, attention looks first", "卷积核是固定的，注意力先看内容"),
    claim=Bilingual(
        "A convolution shares one small kernel over all positions: it is the same wherever it stands and whatever it "
        "sees. Attention computes its weights from the content, over all positions, and so can choose where to read.",
        "卷积在所有位置上共用一个小卷积核：站在哪里、看到什么都一样。注意力由内容算出对所有位置的权重，可以自己选择从"
        "哪里读取。",
    ),
    task=Bilingual(
        "Drag a token: the mixing by attention changes, that by the convolution never does. Move two distant tokens "
        "onto each other and watch them find each other. Then edit the kernel: all rows change alike.",
        "拖动一个词元：注意力的混合矩阵跟着变，卷积的始终不变。把相隔很远的两个词元拖到一起，看它们怎样找到对方。再改"
        "卷积核：每一行都同样改变。",
    ),
    controls=(
        Numbers(
            "tokens",
            Bilingual("tokens", "词元"),
            ((2.0, 0.5), (-1.0, 1.5), (-2.0, -0.5), (0.5, -1.5), (-1.0, -2.0), (2.0, 1.0)),
            -3,
            3,
            rows=TOKENS,
        ),
        Numbers(
            "kernel",
            Bilingual(
                "kernel (left, self, right)",
                "卷积核（左、自身、右）",
            ),
            (0.25, 0.5, 0.25),
            -1,
            1,
            0.05,
        ),
    ),
    compute=compute_dynamic_weights,
    attend=attend_dynamic_weights,
    pictures=(
        Plane(Bilingual("the tokens", "词元"), (("tokens", "key"),), (("tokens", TOKENS),), extent=3),
        Heatmap(Bilingual("mixing by the convolution", "卷积的混合矩阵"), "fixed", TOKENS, TOKENS, role="score"),
        Heatmap(Bilingual("mixing by attention", "注意力的混合矩阵"), "weights", TOKENS, TOKENS),
    ),
    findings=(
        Finding(
            Bilingual(
                "Turning the first token around changes attention's weights by up to {changed:.2f}; the kernel has "
                "no input it could depend on. Its 3 numbers serve all 6 positions.",
                "把第一个词元反向，注意力的权重最多变 {changed:.2f}；卷积核不依赖任何输入，3 个数用于全部 6 个位置。",
            ),
            lambda result: result["changed"] > 0.2,
        ),
        Finding(
            Bilingual(
                "Because the kernel is shared, moving the sequence by one place moves the convolution's output by "
                "one place (difference {moved:.0e} away from the ends).",
                "卷积核处处共用，所以序列平移一格，卷积的输出也平移一格（除两端外相差 {moved:.0e}）。",
            ),
            lambda result: result["moved"] < 1e-12,
        ),
        Finding(
            Bilingual(
                "The heaviest weight between tokens that are not neighbours is {far:.2f}; in the convolution it is "
                "{near:.0f}.",
                "不相邻的词元之间最大的权重是 {far:.2f}；卷积里是 {near:.0f}。",
            ),
            lambda result: result["far"] > 0.2 and result["near"] == 0,
        ),
    ),
    evidence=(
        Evidence("convolution", ("content", "fixed-offsets")),
        Evidence("fixed-weights", ("fixed", "dynamic", "network")),
    ),
)


def compute_local_to_global(layers: int, locality: float) -> Result:
    i, j = np.indices((33, 33))
    distance = np.abs(i - j)
    near = np.exp(-locality * distance)  # a head that prefers near tokens
    curves = []
    for weights in (distance <= 1, near, near**0):  # kernel of 3, this head, equal weights
        step = (weights / weights.sum(axis=1, keepdims=True) + np.eye(33)) / 2  # half of it residual
        stacks = [np.linalg.matrix_power(step, n)[16] for n in range(1, 11)]  # what the middle token has taken in
        curves.append([*((stack * distance[16]).sum() for stack in stacks), stacks[layers - 1]])
    (*convolution, _), (*near, token), (*wide, _) = curves
    return dict(
        layer=np.arange(1, 11), convolution=convolution, near=near, wide=wide, layers=layers,
        position=np.arange(-16, 17), token=token, first=near[0], here=near[layers - 1], wide_first=wide[0],
        kernel=convolution[layers - 1],
    )  # fmt: skip


LOCAL_TO_GLOBAL = Step(
    name="local-to-global",
    title=Bilingual("Low layers local, high layers global?", "低层看局部，高层看全局？"),
    claim=Bilingual(
        "Convolutions build features by stacking: texture, edge, object, scene. Attention could look everywhere in "
        "each layer, and is said to do it in an order of its own: lower heads local, like a convolution, upper ones "
        "global and about meaning.",
        "卷积靠堆叠来抽象特征：纹理、边缘、物体、场景。注意力每层都能看到全局，据说也有自己的次序：低层的头偏局部，像"
        "卷积；高层的头偏全局，捕捉语义。",
    ),
    task=Bilingual(
        "Here is how “local” is measured: the mean distance of what a token takes in. Move the locality from 0 to 2 "
        "and add layers: a stack of local layers becomes global too. What trained models do is measured below.",
        "“局部”是这样度量的：一个词元所取信息的平均距离。把局部性从 0 调到 2，再加层：一叠局部的层也会变得全局。训练"
        "好的模型实际如何，见下面的实测。",
    ),
    controls=(
        Slider("layers", Bilingual("layers", "层数"), 4, 1, 10, 1, whole=True),
        Slider(
            "locality",
            Bilingual(
                "locality of the head (penalty for each token)",
                "头的局部性（每隔一个词元的惩罚）",
            ),
            0.7,
            0.0,
            2.0,
            0.1,
        ),
    ),
    compute=compute_local_to_global,
    answer="token",
    pictures=(
        Lines(
            Bilingual("mean distance of what the middle token has taken in", "中间的词元所取信息的平均距离"),
            "layer",
            (
                ("convolution", Bilingual("convolution, kernel 3", "卷积，核为 3")),
                ("near", Bilingual("attention with this locality", "这样局部的注意力")),
                ("wide", Bilingual("attention, equal weights", "注意力，权重相等")),
            ),
            Bilingual("layer", "层"),
            Bilingual("distance (tokens)", "距离（词元）"),
            marker="layers",
        ),
        Lines(
            Bilingual("where it comes from", "来自哪里"),
            "position",
            (("token", Bilingual("share of each input", "各输入所占的份额")),),
            Bilingual("position relative to the token", "相对该词元的位置"),
            Bilingual("share", "份额"),
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "One local layer takes in information from {first:.2f} tokens away, {layers} from {here:.2f}; a head "
                "with equal weights is at {wide_first:.1f} in its first layer.",
                "一层局部注意力所取信息的平均距离是 {first:.2f} 个词元，{layers} 层是 {here:.2f}；权重相等的头第一层"
                "就是 {wide_first:.1f}。",
            ),
            lambda result: result["here"] > 1.5 * result["first"] and result["wide_first"] > result["here"],
        ),
    ),
    evidence=(
        Evidence(
            "layers",
            ("text-distance", "image-distance", "heads", "text-low", "text-high", "image-low", "image-high"),
        ),
    ),
    link="heads?model=writer",
)


def compute_image_patches(picture: np.ndarray, patch: int, sharpness: float) -> Result:
    pixels = np.where(picture, 1.0, -1.0)
    patches = pixels.reshape(4, 2, 4, 2).swapaxes(1, 2).reshape(16, 4)  # 4 × 4 patches of 2 × 2 pixels
    scores = sharpness * patches @ patches[patch - 1] / 2  # √4 = 2
    weights = np.exp(scores - scores.max())
    weights = weights / weights.sum()
    row, column = np.divmod(np.arange(16), 4)
    apart = np.maximum(abs(row - row[patch - 1]), abs(column - column[patch - 1]))  # patches between two patches
    output = weights @ patches
    alike = [n for n in range(16) if n != patch - 1 and weights[n] > 0.9 * weights[patch - 1]]
    far = max([int(apart[n]) for n in alike], default=0)
    return dict(
        output=output, weights=weights, pixels=pixels, far=far, alike=len(alike),
        layers=2 * far, share=sum(weights[n] for n in alike), tokens=16, pairs=16 * 16,
    )  # fmt: skip


def attend_image_patches(picture: Tensor, patch: int, sharpness: float) -> Tensor:
    pixels = torch.where(picture, 1.0, -1.0).double()
    patches = pixels.view(4, 2, 4, 2).transpose(1, 2).reshape(1, 1, 16, 4)
    q = patches[:, :, patch - 1 : patch]
    return rg.attend(q, patches, patches, score=rg.Dot(scale=sharpness / 2))[0, 0, 0]


IMAGE_PATCHES = Step(
    name="image-patches",
    title=Bilingual("A picture as a sequence of patches", "把图像当作图块的序列"),
    claim=Bilingual(
        "ViT cuts a picture into patches and treats them as tokens: attention relates distant patches at once, where a "
        "convolution widens its view layer by layer. With much data and compute this is more flexible; a convolution "
        "keeps its local prior and is cheaper.",
        "ViT 把图像切成图块，当作词元序列：注意力一步就能联系相隔很远的图块，卷积则要逐层扩大视野。"
        "数据和算力充足时前者更灵活；卷积则有局部归纳偏置，计算也更省。",
    ),
    task=Bilingual(
        "Click a patch and see which patches it attends to. Paint its pattern somewhere far away: it is found there "
        "too, without another layer.",
        "点一个图块，看它关注哪些图块。在很远的地方画上同样的图案：不用加层，它也会被找到。",
    ),
    controls=(
        MaskGrid(
            "picture",
            Bilingual("picture (8 × 8 pixels)", "图像（8 × 8 像素）"),
            tuple(tuple(dot == "#" for dot in row) for row in PICTURE),
        ),
        Slider("patch", Bilingual("patch (1 to 16, row by row)", "图块（1 到 16，逐行编号）"), 1, 1, 16, 1, whole=True),
        Slider("sharpness", Bilingual("sharpness (scale of the scores)", "锐度（分数的倍数）"), 2.0, 0.0, 5.0, 0.25),
    ),
    compute=compute_image_patches,
    attend=attend_image_patches,
    pictures=(Drawing(Bilingual("the picture and the weights of one patch", "图像，以及一个图块的权重"), "patches"),),
    findings=(
        Finding(
            Bilingual(
                "{alike} other patches look the same and get {share:.0%} of the weight, the farthest {far} patches "
                "away: one layer of attention, {layers} layers of a 3 × 3 convolution. Attention pays with {pairs} "
                "pairs.",
                "另有 {alike} 个图块与它相同，得到 {share:.0%} 的权重，最远的相隔 {far} 个图块：注意力一层，3 × 3 卷"
                "积要 {layers} 层。注意力的代价是 {pairs} 对。",
            ),
            lambda result: result["far"] == 3 and result["share"] > 0.4,
        ),
    ),
    evidence=(Evidence("images"),),
    link="image?model=digits",
)
