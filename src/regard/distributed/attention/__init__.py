"""Attention over ranks: what each computes, what travels, and how the results are merged."""
