"""A mixer that keeps a running mean, and copies of it that are each broken in one way."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ablate.components.dims import Dims
from ablate.components.inner_optimizer import GradientDescent

State = tuple[Any, ...]


class RunningMean(nn.Module):
    """y_t = scale * mean of v_1..v_t, turned by the query: what all others break."""

    is_mixer: ClassVar[bool] = True
    axes: ClassVar[tuple[str, ...]] = ()
    principal: ClassVar[str | None] = None
    source: ClassVar[str] = "made for these tests"

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(dims.heads, 1))

    def init_weights(self, stream: Callable[[str], torch.Generator]) -> None:
        nn.init.ones_(self.scale)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: State | None = None
    ) -> tuple[Tensor, State]:
        v = self.widen(v)
        total, count = (torch.zeros_like(v[:, :1]), 0) if state is None else state
        sums = total + v.cumsum(dim=1)
        places = torch.arange(count + 1, count + 1 + v.shape[1], device=v.device, dtype=v.dtype)
        y = self.read(sums / places[:, None, None], q)
        return y.to(q.dtype), (sums[:, -1:], count + v.shape[1])

    def widen(self, v: Tensor) -> Tensor:
        """Add up in float32 at least."""
        return v.to(torch.promote_types(v.dtype, torch.float32))

    def read(self, mean: Tensor, q: Tensor) -> Tensor:
        """Tie the mean to the query, so that heads see which token asks."""
        return self.scale * mean + q * mean.sin()


class LeaksFuture(RunningMean):
    """Subtracts the mean over all tokens of the call."""

    def read(self, mean: Tensor, q: Tensor) -> Tensor:
        return super().read(mean - mean.mean(dim=1, keepdim=True), q)


class SharesRows(RunningMean):
    """Normalises over the batch."""

    def read(self, mean: Tensor, q: Tensor) -> Tensor:
        return super().read(mean / (1 + mean.abs().mean(dim=0, keepdim=True)), q)


class DropsState(RunningMean):
    """Begins afresh at each call."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: State | None = None
    ) -> tuple[Tensor, State]:
        return super().forward(q, k, v, x, None)


class DetachesState(RunningMean):
    """The right numbers, but no gradient reaches earlier calls."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: State | None = None
    ) -> tuple[Tensor, State]:
        y, (total, count) = super().forward(q, k, v, x, state)
        return y, (total.detach(), count)


class NeedsTwoTokens(RunningMean):
    """A single token goes another way."""

    def read(self, mean: Tensor, q: Tensor) -> Tensor:
        return super().read(mean if mean.shape[1] > 1 else 2 * mean, q)


class DropsOut(RunningMean):
    """Scores another model than it trains."""

    def read(self, mean: Tensor, q: Tensor) -> Tensor:
        return super().read(mean, q) * (1.0 if self.training else 0.5)


class HidesState(RunningMean):
    """Keeps its state on itself."""

    kept: State | None = None

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: State | None = None
    ) -> tuple[Tensor, State]:
        y, self.kept = super().forward(q, k, v, x, None if state is None else self.kept)
        return y, (v[:, :1],)


class WritesIntoState(RunningMean):
    """Adds to the carried total in place."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: State | None = None
    ) -> tuple[Tensor, State]:
        y, new = super().forward(q, k, v, x, state)
        if state is not None:
            with torch.no_grad():
                state[0].add_(v.sum(dim=1, keepdim=True))
        return y, new


class BeginsWhereItStopped(RunningMean):
    """A fresh sequence starts from the call before."""

    kept: Tensor | None = None

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: State | None = None
    ) -> tuple[Tensor, State]:
        if state is None and self.kept is not None:
            v = v + self.kept
        y, new = super().forward(q, k, v, x, state)
        self.kept = new[0].detach().mean(dim=0, keepdim=True)
        return y, new


class PutsRowsSecond(RunningMean):
    """The batch row is the second dimension of its state."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: State | None = None
    ) -> tuple[Tensor, State]:
        before = None if state is None else (state[0].transpose(0, 1), state[1])
        y, (total, count) = super().forward(q, k, v, x, before)
        return y, (total.transpose(0, 1), count)


class CarriesBf16(RunningMean):
    """Adds up and carries in the format of its inputs."""

    def widen(self, v: Tensor) -> Tensor:
        return v


class AddsUpBf16(CarriesBf16):
    """Adds up in the format of its inputs, and gives the sum a wider one afterwards."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: State | None = None
    ) -> tuple[Tensor, State]:
        y, (total, count) = super().forward(q, k, v, x, state)
        return y, (RunningMean.widen(self, total), count)


class KnowsTheCompiler(RunningMean):
    """Another model when compiled."""

    def read(self, mean: Tensor, q: Tensor) -> Tensor:
        return super().read(2 * mean if torch.compiler.is_compiling() else mean, q)


class LooksAtValues(RunningMean):
    """Branches on what a tensor holds."""

    def read(self, mean: Tensor, q: Tensor) -> Tensor:
        return super().read(mean if mean.abs().max().item() < 1e9 else 0 * mean, q)


class LosesGradient(RunningMean):
    """Detaches half of what its parameter does."""

    def read(self, mean: Tensor, q: Tensor) -> Tensor:
        return super().read(mean, q) + self.scale.detach() * mean


class HasIdleParameter(RunningMean):
    """A parameter that nothing uses."""

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.idle = nn.Parameter(torch.empty(3))

    def init_weights(self, stream: Callable[[str], torch.Generator]) -> None:
        super().init_weights(stream)
        nn.init.ones_(self.idle)


class RoundsAway(RunningMean):
    """A difference of large numbers, which bf16 does not hold."""

    def read(self, mean: Tensor, q: Tensor) -> Tensor:
        if torch.is_autocast_enabled("cpu"):
            large = (mean + 1000).bfloat16()
            mean = (large - 1000).to(mean.dtype)
        return super().read(mean, q)


class DividesByNorm(RunningMean):
    """Divides by the length of a key, which may be zero."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: State | None = None
    ) -> tuple[Tensor, State]:
        return super().forward(q, k, v / k.norm(dim=-1, keepdim=True), x, state)


class CountsCalls(RunningMean):
    """Adds a number that goes up with each call."""

    calls: ClassVar[itertools.count[int]] = itertools.count()

    def read(self, mean: Tensor, q: Tensor) -> Tensor:
        return super().read(mean, q) + 1e-3 * (next(self.calls) % 7)


class HasNoRule(RunningMean):
    """Nobody sets its parameter."""

    init_weights = None  # type: ignore[assignment]


class TooLargeSteps(GradientDescent):
    """Not a mixer: an inner optimizer whose steps make the memory diverge."""

    def __init__(self, dims: Dims, *, lr_max: float = 1e6) -> None:
        super().__init__(dims, lr_max=lr_max)
