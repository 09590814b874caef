"""What can go wrong, by what the caller can do about it."""


class RegardError(Exception):
    """Every error that Regard raises on purpose."""


class BadInput(RegardError, ValueError):
    """An argument does not fit; the message says what was given, what was wanted and what to do."""


class Unsupported(RegardError):
    """These parts, or this backend, cannot do what was asked; the message says why and what can."""


class TooLarge(RegardError, MemoryError):
    """The answer would not fit into memory; the message says how much it needs and what to ask for instead."""


class Missing(RegardError, ImportError):
    """An optional package is not installed; the message has the line that installs it."""
