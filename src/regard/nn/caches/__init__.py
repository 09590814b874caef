"""Where a cache keeps keys and values: buffers that grow or have a fixed size, 8-bit codes, pages."""
