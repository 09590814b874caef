"""Built-in models that are set by hand."""
