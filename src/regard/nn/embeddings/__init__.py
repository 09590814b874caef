"""Inputs as vectors: text, images, audio, words."""
