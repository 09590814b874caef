"""The types of JSON: values that can be written, and objects that were parsed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
"""What can be written as JSON; tuples become lists."""

JsonObject: TypeAlias = dict[str, JsonValue]
"""An object to write."""

ParsedObject: TypeAlias = dict[str, Any]
"""An object of a file as it was parsed: what wrote the file decides which keys it has and what is under them."""
