"""Layers: whether low layers attend locally and high layers globally, and what can be read from each."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...assets import resolve_folder
from ...models.checkpoint.checkpoint import load
from ...models.model import Model
from ...nn.hooks.watch import watch
from ..experiment import Claim, Criterion, Measurements, Verdict, judge
from ..parameters import NO_SETTINGS, Bilingual, Language, Settings, Size, from_sizes, resolve_counts
from ..progress import ProgressCallback
from ..toolkit.drawings import SHAPES, SIDE, sample_drawings
from ..toolkit.figures import draw_reference_line, label_axes, line_style, subplots
from ..toolkit.metrics import format_percent
from ..toolkit.minilm import SentenceEncoder, load_minilm
from ..toolkit.probes import layer_outputs, probe_classes, probe_numbers
from ..toolkit.topics import LONG_SENTENCES, TOPICS, sample_sentences
from ..toolkit.training import seeded_generator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=29,
    name="layers",
    title=Bilingual("Low layers local, high layers global", "低层看局部，高层看全局"),
    claim=Bilingual(
        "Low layers of attention look at the neighbourhood and carry texture and spelling; high layers look at the whole "
        "and carry meaning.",
        "注意力的低层看局部，表示纹理和字形；高层看全局，表示语义。",
    ),
    setup=Bilingual(
        "Two trained models: MiniLM (text, six layers of twelve heads) and the shipped emoji model (pictures of 32 × 32 "
        "pixels, three layers of four heads over patches of 2 × 2, after a convolutional stem). Distance: the mean "
        "distance under the weights of each head; for MiniLM between the words of eight long sentences, without [CLS] "
        "and [SEP], for emoji in pixels over its 18 example pictures. Content: a linear probe (ridge regression) on the "
        "vector of each single token after each layer. Low-level properties: the letters of the token; the mean colour "
        "of the patch. High-level ones: the topic of the sentence, out of six; the shape in the drawing, out of four. "
        "Probes are tested on nouns and drawings that they were not fitted on. Depth 0 is the input of the first "
        "layer, depth 1 the output of the last.",
        "两个训练好的模型：MiniLM（文本，六层，每层十二个头）和随包提供的 emoji 模型（32 × 32 像素的图片，卷积之后是三层"
        "注意力，每层四个头，图块为 2 × 2）。距离：每个头按权重平均的距离；MiniLM 取八个长句中词与词之间的距离，"
        "不计 [CLS] 和 [SEP]；emoji 取 18 张示例图片，以像素计。内容：每层之后，对每个词元的向量做线性探针（岭回归）。"
        "低级属性：词元的字母数；图块的平均颜色。高级属性：句子的主题（六选一）；图画的形状（四选一）。"
        "探针用拟合时没见过的名词和图画测试。深度 0 是第一层的输入，深度 1 是最后一层的输出。",
    ),
    criteria=(
        Criterion(
            "text-distance",
            Bilingual(
                "In MiniLM the last layer looks at least 1.25 times as far as the first",
                "MiniLM 最后一层的距离至少是第一层的 1.25 倍",
            ),
            ">=",
            1.25,
            core=True,
        ),
        Criterion(
            "text-depth",
            Bilingual(
                "There the distance of a head correlates with its depth (at least 0.5)",
                "其中头的距离与深度相关（相关系数不低于 0.5）",
            ),
            ">=",
            0.5,
        ),
        Criterion(
            "image-distance",
            Bilingual(
                "In the emoji model the last layer looks at least 1.25 times as far as the first",
                "emoji 模型最后一层的距离至少是第一层的 1.25 倍",
            ),
            ">=",
            1.25,
        ),
        Criterion(
            "image-depth",
            Bilingual(
                "There the distance of a head correlates with its depth (at least 0.5)",
                "其中头的距离与深度相关（相关系数不低于 0.5）",
            ),
            ">=",
            0.5,
        ),
        Criterion(
            "heads",
            Bilingual(
                "In both, layers differ more than the heads of one layer (ratio of deviations at least 1)",
                "在两个模型中，层与层的差别都大于同层各头的差别（标准差之比不低于 1）",
            ),
            ">=",
            1,
        ),
        Criterion(
            "text-low",
            Bilingual(
                "The letters of a token are best read in the lower half of MiniLM (depth at most 0.5)",
                "词元的字母数在 MiniLM 的下半部分最容易读出（深度不超过 0.5）",
            ),
            "<=",
            0.5,
        ),
        Criterion(
            "text-high",
            Bilingual("The topic in the upper half (depth at least 0.5)", "主题在上半部分（深度不低于 0.5）"),
            ">=",
            0.5,
        ),
        Criterion(
            "image-low",
            Bilingual(
                "The colour of a patch is best read in the lower half of the emoji model (depth at most 0.5)",
                "图块的颜色在 emoji 模型的下半部分最容易读出（深度不超过 0.5）",
            ),
            "<=",
            0.5,
        ),
        Criterion(
            "image-high",
            Bilingual("The shape in the upper half (depth at least 0.5)", "形状在上半部分（深度不低于 0.5）"),
            ">=",
            0.5,
        ),
    ),
)

NAMES = {"text": Bilingual("MiniLM", "MiniLM"), "image": Bilingual("emoji model", "emoji 模型")}
PROPERTIES = {
    "text": {"low": Bilingual("letters of the token (R²)", "词元的字母数（R²）"), "high": Bilingual("topic (accuracy)", "主题（准确率）")},
    "image": {"low": Bilingual("colour of the patch (R²)", "图块的颜色（R²）"), "high": Bilingual("shape (accuracy)", "形状（准确率）")},
}  # fmt: skip
CHANCE = {"text": 1 / len(TOPICS), "image": 1 / len(SHAPES)}
BATCH = 50
SIZES: dict[Size, dict[str, int]] = {
    "toy": {"sentences": 24, "drawings": 8, "long": 2},
    "usual": {"sentences": 600, "drawings": 300, "long": len(LONG_SENTENCES)},
    "full": {"sentences": 3000, "drawings": 1000, "long": len(LONG_SENTENCES)},
}
PARAMETERS = (
    from_sizes(SIZES, "sentences", Bilingual("sentences of a probe", "探针用的句子数"), 12, 10000),
    from_sizes(SIZES, "drawings", Bilingual("drawings of a probe", "探针用的图画数"), 8, 2000),
)


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    """For text and images: `distance[layer][head]`, its value under equal weights, and the probes by depth."""
    config = SIZES[size] | resolve_counts(PARAMETERS, size, settings)
    encoder = load_minilm()
    pictures, normalize = load("emoji").to(torch.get_default_device()).eval(), read_normalization()
    text = text_distance(encoder, LONG_SENTENCES[: config["long"]])
    progress(0.2, "distances in pictures")
    image = image_distance(pictures, normalize(read_examples()))
    progress(0.4, "probes in sentences")
    splits = [text_vectors(encoder, config["sentences"], held_out, seed) for held_out in (False, True)]
    text |= probe_layers(splits, len(TOPICS))
    progress(0.7, "probes in drawings")
    generator, splits, named = seeded_generator(seed), [], 0.0
    for _ in range(2):
        vectors, colours, shapes, named = image_vectors(pictures, normalize, config["drawings"], generator)
        splits.append((vectors, colours, shapes))
    image |= probe_layers(splits, len(SHAPES))
    progress(1.0, "probes in drawings")
    return {"text": text, "image": image, "named": named}


def read_examples() -> Tensor:
    """The example pictures of the emoji model, `[pictures, 3, SIDE, SIDE]` from 0 to 1."""
    from ...data.images import ImageFile, load_image

    files = sorted((resolve_folder("emoji") / "examples").glob("*.png"))
    return torch.stack([load_image(ImageFile(file)) for file in files]).to(torch.get_default_device()) / 255


def read_normalization() -> Callable[[Tensor], Tensor]:
    """The function that prepares pictures for the emoji model, by the mean and deviation of its training data."""
    inputs = json.loads((resolve_folder("emoji") / "task.json").read_text(encoding="utf-8"))["inputs"]
    mean, std = (torch.tensor(inputs[name])[:, None, None] for name in ("mean", "std"))
    return lambda pictures: (pictures - mean) / std


def text_distance(encoder: SentenceEncoder, sentences: tuple[str, ...]) -> Measurements:
    """In tokens: `distance[layer][head]` between words, `special[layer]` with [CLS] and [SEP], and with equal weights."""
    rows, special, uniform = [], [], []
    for sentence in sentences:
        batch = encoder.tokenizer([sentence])
        with torch.no_grad(), watch(encoder.model, weights=True) as views:
            encoder.model(**batch.inputs)
        weights = torch.stack([view.weights[0, :, 1:-1, 1:-1] for view in views.values()])  # type: ignore[index]
        positions = torch.arange(weights.shape[-1]).double()
        distances = (positions[:, None] - positions).abs()
        rows.append(mean_distance(weights, distances))
        special.append(torch.stack([view.distance.double().mean() for view in views.values()]))
        uniform.append(distances.mean())
    distance, special, uniform = (torch.stack(values).mean(0).tolist() for values in (rows, special, uniform))
    return {"distance": distance, "special": special, "uniform": uniform}


def mean_distance(weights: Tensor, distances: Tensor) -> Tensor:
    """The mean distance under weights `[…, queries, keys]`, which are scaled to sum to 1 for each query."""
    weights = weights.double() / weights.double().sum(-1, keepdim=True).clamp(min=1e-12)
    return (weights * distances).sum(-1).mean(-1)


def image_distance(model: Model, images: Tensor) -> Measurements:
    """In pixels: `distance[layer][head]`, and the distance with equal weights."""
    with torch.no_grad(), watch(model, weights=True) as views:
        model(images=images)
    patches = int(next(iter(views.values())).queries ** 0.5)
    axis = torch.arange(patches).double() * (SIDE / patches)
    centres = torch.cartesian_prod(axis, axis)
    distances = torch.cdist(centres, centres)
    rows = [mean_distance(view.weights, distances).mean(0).tolist() for view in views.values()]  # type: ignore[arg-type]
    return {"distance": rows, "uniform": distances.mean().item()}


def text_vectors(
    encoder: SentenceEncoder, count: int, held_out: bool, seed: int
) -> tuple[list[Tensor], Tensor, Tensor]:
    """The vectors of the words of sentences at each depth, how many letters they have, and the topic of each."""
    sentences, topics = sample_sentences(count, held_out, seed)
    vectors: list[list[Tensor]] = []
    letters, labels = [], []
    for first in range(0, count, BATCH):
        batch = encoder.tokenizer(sentences[first : first + BATCH])
        outputs = layer_outputs(encoder.model, lambda batch=batch: encoder.model(**batch.inputs))
        rows = zip(batch.tokens, batch.inputs["lengths"].tolist(), topics[first : first + BATCH], strict=True)
        pieces = [(piece, topic) for row, length, topic in rows for piece in encoder.tokenizer.pieces(row[:length])]
        words = [(piece.removeprefix("##"), topic) for piece, topic in pieces if piece.removeprefix("##").isalpha()]
        is_word = torch.tensor([piece.removeprefix("##").isalpha() for piece, _ in pieces])
        vectors.append([output[is_word] for output in outputs])
        letters += [len(word) for word, _ in words]
        labels += [topic for _, topic in words]
    by_depth = [torch.cat(depth) for depth in zip(*vectors, strict=True)]
    return by_depth, torch.tensor(letters)[:, None].double(), torch.tensor(labels)


def image_vectors(
    model: Model, normalize: Callable[[Tensor], Tensor], count: int, generator: torch.Generator
) -> tuple[list[Tensor], Tensor, Tensor, float]:
    """The vectors of the patches of drawings at each depth, their colours, the shape of each, and the model's accuracy."""
    pictures, shapes = sample_drawings(count, generator)
    labels = json.loads((resolve_folder("emoji") / "task.json").read_text(encoding="utf-8"))["labels"]
    classes = torch.tensor([labels.index(shape) for shape in SHAPES])
    vectors, right = [], 0
    for first in range(0, count, BATCH):
        chosen, logits = slice(first, first + BATCH), []
        images = normalize(pictures[chosen])
        outputs = layer_outputs(model, lambda images=images, logits=logits: logits.append(model(images=images).logits))
        right += int((logits[0].argmax(-1) == classes[shapes[chosen]]).sum())
        vectors.append(outputs)
    by_depth = [torch.cat(depth) for depth in zip(*vectors, strict=True)]
    patches = len(by_depth[0]) // count
    colours = torch.nn.functional.adaptive_avg_pool2d(pictures, int(patches**0.5)).flatten(2).mT.flatten(0, 1)
    return by_depth, colours, shapes.repeat_interleave(patches), right / count


