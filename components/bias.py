"""Attentional bias: the loss that the memory descends, as the gradient of its output.

MIRAS section 5.1 names the axis. With r = M(k) - v, squares carry the factor 1/2 and powers 1/p, so
that no closed form needs a stray constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.components.dims import Dims
from ablate.components.gate import HeadGate
from ablate.components.limits import Limit

SURROGATES = ("root", "tanh")
FORMS = ("coordinate", "norm", "switched")
PRODUCERS = ("fixed", "learned", "input")


class Bias(nn.Module):
    """What every bias has; not a choice itself.

    extra: numbers that it needs beside each value, made from the block's input.
    """

    axes: ClassVar[tuple[str, ...]] = ()
    principal: ClassVar[str | None] = None
    source: ClassVar[str] = ""
    extra: int = 0

    def target(
        self, v: Float[Tensor, "b t h e"], x: Float[Tensor, "b t m"]
    ) -> Float[Tensor, "b t h _n"]:
        """What the memory is compared with: the values, then `extra` columns."""
        return v


class L2(Bias):
    """Regression: 1/2 |M(k) - v|^2."""

    source: ClassVar[str] = "Atlas Eq. 9 (with the factor 1/2); Titans Eq. 12"

    def __init__(self, dims: Dims) -> None:
        super().__init__()

    def forward(self, y: Float[Tensor, "*p e"], v: Float[Tensor, "*p e"]) -> Float[Tensor, "*p e"]:
        """Gradient of the loss with respect to the memory's output `y`."""
        return y - v


class Dot(Bias):
    """Hebbian: -<M(k), v>. The papers print it without the minus, which would store -v."""

    source: ClassVar[str] = "Atlas Eq. 19, sign corrected; MIRAS Table 1"

    def __init__(self, dims: Dims) -> None:
        super().__init__()

    def forward(self, y: Float[Tensor, "*p e"], v: Float[Tensor, "*p e"]) -> Float[Tensor, "*p e"]:
        """Gradient of the loss with respect to the memory's output `y`."""
        return -v


