"""Forms of multi-head attention beside the plain one: latent, differential, gated."""
