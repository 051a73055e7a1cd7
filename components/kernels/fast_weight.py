"""`components.recurrence.fast_weight` in Triton: the same three functions, the same arguments.

The file of that name in `recurrence` says what they compute and is what the tests compare with.
Matrix memories use them as they are; a deep memory is read one layer after another, each with its
own coefficients, so it is the same kernels once for each layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from jaxtyping import Float
from torch import Tensor

from ablate.components.kernels import read_kernels, scan_kernels
from ablate.components.kernels.exactness import with_gradients, worst
from ablate.components.kernels.products import Products, empty, products, side
from ablate.components.recurrence import fast_weight as plain
from ablate.components.recurrence.fast_weight import ROWS
from ablate.components.recurrence.lanes import Slopes, by_rows

WARPS = 8
_OPTIONS = {"num_warps": WARPS, "num_stages": 1}


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
            min(64, side(tokens)),
            min(64 if large else 32, side(sources)),
            64 if large else 32,
            16 if width > 64 else 32,
            kind,
        )

    @property
    def shared(self) -> int:
        """Bytes of shared memory that it takes at most, by what compilers made of it."""
        factors = self.tokens + self.sources + self.block
        return (self.tokens * self.sources + factors * self.block) * self.products.bytes

    def blocks(self, tokens: int = 1, sources: int = 1, width: int = 1) -> tuple[int, int, int]:
        """Numbers of blocks."""
        return (
            triton.cdiv(tokens, self.tokens),
            triton.cdiv(sources, self.sources),
            triton.cdiv(width, self.block),
        )


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


def refusal(rows: int, cols: int) -> str | None:
    """Why the kernels cannot serve matrices of this size: they take them in blocks, so never."""
    return None


def _whole(inputs: Sequence[Any]) -> list[Any]:
    return [x.contiguous() if isinstance(x, Tensor) else x for x in inputs]


def _typed(made: tuple[Tensor | None, ...], inputs: list[Any]) -> tuple[Tensor | None, ...]:
    """Gradients in the inputs' types."""
    return tuple(
        None if grad is None or x is None else grad.to(x.dtype)
        for grad, x in zip(made, inputs, strict=True)
    )


@by_rows((*ROWS, 0), 0)
class _Read(torch.autograd.Function):
    @staticmethod
    def forward(*given: Any) -> Tensor:
        *tensors, kind = given
        z, state, zs, us, share, read = _whole(tensors)
        p, n, cols = z.shape
        s, rows = us.shape[1:]
        launch = Launch.of(n, s, max(rows, cols), kind)
        y = empty(z, p, n, rows)
        tokens, _, width = launch.blocks(n, s, rows)
        read_kernels.forward_kernel[(p, tokens, width)](
            z, state, zs, us, share, read, y, n, s, rows, cols, state.shape[1],
            launch.tokens, launch.sources, launch.block, *kind.how, **_OPTIONS,
        )  # fmt: skip
        return y.to(z.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:-1])
        ctx.kind = inputs[-1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        slopes = _ReadBack.apply(*ctx.saved_tensors, *grads, ctx.kind)  # type: ignore[no-untyped-call]
        return (*slopes, None)


@by_rows((*ROWS, 0, 0), ROWS)
class _ReadBack(Slopes):
    """The gradient of `_Read`."""

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor | None, ...]:
        *tensors, kind = given
        *inputs, d_y = _whole(tensors)
        z, state, zs, us, share, read = inputs
        p, n, cols = z.shape
        s, rows = us.shape[1:]
        m = state.shape[1]
        launch = Launch.of(n, s, max(rows, cols), kind)
        tiles = (launch.tokens, launch.sources, launch.block, *kind.how)
        tokens, sources, across = launch.blocks(n, s, cols)
        down = launch.blocks(width=rows)[2]
        d_z, d_state, d_zs, d_us, _, d_read = (empty(x, *x.shape) for x in inputs)
        d_share = empty(z, p, across, n, m)
        read_kernels.backward_tokens_kernel[(p, tokens, across)](
            *inputs, d_y, d_z, d_share, d_read, n, s, rows, cols, m, *tiles, **_OPTIONS
        )
        read_kernels.backward_sources_kernel[(p, sources, down)](
            z, zs, read, d_y, d_us, n, s, cols, rows, *tiles, **_OPTIONS
        )
        read_kernels.backward_sources_kernel[(p, sources, across)](
            d_y, us, read, z, d_zs, n, s, rows, cols, *tiles, **_OPTIONS
        )
        few = (launch.tokens, launch.block, *kind.how)
        read_kernels.backward_state_kernel[(p * m, down, across)](
            z, share, d_y, d_state, n, rows, cols, m, *few, **_OPTIONS
        )
        return _typed((d_z, d_state, d_zs, d_us, d_share.sum(1), d_read), inputs)