def probe_layers(splits: list[tuple[list[Tensor], Tensor, Tensor]], classes: int) -> dict[str, list[float]]:
    """What probes read of the low-level and of the high-level property at each depth."""
    (vectors, low, high), (new_vectors, new_low, new_high) = splits
    pairs = list(zip(vectors, new_vectors, strict=True))
    return {
        "low": [probe_numbers((x, low), (new, new_low)) for x, new in pairs],
        "high": [probe_classes((x, high), (new, new_high), classes) for x, new in pairs],
    }


def correlate_depth(distance: list[list[float]]) -> float:
    """The correlation, over all heads, of the number of the layer and the distance."""
    table = torch.tensor(distance, dtype=torch.float64)
    depth = torch.arange(len(table), dtype=torch.float64)[:, None].expand_as(table)
    return torch.corrcoef(torch.stack([depth.flatten(), table.flatten()]))[0, 1].item()


def compare_deviations(distance: list[list[float]]) -> float:
    """The deviation of the layers' means over the mean deviation of the heads within a layer."""
    table = torch.tensor(distance, dtype=torch.float64)
    return (table.mean(1).std() / table.std(1).mean().clamp(min=1e-12)).item()


def peak_depth(values: list[float]) -> float:
    """The depth of the largest value, 0 for the first and 1 for the last.

    >>> peak_depth([0.1, 0.9, 0.5])
    0.5
    """
    return values.index(max(values)) / (len(values) - 1)


