"""One file for each architecture: its preset, its configuration in Hugging Face's form, and its key table."""
