"""Experiments: what textbooks say about attention, each claim put to the test in one file."""
