"""Layers with sparse attention: Longformer, BigBird, hierarchical."""
