"""`regard serve`: a trained model behind HTTP, with batches, limits and an OpenAPI page."""
