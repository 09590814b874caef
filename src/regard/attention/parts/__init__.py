"""The parts of a call: score, position, mask, method."""
