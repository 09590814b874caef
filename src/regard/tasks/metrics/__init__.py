"""Metrics, and CTC decoding."""
