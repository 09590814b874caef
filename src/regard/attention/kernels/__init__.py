"""Kernels for a GPU, and the lists of tiles that they walk."""
