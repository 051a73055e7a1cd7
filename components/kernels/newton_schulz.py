"""Orthogonalised momenta that are read where they are made, with their gradients, in Triton.

The torch form of the same sums is `components.recurrence.writes.OrthogonalWrite`, which makes a
matrix for each write; here none leaves a program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from ablate.components.kernels.newton_schulz_kernels import backward_kernel, forward_kernel
from ablate.components.newton_schulz import Schedule

MOST_ROWS = 128
MOST_TOKENS = 64


@dataclass(frozen=True)
class Launch:
    """How a kernel is compiled; `warps` and `block` are those that spill no registers."""

    rows: int  # of the matrices, up to a power of two
    cols: int
    block: int
    warps: int
    dot: tl.dtype

    @classmethod
    def of(cls, rows: int, cols: int, dot: tl.dtype) -> Launch:
        """The launch for matrices of `rows` and `cols`.

        Raises:
            ValueError: the smaller side is above what the registers hold.
        """
        if rows > MOST_ROWS:
            raise ValueError(
                f"Newton-Schulz kernel: matrices of {rows} by {cols}; the smaller side must be at "
                f"most {MOST_ROWS}"
            )
        block = min(64, _power(cols))
        wide = -(-cols // block) * block
        return cls(_power(rows), wide, block, 4 if _power(rows) <= 32 else 8, dot)


def _power(size: int) -> int:
    """The next power of two, 16 at least: the smallest tile of a product."""
    return max(16, int(triton.next_power_of_2(size)))


class _Sums(torch.autograd.Function):
    """Matrices have at most as many rows as columns."""

    @staticmethod
    def forward(
        ctx: Any,
        s0: Tensor,
        u: Tensor,
        z: Tensor,
        carry: Tensor,
        read: Tensor,
        write: Tensor,
        end: Tensor,
        given: Tensor,
        schedule: Tensor,
        eps: float,
        from_right: bool,
        launch: Launch,
    ) -> tuple[Tensor, Tensor]:
        tensors = [x.contiguous() for x in (s0, u, z, carry, read, write, end, given)]
        s0, u, z, carry, read, write, end, given = tensors
        p, rows, cols = s0.shape
        sources, writes, tokens = u.shape[1], read.shape[1], given.shape[1]
        out = _zeros(s0, p, tokens, rows if from_right else cols)
        end_out = _zeros(s0, p, rows, cols)
        wide, narrow = _scratch(s0, launch, 1)
        forward_kernel[(p,)](
            *tensors, out, end_out, wide, narrow, schedule,
            schedule.shape[0], eps, sources, writes, tokens, rows, cols,
            launch.rows, launch.cols, launch.block, _power(tokens),
            from_right, launch.dot, "ieee", num_warps=launch.warps, num_stages=1,
        )  # fmt: skip
        ctx.save_for_backward(*tensors, schedule)
        ctx.options = eps, from_right, launch
        return out.to(given.dtype), end_out.to(s0.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, schedule = ctx.saved_tensors
        eps, from_right, launch = ctx.options
        s0, u, z, carry, read, write, end, given = tensors
        d_out, d_end_out = (grad.contiguous() for grad in grads)
        p, rows, cols = s0.shape
        sources, writes, tokens = u.shape[1], read.shape[1], given.shape[1]
        left, right = (d_out, given) if from_right else (given, d_out)
        # In the order of the kernel's arguments; all in fp32, as the sums are.
        d_s0, d_u, d_z, d_carry, d_read, d_write, d_end, d_given = (
            torch.zeros_like(x, dtype=torch.float32) for x in tensors
        )
        wide, narrow, dual, grams = _scratch(s0, launch, 3)
        backward_kernel[(p,)](
            s0, u, z, carry, read, write, end, left, right, d_end_out,
            d_s0, d_u, d_z, d_carry, d_read, d_write, d_end, d_given, wide, narrow, dual, grams,
            schedule, schedule.shape[0], eps, sources, writes, tokens, rows, cols,
            launch.rows, launch.cols, launch.block, _power(sources), _power(tokens),
            from_right, launch.dot, "ieee", num_warps=launch.warps, num_stages=1,
        )  # fmt: skip
        made = (d_s0, d_u, d_z, d_carry, d_read, d_write, d_end, d_given)
        back = (d.to(x.dtype) for d, x in zip(made, tensors, strict=True))
        return (*back, None, None, None, None)


def _zeros(like: Tensor, *shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float32, device=like.device)


def _scratch(s0: Tensor, launch: Launch, narrow: int) -> list[Tensor]:
    """S in fp32, and what the products take: X; and X', then two squares, if `narrow` is 3."""
    kind = torch.bfloat16 if launch.dot == tl.bfloat16 else torch.float32
    p, size = s0.shape[0], launch.rows * launch.cols
    sizes = [size, size, size, 2 * launch.rows**2][: 1 + narrow]
    kinds = [torch.float32, *[kind] * narrow]
    return [s0.new_empty(p * n, dtype=k) for n, k in zip(sizes, kinds, strict=True)]


def orthogonal_sums(
    s0: Float[Tensor, "p o i"],
    u: Float[Tensor, "p s o"],
    z: Float[Tensor, "p s i"],
    carry: Float[Tensor, "p w"],
    read: Float[Tensor, "p w s"],
    write: Float[Tensor, "p n w"],
    end: Float[Tensor, "p w"],
    right: Float[Tensor, "p n i"],
    *,
    schedule: Schedule,
    eps: float,
    dot: str = "float32",
) -> tuple[Float[Tensor, "p n o"], Float[Tensor, "p o i"]]:
    """Sums over writes w of NS(S_w) on `right`, weighted by `write`, and of NS(S_w) by `end`.

    S_w = carry_w S_0 + sum_s read[w, s] u_s z_s^T (Atlas Eq. 32-33 with the gates folded in).

    Args:
        schedule: (a, b, c) of each step, one at least.
        eps: added to the Frobenius norm.
        dot: type of the factors of products, "float32" or "bfloat16"; sums are float32.

    Raises:
        ValueError: the smaller side of the matrices, or the number of tokens, is too large.
    """
    if right.shape[1] > MOST_TOKENS:
        raise ValueError(f"Newton-Schulz kernel: {right.shape[1]} tokens; at most {MOST_TOKENS}")
    steps = torch.tensor(schedule, dtype=torch.float32, device=s0.device)
    kind = {"float32": tl.float32, "bfloat16": tl.bfloat16}[dot]
    rows, cols = s0.shape[1:]
    tall = rows > cols
    matrices = (s0.mT, z, u) if tall else (s0, u, z)
    launch = Launch.of(min(rows, cols), max(rows, cols), kind)
    y, made = _Sums.apply(  # type: ignore[no-untyped-call]  # torch's own
        *matrices, carry, read, write, end, right, steps, eps, not tall, launch
    )
    return y, made.mT if tall else made
