"""Named random streams: one seed gives each consumer its own numbers.

A stream depends on the seed and its name only. So removing one component leaves the initial
weights of all others and the order of the data as they were, and trials of one seed are paired.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def _entropy(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:16], "big")


def generator(seed: int, name: str) -> np.random.Generator:
    """The NumPy stream of `name` under `seed`; the same two arguments give the same numbers."""
    return np.random.Generator(np.random.PCG64(_entropy(seed, name)))


def torch_generator(seed: int, name: str) -> torch.Generator:
    """The PyTorch stream (on the CPU) of `name` under `seed`."""
    return torch.Generator().manual_seed(_entropy(seed, name) % 2**63)
