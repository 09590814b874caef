"""Context managers around a model's attention: watch it, or edit it."""
