"""Training: the loop, what it saves, and how it goes on from there."""
