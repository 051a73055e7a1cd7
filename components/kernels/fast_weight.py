"""`components.recurrence.fast_weight` in Triton: the same three functions, the same arguments.

The file of that name in `recurrence` says what they compute and is what the tests compare with.
Matrix memories use them as they are; a deep memory is read one layer after another, each with its
own coefficients, so it is the same kernels once for each layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from ablate.components.kernels import read_kernels, scan_kernels
from ablate.components.kernels.products import Products, products

WARPS = 8


@dataclass(frozen=True)
class Launch:
    """How the kernels are compiled.

    tokens, sources: of a stretch that a program takes at once. block: features, and channels of
    what is read. rows: of the state that one program scans.
    """

    tokens: int
    sources: int
    block: int
    rows: int
    products: Products

    @classmethod
    def of(cls, tokens: int, sources: int, width: int, kind: Products) -> Launch:
        """Tiles for a stretch and matrices whose wider side is `width`.

        They are those that spill no registers (`tests/kernel_usage.py`), and take less shared
        memory than any GPU has.
        """
        large = width > 64 and kind.bytes < 4
        return cls(
            min(64, _power(tokens)),
            min(64 if large else 32, _power(sources)),
            64 if large else 32,
            16 if width > 64 else 32,
            kind,
        )

    @property
    def how(self) -> tuple[tl.dtype, str]:
        """Factors of products, for a kernel."""
        return self.products.triton, self.products.precision

    def blocks(self, tokens: int = 1, sources: int = 1, width: int = 1) -> tuple[int, int, int]:
        """Numbers of blocks."""
        return (
            triton.cdiv(tokens, self.tokens),
            triton.cdiv(sources, self.sources),
            triton.cdiv(width, self.block),
        )


def _power(size: int) -> int:
    """The next power of two, 16 at least: the smallest tile of a product."""
    return max(16, int(triton.next_power_of_2(size)))


def read_weight(
    z: Float[Tensor, "p n i"],
    state: Float[Tensor, "p m o i"],
    zs: Float[Tensor, "p s i"],
    us: Float[Tensor, "p s o"],
    share: Float[Tensor, "p n m"],
    read: Float[Tensor, "p n s"],
    *,
    kind: Products | None = None,
) -> Float[Tensor, "p n o"]:
    """sum_m share[n,m] X_m z_n - sum_s read[n,s] u_s (z_s . z_n).

    Args:
        kind: what products are taken in; by default what torch's own are.
    """
    y: Tensor = _Read.apply(z, state, zs, us, share, read, kind or products(z.device))  # type: ignore[no-untyped-call]
    return y


def write_weight(
    state: Float[Tensor, "p m o i"],
    zs: Float[Tensor, "p s i"],
    us: Float[Tensor, "p s o"],
    mix: Float[Tensor, "p m m"],
    last: Float[Tensor, "p s m"],
    *,
    kind: Products | None = None,
) -> Float[Tensor, "p m o i"]:
    """X'_m = sum_k mix[m,k] X_k + sum_s last[s,m] u_s z_s^T: a scan of one stretch."""
    return scan_weight(state, None, zs[None], -us[None], mix[None], last[None], kind=kind)[2]


def scan_weight(
    state: Float[Tensor, "p m o i"],
    probes: Float[Tensor, "g p k s i"] | None,
    zs: Float[Tensor, "g p s i"],
    values: Float[Tensor, "g p s o"],
    mix: Float[Tensor, "g p m m"],
    last: Float[Tensor, "g p s m"],
    *,
    kind: Products | None = None,
) -> tuple[Float[Tensor, "g p s o"], Float[Tensor, "g p m o i"], Float[Tensor, "p m o i"]]:
    """Errors, starts and the end of stretches that follow each other, in one launch."""
    us, starts, end = _Scan.apply(state, probes, zs, values, mix, last, kind or products(zs.device))  # type: ignore[no-untyped-call]
    return us, starts, end


