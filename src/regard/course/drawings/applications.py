"""Where attention is used: field, task, queries and keys, and how such a model is built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...experiments.experiment import Bilingual, Language
from ..figures import COLOURS
from ..step import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROWS = (
    ("translation", Bilingual("translation", "机器翻译"), Bilingual("target → source", "目标 → 源"), "transformer"),
    ("generation", Bilingual("text generation", "文本生成"), Bilingual("word → earlier words", "词 → 前文"), "gpt2"),
    ("classification", Bilingual("classification", "文本分类"), Bilingual("[CLS] → words", "[CLS] → 词"), "bert"),
    ("images", Bilingual("image classification", "图像分类"), Bilingual("patch → patches", "图块 → 图块"), "vit"),
    ("detection", Bilingual("object detection", "目标检测"), Bilingual("object → patches", "物体 → 图块"), "detr"),
    ("matching", Bilingual("image and text", "图文匹配"), Bilingual("within each", "各自内部"), "clip"),
    ("speech", Bilingual("speech recognition", "语音识别"), Bilingual("text → frames", "文字 → 语音帧"), "whisper"),
)
COLUMNS = (Bilingual("task", "任务"), Bilingual("who attends to what", "谁关注什么"), Bilingual("build it", "构建"))


def draw(axes: Axes, result: Result, language: Language) -> None:
    cells = [[task(language), pairs(language), f"rg.models.{name}"] for _, task, pairs, name in ROWS]
    table = axes.table(cells, colLabels=[text(language) for text in COLUMNS], loc="center", cellLoc="left")
    table.auto_set_font_size(False)
    table.set_fontsize(9)
    table.scale(1, 1.4)
    for (row, _), cell in table.get_celld().items():
        cell.set_edgecolor(COLOURS["line"])
        if row and ROWS[row - 1][0] == result["task"]:
            cell.set_facecolor("#fdf1e7")
