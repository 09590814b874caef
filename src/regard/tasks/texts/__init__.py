"""Tasks over texts with more than one label: spans, pairs, ranked candidates, answers, several tasks at once."""
