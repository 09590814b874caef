"""What all commands share: how they answer, and how they fail."""

import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

try:
    import typer
except ImportError:
    raise SystemExit('The command line needs typer, which is not installed: pip install "regard[cli]"') from None

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, everything else on stderr.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

FULL, CLOSED = " Make room, and run the same command again.", " Give a folder that may be written to."
OUTSIDE = {errno.ENOSPC: FULL, errno.EDQUOT: FULL, errno.EFBIG: FULL, errno.EROFS: CLOSED, errno.EACCES: CLOSED}
"""What to do about errors of the system's files."""


@contextmanager
def one_paragraph(debug: bool) -> Iterator[None]:
    """Turns an error inside into a paragraph on stderr and exit status 1; with `debug` it passes.

    Whoever reads no further, as `head` does, is no error.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what Python still has to flush at its end
        raise typer.Exit(0) from None
    except Exception as error:
        if debug or isinstance(error, typer.Exit | typer.BadParameter):
            raise
        say(f"Error: {explain(error)}")
        raise typer.Exit(1) from None


def explain(error: Exception) -> str:
    """Our own errors in their words, others with their class; as one paragraph."""
    from regard import RegardError

    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror:
        advice = OUTSIDE.get(error.errno or 0, "")
        return f"{error.filename or 'A file'} could not be read or written: {error.strerror}.{advice}"
    return text if isinstance(error, RegardError) else f"{type(error).__name__}: {text} (--debug shows where)"


def say(text: str) -> None:
    """Words for the person at the terminal, out of the way of what is printed."""
    print(text, file=sys.stderr, flush=True)


def answer(document: Any, text: str, as_json: bool) -> None:
    """Prints one or the other."""
    print(json.dumps(document, ensure_ascii=False) if as_json else text)
