"""Training with several processes: how they meet, share weights and sequences, and notice that one is gone."""
