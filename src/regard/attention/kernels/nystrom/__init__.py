"""Nyström attention with landmarks."""
