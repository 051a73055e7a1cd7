"""Retention that is more than a decay (MIRAS section 5.2).

Four choices write into an accumulator A, A_n = alpha_n A_{n-1} - (what the inner optimiser
writes), and the memory's weights are a function of it: W_n = weights(A_n). Gradients inside a chunk
are taken at the weights of the chunk's start, and token n reads with exactly weights(A_n), made for
each token; or, `applied: chunk`, with weights that are linear inside a chunk (section 5.4). The
elastic net has no accumulator: it shrinks the weights themselves at each token.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.components.dims import Dims
from ablate.components.limits import Limit
from ablate.components.retention import NoRetention, Retention, ScalarRetention

FORMS = ("corrected", "printed")
APPLIED = ("token", "chunk")
TINY = 1e-12


class MappedRetention(Retention):
    """A scalar decay of the accumulator, or none; not a choice itself."""

    principal: ClassVar[str | None] = "init"
    maps: ClassVar[bool] = True

    def __init__(self, dims: Dims, *, init: float, decays: bool, applied: str) -> None:
        super().__init__()
        if applied not in APPLIED:
            raise ValueError(
                f"{type(self).__name__}.applied={applied!r}: must be one of {', '.join(APPLIED)}"
            )
        self.heads, self.applied = dims.heads, applied
        self.decay: Retention = ScalarRetention(dims, init=init) if decays else NoRetention(dims)

    def forward(self, x: Float[Tensor, "b t m"]) -> Float[Tensor, "b t h"]:
        """The kept share of the accumulator for each token and head."""
        kept: Tensor = self.decay(x)
        return kept


class SimplexRetention(MappedRetention):
    """KL and entropy on the scaled simplex: every row of weights is c softmax of its logits.

    W_n = c softmax(alpha_n log W_{n-1} - lr_n G_n) (Memora), kept as logits, for which this is a
    plain decay: softmax does not see what a row of logits has in common. c is sqrt(fan-in) times
    a learned number for each head. The start has logits of mean square 1: with rows that are
    nearly alike a layer norm would see rounding only.

    Args:
        dims: widths.
        init: of the decay's gate.
        centred: subtract the mean, c / fan-in, so that weights may be negative; not in the paper.
        applied: make weights anew for every "token", or at the end of a "chunk" only.
    """

    source: ClassVar[str] = "MIRAS Eq. 19-21, 27 (Memora)"

    def __init__(
        self, dims: Dims, *, init: float = 4.0, centred: bool = False, applied: str = "token"
    ) -> None:
        super().__init__(dims, init=init, decays=True, applied=applied)
        self.centred = centred
        self.log_scale = nn.Parameter(torch.empty(dims.heads))

    def init_weights(self, stream: Callable[[str], torch.Generator]) -> None:
        """Rows that sum to sqrt(fan-in)."""
        nn.init.zeros_(self.log_scale)

    def accumulator(self, weights: Float[Tensor, "h o i"]) -> Float[Tensor, "h o i"]:
        """Logits of the start."""
        square = weights.square().mean((-2, -1), keepdim=True)
        return weights * (square + TINY).rsqrt()

    def weights(self, accumulated: Float[Tensor, "*p o i"]) -> Float[Tensor, "*p o i"]:
        """c softmax over the fan-in."""
        fan_in = accumulated.shape[-1]
        made = torch.softmax(accumulated, dim=-1)
        made = made - 1 / fan_in if self.centred else made
        scale = self.log_scale.to(made.dtype).exp().repeat(made.shape[0] // self.heads)
        return made * scale.view(-1, *[1] * (made.ndim - 1)) * math.sqrt(fan_in)


class LqRetention(MappedRetention):
    """L_q: weights are the accumulator, rescaled by its own q-norm (of each matrix and head).

    "corrected": W = sign(A) |A|^(q-1) / |A|_q^(q-2), the minimiser for the regulariser
    |W|_p^2 / 2, 1/p + 1/q = 1; it grows as A does. "printed": W = A / |A|_q^(q-2) lacks the power,
    is no minimiser for q > 2, and shrinks as A grows. Both are A at q = 2. The learned start is
    scaled to |A|_q = 1, for the printed rule is singular at 0.

    Args:
        dims: widths.
        q: dual exponent, >= 2 (MIRAS: 4).
        form: "corrected" or "printed".
        init: of the decay's gate.
        eps: added to the sum of q-th powers.
        applied: make weights anew for every "token", or at the end of a "chunk" only.

    Raises:
        ValueError: `q` < 2, an unknown form, or `eps` not positive.
    """

    principal: ClassVar[str | None] = "q"
    source: ClassVar[str] = "MIRAS Eq. 24-25 (Moneta); corrected form derived from its regulariser"
    limits: ClassVar[tuple[Limit, ...]] = tuple(
        Limit(
            f"q = 2 is a scalar decay ({form})",
            {"q": 2.0, "form": form},
            {"retention": "scalar"},
            held={
                "retention.decay.gate.project.weight": 0.0,
                "retention.gate.project.weight": 0.0,
            },
        )
        for form in FORMS
    )

    def __init__(
        self,
        dims: Dims,
        *,
        q: float = 4.0,
        form: str = "corrected",
        init: float = 4.0,
        eps: float = 1e-6,
        applied: str = "token",
    ) -> None:
        super().__init__(dims, init=init, decays=True, applied=applied)
        if not q >= 2:
            raise ValueError(f"LqRetention.q={q!r}: must be >= 2 (it is the dual exponent)")
        if form not in FORMS:
            raise ValueError(f"LqRetention.form={form!r}: must be one of {', '.join(FORMS)}")
        if not eps > 0:
            raise ValueError(f"LqRetention.eps={eps!r}: must be > 0")
        self.q, self.form, self.eps = q, form, eps

    def accumulator(self, weights: Float[Tensor, "h o i"]) -> Float[Tensor, "h o i"]:
        """The start, with norm 1; for q = 2 as it is."""
        return weights if self.q == 2 else weights / self._norm(weights)

    def weights(self, accumulated: Float[Tensor, "*p o i"]) -> Float[Tensor, "*p o i"]:
        """The accumulator rescaled."""
        if self.q == 2:
            return accumulated
        scale = self._norm(accumulated) ** (2 - self.q)
        if self.form == "printed":
            return accumulated * scale
        return torch.sign(accumulated) * accumulated.abs() ** (self.q - 1) * scale

    def _norm(self, a: Tensor) -> Tensor:
        powers = a.abs() ** self.q
        norm: Tensor = (powers.sum((-2, -1), keepdim=True) + self.eps) ** (1 / self.q)
        return norm


class SoftThreshold(MappedRetention):
    """Elastic net by FTRL: W = S(A), entries of the accumulator below `threshold` are 0.

    Args:
        dims: widths.
        threshold: eta / c1 of the paper; 0 (c1 infinite) has no effect.
        smooth: |z| arctan(z / threshold) / (pi / 2) in place of S, with a slope everywhere.
        decays: decay the accumulator by a gate; the paper does not.
        init: of that gate.
        applied: make weights anew for every "token", or at the end of a "chunk" only.

    Raises:
        ValueError: `threshold` < 0.
    """

    principal: ClassVar[str | None] = "threshold"
    source: ClassVar[str] = "MIRAS Eq. 23"
    limits: ClassVar[tuple[Limit, ...]] = (
        Limit(
            "a threshold of 0 without decay keeps everything",
            {"threshold": 0.0, "decays": False},
            {"retention": "none"},
            given={"inner_optimizer": "gd"},
        ),
    )

    def __init__(
        self,
        dims: Dims,
        *,
        threshold: float = 0.01,
        smooth: bool = False,
        decays: bool = False,
        init: float = 4.0,
        applied: str = "token",
    ) -> None:
        super().__init__(dims, init=init, decays=decays, applied=applied)
        if not threshold >= 0:
            raise ValueError(f"SoftThreshold.threshold={threshold!r}: must be >= 0")
        self.threshold, self.smooth = threshold, smooth

    def weights(self, accumulated: Float[Tensor, "*p o i"]) -> Float[Tensor, "*p o i"]:
        """Soft threshold of the accumulator."""
        if self.threshold == 0:
            return accumulated
        return soft_threshold(accumulated, accumulated.new_tensor(self.threshold), self.smooth)


class BregmanSigmoid(MappedRetention):
    """Bregman divergence with F' = logit: W = sigmoid(A), weights stay in (0, 1).

    Args:
        dims: widths.
        decays: decay the accumulator by a gate; the paper does not.
        init: of that gate.
        applied: make weights anew for every "token", or at the end of a "chunk" only.
    """

    source: ClassVar[str] = "MIRAS section 5.2, Bregman divergence (W_{t-1} on the right)"

    def __init__(
        self, dims: Dims, *, decays: bool = False, init: float = 4.0, applied: str = "token"
    ) -> None:
        super().__init__(dims, init=init, decays=decays, applied=applied)

    def weights(self, accumulated: Float[Tensor, "*p o i"]) -> Float[Tensor, "*p o i"]:
        """Sigmoid of the accumulator."""
        return torch.sigmoid(accumulated)


class ElasticNet(ScalarRetention):
    """Hard and soft forgetting: W_n = S(alpha_n W_{n-1} - lr_n G_n) with threshold lr_n `sparsity`.

    The gates are lambda and zeta of the paper themselves, and sparsity is its 1 / c1, since
    gamma = zeta / c1.

    Args:
        dims: widths.
        sparsity: 1 / c1; 0 (c1 infinite) leaves the scalar decay.
        smooth: |z| arctan(z / gamma) / (pi / 2) in place of S, with a slope everywhere.
        init: of the decay's gate.

    Raises:
        ValueError: `sparsity` < 0.
    """

    principal: ClassVar[str | None] = "sparsity"
    source: ClassVar[str] = "MIRAS Eq. 22"
    limits: ClassVar[tuple[Limit, ...]] = (
        Limit(
            "without sparsity only the decay is left",
            {"sparsity": 0.0},
            {"retention": "scalar"},
            given={"inner_optimizer": "gd"},
        ),
    )
    shrinks: ClassVar[bool] = True

    def __init__(
        self, dims: Dims, *, sparsity: float = 0.1, smooth: bool = False, init: float = 4.0
    ) -> None:
        super().__init__(dims, init=init)
        if not sparsity >= 0:
            raise ValueError(f"ElasticNet.sparsity={sparsity!r}: must be >= 0")
        self.sparsity, self.smooth = sparsity, smooth

    def shrink(
        self, kept: Float[Tensor, "p o i"], lr: Float[Tensor, "p 1 1"]
    ) -> Float[Tensor, "p o i"]:
        """Soft threshold at lr times the sparsity."""
        return soft_threshold(kept, lr * self.sparsity, self.smooth)


def soft_threshold(z: Tensor, gamma: Tensor, smooth: bool) -> Tensor:
    """sign(z) max(0, |z| - gamma), or its smooth surrogate."""
    if smooth:
        return z.abs() * torch.atan(z / gamma.clamp_min(TINY)) / (math.pi / 2)
    return torch.sign(z) * (z.abs() - gamma).clamp_min(0)
