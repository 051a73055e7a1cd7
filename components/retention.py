"""Retention: how much of the memory survives a token, alpha_t in M_t = alpha_t M_{t-1} - ...

Some retentions are more than a decay. Those of `nonlinear_retention` read weights that are a
function of what is written, or shrink what was kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ablate.components.dims import Dims
from ablate.components.gate import HeadGate
from ablate.components.limits import Limit

SCHEDULES = ("retnet", "alibi", "learned")
SIDES = ("key", "value", "both")
RESETS = ("momentum", "memory", "both")


class Retention(nn.Module):
    """What every retention has; not a choice itself.

    side, channels: of the matrix that its numbers act on, None for one number for each head;
    `columns` of the channels are its columns. maps:
    weights are a function of what is written (`accumulator`, `weights`), made anew where it is
    `applied`: for every token, or at chunk ends. shrinks: kept weights are
    made smaller at every token (`shrink`). resets: what a chunk starts without. ties: what a key
    channel does not keep is its key.
    """

    axes: ClassVar[tuple[str, ...]] = ()
    principal: ClassVar[str | None] = None
    source: ClassVar[str] = ""
    maps: ClassVar[bool] = False
    shrinks: ClassVar[bool] = False
    ties: ClassVar[bool] = False
    side: str | None = None
    applied: str = "token"
    channels: int = 1
    columns: int = 0
    resets: str | None = None

    def accumulator(self, weights: Float[Tensor, "h o i"]) -> Float[Tensor, "h o i"]:
        """What a sequence's writes start from, made from a memory's learned start."""
        return weights

    def weights(self, accumulated: Float[Tensor, "*p o i"]) -> Float[Tensor, "*p o i"]:
        """Weights of what is written; heads are the faster index of the first dimension."""
        return accumulated

    def shrink(
        self, kept: Float[Tensor, "p o i"], lr: Float[Tensor, "p 1 1"]
    ) -> Float[Tensor, "p o i"]:
        """Weights after a token with step `lr` whose decay and write left `kept`."""
        return kept


class NoRetention(Retention):
    """Keeps everything: alpha = 1."""

    source: ClassVar[str] = "DeltaNet; MIRAS Table 1 rows without a retention gate"

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.heads = dims.heads

    def forward(self, x: Float[Tensor, "b t m"]) -> Float[Tensor, "b t h"]:
        """The kept share for each token and head: ones."""
        wide = torch.promote_types(x.dtype, torch.float32)
        return torch.ones(*x.shape[:2], self.heads, dtype=wide, device=x.device)


class ConstantRetention(Retention):
    """One number in (0, 1) for each head, the same for all tokens.

    Args:
        dims: widths.
        schedule: heads h = 0.. keep 1 - 2^(-5-h) ("retnet") or exp(-2^(-8 (h+1) / heads))
            ("alibi", Lightning attention); "learned": as retnet at the start, then trained.

    Raises:
        ValueError: an unknown schedule.
    """

    principal: ClassVar[str | None] = None
    source: ClassVar[str] = "Sun et al. 2023 (RetNet) Eq. 8; MIRAS Table 1, rows RetNet, Lightning"

    def __init__(self, dims: Dims, *, schedule: str = "retnet") -> None:
        super().__init__()
        if schedule not in SCHEDULES:
            names = ", ".join(SCHEDULES)
            raise ValueError(f"ConstantRetention.schedule={schedule!r}: must be one of {names}")
        self.schedule, self.heads = schedule, dims.heads
        if schedule == "learned":
            self.logit = nn.Parameter(torch.empty(dims.heads))
        else:
            self.register_buffer("kept", self._start(), persistent=False)

    def _start(self) -> Tensor:
        head = torch.arange(self.heads, dtype=torch.get_default_dtype())
        if self.schedule == "alibi":
            return torch.exp(-(2.0 ** (-8 * (head + 1) / self.heads)))
        return 1 - 2.0 ** (-5 - head)

    def init_weights(self, stream: Callable[[str], torch.Generator]) -> None:
        """Begin as RetNet."""
        if self.schedule == "learned":
            with torch.no_grad():
                self.logit.copy_(torch.logit(self._start()))

    def forward(self, x: Float[Tensor, "b t m"]) -> Float[Tensor, "b t h"]:
        """The kept share for each token and head."""
        wide = torch.promote_types(x.dtype, torch.float32)
        if self.schedule == "learned":
            kept = torch.sigmoid(self.logit.to(wide))
        else:
            kept = self.get_buffer("kept").to(wide)
        return kept.expand(*x.shape[:2], self.heads)


class ScalarRetention(Retention):
    """One number in (0, 1) for each token and head: sigmoid(w x + b), b starting at `init`.

    Titans writes 1 - alpha for what Atlas and MIRAS write alpha; this is the kept share.
    """

    principal: ClassVar[str | None] = "init"
    starts: ClassVar[tuple[str, ...]] = ("init",)
    source: ClassVar[str] = "Atlas Eq. 10 and 32; Titans Eq. 13"
    limits: ClassVar[tuple[Limit, ...]] = (
        Limit(
            "an open gate keeps everything",
            {},
            {"retention": "none"},
            held={"retention.gate.project.weight": 0.0, "retention.gate.offset": 50.0},
        ),
    )

    def __init__(self, dims: Dims, *, init: float = 4.0) -> None:
        super().__init__()
        self.gate = HeadGate(dims, offset=init)

    def forward(self, x: Float[Tensor, "b t m"]) -> Float[Tensor, "b t h"]:
        """The kept share for each token and head."""
        kept: Tensor = self.gate(x)
        return kept.squeeze(-1)


class ResetRetention(ScalarRetention):
    """A scalar decay, and a fresh start at every chunk: chunks know of each other by no memory.

    Args:
        dims: widths.
        what: "momentum", "memory" (back to the learned start) or "both".
        init: of the decay's gate.

    Raises:
        ValueError: an unknown name.
    """

    principal: ClassVar[str | None] = None
    source: ClassVar[str] = "Li et al. 2025 (TNT), local memories"
    limits: ClassVar[tuple[Limit, ...]] = (
        Limit("within one chunk nothing is reset", {}, {"retention": "scalar"}, {"chunk": 16}),
    )

    def __init__(self, dims: Dims, *, what: str = "both", init: float = 4.0) -> None:
        super().__init__(dims, init=init)
        if what not in RESETS:
            raise ValueError(f"ResetRetention.what={what!r}: must be one of {', '.join(RESETS)}")
        self.resets = what


class ChannelRetention(Retention):
    """One number in (0, 1) for each token, head and channel, from a low-rank map.

    sigmoid(U D x + b)^(1 / temperature). "key" keeps M diag(a), columns by key channel, as GLA;
    "value" keeps diag(a) M, rows by value channel; "both" keeps diag(b) M diag(a), decaying fast
    weights, with window 1. A deep memory has "key" only: columns of the maps on the features, rows
    of the later ones.

    Args:
        dims: widths.
        side: "key", "value" or "both".
        rank: inner width of the map.
        init: b at the start.
        temperature: GLA divides the logarithm by 16.

    Raises:
        ValueError: an unknown side, `rank` < 1, or a temperature that is not positive.
    """

    principal: ClassVar[str | None] = "rank"
    starts: ClassVar[tuple[str, ...]] = ("init",)
    source: ClassVar[str] = (
        "Yang et al. 2024 (GLA) section 4.4; MIRAS section 5.4; RWKV-7; Mao 2022 (both sides)"
    )
    limits: ClassVar[tuple[Limit, ...]] = tuple(
        Limit(
            f"equal channels of the {side} are one number",
            {"side": side},
            {"retention": "scalar"},
            given={"memory": "matrix", "feature_map": "identity", "inner_optimizer": "momentum"},
            held={
                "retention.up.weight": 0.0,
                "retention.offset": 2.0,
                "retention.gate.project.weight": 0.0,
                "retention.gate.offset": 2.0,
            },
        )
        for side in ("key", "value")
    )

    def __init__(
        self,
        dims: Dims,
        *,
        side: str = "key",
        rank: int = 16,
        init: float = 4.0,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        if side not in SIDES:
            raise ValueError(f"ChannelRetention.side={side!r}: must be one of {', '.join(SIDES)}")
        if rank < 1:
            raise ValueError(f"ChannelRetention.rank={rank!r}: must be a whole number >= 1")
        if not temperature > 0:
            raise ValueError(f"ChannelRetention.temperature={temperature!r}: must be > 0")
        self.side, self.heads, self.start, self.temperature = side, dims.heads, init, temperature
        widths = {"key": dims.key, "value": dims.value, "both": dims.key + dims.value}
        self.channels, self.columns = widths[side], 0 if side == "value" else dims.key
        width = dims.heads * self.channels
        self.down = nn.Linear(dims.model, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)
        self.offset = nn.Parameter(torch.empty(width))

    def init_weights(self, stream: Callable[[str], torch.Generator]) -> None:
        """Set the offset to its start value; the linear maps are drawn by the caller."""
        nn.init.constant_(self.offset, self.start)

    def forward(self, x: Float[Tensor, "b t m"]) -> Float[Tensor, "b t h d"]:
        """The kept share for each token, head and channel."""
        wide = torch.promote_types(x.dtype, torch.float32)
        low = F.linear(x.to(wide), self.down.weight.to(wide))
        logits = F.linear(low, self.up.weight.to(wide), self.offset.to(wide))
        kept = torch.exp(F.logsigmoid(logits) / self.temperature)
        return kept.view(*kept.shape[:-1], self.heads, self.channels)


class TiedRetention(ChannelRetention):
    """What a key channel does not keep is its key: M_n = M_{n-1} diag(a_n) + lr v (1 - a_n)^T.

    a_n = floor + (1 - floor) sigmoid(U D x + b). HGRN2 learns its lower bounds so that they grow
    with depth; here each channel of each layer learns its own, from the same start.

    Args:
        dims: widths.
        rank: inner width of the map.
        init: b at the start.
        floor: where the learned lower bound starts; 0 for none.

    Raises:
        ValueError: `rank` < 1, or a floor outside [0, 1).
    """

    source: ClassVar[str] = "Qin et al. 2024 (HGRN2); MIRAS Table 1"
    limits: ClassVar[tuple[Limit, ...]] = ()
    ties: ClassVar[bool] = True

    def __init__(
        self, dims: Dims, *, rank: int = 16, init: float = 2.0, floor: float = 0.25
    ) -> None:
        super().__init__(dims, rank=rank, init=init)
        if not 0 <= floor < 1:
            raise ValueError(f"TiedRetention.floor={floor!r}: must be in [0, 1)")
        self.least = floor
        self.floor = nn.Parameter(torch.empty(dims.heads, dims.key)) if floor else None

    def init_weights(self, stream: Callable[[str], torch.Generator]) -> None:
        """Set offset and lower bounds to their start values."""
        super().init_weights(stream)
        if self.floor is not None:
            nn.init.constant_(self.floor, math.log(self.least / (1 - self.least)))

    def forward(self, x: Float[Tensor, "b t m"]) -> Float[Tensor, "b t h d"]:
        """The kept share for each token, head and channel."""
        kept = super().forward(x)
        if self.floor is None:
            return kept
        # 1 - (1 - a)(1 - floor), so that a gate of exactly 1 keeps everything.
        return 1 - (1 - kept) * torch.sigmoid(-self.floor.to(kept.dtype))
