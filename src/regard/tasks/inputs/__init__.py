"""What a task's model reads: text, images, audio, word features."""
