"""Linformer's projections of keys and values."""
