"""Several gradient steps for every token, each with a key and a value of its own (DeltaProduct).

    M_{n,0} = alpha_n M_{n-1},   M_{n,j} = M_{n,j-1} - lr_{n,j} (M_{n,j-1} k_j - v_j) k_j^T

so that a token multiplies the memory by a product of generalised Householder matrices. To the
recurrence this is a sequence that is `steps` times as long: it decays at a token's first step and
is read at its last.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ablate.components.backbone import causal_conv, unit
from ablate.components.dims import Dims
from ablate.components.inner_optimizer import PREDICTIONS, InnerOptimizer, Step
from ablate.components.limits import Limit


class MultiStepGradientDescent(InnerOptimizer):
    """Gradient descent of `steps` steps for every token, each at the memory after the one before.

    The block's own key and value are those of the last step; the others are projected from the
    block's input in the same way: a convolution, SiLU, and keys of length 1.

    Args:
        dims: widths.
        steps: n_h, the steps for each token.
        lr_max: bound of each step; with 2, a step may turn a direction around.
        prediction: whose error a first step takes, as of `GradientDescent`.
        conv_width: taps of the convolution on the further keys and values.

    Raises:
        ValueError: `steps` or `conv_width` < 1, `lr_max` is not positive, or an unknown prediction.
    """

    principal: ClassVar[str | None] = "steps"
    source: ClassVar[str] = "Siems et al. 2025 (DeltaProduct); MIRAS Table 1, terms corrected"
    limits: ClassVar[tuple[Limit, ...]] = (
        Limit(
            "one step for each token is gradient descent",
            {"steps": 1, "lr_max": 0.1},
            {
                "inner_optimizer": "gd",
                "inner_optimizer.prediction": "decayed",
                "inner_optimizer.lr_max": 0.1,
            },
            given={"memory": "matrix", "window.length": 1, "chunk": 1},
        ),
    )
    has_momentum: ClassVar[bool] = False

    def __init__(
        self,
        dims: Dims,
        *,
        steps: int = 2,
        lr_max: float = 1.0,
        prediction: str = "decayed",
        conv_width: int = 4,
    ) -> None:
        for name, given in (("steps", steps), ("conv_width", conv_width)):
            if given < 1:
                raise ValueError(f"MultiStepGradientDescent.{name}={given!r}: must be >= 1")
        if prediction not in PREDICTIONS:
            raise ValueError(
                f"MultiStepGradientDescent.prediction={prediction!r}: must be one of "
                f"{', '.join(PREDICTIONS)}"
            )
        super().__init__(dims, lr_max=lr_max, count=steps)
        self.steps, self.decayed, self.dims = steps, prediction == "decayed", dims
        self.widths = [(steps - 1) * dims.heads * width for width in (dims.key, dims.value)]
        channels = sum(self.widths)
        self.tail = (conv_width - 1, channels)
        if steps > 1:
            self.project = nn.Linear(dims.model, channels, bias=False)
            self.conv = nn.Conv1d(channels, channels, conv_width, groups=channels, bias=False)

    def forward(self, x: Float[Tensor, "b t m"]) -> Step:
        """Sizes of all steps, `[b t*n h]`."""
        return Step(self._sizes(x).transpose(2, 3).flatten(1, 2), None)

    def spread(self, keep: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
        """A token decays the memory at its first step only."""
        rest = torch.ones_like(keep).unsqueeze(2).expand(-1, -1, self.steps - 1, *keep.shape[2:])
        keep = torch.cat([keep.unsqueeze(2), rest], dim=2).flatten(1, 2)
        return keep, gamma.repeat_interleave(self.steps, dim=1)

    def further(
        self, x: Float[Tensor, "b t m"], tail: Tensor | None, dtype: torch.dtype
    ) -> tuple[Float[Tensor, "b t n h d"], Float[Tensor, "b t n h e"], Tensor | None]:
        """Keys and values of all steps but the last, and the convolution's tail."""
        made = F.linear(x.to(dtype), self.project.weight.to(dtype))
        made, tail = causal_conv(made, self.conv.weight[:, 0].to(dtype), tail)
        keys, values = (
            part.unflatten(-1, (self.steps - 1, self.dims.heads, -1))
            for part in F.silu(made).split(self.widths, dim=-1)
        )
        return unit(keys), values, tail


def interleave(
    further: Float[Tensor, "b t n h d"], last: Float[Tensor, "b t h d"]
) -> Float[Tensor, "b s h d"]:
    """Steps of each token behind each other, the last of them from `last`."""
    return torch.cat([further, last.unsqueeze(2)], dim=2).flatten(1, 2)
