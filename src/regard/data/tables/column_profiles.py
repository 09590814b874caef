"""What the values of a column look like: identifiers, texts, labels, numbers; and whether a line is a header."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

SAMPLE = 1000
"""Rows whose values are looked at."""
FEW_VALUES = 20
"""Different values that a column of labels may always have, however few its rows are."""
MIN_ROWS = 4
"""Rows without which values decide nothing."""

ID_NAMES = {
    "id",
    "ids",
    "idx",
    "index",
    "uid",
    "uuid",
    "guid",
    "key",
    "no",
    "nr",
    "number",
    "row",
    "rowid",
    "编号",
    "序号",
}
IDENTIFIER = re.compile(r"[A-Za-z]*[-_:#]?\d+|[0-9a-fA-F-]{8,}")
NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?%?")
ID_ENDING = re.compile(r".*(?:[ _-][iI][dD]|[a-z]I[dD])")
"""Names such as user_id and PassengerId."""
CODE = re.compile(
    r"\d{1,4}[-/.年]\d{1,2}([-/.月]\d{1,4}日?)?([ T]\d{1,2}:\d{2}.*)?|\d{1,2}:\d{2}(:\d{2}.*)?|(https?://|www\.)\S+|\S+@\S+\.\S+"
)
"""Dates, times, addresses of pages and of mail."""
HEADER_CELL = re.compile(r"[^\W\d][\w .:()/#?%&+-]{0,30}")
PART = 8  # Chinese letters of a part of a name, at most: usual names are shorter
CHINESE_LETTER = re.compile("[\u3400-\u9fff]")


@dataclass(frozen=True)
class ColumnProfile:
    """Shares and means over the sampled values of a column. `words` counts every two Chinese characters as a word;
    `codes` is the share of dates, times and addresses."""

    name: str
    rows: int
    distinct: int
    numeric: float
    identifiers: float
    codes: float
    words: float
    length: float

    @property
    def is_id(self) -> bool:
        """Whether the values number or name the rows instead of saying something about them."""
        unique = self.distinct == self.rows and self.rows >= MIN_ROWS
        return (self.is_named_id and (unique or self.distinct > FEW_VALUES)) or (unique and self.identifiers == 1.0)

    @property
    def is_named_id(self) -> bool:
        """Whether the name says that the values are identifiers."""
        return self.name.casefold() in ID_NAMES or ID_ENDING.fullmatch(self.name) is not None

    @property
    def is_label(self) -> bool:
        """Whether the values repeat, as labels do, and are short."""
        few = self.distinct <= max(2, min(FEW_VALUES, self.rows // 2), self.rows // 10)
        return not self.is_id and few and self.words <= 4

    @property
    def is_text(self) -> bool:
        """Whether the values are texts: mostly different, and neither numbers nor dates or addresses."""
        return not self.is_id and not self.is_label and self.numeric + self.codes < 0.5


def profile_values(name: str, values: Sequence[str]) -> ColumnProfile:
    """The profile of these values.

    >>> profile_values("id", ["1", "2", "3", "4"]).is_id, profile_values("y", ["a", "b", "a", "a"]).is_label
    (True, True)
    """
    count = max(1, len(values))
    return ColumnProfile(
        name,
        len(values),
        len(set(values)),
        sum(NUMBER.fullmatch(value) is not None for value in values) / count,
        sum(IDENTIFIER.fullmatch(value) is not None for value in values) / count,
        sum(CODE.fullmatch(value) is not None and NUMBER.fullmatch(value) is None for value in values) / count,
        sum(map(count_words, values)) / count,
        sum(map(len, values)) / count,
    )


def words_of_name(name: str) -> set[str]:
    """The words of a column's name in lower case; of Chinese every part of a few letters.

    >>> sorted(words_of_name("airline_sentiment")), "内容" in words_of_name("微博内容")
    (['airline', 'sentiment'], True)
    """
    spelled = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).casefold()
    words = {word for word in re.split(r"[\W\d_]+", spelled) if word}
    chinese = [word for word in words if CHINESE_LETTER.search(word)]
    return words | {word[n : n + size] for word in chinese for n in range(len(word)) for size in range(1, PART + 1)}


def count_words(text: str) -> float:
    return len(text.split()) + len(CHINESE_LETTER.findall(text)) / 2


def looks_like_header(cells: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first line of a table without usual names is a header, judged by the rows below it.

    Its cells look like names and differ from each other and from all values; a column that numbers the rows needs no
    name. At least one column then tells it apart: a column of numbers below a name, of labels that do not have the
    name among them, or of texts of many words.
    """
    if len(rows) < MIN_ROWS or len(set(cells)) < len(cells):
        return False
    tells = False
    for n, cell in enumerate(cells):
        values = [row[n].strip() for row in rows[:SAMPLE] if n < len(row)]
        profile = profile_values(cell, values)
        if not cell and profile.is_id and profile.numeric == 1.0:
            continue
        if cell in values or not HEADER_CELL.fullmatch(cell):
            return False
        long = sum(count_words(value) >= 4 for value in values[:50]) >= 0.8 * len(values[:50])
        tells |= profile.numeric > 0.9 or profile.is_label or (long and count_words(cell) <= 2)
    return tells
