"""Annotated texts: spans, pairs, questions with passages."""
