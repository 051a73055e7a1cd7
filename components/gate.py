"""Gates: numbers in (0, 1) for every token and head, read off the block's input."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ablate.components.dims import Dims


class HeadGate(nn.Module):
    """sigmoid(W x + offset), `count` numbers for each token and head, in float32 at least.

    The offset is a parameter of its own (not the linear map's bias) because its start value is part
    of the model: a retention gate must begin near 1.
    """

    def __init__(self, dims: Dims, *, count: int = 1, offset: float = 0.0) -> None:
        super().__init__()
        self.heads, self.count, self.start = dims.heads, count, offset
        self.project = nn.Linear(dims.model, dims.heads * count, bias=False)
        self.offset = nn.Parameter(torch.full((dims.heads * count,), float(offset)))

    def init_weights(self, stream: Callable[[str], torch.Generator]) -> None:
        """Set the offset to its start value; the linear map is drawn by the caller."""
        nn.init.constant_(self.offset, self.start)

    def forward(self, x: Float[Tensor, "b t m"]) -> Float[Tensor, "b t h n"]:
        """Gates for block input `x`."""
        wide = torch.promote_types(x.dtype, self.project.weight.dtype)
        wide = torch.promote_types(wide, torch.float32)
        logits = F.linear(x.to(wide), self.project.weight.to(wide), self.offset.to(wide))
        return F.sigmoid(logits.unflatten(-1, (self.heads, self.count)))
