"""Parts from text: the one place where `"Causal() & Window(255)"` becomes the value that it names.

Command lines and JSON files write a part as the Python line that makes it, which is how parts print. Arguments are
literals, by position or by name; masks combine with `&`, `|`, `~` and parentheses. Nothing is evaluated.
"""

from __future__ import annotations

import ast
import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...errors import BadInput
from . import masks
from .mask import Mask

Choices = Mapping[str, Callable[..., Any]]

MASKS: dict[str, Callable[..., Any]] = {
    make.__name__: make
    for make in (
        masks.Everything,
        masks.Causal,
        masks.Window,
        masks.Dilated,
        masks.Global,
        masks.RandomBlocks,
        masks.NearBlocks,
        masks.Chunked,
        masks.Prefix,
        masks.Tree,
        masks.longformer,
        masks.bigbird,
    )
}
"""The masks that text can name: those without tensors."""


def parse_mask(text: str, choices: Choices = MASKS) -> Mask:
    """The mask that the text makes, from masks in `choices` combined with `&`, `|`, `~`.

    Raises `BadInput` for text that is no such line, and for unknown names, naming the nearest.

    >>> parse_mask("Causal() & ~Window(3)")
    Causal() & ~Window(before=3)
    """
    return make_mask(parse_expression(text), choices, text)


def parse_part(text: str, choices: Choices) -> Any:
    """What the text of one call makes, by the function or class of that name in `choices`.

    >>> from regard import Alibi, Rotary
    >>> parse_part("Rotary(dim=64)", {"Alibi": Alibi, "Rotary": Rotary})
    Rotary(dim=64)
    """
    return make_part(parse_expression(text), choices, text)


def parse_call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Name, arguments by position and arguments by name of the text of one call; nothing is made.

    >>> parse_call("T5Bias(32, bidirectional=False)")
    ('T5Bias', [32], {'bidirectional': False})
    """
    return read_call(parse_expression(text), text)


def choose(name: str, choices: Iterable[str], text: str) -> str:
    """The name, if it is one of the choices; otherwise raises `BadInput` with the nearest one."""
    choices = list(choices)
    if name in choices:
        return name
    nearest = (difflib.get_close_matches(name, choices, n=1) or choices)[0]
    raise BadInput(f"{text!r}: there is no {name} here. Did you mean {nearest}? Known: {', '.join(choices)}.")


def parse_expression(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = getattr(error, "msg", error)
        raise BadInput(f"{text!r:.200} is not the text of a part ({why}). Write it as Python: 'Causal()'.") from None


def make_mask(node: ast.expr, choices: Choices, text: str) -> Mask:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
        left, right = make_mask(node.left, choices, text), make_mask(node.right, choices, text)
        return left & right if isinstance(node.op, ast.BitAnd) else left | right
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return ~make_mask(node.operand, choices, text)
    return make_part(node, choices, text)


def make_part(node: ast.expr, choices: Choices, text: str) -> Any:
    name, arguments, named = read_call(node, text)
    make = choices[choose(name, choices, text)]
    try:
        return make(*arguments, **named)
    except TypeError as error:
        known = list(inspect.signature(make).parameters)
        hints = [difflib.get_close_matches(word, known, n=1) for word in named if word not in known]
        hint = f" Did you mean {hints[0][0]}?" if hints and hints[0] else ""
        raise BadInput(f"{text!r}: {error}.{hint} Its arguments are {', '.join(known) or 'none'}.") from None


def read_call(node: ast.expr, text: str) -> tuple[str, list[Any], dict[str, Any]]:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        raise BadInput(f"{text!r} is not the text of a part. Write its name and arguments: 'Window(before=255)'.")
    try:
        arguments = [ast.literal_eval(value) for value in node.args]
        return node.func.id, arguments, {word.arg or "": ast.literal_eval(word.value) for word in node.keywords}
    except (ValueError, TypeError):
        raise BadInput(
            f"{text!r} has an argument that is not a number, text, None, or a list or tuple of these. Write it out."
        ) from None
