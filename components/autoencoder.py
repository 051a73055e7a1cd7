"""An auto-encoder on the blocks: the whole row is said again from the last position's hidden state.

    z_t = x_T + p_t,   logits_t = W_3 n(gelu(W_2 n(gelu(W_1 n(z_t)))))

x_T is the last block's output at the last position, p_t the sinusoids of position t (Vaswani et al.
2017), n a root-mean-square norm. MAD asks for it in its compression task (Poli et al. 2024).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.components.backbone import Backbone, RMSNorm

LONGEST = 10_000.0  # wavelength over 2 pi of the slowest sinusoid


@dataclass(frozen=True)
class AutoEncoderBackbone(Backbone):
    """The same blocks, with a decoder of two hidden layers in place of norm and head.

    A call reads a whole row: what it says of a piece is about that piece. Nothing is predicted, so
    only tasks of reconstruction may have it.
    """

    source: ClassVar[str] = "Poli et al. 2024 (MAD), compression"
    reconstructs: ClassVar[bool] = True

    def ends(self, vocab: int) -> tuple[nn.Module, nn.Module]:
        """No norm, since the decoder begins with one."""
        return nn.Identity(), RowDecoder(self.dim, vocab)


class RowDecoder(nn.Module):
    """Logits of all positions from the hidden state of the last one."""

    def __init__(self, dim: int, vocab: int) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for _ in range(2):
            parts += [RMSNorm(dim), nn.Linear(dim, dim, bias=False), nn.GELU()]
        self.layers = nn.Sequential(*parts, RMSNorm(dim), nn.Linear(dim, vocab, bias=False))

    def forward(self, x: Float[Tensor, "b t m"]) -> Float[Tensor, "b t vocab"]:
        """Say the row; of `x` only the last position is read."""
        made: Tensor = self.layers(x[:, -1:] + sinusoids(x.shape[1], like=x))
        return made


def sinusoids(length: int, *, like: Float[Tensor, "b t m"]) -> Float[Tensor, "n m"]:
    """Positions 0 to length - 1: sines in the even columns, cosines of the same angles beside."""
    width = like.shape[-1]
    place = torch.arange(length, device=like.device, dtype=torch.float32)[:, None]
    column = torch.arange(width, device=like.device)
    angle = place * LONGEST ** (-(column - column % 2) / width)
    return torch.where(column % 2 == 0, angle.sin(), angle.cos()).to(like.dtype)
