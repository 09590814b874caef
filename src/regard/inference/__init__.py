"""Trained models in use: `regard.open`, and the tasks of checkpoints from elsewhere."""
