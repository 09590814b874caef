"""Data: a person's own files read, checked and put into batches, in an order that can be resumed."""
