"""The course: claims about attention, step by step, each with numbers that can be changed."""

from .course import find_step, list_chapters, list_steps

__all__ = ["find_step", "list_chapters", "list_steps"]
