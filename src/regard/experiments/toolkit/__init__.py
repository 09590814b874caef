"""Shared by the claims: a training loop, metrics, figures, profiling, and small tasks and models."""
