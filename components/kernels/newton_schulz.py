"""Orthogonalised momenta that are read where they are made, with their gradients, in Triton.

The torch form of the same sums is `ablate.components.orthogonal_sums`, which makes a matrix for
each write; here none leaves a program, and a program owns the writes of a few tokens.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from ablate.components.kernels.exactness import worst
from ablate.components.kernels.newton_schulz_backward import backward_kernel
from ablate.components.kernels.newton_schulz_kernels import forward_kernel
from ablate.components.kernels.products import Products, products, shared_memory, side
from ablate.components.kernels.tuning import fastest
from ablate.components.newton_schulz import Schedule
from ablate.components.orthogonal_sums import Inputs, OrthogonalSums, back, basis_of, onto
from ablate.components.orthogonal_sums import orthogonal_sums as torch_sums

MOST_ROWS = 128
GROUP = 16
"""Writes of one program, as many as there are tiles' rows; fewer where programs are few."""
TOKENS = 16
"""Tokens or sources in one tile, the fewest that a product takes."""


@dataclass(frozen=True)
class Launch:
    """How the kernels are compiled.

    rows, cols: of the matrices, up to what the blocks fill. block: columns in one product. side:
    of a square's block. warps: of a program.
    """

    rows: int
    cols: int
    block: int
    side: int
    warps: int
    products: Products

    @property
    def shared(self) -> int:
        """Bytes of shared memory that it takes at most, by what compilers made of it."""
        return (self.rows + min(3 * self.block, 128)) * self.rows * self.products.bytes


