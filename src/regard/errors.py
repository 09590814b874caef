"""The errors, by what the caller can do about them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class RegardError(Exception):
    """Every error that Regard raises on purpose."""


class BadInput(RegardError, ValueError):
    """An argument does not fit; the message says what was given, what is expected and what to do."""


class Unsupported(RegardError):
    """The parts do not go together, or a backend cannot run them; the message says why and what can."""


class TooLarge(RegardError, MemoryError):
    """The result would not fit into memory; the message says how much it needs and what to use instead."""


class Missing(RegardError, ImportError):
    """An optional package is not installed; the message has the line that installs it."""


def is_panic(error: BaseException) -> bool:
    """Whether an exception is the panic of a library in Rust, which is no `Exception`."""
    return type(error).__module__.startswith("pyo3")


def is_foreign(error: BaseException) -> bool:
    """Whether an exception is neither ours nor a request to stop: one of Python, of a library, or a panic of Rust."""
    return (isinstance(error, Exception) or is_panic(error)) and not isinstance(error, RegardError)


@contextmanager
def explain_panic(name: str | Path) -> Iterator[None]:
    """While open, a panic of a library in Rust, such as the tokenizer's, becomes `BadInput` that names the model."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        reason = " ".join(str(error).split())[:200]
        raise BadInput(f"{name}: the tokenizer failed ({reason}). Its files are damaged: get them again.") from error


@contextmanager
def explain_damage(file: str | Path) -> Iterator[None]:
    """While open, exceptions that are not ours become `BadInput` that names the file or folder which is read."""
    advice = "It was written by another version, or is damaged. Get it again, or train the model again."
    try:
        yield
    except BaseException as error:
        if not is_foreign(error):
            raise
        reason = " ".join(f"{error}".split())[:200] or type(error).__name__
        if isinstance(error, KeyError):
            message = f"{file} lacks {str(error.args[0] if error.args else '')[:200]!r}."
        elif isinstance(error, OSError) and error.strerror:
            message = f"{file} cannot be read: {error.strerror}."
        elif isinstance(error, MemoryError):
            message = f"{file} needs more memory than there is."
        else:
            message = f"{file} has contents that cannot be used ({reason})."
        raise BadInput(f"{message} {advice}") from error
