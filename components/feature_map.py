"""Feature maps: what the memory sees of a key and of a query.

The polynomial map lifts x so that <phi(q), phi(k)> = sum_i a_i (q.k)^i (Atlas Eq. 4-5, 22), or
with elementwise powers only sum_i a_i sum_j q_j^i k_j^i.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ablate.components.dims import Dims
from ablate.components.limits import Limit

CONSTRUCTIONS = ("monomial", "kronecker", "elementwise")


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


class Constant(nn.Module):
    """phi(x) = 1: a matrix becomes a vector that forgets which key it was told.

    With the l2 bias and gradient descent that is a gated running mean of the values, the linear
    recurrence with a vector for a state.
    """

    axes: ClassVar[tuple[str, ...]] = ()
    principal: ClassVar[str | None] = None
    source: ClassVar[str] = "Atlas Eq. 2 with n = 1 (vector memory)"

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.width = 1

    def forward(self, x: Float[Tensor, "*p d"]) -> Float[Tensor, "*p 1"]:
        """Ones."""
        return torch.ones_like(x[..., :1])


class EluPlusOne(nn.Module):
    """phi(x) = elu(x) + 1, elementwise and positive: linear attention's map."""

    axes: ClassVar[tuple[str, ...]] = ()
    principal: ClassVar[str | None] = None
    source: ClassVar[str] = "Katharopoulos et al. 2020, Eq. 7"

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.width = dims.key

    def forward(self, x: Float[Tensor, "*p d"]) -> Float[Tensor, "*p f"]:
        """x + 1 above zero, exp(x) below."""
        return F.elu(x) + 1


class _Monomials(torch.autograd.Function):
    """All products of coordinates up to a degree, lexicographic; coordinates lie in dimension 1.

    Those of degree i that begin with coordinate a are x_a times those of degree i-1 that begin with
    a or later, and these lie behind each other: slices, no gather, no table.
    """

    @staticmethod
    def forward(x: Tensor, degree: int) -> Tensor:
        blocks = _blocks(x.shape[1], degree)
        out = x.new_empty(x.shape[0], blocks[-1][2].stop, x.shape[2])
        out[:, 0] = 1
        for a, shorter, place in blocks:
            torch.mul(out[:, shorter], x[:, a : a + 1], out=out[:, place])
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        x, ctx.degree = inputs
        ctx.save_for_backward(x, output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, degree: int) -> tuple[Tensor, int]:
        rows = x.movedim(in_dims[0], 0)
        out: Tensor = _Monomials.apply(rows.flatten(0, 1), degree)  # type: ignore[no-untyped-call]
        return out.unflatten(0, rows.shape[:2]), 0

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        x, out = ctx.saved_tensors
        d_x: Tensor = _MonomialsBack.apply(grads[0], x, out, ctx.degree)  # type: ignore[no-untyped-call]
        return d_x, None


class _MonomialsBack(torch.autograd.Function):
    """The gradient of `_Monomials`; a function too, so that lanes are rows here as well."""

    @staticmethod
    def forward(grad: Tensor, x: Tensor, out: Tensor, degree: int) -> Tensor:
        total = torch.empty_like(out).copy_(grad)
        d_x = torch.zeros_like(x)
        for a, shorter, place in reversed(_blocks(x.shape[1], degree)):
            part = total[:, place]
            d_x[:, a] += (part * out[:, shorter]).sum(1)
            total[:, shorter].addcmul_(part, x[:, a : a + 1])
        return d_x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *given: Any) -> tuple[Tensor, int]:
        *numbers, degree = given
        lanes = [
            x.expand(info.batch_size, *x.shape) if place is None else x.movedim(place, 0)
            for x, place in zip(numbers, in_dims, strict=False)
        ]
        flat = (x.flatten(0, 1) for x in lanes)
        d_x: Tensor = _MonomialsBack.apply(*flat, degree)  # type: ignore[no-untyped-call]
        return d_x.unflatten(0, lanes[0].shape[:2]), 0


@functools.cache
def _blocks(d: int, degree: int) -> tuple[tuple[int, slice, slice], ...]:
    """(coordinate a, the shorter monomials to multiply by it, where the products go)."""
    found, end = [], 1
    for i in range(1, degree + 1):
        place = end
        for a in range(d):
            count = math.comb(d - a + i - 2, i - 1)
            found.append((a, slice(end - count, end), slice(place, place + count)))
            place += count
        end = place
    return tuple(found)


