"""Checkpoint folders: reading, writing, key tables."""
