"""Triton kernels, a folder per family: kernels.py runs on the device, passes.py on the host."""
