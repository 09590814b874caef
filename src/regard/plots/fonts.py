"""Fonts for figures with Chinese, Japanese or Korean text."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from ..errors import Missing
from . import NEEDS_MATPLOTLIB
from .labels import CJK

try:
    from matplotlib import font_manager
except ImportError as error:
    raise Missing(NEEDS_MATPLOTLIB) from error

CJK_FONTS = {
    "Noto Sans CJK SC": "NotoSansCJK",
    "Noto Sans CJK JP": "NotoSansCJK",
    "Noto Sans SC": "NotoSansSC",
    "Source Han Sans SC": "SourceHanSans",
    "Source Han Sans CN": "SourceHanSans",
    "PingFang SC": "PingFang",
    "Hiragino Sans GB": "Hiragino",
    "Microsoft YaHei": "msyh",
    "SimHei": "simhei",
    "WenQuanYi Zen Hei": "wqy-zenhei",
    "WenQuanYi Micro Hei": "wqy-microhei",
    "Droid Sans Fallback": "DroidSansFallback",
    "Arial Unicode MS": "Arial Unicode",
}
"""The usual Chinese, Japanese and Korean fonts, and how the names of their files begin."""


def font_families(texts: Sequence[str]) -> list[str]:
    """The font families that these texts need."""
    font = cjk_font() if any(CJK.search(str(text)) for text in texts) else None
    return ["DejaVu Sans", font] if font else ["DejaVu Sans"]


def cjk_font() -> str | None:
    """The first of the usual Chinese, Japanese and Korean fonts that is installed."""
    font = listed_cjk_font()
    if font is None:
        # matplotlib caches its list of fonts; a font may have been installed since
        for path in font_manager.findSystemFonts():
            if Path(path).name.startswith(tuple(CJK_FONTS.values())):
                font_manager.fontManager.addfont(path)
        font = listed_cjk_font()
    logging.getLogger("matplotlib.font_manager").addFilter(drop_font_weight)
    return font


def listed_cjk_font() -> str | None:
    """The first of the usual fonts in matplotlib's own list."""
    names = set(font_manager.fontManager.get_font_names())
    return next((name for name in CJK_FONTS if name in names), None)


def drop_font_weight(record: logging.LogRecord) -> bool:
    """A logging filter for matplotlib's message that a Chinese font has one weight only."""
    return "font weight" not in str(record.msg)
