"""Layers to compare attention with: convolution, fully connected, recurrent."""
