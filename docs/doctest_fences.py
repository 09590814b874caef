"""Turns the doctests of a docstring into fenced code, so that Markdown does not read `>>>` as a quotation."""

from __future__ import annotations

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^([ \t]*)>>>.*(?:\n(?![ \t]*$).*)*", re.MULTILINE)


class DoctestFences(griffe.Extension):
    """A griffe extension: every run of lines that starts with `>>>` becomes a `pycon` block."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fence(obj.docstring.value)


def fence(text: str) -> str:
    """The text with each doctest inside a fence.

    >>> print(fence("Adds.\\n\\n>>> 1 + 1\\n2"))
    Adds.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    return DOCTEST.sub(lambda block: f"{block[1]}```pycon\n{block[0]}\n{block[1]}```", text)
