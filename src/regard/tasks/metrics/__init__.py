"""Metrics, and the decoding they need."""
