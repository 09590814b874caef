"""The page of the sweep over transformers' families, from its stored results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = {"en": ROOT / "docs/how-to/transformers-families.md", "zh": ROOT / "docs/how-to/transformers-families.zh.md"}
BEFORE_SINK = {
    "en": "other weights: eager returns them before the sink",
    "zh": "权重不同：eager 返回的是汇（sink）之前的权重",
}
NOTES = {
    "granite_swa": BEFORE_SINK,
    "granitemoe_swa": BEFORE_SINK,
    "bridgetower": {"en": "none: the model does not ask for them", "zh": "无：模型没有请求权重"},
}
"""What is known of weights that are not equal."""


def write_page(rows: list[dict[str, Any]], language: str, version: str) -> str:
    """The page in one language, for that version of transformers."""
    words, tried = WORDS[language], [row for row in rows if row["status"] != "untried"]
    sections = []
    for kind in ("text", "vision", "speech"):
        own = [row for row in tried if row["kind"] == kind]
        equal = sum(row["status"] == "equal" for row in own)
        lines = [words["head"], "| --- | --- | --- | --- | --- | --- | --- | --- |"]
        lines += [write_row(row, language) for row in own]
        sections.append(words[kind].format(equal=equal, all=len(own), rows="\n".join(lines)))
    untried = [row for row in rows if row["status"] == "untried"]
    return words["page"].format(
        version=version,
        equal=sum(row["status"] == "equal" for row in tried),
        generates=sum(bool(row["caches"]) for row in tried),
        compiled=", ".join(f"`{row['family']}`" for row in tried if row["compiled"]),
        all=len(tried),
        sections="\n".join(sections),
        count=len(untried),
        untried="\n".join(f"| `{row['family']}` | {escape(row['reason'])} |" for row in untried),
    )


def write_row(row: dict[str, Any], language: str) -> str:
    words = WORDS[language]
    error = "" if row["error"] is None else f"{row['error']:.0e}"
    result = " ".join(filter(None, (error, escape(row["reason"]))))
    known = NOTES.get(row["family"], {}).get(language)
    weights = words.get(row["weights"], escape(row["weights"]))
    cells = [
        f"`{row['family']}`",
        f"`{row['model']}`",
        ", ".join(words["tokens" if kind == "text" else kind] for kind in row["reads"].split(", ") if kind),
        words[row["status"]],
        result,
        write_caches(row["caches"], language),
        known if known is not None and row["weights"] != "equal" else weights,
        words.get(row["compiled"], escape(row["compiled"])),
    ]
    return "| " + " | ".join(cells) + " |"


def write_caches(caches: dict[str, str], language: str) -> str:
    """The caches that generate the same tokens, and why others do not."""
    words = WORDS[language]
    equal = [words[name] for name, verdict in caches.items() if verdict == "equal"]
    others = [f"{words[name]}: {escape(verdict)}" for name, verdict in caches.items() if verdict != "equal"]
    return "; ".join([", ".join(equal), *others] if equal else others)


def escape(text: str) -> str:
    """Text for a cell of a table."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("{", "&#123;").replace("`", "'")


WORDS: dict[str, dict[str, str]] = {
    "en": {
        "equal": "equal",
        "refused": "refused",
        "own": "own attention",
        "none": "no attention",
        "differs": "differs",
        "unclear": "unclear",
        "tokens": "text",
        "images": "images",
        "videos": "videos",
        "patches": "patches",
        "waveforms": "waveforms",
        "spectrograms": "spectrograms",
        "dynamic": "dynamic",
        "static": "static",
        "dynamic sliding": "dynamic with windows",
        "static sliding": "static with windows",
        "one graph": "one graph",
        "with breaks": "with breaks",
        "head": "| `model_type` | class | reads | result | difference, or reason | tokens equal with cache | weights "
        "| compiled |",
        "text": "## Text\n\n{equal} of {all} families are equal.\n\n{rows}\n",
        "vision": "## Vision\n\n{equal} of {all} families are equal. Models of images and text that read text alone "
        "here have their vision tower in a row of its own, where it can be built.\n\n{rows}\n",
        "speech": "## Speech and sound\n\n{equal} of {all} families are equal.\n\n{rows}\n",
        "page": """# Families of transformers through Regard

With `attn_implementation="regard"` the attention of a Hugging Face model is `regard.attend`
([tutorial](../tutorials/hugging-face.md)). These tables are made by `python benchmarks/transformers_sweep.py --write`:
the text, vision and speech families of transformers {version}, tiny and with random weights, beside `eager`. Of the
{all} families that could be tried {equal} are equal.

- *Difference*: the largest of the outputs and of the gradients of all parameters, relative to the largest number. Text
  has padding on the right, on the left, and no mask; its outputs are compared at real tokens.
- *Tokens*: {generates} families generate six tokens after a prompt with padding on the left, with each cache that they
  can have. *With windows*: some layers keep a sliding window.
- *Weights*: those of `output_attentions=True`, empty where eager returns none.
- *Compiled*: forward and backward through `torch.compile` (backend `aot_eager`, which captures the graphs and generates
  no code); run for {compiled}.

*Own attention*: the model computes its attention itself and ignores `attn_implementation`. Regard refuses it with that
reason or is not called; load it with `attn_implementation="eager"`. *No attention*: it computes no softmax at all.
*Unclear*: transformers' own `sdpa` differs from its `eager`, so that there is nothing to be equal to; or noise in the
attention changes nothing that the model returns, so that equality would say nothing.

{sections}
## Not tried

{count} families: a small model could not be made of their configuration alone, or needs other inputs or libraries.

| `model_type` | reason |
| --- | --- |
{untried}
""",
    },
    "zh": {
        "equal": "相同",
        "refused": "拒绝",
        "own": "自带注意力",
        "none": "无注意力",
        "differs": "不同",
        "unclear": "无法判断",
        "tokens": "文本",
        "images": "图像",
        "videos": "视频",
        "patches": "图像块",
        "waveforms": "波形",
        "spectrograms": "频谱",
        "dynamic": "动态",
        "static": "静态",
        "dynamic sliding": "动态（带窗口）",
        "static sliding": "静态（带窗口）",
        "one graph": "一个图",
        "with breaks": "有断点",
        "head": "| `model_type` | 类 | 输入 | 结果 | 差异或原因 | 生成的词元相同的缓存 | 权重 | 编译 |",
        "text": "## 文本\n\n{all} 个模型族中有 {equal} 个相同。\n\n{rows}\n",
        "vision": "## 视觉\n\n{all} 个模型族中有 {equal} 个相同。"
        "图文模型在这里若只输入文本，其视觉部分（能构造时）单独成行。"
        "\n\n{rows}\n",
        "speech": "## 语音与声音\n\n{all} 个模型族中有 {equal} 个相同。\n\n{rows}\n",
        "page": """# 用 Regard 运行 transformers 的模型族

使用 `attn_implementation="regard"` 时，Hugging Face 模型的注意力由 `regard.attend` 计算
（[教程](../tutorials/hugging-face.md)）。下表由 `python benchmarks/transformers_sweep.py --write` 生成：
transformers {version} 的文本、视觉和语音模型族，取很小的随机模型，与 `eager` 对比。
能够测试的 {all} 个模型族中有 {equal} 个相同。

- *差异*：输出和全部参数的梯度的最大差异（相对于最大的数）。文本分别在右侧填充、左侧填充、不给掩码，
  输出在真实词元处比较。
- *词元*：{generates} 个模型族在左侧填充的提示之后生成六个词元，对它支持的每种缓存各做一次。
  *带窗口*：部分层使用滑动窗口。
- *权重*：`output_attentions=True` 返回的权重；eager 不返回时为空。
- *编译*：用 `torch.compile` 做前向和反向（后端 `aot_eager`，只捕获计算图，不生成代码）；测试了 {compiled}。

*自带注意力*：模型自己计算注意力，忽略 `attn_implementation`。Regard 会说明原因并拒绝，或者不会被调用；
请用 `attn_implementation="eager"` 载入。*无注意力*：模型不计算任何 softmax。
*无法判断*：transformers 自己的 `sdpa` 与 `eager` 就不同，没有可比的基准；
或者注意力中的噪声不改变模型的任何输出，相同也说明不了什么。

{sections}
## 未测试

{count} 个模型族：仅凭配置无法构造小模型，或需要其他输入或库。

| `model_type` | 原因 |
| --- | --- |
{untried}
""",
    },
}