class Lp(Bias):
    """1/p |r|_p^p, smoothed. p = 2 is L2, p = 1 the sign of the error, p = 3 Moneta.

    Args:
        dims: widths.
        p: the power, >= 1.
        surrogate: "root": r (r^2 + eps)^((p-2)/2), the gradient of 1/p sum (r^2 + eps)^(p/2), exact
            at p = 2; "tanh": tanh(sharpness r) (r^2 + eps)^((p-1)/2), as MIRAS writes it.
        sharpness: of tanh; MIRAS gives no number.
        eps: what keeps roots smooth.

    Raises:
        ValueError: `p` < 1, an unknown surrogate, or a number that is not positive.
    """

    principal: ClassVar[str | None] = "p"
    source: ClassVar[str] = "MIRAS Eq. 10-12 and Remark 5 (with the factor 1/p)"
    limits: ClassVar[tuple[Limit, ...]] = (Limit("p = 2 is l2", {"p": 2.0}, {"bias": "l2"}),)

    def __init__(
        self,
        dims: Dims,
        *,
        p: float = 3.0,
        surrogate: str = "root",
        sharpness: float = 10.0,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        if not p >= 1:
            raise ValueError(f"Lp.p={p!r}: must be >= 1")
        if surrogate not in SURROGATES:
            raise ValueError(f"Lp.surrogate={surrogate!r}: must be one of {', '.join(SURROGATES)}")
        _check_positive("Lp", sharpness=sharpness, eps=eps)
        self.p, self.surrogate, self.sharpness, self.eps = p, surrogate, sharpness, eps

    def forward(self, y: Float[Tensor, "*p e"], v: Float[Tensor, "*p e"]) -> Float[Tensor, "*p e"]:
        """Gradient of the loss with respect to the memory's output `y`."""
        r = y - v
        square = r.square() + self.eps
        if self.surrogate == "root":
            return r * square ** ((self.p - 2) / 2)
        return torch.tanh(self.sharpness * r) * square ** ((self.p - 1) / 2)


class _Bounded(Bias):
    """A bias with a positive number for each head, fixed, learned, or read off the token.

    At first it is `start`; an input-dependent one stays below twice that.
    """

    def __init__(self, dims: Dims, name: str, start: float, producer: str) -> None:
        super().__init__()
        if producer not in PRODUCERS:
            known = ", ".join(PRODUCERS)
            raise ValueError(f"{type(self).__name__}.producer={producer!r}: must be one of {known}")
        if not start >= 0 or (producer != "fixed" and not 0 < start < math.inf):
            raise ValueError(
                f"{type(self).__name__}.{name}={start!r} with producer={producer!r}: must be "
                "positive and finite, or fixed and at least 0"
            )
        self.start, self.producer = start, producer
        if producer == "learned":
            self.log_factor = nn.Parameter(torch.zeros(dims.heads))
        self.gate = HeadGate(dims) if producer == "input" else None
        self.extra = int(producer == "input")

    def init_weights(self, stream: Callable[[str], torch.Generator]) -> None:
        """Begin at the start value."""
        if self.producer == "learned":
            nn.init.zeros_(self.log_factor)

    def target(
        self, v: Float[Tensor, "b t h e"], x: Float[Tensor, "b t m"]
    ) -> Float[Tensor, "b t h _n"]:
        """The values, and the number itself if tokens make it."""
        if self.gate is None:
            return v
        number = 2 * self.start * self.gate(x)
        return torch.cat([v, number.to(v.dtype)], dim=-1)

    def _split(self, y: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """The error, and its bound; heads are the faster index of the first dimension."""
        if self.producer == "input":
            return y - target[..., :-1], target[..., -1:]
        if self.producer == "fixed":
            return y - target, y.new_tensor(self.start)
        factor = self.log_factor.to(y.dtype).exp()
        factor = factor.repeat(y.shape[0] // len(factor)) * self.start
        return y - target, factor.reshape(-1, *[1] * (y.ndim - 1))


class Huber(_Bounded):
    """Quadratic for errors up to delta, linear beyond. Infinite delta is L2.

    Args:
        dims: widths.
        form: "coordinate": each coordinate of the error is cut at delta (Eq. 14); "norm": the error
            is shortened to length delta, a clipped gradient (Eq. 15); "switched": the error if
            it is shorter than delta, else delta times its signs (Eq. 16, Yaad).
        delta: at the start.
        producer: "fixed", "learned" for each head, or "input": each token's own.
        sharpness: the switched form's sign is tanh(sharpness r).

    Raises:
        ValueError: an unknown form or producer, or a number out of range.
    """

    principal: ClassVar[str | None] = "delta"
    source: ClassVar[str] = "MIRAS Eq. 13-16 and 26 (Yaad)"
    limits: ClassVar[tuple[Limit, ...]] = tuple(
        Limit(
            f"{form}: a bound that no error reaches is l2",
            {"form": form, "delta": 1e9, "producer": "fixed"},
            {"bias": "l2"},
        )
        for form in FORMS
    )

    def __init__(
        self,
        dims: Dims,
        *,
        form: str = "norm",
        delta: float = 1.0,
        producer: str = "input",
        sharpness: float = 10.0,
    ) -> None:
        super().__init__(dims, "delta", delta, producer)
        if form not in FORMS:
            raise ValueError(f"Huber.form={form!r}: must be one of {', '.join(FORMS)}")
        _check_positive("Huber", sharpness=sharpness)
        self.form, self.sharpness = form, sharpness

    def forward(
        self, y: Float[Tensor, "p n e"], target: Float[Tensor, "p n _n"]
    ) -> Float[Tensor, "p n e"]:
        """Gradient of the loss with respect to the memory's output `y`."""
        r, delta = self._split(y, target)
        if self.producer == "fixed" and math.isinf(self.start):
            return r
        if self.form == "coordinate":
            return torch.minimum(torch.maximum(r, -delta), delta)
        length = _length(r)
        if self.form == "norm":
            return torch.where(length <= delta, r, delta * r / length)
        return torch.where(length <= delta, r, delta * torch.tanh(self.sharpness * r))


class ValueShift(_Bounded):
    """max over |dv| <= Delta of 1/2 |M(k) - v - dv|^2: robust against shifted values.

    The gradient r + Delta r / |r| never vanishes; near 0 the root of |r|^2 + eps makes it smooth.
    Delta = 0 is L2.

    Args:
        dims: widths.
        delta: at the start.
        producer: "fixed", "learned" for each head, or "input": each token's own.
        eps: under the root.

    Raises:
        ValueError: an unknown producer, or a number out of range.
    """

    principal: ClassVar[str | None] = "delta"
    source: ClassVar[str] = "MIRAS Eq. 17"
    limits: ClassVar[tuple[Limit, ...]] = (
        Limit("no shift is l2", {"delta": 0.0, "producer": "fixed"}, {"bias": "l2"}),
    )

    def __init__(
        self, dims: Dims, *, delta: float = 0.1, producer: str = "learned", eps: float = 1e-6
    ) -> None:
        super().__init__(dims, "delta", delta, producer)
        _check_positive("ValueShift", eps=eps)
        self.eps = eps

    def forward(
        self, y: Float[Tensor, "p n e"], target: Float[Tensor, "p n _n"]
    ) -> Float[Tensor, "p n e"]:
        """Gradient of the loss with respect to the memory's output `y`."""
        r, delta = self._split(y, target)
        return r + delta * r * (r.square().sum(-1, keepdim=True) + self.eps).rsqrt()


def _length(r: Tensor) -> Tensor:
    """|r|, with the derivative 0 at 0."""
    return r.square().sum(-1, keepdim=True).clamp_min(torch.finfo(r.dtype).tiny).sqrt()


def _check_positive(owner: str, **numbers: float) -> None:
    for name, number in numbers.items():
        if not number > 0:
            raise ValueError(f"{owner}.{name}={number!r}: must be > 0")
