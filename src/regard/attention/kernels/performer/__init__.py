"""Performer's random features."""
