"""Few queries over many cached keys."""
