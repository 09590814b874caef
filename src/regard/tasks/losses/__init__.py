"""Losses and targets."""
