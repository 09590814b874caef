"""Words and characters as indices: their features, boundaries, vectors, and how a text is split into words."""
