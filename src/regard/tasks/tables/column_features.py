"""Columns of a table as numbers: what each holds, seen in the training rows, and how its values are encoded."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import pairwise
from statistics import NormalDist
from typing import Literal

import torch
from torch import Tensor

from ...data.json_values import JsonObject, ParsedObject
from ...data.tables.column_profiles import profile_values
from ...data.tables.feature_rows import plain_cell
from ...data.tables.label_types import parse_number

MOSTLY = 0.95
"""Share of a column's values that decide what it holds."""
KNOTS = 200
"""Quantiles that describe the distribution of a column's numbers."""
MAX_CATEGORIES = 1000
RARE = 2
"""Rows that a value needs to be a category of its own, in tables of many rows."""
MANY_ROWS = 200
UNKNOWN, ABSENT = 0, 1
"""Indices of a category that the training rows do not have, and of a missing one."""
DATE_FORMATS = ("%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y", "%Y年%m月%d日", "%Y-%m", "%d-%b-%Y", "%Y/%m/%d %H:%M")
EPOCH = datetime(2000, 1, 1)


@dataclass(frozen=True)
class NumberColumn:
    """Numbers, standardized, or by their quantiles as a normal distribution has them."""

    name: str
    mean: float
    std: float
    quantiles: tuple[float, ...] = ()

    def encode(self, text: str | None) -> float:
        value = None if text is None else parse_number(text)
        if value is None:
            return math.nan
        if not self.quantiles:
            return max(-10.0, min(10.0, (value - self.mean) / self.std))
        return normal_score(value, self.quantiles)


@dataclass(frozen=True)
class CategoryColumn:
    """One of several values; index 0 is a value that the training rows do not have, 1 a missing one."""

    name: str
    values: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(self.values) + 2

    def encode(self, text: str | None) -> float:
        if text is None:
            return ABSENT
        place = bisect_left(self.values, text)
        return float(place + 2 if place < len(self.values) and self.values[place] == text else UNKNOWN)


@dataclass(frozen=True)
class DateColumn:
    """A part of a date: its distance in days (standardized), its month or its weekday (categories)."""

    name: str
    source: str
    part: Literal["day", "month", "weekday"]
    mean: float = 0.0
    std: float = 1.0

    @property
    def size(self) -> int:
        return {"day": 0, "month": 14, "weekday": 9}[self.part]

    def encode(self, text: str | None) -> float:
        date = None if text is None else parse_date(text)
        if date is None:
            return math.nan if self.part == "day" else ABSENT
        if self.part == "day":
            return (days_since_epoch(date) - self.mean) / self.std
        return float(date.month + 1 if self.part == "month" else date.weekday() + 2)


Column = NumberColumn | CategoryColumn | DateColumn
TYPES: dict[str, type[Column]] = {"number": NumberColumn, "category": CategoryColumn, "date": DateColumn}


class ColumnFeatures:
    """The columns that a model reads, and why it does not read the others."""

    def __init__(self, columns: Sequence[Column], notes: Sequence[str] = ()) -> None:
        self.columns, self.notes = tuple(columns), tuple(notes)

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def sizes(self) -> tuple[int, ...]:
        """0 for each column of numbers, and the number of values for each of categories."""
        return tuple(0 if isinstance(column, NumberColumn) else column.size for column in self.columns)

    def encode(self, rows: Sequence[Mapping[str, object]]) -> Tensor:
        """float32 `[rows, columns]`: numbers, NaN where they are missing, and indices of categories."""
        return torch.tensor([[column.encode(cell_of(row, column)) for column in self.columns] for row in rows])

    def as_dict(self) -> list[JsonObject]:
        types = {column_type: name for name, column_type in TYPES.items()}
        return [{"type": types[type(column)], **asdict(column)} for column in self.columns]

    @classmethod
    def from_dict(cls, data: Sequence[ParsedObject]) -> ColumnFeatures:
        columns = []
        for item in data:
            fields: ParsedObject = {
                name: tuple(value) if isinstance(value, list) else value for name, value in item.items()
            }
            columns.append(TYPES[fields.pop("type")](**fields))
        return cls(columns)


def cell_of(row: Mapping[str, object], column: Column) -> str | None:
    return plain_cell(row.get(column.source if isinstance(column, DateColumn) else column.name))


