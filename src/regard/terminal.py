"""Output and error handling shared by all commands."""

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

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout, everything else to stderr.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

DISK_FULL, NOT_WRITABLE = " Free some disk space and run the command again.", " Choose a writable folder."
ADVICE_BY_ERRNO = dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), DISK_FULL) | dict.fromkeys(
    (errno.EROFS, errno.EACCES), NOT_WRITABLE
)


@contextmanager
def report_errors(debug: bool) -> Iterator[None]:
    """Print an error as one paragraph to stderr and exit with status 1; re-raise it if `debug`.

    A closed pipe (`| head`) is not an error.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes stdout at exit
        raise typer.Exit(0) from None
    except Exception as error:
        if debug or isinstance(error, typer.Exit | typer.BadParameter):
            raise
        print_message(f"Error: {explain(error)}")
        raise typer.Exit(1) from None


def explain(error: Exception) -> str:
    """The message of an error as one paragraph; errors of other libraries with their class."""
    from regard import RegardError

    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror:
        advice = ADVICE_BY_ERRNO.get(error.errno or 0, "")
        return f"{error.filename or 'A file'} could not be read or written: {error.strerror}.{advice}"
    return text if isinstance(error, RegardError) else f"{type(error).__name__}: {text} (use --debug for the traceback)"


def print_message(text: str) -> None:
    """Print a message to stderr."""
    print(text, file=sys.stderr, flush=True)


def print_result(document: Any, text: str, as_json: bool) -> None:
    """Print the JSON document or the text to stdout."""
    print(json.dumps(document, ensure_ascii=False) if as_json else text)