@by_rows((0, 1, 1, 1, 1, 1, 0), (1, 1, 0))
class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
        *tensors, kind = given
        state, probes, zs, values, mix, last = _whole(tensors)
        g, p, s, cols = zs.shape
        m, rows = state.shape[1:3]
        launch = Launch.of(1, s, max(rows, cols), kind)
        us, starts = empty(zs, g, p, s, rows), empty(zs, g + 1, *state.shape)
        starts[0] = state
        scan_kernels.forward_kernel[(p, triton.cdiv(rows, launch.rows))](
            starts, probes, zs, values, mix, last, us, g, s, rows, cols, m, _count(probes),
            launch.sources, launch.rows, launch.block, *kind.how, **_OPTIONS,
        )  # fmt: skip
        starts = starts.to(state.dtype)
        return us.to(values.dtype), starts[:-1], starts[-1].clone()

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        _, probes, zs, _, mix, last, ctx.kind = inputs
        ctx.save_for_backward(probes, zs, mix, last, *output[:2])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        slopes = _ScanBack.apply(*ctx.saved_tensors, *grads, ctx.kind)  # type: ignore[no-untyped-call]
        return (*slopes, None)


@by_rows((*(1,) * 8, 0, 0), (0, 1, 1, 1, 1, 1))
class _ScanBack(Slopes):
    """The gradient of `_Scan`: the same turns, from the last on."""

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor | None, ...]:
        *tensors, kind = given
        probes, zs, mix, last, us, starts, d_us, d_starts, d_end = _whole(tensors)
        g, p, s, cols = zs.shape
        m, rows = starts.shape[2:4]
        launch = Launch.of(1, s, max(rows, cols), kind)
        tiles = (launch.sources, launch.rows, launch.block, *kind.how)
        down = triton.cdiv(rows, launch.rows)
        _, sources, across = launch.blocks(1, s, cols)
        ends, errors = empty(zs, g + 1, *starts.shape[1:]), empty(zs, *us.shape)
        ends[-1] = d_end
        d_last = empty(us, g, p, down, s, m)
        scan_kernels.backward_kernel[(p, down)](
            ends, probes, zs, us, mix, last, d_us, d_starts, errors, d_last,
            g, s, rows, cols, m, _count(probes), *tiles, **_OPTIONS,
        )  # fmt: skip
        d_zs, d_mix = empty(zs, *zs.shape), empty(zs, g, p, across, m, m)
        d_probes = None if probes is None else empty(zs, *probes.shape)
        scan_kernels.backward_sources_kernel[(g * p, sources, across)](
            ends, starts, us, errors, last, d_zs, d_probes, d_mix,
            p, s, rows, cols, m, _count(probes), *tiles, **_OPTIONS,
        )  # fmt: skip
        made = (ends[0].clone(), d_probes, d_zs, -errors, d_mix.sum(2), d_last.sum(2))
        return _typed(made, [starts, probes, zs, us, mix, last])


def _count(probes: Tensor | None) -> int:
    return 0 if probes is None else probes.shape[2]


def self_check(
    device: torch.device, sizes: tuple[int, ...] = (2, 65, 67, 70, 72, 2, 2)
) -> tuple[float, float]:
    """Compare outputs and all gradients with torch's form in float64 on a small case.

    Args:
        device: where.
        sizes: of the batch, tokens, sources, rows, columns, stretches and matrices; by default two
            blocks of everything, and no powers of two.

    Returns:
        The largest relative error of them, and what is allowed.
    """
    stream = torch.Generator().manual_seed(0)
    p, n, s, o, i, g, m = sizes
    reads = ((p, n, i), (p, m, o, i), (p, s, i), (p, s, o), (p, n, m), (p, n, s))
    scans = ((p, m, o, i), (g, p, 1, s, i), (g, p, s, i), (g, p, s, o), (g, p, m, m), (g, p, s, m))
    found: list[Tensor] = []
    true: list[Tensor] = []
    for shapes, tiled, known in (
        (reads, read_weight, plain.read_weight),
        (scans, scan_weight, plain.scan_weight),
    ):
        given = [torch.randn(shape, generator=stream).to(device) / 8 for shape in shapes]
        found += with_gradients(tiled, given)
        true += with_gradients(known, [x.double() for x in given])
    return worst(found, true), products(device).allowed
