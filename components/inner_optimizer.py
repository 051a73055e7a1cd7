"""Inner optimiser: how the gradient of the memory's loss becomes a change of the memory.

Every choice yields a step size, perhaps a momentum decay, and says where the step goes:
S_n = theta_n S_{n-1} + a_n G_n, M_n = alpha_n M_{n-1} - b_n P(S_n), (a, b) = (lr, 1) when the step
is inside the momentum and (1, lr) when it is outside.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.components.dims import Dims
from ablate.components.gate import HeadGate
from ablate.components.limits import Limit

PREDICTIONS = ("undecayed", "decayed")


class Step(NamedTuple):
    """Step size and momentum decay of each token and head; no decay means no momentum."""

    size: Float[Tensor, "b t h"]
    decay: Float[Tensor, "b t h"] | None


NO_MOMENTUM = {
    "inner_optimizer.momentum.project.weight": 0.0,
    "inner_optimizer.momentum.offset": -1e4,
}


class InnerOptimizer(nn.Module):
    """What every inner optimiser has; not a choice itself.

    Raises:
        ValueError: `lr_max` is not positive.
    """

    axes: ClassVar[tuple[str, ...]] = ()
    principal: ClassVar[str | None] = "lr_max"
    source: ClassVar[str] = ""
    step_inside: ClassVar[bool] = True
    has_momentum: ClassVar[bool] = True
    nesterov: ClassVar[bool] = False
    implicit: ClassVar[bool] = False
    decayed: bool = False
    ridge: float | None = None
    steps: int = 1

    def __init__(self, dims: Dims, *, lr_max: float, gated: bool = True, count: int = 1) -> None:
        super().__init__()
        if not lr_max > 0:
            raise ValueError(f"{type(self).__name__}.lr_max={lr_max!r}: must be > 0")
        self.lr_max, self.heads = lr_max, dims.heads
        self.lr = HeadGate(dims, count=count) if gated else None
        self.momentum = HeadGate(dims, offset=1.0) if self.has_momentum else None

    def forward(self, x: Float[Tensor, "b t m"]) -> Step:
        """lr = lr_max sigmoid(w x + b), theta = sigmoid(w' x + b')."""
        size = self._sizes(x).squeeze(-1)
        decay = None if self.momentum is None else self.momentum(x).squeeze(-1)
        return Step(size, decay)

    def _sizes(self, x: Tensor) -> Float[Tensor, "b t h n"]:
        if self.lr is not None:
            made: Tensor = self.lr(x) * self.lr_max
            return made
        wide = torch.promote_types(x.dtype, torch.float32)
        return torch.full((*x.shape[:2], self.heads, 1), self.lr_max, dtype=wide, device=x.device)

    def spread(self, keep: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
        """Kept shares and window weights for each step, where a token has several (`steps`)."""
        return keep, gamma


ALIKE = Limit(
    "what never decays is predicted alike",
    {"prediction": "decayed"},
    {"inner_optimizer.prediction": "undecayed"},
    given={"retention": "none", "memory": "matrix", "window.length": 1},
)
HALF_OPEN = Limit(
    "a gate that is always half open is half a constant step",
    {"gated": False, "lr_max": 0.1},
    {"inner_optimizer.gated": True, "inner_optimizer.lr_max": 0.2},
    held={
        "inner_optimizer.lr.project.weight": 0.0,
        "inner_optimizer.lr.offset": 0.0,
    },
)


class GradientDescent(InnerOptimizer):
    """No momentum: M_n = alpha_n M_{n-1} - lr_n G_n.

    Args:
        dims: widths.
        lr_max: bound of the step.
        prediction: whose error G_n is: "undecayed": of M_{n-1} (Titans, Atlas); "decayed": of
            alpha_n M_{n-1} (Gated DeltaNet), which exists for a matrix with window 1.
        gated: the step is lr_max times a gate; else it is lr_max for every token.

    Raises:
        ValueError: `lr_max` is not positive, or an unknown prediction.
    """

    source: ClassVar[str] = "Atlas Eq. 10 (OmegaNet); MIRAS Table 1 (decayed: Gated DeltaNet)"
    limits: ClassVar[tuple[Limit, ...]] = (ALIKE, HALF_OPEN)
    has_momentum: ClassVar[bool] = False

    def __init__(
        self,
        dims: Dims,
        *,
        lr_max: float = 0.05,
        prediction: str = "undecayed",
        gated: bool = True,
    ) -> None:
        super().__init__(dims, lr_max=lr_max, gated=gated)
        if prediction not in PREDICTIONS:
            raise ValueError(
                f"{type(self).__name__}.prediction={prediction!r}: must be one of "
                f"{', '.join(PREDICTIONS)}"
            )
        self.decayed = prediction == "decayed"


class ImplicitGradientDescent(GradientDescent):
    """The step that a gradient at the memory after the write would have made.

    For a matrix and squared errors it is lr_n / (1 + lr_n |phi(k_n)|^2) (Longhorn), stable for any
    lr. With "decayed" prediction M_n minimises lr/2 |M k - v|^2 + 1/2 |M - alpha_n M_{n-1}|^2.

    Args:
        dims: widths.
        lr_max: bound of lr.
        prediction: as of `GradientDescent`.

    Raises:
        ValueError: `lr_max` is not positive, or an unknown prediction.
    """

    source: ClassVar[str] = "Liu et al. 2024 (Longhorn); Atlas Table 1; MIRAS Table 1"
    limits: ClassVar[tuple[Limit, ...]] = (ALIKE,)
    implicit: ClassVar[bool] = True

    def __init__(self, dims: Dims, *, lr_max: float = 1.0, prediction: str = "decayed") -> None:
        super().__init__(dims, lr_max=lr_max, prediction=prediction)


class LeastSquares(InnerOptimizer):
    """No steps: the memory is the minimum itself (Mesa layer), by recursive least squares.

    M_n minimises sum_i w_i |M phi(k_i) - v_i|^2 + ridge |M|^2, where the weight w_i of token i is
    its lr times its window gates and decays by the retention. With G_n = sum w_i v_i phi(k_i)^T and
    H_n = sum w_i phi(k_i) phi(k_i)^T it reads y_n = G_n (H_n + ridge)^-1 phi(q_n): linear attention
    with another query, so that chunks do not matter. The state holds G (a learned start adds to it)
    and H.

    Args:
        dims: widths.
        lr_max: bound of a token's weight.
        ridge: weight of the penalty.

    Raises:
        ValueError: `lr_max` or `ridge` is not positive.
    """

    principal: ClassVar[str | None] = "ridge"
    source: ClassVar[str] = "von Oswald et al. 2023 (Mesa); MIRAS section 4"
    has_momentum: ClassVar[bool] = False

    def __init__(self, dims: Dims, *, lr_max: float = 1.0, ridge: float = 1.0) -> None:
        super().__init__(dims, lr_max=lr_max)
        if not ridge > 0:
            raise ValueError(f"LeastSquares.ridge={ridge!r}: must be > 0")
        self.ridge = ridge


FORGETFUL = Limit(
    "momentum that keeps nothing is gradient descent",
    {"lr_max": 0.1},
    {"inner_optimizer": "gd", "inner_optimizer.lr_max": 0.1},
    held=NO_MOMENTUM,
)


class Momentum(InnerOptimizer):
    """Step inside: S_n = theta_n S_{n-1} + lr_n G_n, M_n = alpha_n M_{n-1} - S_n."""

    source: ClassVar[str] = "Titans Eq. 13-14; Atlas Eq. 12-13"
    limits: ClassVar[tuple[Limit, ...]] = (FORGETFUL,)

    def __init__(self, dims: Dims, *, lr_max: float = 0.02) -> None:
        super().__init__(dims, lr_max=lr_max)


class Nesterov(InnerOptimizer):
    """Momentum looked ahead: M_n = alpha_n M_{n-1} - theta_n S_n - lr_n G_n, S_n as `Momentum`."""

    source: ClassVar[str] = "Sutskever et al. 2013 on Titans Eq. 13-14; not in the papers"
    limits: ClassVar[tuple[Limit, ...]] = (FORGETFUL,)
    nesterov: ClassVar[bool] = True

    def __init__(self, dims: Dims, *, lr_max: float = 0.01) -> None:
        super().__init__(dims, lr_max=lr_max)


class Muon(InnerOptimizer):
    """Newton-Schulz between momentum and step: M_n = alpha_n M_{n-1} - lr_n NS(S_n).

    Newton-Schulz forgets the momentum's scale, so `lr_max` bounds the size of the write itself.
    """

    axes: ClassVar[tuple[str, ...]] = ("newton_schulz",)
    source: ClassVar[str] = "Atlas Eq. 32-33"
    step_inside: ClassVar[bool] = False

    def __init__(self, dims: Dims, *, lr_max: float = 0.05) -> None:
        super().__init__(dims, lr_max=lr_max)