def _empty(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def _back(grads: tuple[Tensor | None, ...], inputs: tuple[Tensor | None, ...]) -> list[Any]:
    """Gradients in the inputs' types."""
    return [
        None if grad is None or x is None else grad.to(x.dtype)
        for grad, x in zip(grads, inputs, strict=True)
    ]


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        *tensors, kind = given
        z, state, zs, us, share, read = inputs = tuple(x.contiguous() for x in tensors)
        p, n, cols = z.shape
        s, rows = us.shape[1:]
        launch = Launch.of(n, s, max(rows, cols), kind)
        y = _empty(z, p, n, rows)
        tokens, _, width = launch.blocks(n, s, rows)
        read_kernels.forward_kernel[(p, tokens, width)](
            *inputs, y, n, s, rows, cols, state.shape[1],
            launch.tokens, launch.sources, launch.block, *launch.how, num_warps=WARPS, num_stages=1,
        )  # fmt: skip
        ctx.save_for_backward(*inputs)
        ctx.launch = launch
        return y.to(z.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        z, state, zs, us, share, read = inputs = ctx.saved_tensors
        launch = ctx.launch
        d_y = grads[0].contiguous()
        p, n, cols = z.shape
        s, rows = us.shape[1:]
        m = state.shape[1]
        tiles = (launch.tokens, launch.sources, launch.block, *launch.how)
        how = {"num_warps": WARPS, "num_stages": 1}
        tokens, sources, across = launch.blocks(n, s, cols)
        down = launch.blocks(width=rows)[2]
        d_z, d_zs, d_us = (_empty(x, *x.shape) for x in (z, zs, us))
        d_state, d_read, d_share = (
            _empty(z, *shape) for shape in (state.shape, read.shape, (p, across, n, m))
        )
        read_kernels.backward_tokens_kernel[(p, tokens, across)](
            *inputs, d_y, d_z, d_share, d_read, n, s, rows, cols, m, *tiles, **how
        )
        read_kernels.backward_sources_kernel[(p, sources, down)](
            z, zs, read, d_y, d_us, n, s, cols, rows, *tiles, **how
        )
        read_kernels.backward_sources_kernel[(p, sources, across)](
            d_y, us, read, z, d_zs, n, s, rows, cols, *tiles, **how
        )
        read_kernels.backward_state_kernel[(p * m, down, across)](
            z,
            share,
            d_y,
            d_state,
            n,
            rows,
            cols,
            m,
            launch.tokens,
            launch.block,
            *launch.how,
            **how,
        )
        made = (d_z, d_state, d_zs, d_us, d_share.sum(1), d_read)
        return (*_back(made, inputs), None)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
        *tensors, kind = given
        inputs = tuple(None if x is None else x.contiguous() for x in tensors)
        state, probes, zs, values, mix, last = inputs
        g, p, s, cols = zs.shape
        m, rows = state.shape[1:3]
        launch = Launch.of(1, s, max(rows, cols), kind)
        us, starts = _empty(zs, g, p, s, rows), _empty(zs, g + 1, *state.shape)
        starts[0] = state
        scan_kernels.forward_kernel[(p, triton.cdiv(rows, launch.rows))](
            starts, probes, zs, values, mix, last, us, g, s, rows, cols, m, _count(probes),
            launch.sources, launch.rows, launch.block, *launch.how, num_warps=WARPS, num_stages=1,
        )  # fmt: skip
        ctx.save_for_backward(*inputs, us, starts)
        ctx.launch = launch
        return us.to(values.dtype), starts[:-1].to(state.dtype), starts[-1].to(state.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, us, starts = ctx.saved_tensors
        state, probes, zs, values, mix, last = inputs
        launch = ctx.launch
        d_us, d_starts, d_end = (grad.contiguous() for grad in grads)
        g, p, s, cols = zs.shape
        m, rows = state.shape[1:3]
        tiles = (launch.sources, launch.rows, launch.block, *launch.how)
        how = {"num_warps": WARPS, "num_stages": 1}
        down = triton.cdiv(rows, launch.rows)
        _, sources, across = launch.blocks(1, s, cols)
        ends, errors = torch.empty_like(starts), torch.empty_like(us)
        ends[-1] = d_end
        d_last = _empty(us, g, p, down, s, m)
        scan_kernels.backward_kernel[(p, down)](
            ends, probes, zs, us, mix, last, d_us, d_starts, errors, d_last,
            g, s, rows, cols, m, _count(probes), *tiles, **how,
        )  # fmt: skip
        d_zs, d_mix = _empty(zs, *zs.shape), _empty(zs, g, p, across, m, m)
        d_probes = None if probes is None else _empty(zs, *probes.shape)
        scan_kernels.backward_sources_kernel[(g * p, sources, across)](
            ends, starts, us, errors, last, d_zs, d_probes, d_mix,
            p, s, rows, cols, m, _count(probes), *tiles, **how,
        )  # fmt: skip
        made = (ends[0], d_probes, d_zs, -errors, d_mix.sum(2), d_last.sum(2))
        return (*_back(made, tuple(inputs)), None)


def _count(probes: Tensor | None) -> int:
    return 0 if probes is None else probes.shape[2]
