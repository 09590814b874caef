"""The algebra of attention and its backends."""
