"""Omega window: which of the last c tokens each token optimises over, and how much of each.

Atlas Eq. 8-9: at token t the memory descends sum_{i=t-c+1..t} gamma_i^(t) loss(M; k_i, v_i).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ablate.components.dims import Dims
from ablate.components.gate import HeadGate
from ablate.components.limits import Limit

GATES = ("reader", "none", "both", "constant")
BORDERS = ("halo", "truncate")
PAIR = 8  # numbers that a reader and a source token compare
OPEN = 1.0  # offset that gates start from


class OmegaWindow(nn.Module):
    """The last `length` tokens, each weighted by a gate.

    A window as long as the sequence is a global one: the state and the sources of each chunk then
    grow with it. Only the gates "reader" and "constant" have parameters for each place.

    Args:
        dims: widths; gates are per head.
        length: c, the number of tokens in the window, itself included; 1 is the online rule.
        gates: "reader": sigmoid(W x_t)_j weights token t-j; "both": sigmoid(U x_t . W x_{t-j} + b),
            so that the source has a say; "constant": a learned number for each j; "none": 1.
        normalised: divide the weights by c, so that a longer window is not a larger step.
        border: "halo": a window reaches back into earlier chunks, whose gradients are taken again
            at this chunk's first memory; "truncate": it ends at its chunk's start.

    Raises:
        ValueError: `length` < 1, or `gates` or `border` is no known name.
    """

    axes: ClassVar[tuple[str, ...]] = ()
    principal: ClassVar[str | None] = "length"
    source: ClassVar[str] = "Atlas Eq. 8-9; the gate's producer and the border are not given there"
    limits: ClassVar[tuple[Limit, ...]] = (
        Limit(
            "a window of one token has no border",
            {"length": 1, "border": "truncate"},
            {"window.border": "halo"},
        ),
        Limit(
            "a window of one token is its own mean",
            {"length": 1, "normalised": True},
            {"window.normalised": False},
        ),
        Limit(
            "cut at chunks of one token, any window is the online rule",
            {"length": 5, "gates": "none", "border": "truncate", "normalised": False},
            {"window.length": 1},
            given={"chunk": 1},
        ),
        Limit(
            "constant gates that are open are no gates",
            {"length": 3, "gates": "constant"},
            {"window.gates": "none"},
            held={"window.offset": 50.0},
        ),
        Limit(
            "when readers ask nothing, all tokens weigh the same",
            {"length": 3, "gates": "both"},
            {"window.gates": "constant"},
            held={"window.reads.weight": 0.0},
        ),
    )

    def __init__(
        self,
        dims: Dims,
        *,
        length: int = 1,
        gates: str = "reader",
        normalised: bool = False,
        border: str = "halo",
    ) -> None:
        super().__init__()
        if length < 1:
            raise ValueError(f"OmegaWindow.length={length!r}: must be >= 1 (1 is the online rule)")
        for option, given, known in (("gates", gates, GATES), ("border", border, BORDERS)):
            if given not in known:
                names = ", ".join(known)
                raise ValueError(f"OmegaWindow.{option}={given!r}: must be one of {names}")
        self.length, self.heads, self.gates = length, dims.heads, gates
        self.truncated = border == "truncate"
        self.scale = 1.0 / length if normalised else 1.0
        self.gate = HeadGate(dims, count=length, offset=OPEN) if gates == "reader" else None
        both = gates == "both"
        self.reads = nn.Linear(dims.model, dims.heads * PAIR, bias=False) if both else None
        self.says = nn.Linear(dims.model, dims.heads * PAIR, bias=False) if both else None
        places = {"both": 1, "constant": length}.get(gates)
        self.offset = nn.Parameter(torch.empty(dims.heads, places)) if places else None

    def init_weights(self, stream: Callable[[str], torch.Generator]) -> None:
        """Open the gates; linear maps are drawn by the caller."""
        if self.offset is not None:
            nn.init.constant_(self.offset, OPEN)

    @property
    def said_width(self) -> int | None:
        """Numbers of a head that a token leaves for later readers; None if it leaves none."""
        return None if self.says is None else PAIR

    def said(self, x: Float[Tensor, "b t m"]) -> Float[Tensor, "b t h r"] | None:
        """What tokens leave for later readers, if anything."""
        return None if self.says is None else self._by_head(self.says, x)

    def forward(
        self, x: Float[Tensor, "b t m"], said: Float[Tensor, "b i h r"] | None = None
    ) -> Float[Tensor, "b t h c"]:
        """gamma[t, j], the weight of token t-j in the window of token t.

        `said` is what the c-1 tokens before and these have left, for gates "both".
        """
        wide = torch.promote_types(x.dtype, torch.float32)
        shape = (*x.shape[:2], self.heads, self.length)
        if self.gate is not None:
            gamma: Tensor = self.gate(x)
        elif self.reads is not None:
            assert said is not None
            assert self.offset is not None
            sources = said.unfold(1, self.length, 1)  # b t h r c, the oldest first
            match = torch.einsum("bthr,bthrc->bthc", self._by_head(self.reads, x), sources)
            gamma = F.sigmoid(match.flip(-1) * PAIR**-0.5 + self.offset.to(match.dtype))
        elif self.offset is not None:
            gamma = F.sigmoid(self.offset.to(wide)).expand(shape)
        else:
            return torch.full(shape, self.scale, dtype=wide, device=x.device)
        return gamma * self.scale

    def _by_head(self, project: nn.Linear, x: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, project.weight.dtype)
        wide = torch.promote_types(wide, torch.float32)
        y: Tensor = F.linear(x.to(wide), project.weight.to(wide)).unflatten(-1, (self.heads, PAIR))
        return y
