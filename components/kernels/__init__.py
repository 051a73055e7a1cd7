"""Triton kernels of the memory layer, each beside the function that differentiates through it."""
