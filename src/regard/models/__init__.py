"""Models: configurations, checkpoints, tokenizers, generation."""