def fit_columns(
    rows: Sequence[Mapping[str, str | None]], categories: Sequence[str] = (), quantiles: bool = False
) -> ColumnFeatures:
    """The columns of the training rows: numbers, categories or dates by their values; `categories` are never numbers.

    Columns of identifiers, of texts and of one value only are left out, with a note for each.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns: list[Column] = []
    notes: list[str] = []
    for name in names:
        values = [value for row in rows if (value := row.get(name)) is not None]
        made = fit_column(name, values, len(rows), name in categories, quantiles, notes)
        columns += made
    return ColumnFeatures(columns, notes)


def fit_column(
    name: str, values: Sequence[str], rows: int, category: bool, quantiles: bool, notes: list[str]
) -> list[Column]:
    """The column of these values, or the parts of its dates; none, and a note, where it says nothing of use."""
    counts = Counter(values)
    if len(counts) < 2:
        notes.append(f"Column {name!r} has {len(counts)} value and is left out.")
        return []
    numbers = [number for value in values if (number := parse_number(value)) is not None]
    if len(numbers) >= MOSTLY * len(values) and not category:
        if numbers_rows(name, values, numbers):
            notes.append(f"Column {name!r} numbers the rows and is left out.")
            return []
        if len(numbers) < len(values):
            other = next(value for value in values if parse_number(value) is None)
            count = len(values) - len(numbers)
            notes.append(
                f"Column {name!r}: {count} values are no numbers, such as {other!r:.40}, and count as missing."
            )
        return [fit_numbers(name, numbers, quantiles)]
    dates = [date for value in values if (date := parse_date(value)) is not None] if not numbers else []
    if len(dates) >= MOSTLY * len(values) and not category:
        return list(fit_dates(name, [days_since_epoch(date) for date in dates]))
    least = RARE if rows >= MANY_ROWS else 1
    frequent = tuple(sorted(value for value, count in counts.items() if count >= least))
    if not category and (len(counts) > MAX_CATEGORIES or len(counts) > 0.5 * max(rows, 20)):
        notes.append(f"Column {name!r} has {len(counts):,} different texts in {rows:,} rows and is left out.")
        return []
    if least > 1 and len(frequent) < len(counts):
        notes.append(f"Column {name!r}: {len(counts) - len(frequent)} values that occur once count as unknown.")
    return [CategoryColumn(name, frequent)]


def numbers_rows(name: str, values: Sequence[str], numbers: Sequence[float]) -> bool:
    """Whether whole numbers, all different, are identifiers: by the name of the column, or because they rise from row
    to row with few gaps (rows that are held out leave gaps)."""
    if len(set(numbers)) < len(values) or not all(map(float.is_integer, numbers)):
        return False
    profile = profile_values(name, values[:1000])
    rising = all(a < b for a, b in pairwise(numbers)) and numbers[-1] - numbers[0] < 2 * len(numbers)
    return profile.is_id and (profile.is_named_id or rising)


def fit_numbers(name: str, numbers: Sequence[float], quantiles: bool) -> NumberColumn:
    values = torch.tensor(numbers, dtype=torch.float64)
    mean, std = float(values.mean()), float(values.std(correction=0)) or 1.0
    if not quantiles:
        return NumberColumn(name, mean, std)
    knots = torch.linspace(0, 1, min(KNOTS, len(numbers)), dtype=torch.float64)
    return NumberColumn(name, mean, std, tuple(torch.quantile(values[:1_000_000], knots).tolist()))


def normal_score(value: float, quantiles: Sequence[float]) -> float:
    """The number at the same quantile of a normal distribution, from −3 to 3.

    >>> [round(normal_score(value, (0.0, 1.0, 4.0)), 2) for value in (-1.0, 1.0, 2.5, 9.0)]
    [-3.0, 0.0, 0.67, 3.0]
    """
    above = bisect_left(quantiles, value)
    share = 0.0 if above == 0 else 1.0
    if 0 < above < len(quantiles):
        low, high = quantiles[above - 1], quantiles[above]
        share = (above - 1 + (value - low) / (high - low)) / (len(quantiles) - 1)
    edge = 0.00135
    return NormalDist().inv_cdf(min(1 - edge, max(edge, share)))


def fit_dates(name: str, days: Sequence[float]) -> tuple[DateColumn, ...]:
    values = torch.tensor(days, dtype=torch.float64)
    day = DateColumn(name, name, "day", float(values.mean()), float(values.std(correction=0)) or 1.0)
    return day, DateColumn(f"{name} (month)", name, "month"), DateColumn(f"{name} (weekday)", name, "weekday")


def parse_date(text: str) -> datetime | None:
    """A date in ISO's form or in one of `DATE_FORMATS`.

    >>> parse_date("2024-05-01T12:00:00").month, parse_date("31.12.2023").year, parse_date("soon")
    (5, 2023, None)
    """
    try:
        return datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:
        pass
    for form in DATE_FORMATS:
        try:
            return datetime.strptime(text, form)
        except ValueError:
            continue
    return None


def days_since_epoch(date: datetime) -> float:
    return (date - EPOCH).total_seconds() / 86400
