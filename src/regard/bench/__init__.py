"""Benchmarks: Regard beside torch's own attention, FlexAttention, PyG and transformers, in one run on this machine."""
