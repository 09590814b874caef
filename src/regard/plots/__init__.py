"""Figures and pages from plain arrays: maps, lines, masks."""
