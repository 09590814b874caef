"""Training: the loop, its checkpoints, and the folders of runs."""
