"""Graph attention layers."""
