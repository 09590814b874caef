"""User input as model arguments and tokens to draw."""
