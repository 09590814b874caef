"""Attention tile by tile, on any device, in memory linear in the sequence."""
