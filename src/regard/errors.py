"""The errors, by what the caller can do about them."""


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