def verdict(numbers: Measurements) -> Verdict:
    measured: dict[str, tuple[float, Bilingual]] = {}
    ratios = {name: compare_deviations(numbers[name]["distance"]) for name in NAMES}
    measured["heads"] = (
        min(ratios.values()),
        Bilingual(
            ", ".join(f"{NAMES[name].en} {ratio:.2f}" for name, ratio in ratios.items()),
            "，".join(f"{NAMES[name].zh} {ratio:.2f}" for name, ratio in ratios.items()),
        ),
    )
    means = {name: [sum(row) / len(row) for row in numbers[name]["distance"]] for name in NAMES}
    units = {"text": Bilingual("tokens", "个词元"), "image": Bilingual("pixels", "像素")}
    distances, contents = [], []
    for name, label in NAMES.items():
        first, last, uniform = means[name][0], means[name][-1], numbers[name]["uniform"]
        unit = units[name]
        correlation = correlate_depth(numbers[name]["distance"])
        measured[f"{name}-distance"] = last / first, Bilingual(f"{first:.1f} to {last:.1f} {unit.en}, {last / first:.2f} times", f"{first:.1f} 到 {last:.1f} {unit.zh}，{last / first:.2f} 倍")  # fmt: skip
        measured[f"{name}-depth"] = correlation, Bilingual.same(f"{correlation:.2f}")
        layers = " / ".join(f"{value:.1f}" for value in means[name])
        distances.append(Bilingual(f"{label.en} {layers} {unit.en} (equal weights {uniform:.1f})", f"{label.zh} {layers} {unit.zh}（权重相等时 {uniform:.1f}）"))  # fmt: skip
        for level, text in PROPERTIES[name].items():
            values = numbers[name][level]
            depth = peak_depth(values)
            measured[f"{name}-{level}"] = depth, Bilingual(f"{max(values):.2f} at depth {depth:.2f}; {values[0]:.2f} at 0, {values[-1]:.2f} at 1", f"深度 {depth:.2f} 处 {max(values):.2f}；深度 0 处 {values[0]:.2f}，深度 1 处 {values[-1]:.2f}")  # fmt: skip
            listed = " / ".join(f"{value:.2f}" for value in values)
            contents.append(Bilingual(f"{label.en}, {text.en}: {listed}", f"{label.zh}，{text.zh}：{listed}"))
    named, special = (
        format_percent(numbers["named"]),
        " / ".join(f"{value:.1f}" for value in numbers["text"]["special"]),
    )
    return judge(
        CLAIM,
        measured,
        Bilingual(
            "distance from the first layer to the last: "
            + ", ".join(f"{NAMES[name].en} {means[name][0]:.1f} to {means[name][-1]:.1f} {units[name].en}" for name in NAMES),
            "第一层到最后一层的距离："
            + "，".join(f"{NAMES[name].zh} {means[name][0]:.1f} 到 {means[name][-1]:.1f} {units[name].zh}" for name in NAMES),
        ),
        Bilingual(
            f"Mean distance by layer: {'; '.join(text.en for text in distances)}; MiniLM with [CLS] and [SEP] "
            f"{special}. Probes by depth: "
            f"{'; '.join(text.en for text in contents)}. The emoji model itself names {named} of the drawings.",
            f"各层的平均距离：{'；'.join(text.zh for text in distances)}；MiniLM 计入 [CLS] 和 [SEP] 时 {special}。各深度的探针：{'；'.join(text.zh for text in contents)}。"
            f"emoji 模型自己能认出 {named} 的图画。",
        ),
    )  # fmt: skip


