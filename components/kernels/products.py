"""What kernels take the factors of products in, how exact those are, and what a device holds."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl


@dataclass(frozen=True)
class Products:
    """Products of float32 numbers: the type of their factors, and Triton's name for the rest.

    kind: "float32" or "bfloat16". precision: "ieee", "tf32", or "tf32x3", which is three of those
    and as exact as float32 to a few roundings.
    """

    kind: str
    precision: str

    @property
    def triton(self) -> tl.dtype:
        """For a kernel."""
        return tl.bfloat16 if self.kind == "bfloat16" else tl.float32

    @property
    def torch(self) -> torch.dtype:
        """For a tensor that a kernel keeps factors in."""
        return torch.bfloat16 if self.kind == "bfloat16" else torch.float32

    @property
    def bytes(self) -> int:
        """Of one factor."""
        return self.torch.itemsize

    @property
    def how(self) -> tuple[tl.dtype, str]:
        """The last arguments of every kernel."""
        return self.triton, self.precision

    @property
    def allowed(self) -> float:
        """Relative error that a self-check lets pass; a wrong kernel is off by more than it."""
        if self.kind == "bfloat16":
            return 0.2
        return 0.05 if self.precision == "tf32" else 1e-3


def products(device: torch.device) -> Products:
    """What `torch.set_float32_matmul_precision` asks for, as torch's own products have it.

    "highest" is float32 to rounding, "high" TF32, "medium" bfloat16. Off NVIDIA GPUs and in the
    interpreter all but bfloat16 is float32.
    """
    asked = torch.get_float32_matmul_precision()
    if device.type != "cuda":
        return Products("float32", "ieee")
    if asked == "medium":
        return Products("bfloat16", "ieee")
    if torch.version.hip:
        return Products("float32", "ieee")
    return Products("float32", "tf32" if asked == "high" else "tf32x3")


def side(size: int) -> int:
    """The next power of two, 16 at least: the smallest tile of a product."""
    return max(16, int(triton.next_power_of_2(size)))


@functools.lru_cache(maxsize=16)
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that one program may have."""
    if device.type != "cuda":
        return 1 << 30
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", 0) or 48 * 1024)


def empty(like: torch.Tensor, *shape: int) -> torch.Tensor:
    """Room for sums, which are in float32 whatever the factors are in, where `like` lies."""
    return torch.empty(shape, dtype=torch.float32, device=like.device)
