"""Hypothesis draws the same examples every time and has no deadline for slow machines."""

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")
