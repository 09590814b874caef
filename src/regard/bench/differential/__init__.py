"""Random calls of every backend beside the formula in float64."""
