"""Forms of multi-head attention besides the plain one: latent, differential, gated."""
