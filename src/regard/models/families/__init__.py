"""One file an architecture: how its configuration and its tensors' names become ours, and back."""
