"""Tokenizers: loading, training, encoding."""
