"""Forward passes with their attention captured, and regions of it."""
