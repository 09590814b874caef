"""Starting from a checkpoint: its encoder, its tokenizer or feature extractor, and settings that suit fine-tuning."""