def draw(numbers: Measurements, language: Language) -> Figure:
    zh = language == "zh"
    with subplots(language, 2, 2, width=5.0, height=3.4) as (figure, axes):
        for n, name in enumerate(NAMES):
            draw_distance(axes[n], name, numbers[name], language)
            for m, (level, label) in enumerate(PROPERTIES[name].items()):
                values = numbers[name][level]
                axes[2 + n].plot(range(len(values)), values, label=label(language), **line_style(m))
            draw_reference_line(axes[2 + n], CHANCE[name], "随机" if zh else "chance of the class")
            axes[2 + n].set_xticks(range(len(numbers[name]["low"])))
            axes[2 + n].set_ylim(min(0.0, *numbers[name]["low"]), 1.05)
            title = (
                f"{NAMES[name](language)}：从词元的向量能读出什么"
                if zh
                else f"{NAMES[name].en}: what a token's vector tells"
            )
            label_axes(
                axes[2 + n],
                title,
                "层（0：输入）" if zh else "layer (0: input)",
                "R²，准确率" if zh else "R², accuracy",
            )
            axes[2 + n].legend()
        return figure  # fmt: skip


def draw_distance(axes: Axes, name: str, rows: Measurements, language: Language) -> None:
    """The distance of each head, and the mean of each layer."""
    zh = language == "zh"
    layers = range(1, len(rows["distance"]) + 1)
    for layer, heads in zip(layers, rows["distance"], strict=True):
        axes.plot([layer] * len(heads), heads, linestyle="", marker="_", color="#888888", markersize=14)
    means = [sum(heads) / len(heads) for heads in rows["distance"]]
    axes.plot(
        layers, means, label="层的平均（短线：各个头）" if zh else "mean of the layer (dashes: heads)", **line_style(0)
    )
    draw_reference_line(axes, rows["uniform"], "权重相等" if zh else "equal weights")
    axes.set_xticks(list(layers))
    axes.set_ylim(0, 1.1 * max(rows["uniform"], *(max(heads) for heads in rows["distance"])))
    unit = (
        Bilingual("distance (tokens)", "距离（词元）")
        if name == "text"
        else Bilingual("distance (pixels)", "距离（像素）")
    )
    title = f"{NAMES[name](language)}：注意力的距离" if zh else f"{NAMES[name].en}: distance of attention"
    label_axes(axes, title, "层" if zh else "layer", unit(language))
    axes.legend(loc="lower right")
