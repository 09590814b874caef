"""Tasks: from files to examples, a loss, a metric and a prediction."""
