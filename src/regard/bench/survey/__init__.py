"""Random everyday calls beside the fastest alternative."""
