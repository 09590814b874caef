"""The claims: one module for each, see `regard.experiments.experiment` for its contract."""
