"""Dot-product attention with any mask, distance bias or relative vectors."""
