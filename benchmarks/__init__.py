"""Measurements of speed; each module is run by its name: ``python -m benchmarks.packing``."""
