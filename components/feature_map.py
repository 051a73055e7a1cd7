"""Feature maps: what the memory sees of a key and of a query.

The polynomial map lifts x so that <phi(q), phi(k)> = sum_i a_i (q.k)^i (Atlas Eq. 4-5, 22).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ablate.components.dims import Dims

CONSTRUCTIONS = ("monomial", "kronecker")


class Identity(nn.Module):
    """phi(x) = x."""

    axes: ClassVar[tuple[str, ...]] = ()
    principal: ClassVar[str | None] = None
    source: ClassVar[str] = "Titans Eq. 11-13: no lift"

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.width = dims.key

    def forward(self, x: Float[Tensor, "*p d"]) -> Float[Tensor, "*p f"]:
        """Return `x` itself."""
        return x


class Polynomial(nn.Module):
    """All monomials up to `degree`, weighted so that the kernel is sum_i a_i (q.k)^i.

    sqrt(a_i) sits on both sides and a_i = softplus(raw_i), which keeps it positive; a_i starts at
    1/i!, the Taylor series of exp. Monomials carry the square root of their multinomial count;
    without it the kernel would not be a function of q.k.

    Args:
        dims: widths; the map acts on keys and queries of `dims.key` numbers.
        degree: p, the highest degree.
        construction: "monomial", C(d+p, p) features, or "kronecker", sum_i d^i features: the same
            kernel, so a width comparison.
        constant: keep the degree 0 feature, a bias that every key shares.
        learnable: learn the a_i.

    Raises:
        ValueError: `degree` < 1 or an unknown construction.
    """

    axes: ClassVar[tuple[str, ...]] = ()
    principal: ClassVar[str | None] = "degree"
    source: ClassVar[str] = "Atlas Eq. 4-5 (monomials), Eq. 22 (Kronecker)"

    def __init__(
        self,
        dims: Dims,
        *,
        degree: int = 2,
        construction: str = "monomial",
        constant: bool = True,
        learnable: bool = True,
    ) -> None:
        super().__init__()
        if degree < 1:
            raise ValueError(
                f"Polynomial.degree={degree!r}: must be >= 1 (identity is its own map)"
            )
        if construction not in CONSTRUCTIONS:
            names = ", ".join(CONSTRUCTIONS)
            raise ValueError(f"Polynomial.construction={construction!r}: must be one of {names}")
        self.lowest, self.degree, self.construction = int(not constant), degree, construction
        self.raw = nn.Parameter(self._start(), requires_grad=learnable)
        sizes = [dims.key**i for i in range(degree + 1)]
        if construction == "monomial":
            sizes = [math.comb(dims.key + i - 1, i) for i in range(degree + 1)]
            for i in range(2, degree + 1):
                self._add_monomials(dims.key, i)
        self.sizes = sizes[self.lowest :]
        self.width = sum(self.sizes)

    def _start(self) -> Tensor:
        degrees = range(self.lowest, self.degree + 1)
        # The inverse of softplus, in double so that a_i = 1/i! to the last bit of float32.
        start = [math.log(math.expm1(1 / math.factorial(i))) for i in degrees]
        return torch.tensor(start, dtype=torch.get_default_dtype())

    def init_weights(self, stream: Callable[[str], torch.Generator]) -> None:
        """Set the coefficients to 1/i!."""
        with torch.no_grad():
            self.raw.copy_(self._start())

    def _add_monomials(self, d: int, i: int) -> None:
        """Tables that make degree i: monomial = (its first i-1 factors) * (its last factor)."""
        shorter = list(itertools.combinations_with_replacement(range(d), i - 1))
        place = {factors: n for n, factors in enumerate(shorter)}
        factors = list(itertools.combinations_with_replacement(range(d), i))
        # The multinomial count grows by i / (times the last factor occurs). The integer is stored:
        # a buffer of floats would be rounded when the module is cast to a short dtype.
        tables = {
            "parent": torch.tensor([place[f[:-1]] for f in factors]),
            "last": torch.tensor([f[-1] for f in factors]),
            "repeats": torch.tensor([f.count(f[-1]) for f in factors]),
        }
        for name, table in tables.items():
            self.register_buffer(f"{name}_{i}", table, persistent=False)

    def coefficients(self) -> Float[Tensor, " n"]:
        """a_i, from the lowest degree up."""
        return F.softplus(self.raw)

    def forward(self, x: Float[Tensor, "*p d"]) -> Float[Tensor, "*p f"]:
        """Lift the last dimension of `x` to `width` features, lowest degree first."""
        a = self.coefficients().to(x.dtype)
        # sqrt has an infinite slope at 0: a coefficient that underflows is cut off, not a NaN.
        tiny = torch.finfo(a.dtype).tiny
        root = torch.where(a > tiny, a.clamp_min(tiny).sqrt(), 0.0)
        powers = [x]
        for i in range(2, self.degree + 1):
            powers.append(self._next(powers[-1], x, i))
        if self.lowest == 0:
            powers.insert(0, torch.ones_like(x[..., :1]))
        return torch.cat([r * f for r, f in zip(root, powers, strict=True)], dim=-1)

    def _next(self, shorter: Tensor, x: Tensor, i: int) -> Tensor:
        if self.construction == "kronecker":
            return (shorter[..., :, None] * x[..., None, :]).flatten(-2)
        parent, last = self.get_buffer(f"parent_{i}"), self.get_buffer(f"last_{i}")
        weight = (i / self.get_buffer(f"repeats_{i}").to(x.dtype)).sqrt()
        return shorter.index_select(-1, parent) * (x.index_select(-1, last) * weight)