class Polynomial(nn.Module):
    """All monomials up to `degree`, weighted so that the kernel is sum_i a_i (q.k)^i.

    sqrt(a_i) sits on both sides and a_i = softplus(raw_i), which keeps it positive; a_i starts at
    1/i!, the Taylor series of exp. Monomials carry the square root of their multinomial count;
    without it the kernel would not be a function of q.k.

    Args:
        dims: widths; the map acts on keys and queries of `dims.key` numbers.
        degree: p, the highest degree.
        construction: "monomial", C(d+p, p) features, or "kronecker", sum_i d^i features: the same
            kernel, so a width comparison; or "elementwise", 1 + pd features, the powers of each
            coordinate without products of two: another kernel, sum_i a_i sum_j (q_j k_j)^i.
        constant: keep the degree 0 feature, a bias that every key shares.
        learnable: learn the a_i.
        rank: project keys and queries to so many numbers before the lift, by one learned map for
            all heads; None lifts them as they are.

    Raises:
        ValueError: `degree` or `rank` < 1, or an unknown construction.
    """

    axes: ClassVar[tuple[str, ...]] = ()
    principal: ClassVar[str | None] = "degree"
    source: ClassVar[str] = "Atlas Eq. 4-5 (monomials), Eq. 22 (Kronecker)"
    limits: ClassVar[tuple[Limit, ...]] = (
        Limit(
            "degree 1 with a coefficient of 1 and no constant is the identity",
            {"degree": 1, "constant": False},
            {"feature_map": "identity"},
            held={"feature_map.raw": math.log(math.e - 1)},
        ),
        Limit(
            "monomials and Kronecker powers have one kernel",
            {"degree": 3, "construction": "kronecker"},
            {"feature_map.construction": "monomial"},
            given={"memory": "matrix", "memory.learned_initial": False, "inner_optimizer": "gd"},
        ),
        Limit(
            "of degree 1, elementwise powers are all monomials",
            {"degree": 1, "construction": "elementwise"},
            {"feature_map.construction": "monomial"},
        ),
    )

    def __init__(
        self,
        dims: Dims,
        *,
        degree: int = 2,
        construction: str = "monomial",
        constant: bool = True,
        learnable: bool = True,
        rank: int | None = None,
    ) -> None:
        super().__init__()
        if degree < 1:
            raise ValueError(f"Polynomial.degree={degree!r}: must be >= 1 (1 is linear)")
        if construction not in CONSTRUCTIONS:
            names = ", ".join(CONSTRUCTIONS)
            raise ValueError(f"Polynomial.construction={construction!r}: must be one of {names}")
        if rank is not None and rank < 1:
            raise ValueError(f"Polynomial.rank={rank!r}: must be None or a whole number >= 1")
        self.lowest, self.degree, self.construction = int(not constant), degree, construction
        self.raw = nn.Parameter(self._start(), requires_grad=learnable)
        self.down = nn.Parameter(torch.empty(rank, dims.key)) if rank is not None else None
        d = dims.key if rank is None else rank
        sizes = [d**i for i in range(degree + 1)]
        if construction == "elementwise":
            sizes = [1] + [d] * degree
        if construction == "monomial":
            sizes = [math.comb(d + i - 1, i) for i in range(degree + 1)]
            self.register_buffer("counts", _multinomials(d, degree), persistent=False)
        self.sizes = sizes[self.lowest :]
        self.width = sum(self.sizes)

    def _start(self) -> Tensor:
        degrees = range(self.lowest, self.degree + 1)
        # The inverse of softplus, in double so that a_i = 1/i! to the last bit of float32.
        start = [math.log(math.expm1(1 / math.factorial(i))) for i in degrees]
        return torch.tensor(start, dtype=torch.get_default_dtype())

    def init_weights(self, stream: Callable[[str], torch.Generator]) -> None:
        """Set the coefficients to 1/i!; draw the projection so that it keeps lengths on average."""
        with torch.no_grad():
            self.raw.copy_(self._start())
        if self.down is not None:
            std = self.down.shape[0] ** -0.5
            nn.init.normal_(self.down, std=std, generator=stream("down"))

    def coefficients(self) -> Float[Tensor, " n"]:
        """a_i, from the lowest degree up, in float32 at least."""
        return F.softplus(self.raw.to(torch.promote_types(self.raw.dtype, torch.float32)))

    @property
    def unmade(self) -> str | None:
        """Why no kernel makes these features where it reads with them, or None if one does."""
        if self.construction == "monomial" and self.degree == 2:
            return None
        return (
            f"{self.construction} features of degree {self.degree}; it makes monomials of degree 2"
        )

    def projected(self, x: Float[Tensor, "*p d"]) -> Float[Tensor, "*p r"]:
        """What is lifted of `x`: all of it, or `rank` numbers."""
        return x if self.down is None else F.linear(x, self.down.to(x.dtype))

    def roots(self, dtype: torch.dtype) -> Float[Tensor, " n"]:
        """sqrt(a_i), from the lowest degree up."""
        a = self.coefficients().to(dtype)
        # sqrt has an infinite slope at 0: a coefficient that underflows is cut off, not a NaN.
        tiny = torch.finfo(dtype).tiny
        return torch.where(a > tiny, a.clamp_min(tiny).sqrt(), 0.0)

    def forward(self, x: Float[Tensor, "*p d"]) -> Float[Tensor, "*p f"]:
        """Lift the last dimension of `x` to `width` features, lowest degree first."""
        x = self.projected(x)
        rows = x.reshape(-1, x.shape[-2] if x.ndim > 1 else 1, x.shape[-1])
        if self.construction == "monomial":
            products: Tensor = _Monomials.apply(rows.mT.contiguous(), self.degree)  # type: ignore[no-untyped-call]
        elif self.construction == "kronecker":
            products = _tensor_powers(rows, self.degree).mT
        else:
            products = _elementwise_powers(rows, self.degree).mT
        products = products[:, 1:] if self.lowest else products
        lifted = (products * self._scale(x.dtype).unsqueeze(-1)).mT
        return lifted.reshape(*x.shape[:-1], self.width)

    def _scale(self, dtype: torch.dtype) -> Tensor:
        """sqrt(a_i), times the root of the multinomial count, for each feature."""
        roots = self.roots(dtype)
        scale = torch.cat([r.expand(n) for r, n in zip(roots, self.sizes, strict=True)])
        if self.construction != "monomial":
            return scale
        return scale * self.get_buffer("counts")[self.lowest :].to(dtype).sqrt()


