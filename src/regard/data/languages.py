"""Scripts of a text's letters, and whether a model that reads some languages reads them."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence

SCRIPTS = {
    "LATIN": {"en": "Latin letters", "zh": "拉丁字母"},
    "CJK": {"en": "Chinese characters", "zh": "汉字"},
    "HIRAGANA": {"en": "Japanese kana", "zh": "日文假名"},
    "KATAKANA": {"en": "Japanese kana", "zh": "日文假名"},
    "HANGUL": {"en": "Korean letters", "zh": "韩文字母"},
    "CYRILLIC": {"en": "Cyrillic letters", "zh": "西里尔字母"},
    "GREEK": {"en": "Greek letters", "zh": "希腊字母"},
    "ARABIC": {"en": "Arabic letters", "zh": "阿拉伯字母"},
    "HEBREW": {"en": "Hebrew letters", "zh": "希伯来字母"},
    "DEVANAGARI": {"en": "Devanagari", "zh": "天城文"},
    "THAI": {"en": "Thai letters", "zh": "泰文字母"},
}
"""Scripts by the first word of their letters' Unicode names."""
OTHER_SCRIPT = {"en": "letters of another script", "zh": "其他文字"}
LANGUAGES = {
    "en": {"en": "English", "zh": "英文"},
    "zh": {"en": "Chinese", "zh": "中文"},
    "ja": {"en": "Japanese", "zh": "日文"},
    "de": {"en": "German", "zh": "德文"},
    "fr": {"en": "French", "zh": "法文"},
}
LANGUAGE_SCRIPTS = {
    "zh": {"CJK"},
    "ja": {"CJK", "HIRAGANA", "KATAKANA"},
    "ko": {"HANGUL"},
    "ru": {"CYRILLIC"},
    "uk": {"CYRILLIC"},
    "bg": {"CYRILLIC"},
    "el": {"GREEK"},
    "ar": {"ARABIC"},
    "fa": {"ARABIC"},
    "he": {"HEBREW"},
    "hi": {"DEVANAGARI"},
    "th": {"THAI"},
}
"""Scripts of languages that are not written in Latin letters."""


def count_scripts(text: str) -> Counter[str]:
    """How many letters of each script a text has.

    >>> count_scripts("A打了B, 3!")
    Counter({'LATIN': 2, 'CJK': 2})
    """
    return Counter(unicodedata.name(letter, "OTHER").split()[0] for letter in text if letter.isalpha())


def unread_script(text: str, languages: Sequence[str]) -> str | None:
    """The script of most letters of a text, where these languages are not written in it; None where they are.

    >>> unread_script("猫追狗", ["en"]), unread_script("我爱Python编程语言", ["zh"]), unread_script("3 + 4", ["en"])
    ('CJK', None, None)
    """
    scripts = count_scripts(text)
    if not languages or not scripts:
        return None
    read = set().union(*(LANGUAGE_SCRIPTS.get(language, {"LATIN"}) for language in languages))
    unread = Counter({script: count for script, count in scripts.items() if script not in read})
    return unread.most_common(1)[0][0] if 2 * unread.total() > scripts.total() else None


def script_name(script: str) -> dict[str, str]:
    return SCRIPTS.get(script, OTHER_SCRIPT)


def language_name(language: str) -> dict[str, str]:
    return LANGUAGES.get(language, {"en": language, "zh": language})
