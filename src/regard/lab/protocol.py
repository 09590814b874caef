"""The types of what pages send and what calls answer.

A request is JSON, so every field of it is checked before it is used. An answer is JSON with tensors in it
(`server/wire.py`); each call declares its own as a TypedDict.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""A value of parsed JSON."""
JsonObject: TypeAlias = dict[str, Json]
Request: TypeAlias = Mapping[str, Json]
"""The fields of a request."""
Answer: TypeAlias = Mapping[str, object]
"""The fields of an answer."""
Translated: TypeAlias = dict[str, str]
"""A text by language: "en" and "zh"."""
