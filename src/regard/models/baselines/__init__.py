"""Baselines without layers: n-grams and linear models."""
