"""Additive attention: tanh or leaky ReLU of q + k."""
