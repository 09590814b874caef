"""Parts in configurations and layers: typed fields, learned parts, rotary embeddings."""
