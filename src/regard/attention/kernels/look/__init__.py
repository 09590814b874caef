"""Statistics of the attention weights."""
