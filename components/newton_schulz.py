"""Newton-Schulz orthogonalisation of the momentum, and its derivative as a second run of itself.

X_0 = S / (|S|_F + eps), X <- a X + (b A + c A^2) X with A = X X^T (Atlas section 5; Muon, Jordan et
al. 2024). The map is an odd function of the singular values, so its derivative is self-adjoint: the
vector-Jacobian product is the same iteration on dual numbers and stores no iterates.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.components.dims import Dims

COEFFICIENTS = {"quintic": (3.4445, -4.7750, 2.0315), "cubic": (1.5, -0.5, 0.0)}
GRANULARITIES = ("token", "chunk")
CACHED = 2**17  # numbers in a batch of matrices that stays in a processor's cache


def _iterate(x: Tensor, steps: int, abc: tuple[float, float, float]) -> Tensor:
    a, b, c = abc
    for _ in range(steps):
        gram = torch.bmm(x, x.mT)
        poly = torch.baddbmm(gram, gram, gram, beta=b, alpha=c) if c else b * gram
        x = torch.baddbmm(x, poly, x, beta=a)
    return x


def _iterate_dual(x: Tensor, d: Tensor, steps: int, abc: tuple[float, float, float]) -> Tensor:
    """Derivative of `_iterate` at x in direction d, by carrying (x, d) through the same loop."""
    a, b, c = abc
    for step in range(steps):
        gram, cross = torch.bmm(x, x.mT), torch.bmm(d, x.mT)
        d_gram = cross + cross.mT
        if c:
            poly = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
            product = torch.bmm(gram, d_gram)
            d_poly = torch.add(product, product.mT).mul_(c).add_(d_gram, alpha=b)
        else:
            poly, d_poly = b * gram, b * d_gram
        d = torch.baddbmm(d, poly, d, beta=a).baddbmm_(d_poly, x)
        if step + 1 < steps:
            x = torch.baddbmm(x, poly, x, beta=a)
    return d


def _in_cache(of: Tensor, *more: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Batches that a processor's cache holds through all steps: twice as fast as all at once."""
    size = of.shape[0] if of.device.type != "cpu" else max(1, CACHED // of[0].numel())
    return zip(*(t.split(size) for t in (of, *more)), strict=True)


class _Orthogonalise(torch.autograd.Function):
    """Works on matrices with at most as many rows as columns."""

    @staticmethod
    def forward(
        ctx: Any, s: Tensor, steps: int, abc: tuple[float, float, float], eps: float
    ) -> Tensor:
        norm = s.flatten(1).norm(dim=1)[:, None, None]
        ctx.save_for_backward(s, norm)
        ctx.steps, ctx.abc, ctx.eps = steps, abc, eps
        done = [_iterate(x / (n + eps), steps, abc) for x, n in _in_cache(s, norm)]
        return torch.cat(done)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        s, norm = ctx.saved_tensors
        done = []
        for x, n, d in _in_cache(s, norm, grads[0]):
            scale = n + ctx.eps
            d = _iterate_dual(x / scale, d, ctx.steps, ctx.abc)
            # The norm's own share; a zero matrix has none, and its norm no derivative.
            along = (d * x).sum((1, 2), keepdim=True) / (scale * n).masked_fill(n == 0, torch.inf)
            done.append(torch.addcmul(d, along, x, value=-1).div_(scale))
        return torch.cat(done), None, None, None


def orthogonalise(
    s: Float[Tensor, "*p o i"],
    *,
    steps: int,
    coefficients: tuple[float, float, float] = COEFFICIENTS["quintic"],
    eps: float = 1e-7,
) -> Float[Tensor, "*p o i"]:
    """Apply `steps` Newton-Schulz steps to every matrix in `s`; no steps leave `s` as it is."""
    if steps == 0:
        return s
    if s.shape[-2] > s.shape[-1]:
        return orthogonalise(s.mT, steps=steps, coefficients=coefficients, eps=eps).mT
    flat = s.reshape(-1, *s.shape[-2:])
    out: Tensor = _Orthogonalise.apply(flat, steps, coefficients, eps)  # type: ignore[no-untyped-call]
    return out.reshape(s.shape)


class NewtonSchulz(nn.Module):
    """How the momentum is orthogonalised, and after how many tokens.

    Args:
        dims: widths (unused; every choice takes them).
        steps: k, the number of iterations; 0 writes the raw momentum.
        coefficients: "quintic" reaches singular values in about [0.68, 1.13] from k = 3 on and
            stays there; "cubic" converges to 1, slowly.
        granularity: tokens between writes: "token" (1), "chunk", or a whole number. Groups restart
            at every chunk start.
        eps: added to the Frobenius norm.

    Raises:
        ValueError: `steps` < 0, an unknown name, a granularity < 1, or `eps` not positive.
    """

    axes: ClassVar[tuple[str, ...]] = ()
    principal: ClassVar[str | None] = "steps"
    source: ClassVar[str] = "Atlas Eq. 32 and section 5; Jordan et al. 2024 (Muon)"

    def __init__(
        self,
        dims: Dims,
        *,
        steps: int = 5,
        coefficients: str = "quintic",
        granularity: str | int = "token",
        eps: float = 1e-7,
    ) -> None:
        super().__init__()
        if steps < 0:
            raise ValueError(f"NewtonSchulz.steps={steps!r}: must be >= 0 (0 is the raw momentum)")
        if coefficients not in COEFFICIENTS:
            names = ", ".join(COEFFICIENTS)
            raise ValueError(f"NewtonSchulz.coefficients={coefficients!r}: must be one of {names}")
        named = isinstance(granularity, str)
        if (named and granularity not in GRANULARITIES) or (
            not named and (isinstance(granularity, bool) or int(granularity) < 1)
        ):
            raise ValueError(
                f"NewtonSchulz.granularity={granularity!r}: must be token, chunk, or a number >= 1"
            )
        if not eps > 0:
            raise ValueError(f"NewtonSchulz.eps={eps!r}: must be > 0")
        self.steps, self.eps, self.granularity = steps, eps, granularity
        self.coefficients = COEFFICIENTS[coefficients]

    def group(self, chunk: int) -> int:
        """Tokens between two writes when chunks have `chunk` tokens."""
        named = {"token": 1, "chunk": chunk}
        return min(named.get(str(self.granularity)) or int(self.granularity), chunk)

    def forward(self, s: Float[Tensor, "*p o i"]) -> Float[Tensor, "*p o i"]:
        """Orthogonalise every matrix in `s`."""
        return orthogonalise(s, steps=self.steps, coefficients=self.coefficients, eps=self.eps)