def read_monomials(
    x: Float[Tensor, "p n d"], matrix: Float[Tensor, "p o f"], roots: Float[Tensor, "p r"]
) -> Float[Tensor, "p n o"]:
    """W phi(x) with the monomials up to degree 2, each row weighing degrees by its own `roots`.

    `components.kernels.polynomial` computes the same and makes no features.
    """
    d, first = x.shape[-1], 3 - roots.shape[-1]
    products: Tensor = _Monomials.apply(x.mT.contiguous(), 2)  # type: ignore[no-untyped-call]
    sizes = torch.tensor([1, d, d * (d + 1) // 2][first:], device=x.device)
    counts = _multinomials(d, 2)[first:].to(x)
    scale = torch.repeat_interleave(roots, sizes, dim=1) * counts.sqrt()
    return torch.bmm(matrix, products[:, first:] * scale.unsqueeze(-1)).mT


def _tensor_powers(x: Tensor, degree: int) -> Tensor:
    powers = [torch.ones_like(x[..., :1]), x]
    for _ in range(2, degree + 1):
        powers.append((powers[-1].unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2))
    return torch.cat(powers, dim=-1)


def _elementwise_powers(x: Tensor, degree: int) -> Tensor:
    powers = [torch.ones_like(x[..., :1]), x]
    for _ in range(2, degree + 1):
        powers.append(powers[-1] * x)
    return torch.cat(powers, dim=-1)


def _multinomials(d: int, degree: int) -> Tensor:
    """i! / beta! of every monomial; whole numbers, which no cast to a short dtype can round."""
    factors = (
        f for i in range(degree + 1) for f in itertools.combinations_with_replacement(range(d), i)
    )
    return torch.tensor([math.factorial(len(f)) // _repeats(f) for f in factors])


def _repeats(factors: tuple[int, ...]) -> int:
    """beta! of a monomial given by its sorted factors."""
    return math.prod(math.factorial(len(list(run))) for _, run in itertools.groupby(factors))
