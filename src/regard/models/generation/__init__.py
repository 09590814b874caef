"""Generation: greedy, sampling, beam search."""