def launches(rows: int, cols: int, kind: Products, *, shared: int) -> tuple[Launch, ...]:
    """What is worth trying for matrices of `rows` by `cols`; the first is the safe choice.

    Args:
        shared: bytes of shared memory that a program may have.

    Raises:
        ValueError: the matrices do not fit, whatever the launch.
    """
    if reason := refusal(rows, cols):
        raise ValueError(f"Newton-Schulz kernel: {reason}")
    high, width = side(min(rows, cols)), max(rows, cols)
    # Three products of TF32 for one of float32 hold twice as many registers.
    most = 64 if kind.bytes == 2 else 32
    block, warps = min(most, side(width)), 4 if high <= 32 else 8
    first = Launch(high, -(-width // block) * block, block, min(most, high), warps, kind)
    if high == MOST_ROWS:
        tried = [first]  # whatever else was tried spills registers
    else:
        narrow = max(16, block // 2)
        tried = [first, replace(first, block=narrow, cols=-(-width // narrow) * narrow)]
    if high == 64:
        tried.append(replace(first, warps=4))
    fit = tuple(one for one in dict.fromkeys(tried) if one.shared <= shared)
    if not fit:
        least = min(one.shared for one in tried)
        raise ValueError(
            f"Newton-Schulz kernel: matrices of {rows} by {cols} take {least} bytes of shared "
            f"memory, there are {shared}"
        )
    return fit


def refusal(rows: int, cols: int) -> str | None:
    """Why the kernels cannot serve matrices of this size, or None."""
    if min(rows, cols) > MOST_ROWS:
        return f"matrices of {rows} by {cols}; the smaller side must be at most {MOST_ROWS}"
    return None


def _forward(inputs: Inputs, schedule: Schedule, eps: float) -> tuple[Tensor, Tensor]:
    s0, u, z, carry, read, write, end, right = inputs
    basis = basis_of(s0.float(), z.float())
    small_s0, z, small_right = _onto(basis, s0, z, right)
    y, last = sums((small_s0, u, z, carry, read, write, end, small_right), schedule, eps)
    return y.to(right.dtype), back(basis, last).to(s0.dtype)


def _backward(
    inputs: Inputs, d_y: Tensor, d_last: Tensor, schedule: Schedule, eps: float
) -> tuple[Tensor, ...]:
    s0, u, z, carry, read, write, end, right = inputs
    # The derivative of NS in a direction sees the part of it that lies outside of S's own rows.
    basis = basis_of(*(x.float() for x in (s0, z, right, d_last)))
    s0, z, right, d_last = _onto(basis, s0, z, right, d_last)
    small = (s0, u, z, carry, read, write, end, right)
    made = list(gradients(small, d_y, d_last, schedule, eps))
    for place in (0, 2, 7):
        made[place] = back(basis, made[place])
    return tuple(x.to(like.dtype) for x, like in zip(made, inputs, strict=True))


orthogonal_sums = OrthogonalSums(_forward, _backward)
"""As torch's, which says what it takes; `schedule` has one step at least.

Sums are in float32; the factors of products are what `torch.set_float32_matmul_precision` says.
A ValueError says that the smaller side of the matrices is too large."""


def _onto(basis: Tensor | None, *rows: Tensor) -> tuple[Tensor, ...]:
    return rows if basis is None else tuple(onto(basis, x.float()) for x in rows)


def sums(
    inputs: Inputs, schedule: Schedule, eps: float, launch: Launch | None = None
) -> tuple[Tensor, Tensor]:
    """The sums in float32, outside of autograd; `launch` None takes the fastest."""
    job = _Job.of(inputs, schedule, eps)
    if launch is not None:
        return job.forward(launch)
    return job.forward(fastest("newton_schulz.forward", job.tried(), job.forward, job.device))


def gradients(
    inputs: Inputs,
    d_y: Tensor,
    d_last: Tensor,
    schedule: Schedule,
    eps: float,
    launch: Launch | None = None,
) -> tuple[Tensor, ...]:
    """The gradients of `sums` in float32, in the order of its inputs."""
    job = _Job.of(inputs, schedule, eps)
    run = functools.partial(job.backward, d_y=d_y, d_last=d_last)
    if launch is None:
        launch = fastest("newton_schulz.backward", job.tried(), run, job.device)
    return run(launch)


@dataclass(frozen=True)
class _Job:
    """One call, turned so that matrices have at most as many rows as columns."""

    tensors: tuple[Tensor, ...]
    schedule: Tensor
    eps: float
    tall: bool

    @classmethod
    def of(cls, inputs: Inputs, schedule: Schedule, eps: float) -> _Job:
        s0, u, z, *rest = inputs
        tall = s0.shape[1] > s0.shape[2]
        turned = (s0.mT, z, u, *rest) if tall else inputs
        steps = _on_device(schedule, s0.device)
        return cls(tuple(x.contiguous() for x in turned), steps, eps, tall)

    @property
    def device(self) -> torch.device:
        return self.tensors[0].device

    def tried(self) -> tuple[Launch, ...]:
        rows, cols = self.tensors[0].shape[1:]
        return launches(rows, cols, products(self.device), shared=shared_memory(self.device))

    def sizes(self) -> tuple[int, int, int, int, int, int, int, int]:
        """Rows of the batch, groups, writes of a group; sources, writes, tokens; rows, columns."""
        p, rows, cols = self.tensors[0].shape
        writes, sources = self.tensors[4].shape[1:]
        group = _group(p, writes, self.device)
        tokens = self.tensors[7].shape[1]
        return p, -(-writes // group), group, sources, writes, tokens, rows, cols

    def run(self, kernel: Any, launch: Launch, *given: Tensor) -> None:
        p, groups, group, sources, writes, tokens, rows, cols = self.sizes()
        kernel[(p * groups,)](
            *given, self.schedule, self.schedule.shape[0], self.eps,
            sources, writes, group, tokens, rows, cols,
            launch.rows, launch.side, launch.cols, launch.block, TOKENS, not self.tall,
            *launch.products.how, num_warps=launch.warps, num_stages=1,
        )  # fmt: skip

    def forward(self, launch: Launch) -> tuple[Tensor, Tensor]:
        s0 = self.tensors[0]
        p, groups, *_, tokens, rows, cols = self.sizes()
        out = _zeros(s0, p, groups, tokens, cols if self.tall else rows)
        end_out = _zeros(s0, p, groups, rows, cols)
        scratch = _scratch(s0, p * groups, launch)
        self.run(forward_kernel, launch, *self.tensors, out, end_out, *scratch)
        end = end_out.sum(1)
        return out.sum(1), end.mT if self.tall else end

    def backward(self, launch: Launch, *, d_y: Tensor, d_last: Tensor) -> tuple[Tensor, ...]:
        s0, u, z, carry, read, write, end, given = self.tensors
        p, groups = self.sizes()[:2]
        d_y, d_last = d_y.contiguous(), (d_last.mT if self.tall else d_last).contiguous()
        left, right = (given, d_y) if self.tall else (d_y, given)
        parts = [_zeros(s0, p, groups, *x.shape[1:]) for x in (s0, u, z, given)]
        whole = [torch.zeros_like(x, dtype=torch.float32) for x in (carry, read, write, end)]
        scratch = _scratch(s0, p * groups, launch, dual=True)
        inputs = (*self.tensors[:7], left, right, d_last)
        made = (*parts[:3], *whole, parts[3])
        self.run(backward_kernel, launch, *inputs, *made, *scratch)
        d_s0, d_u, d_z, d_given = (part.sum(1) for part in parts)
        if self.tall:
            d_s0, d_u, d_z = d_s0.mT, d_z, d_u
        return d_s0, d_u, d_z, *whole, d_given


@functools.lru_cache(maxsize=64)
def _on_device(schedule: Schedule, device: torch.device) -> Tensor:
    """Kept, since a copy to a GPU waits for all that is under way."""
    return torch.tensor(schedule, dtype=torch.float32, device=device)


def _group(rows: int, writes: int, device: torch.device) -> int:
    """Writes of one program: fewer than `GROUP` while a GPU would have nothing else to do."""
    group = GROUP
    if device.type == "cuda":
        wanted = 3 * torch.cuda.get_device_properties(device).multi_processor_count
        while group > 4 and rows * -(-writes // group) < wanted:
            group //= 2
    return group


def _zeros(like: Tensor, *shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float32, device=like.device)


def _scratch(s0: Tensor, programs: int, launch: Launch, *, dual: bool = False) -> list[Tensor]:
    """S in fp32, X as products take it and two squares; or S with a square, X, X', 3 squares."""
    size, square = launch.rows * launch.cols, launch.rows**2
    narrow = [size, size, 3 * square] if dual else [size, 2 * square]
    wide = size + square if dual else size
    kinds = [torch.float32, *[launch.products.torch] * len(narrow)]
    sizes = zip([wide, *narrow], kinds, strict=True)
    return [s0.new_empty(programs * n, dtype=kind) for n, kind in sizes]


def self_check(
    device: torch.device, sizes: tuple[int, ...] = (2, 20, 24, 19, 17, 18)
) -> tuple[float, float]:
    """Compare outputs and all gradients with torch's form in float64 on a small case.

    Args:
        device: where.
        sizes: of the batch, rows, columns, sources, writes, tokens; by default some of all that
            makes a difference: two programs, two tiles, no powers of two.

    Returns:
        The largest relative error of them, and what is allowed.
    """
    stream = torch.Generator().manual_seed(0)
    p, o, i, s, w, n = sizes
    shapes = ((p, o, i), (p, s, o), (p, s, i), (p, w), (p, w, s), (p, n, w), (p, w), (p, n, i))
    given = [torch.randn(shape, generator=stream).to(device) for shape in shapes]
    schedule: Schedule = ((1.5, -0.5, 0.0), (3.4445, -4.775, 2.0315))
    inputs = cast(Inputs, tuple(given))
    with torch.no_grad():
        y, end = sums(inputs, schedule, 1e-7)
        made = (y, end, *gradients(inputs, y, end, schedule, 1e-7))
    with torch.enable_grad():
        wide = [x.double().requires_grad_() for x in given]
        true = torch_sums(*wide, schedule=schedule, eps=1e-7)
        slopes = torch.autograd.grad(true, wide, (y.double(), end.double()))
    return worst(made, (*true, *slopes)), products(device).allowed
