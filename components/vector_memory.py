"""Memories that are one vector: of the key-value kind, the linear recurrent unit, and the LSTM.

The last two are the history that matrix memories come from (Atlas section 1, MIRAS section 1), in
the same block: they read the value projection alone and answer for each head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.components.dims import Dims
from ablate.components.memory import MatrixMemory
from ablate.components.memory_layer import wide_numbers

CHUNK = 32  # tokens of one matrix product; no result depends on it


class VectorMemory(MatrixMemory):
    """One vector: M(k) = w s(k) with one number s(k) = p . phi(k) of each key, p learned.

    With the dot bias this is the linear recurrence with a vector for a state,
    w_n = a_n w_{n-1} + lr v_n s(k_n).

    Args:
        dims: widths.
        feature_width: width of phi.
        learned_initial: learn the vector that a sequence starts from; else it starts at zero.
    """

    source: ClassVar[str] = "Atlas Eq. 2 with n = 1; MIRAS section 4 (vector)"

    def __init__(self, dims: Dims, feature_width: int, *, learned_initial: bool = True) -> None:
        super().__init__(dims, 1, learned_initial=learned_initial)
        self.takes = feature_width
        self.probe = nn.Parameter(torch.empty(feature_width))

    def init_weights(self, stream: Callable[[str], torch.Generator]) -> None:
        """Draw the initial vector, and a probe that gives unit keys numbers of variance 1."""
        super().init_weights(stream)
        nn.init.normal_(self.probe, generator=stream("probe"))

    def features(self, phi: Float[Tensor, "*p f"]) -> Float[Tensor, "*p 1"]:
        """s(k), what the vector is multiplied by."""
        return (phi @ self.probe.to(phi.dtype)).unsqueeze(-1)


class UnitState(NamedTuple):
    """Real and imaginary parts of the state."""

    state: Float[Tensor, "b h n two"]


class LinearRecurrentUnit(nn.Module):
    """h_n = lambda h_{n-1} + gamma B v_n, y_n = Re(C h_n) + D v_n with complex diagonal lambda.

    lambda = exp(-exp(nu) + i exp(theta)), so that |lambda| < 1, and gamma starts at
    sqrt(1 - |lambda|^2) and is learned as a logarithm.

    Args:
        dims: widths.
        width: complex numbers in the state of each head; None means the value width.
        least, most: |lambda| is drawn between them, uniformly on the ring.
        phase: bound of lambda's angle at the start.

    Raises:
        ValueError: `width` < 1, or not 0 <= `least` < `most` < 1, or a phase that is not positive.
    """

    axes: ClassVar[tuple[str, ...]] = ()
    principal: ClassVar[str | None] = "width"
    source: ClassVar[str] = "Orvieto et al. 2023 (LRU), Eq. 5-7; Atlas Eq. 2 with n = 1"
    is_mixer: ClassVar[bool] = True
    uses: ClassVar[tuple[str, ...]] = ("v",)

    def __init__(
        self,
        dims: Dims,
        *,
        width: int | None = None,
        least: float = 0.4,
        most: float = 0.99,
        phase: float = 2 * math.pi,
    ) -> None:
        super().__init__()
        if width is not None and width < 1:
            raise ValueError(f"LinearRecurrentUnit.width={width!r}: must be None or >= 1")
        if not 0 <= least < most < 1:
            raise ValueError(
                f"LinearRecurrentUnit.least={least!r}, most={most!r}: must be 0 <= least < most < 1"
            )
        if not phase > 0:
            raise ValueError(f"LinearRecurrentUnit.phase={phase!r}: must be > 0")
        self.width = width or dims.value
        self.ring, self.phase = (least, most), phase
        h, n, e = dims.heads, self.width, dims.value
        self.nu, self.theta, self.log_gamma = (nn.Parameter(torch.empty(h, n)) for _ in range(3))
        self.into = nn.Parameter(torch.empty(2, h, n, e))
        self.out = nn.Parameter(torch.empty(2, h, e, n))
        self.skip = nn.Parameter(torch.empty(h, e))

    def init_weights(self, stream: Callable[[str], torch.Generator]) -> None:
        """Draw lambda on the ring, and maps that keep the size of what goes through them."""
        least, most = (bound**2 for bound in self.ring)
        nn.init.uniform_(self.nu, least, most, generator=stream("nu"))
        nn.init.uniform_(self.theta, 1e-3, 1, generator=stream("theta"))
        with torch.no_grad():
            square = self.nu.clamp_min(1e-6)
            self.log_gamma.copy_(0.5 * torch.log(1 - square))
            self.nu.copy_(torch.log(-0.5 * torch.log(square)))
            self.theta.copy_(torch.log(self.phase * self.theta))
        for name, part in (("into", self.into), ("out", self.out)):
            nn.init.normal_(part, std=(2 * part.shape[-1]) ** -0.5, generator=stream(name))
        nn.init.ones_(self.skip)

    def forward(
        self,
        q: Float[Tensor, "b t h d"],
        k: Float[Tensor, "b t h d"],
        v: Float[Tensor, "b t h e"],
        x: Float[Tensor, "b t m"],
        state: UnitState | None = None,
    ) -> tuple[Float[Tensor, "b t h e"], UnitState]:
        """Run over `v`; carrying the state from piece to piece equals one call."""
        with wide_numbers(v) as wide:
            u = v.to(wide)
            gained = self.into.to(wide) * self.log_gamma.to(wide).exp().unsqueeze(-1)
            drive = torch.einsum("zhne,bthe->bthnz", gained, u)
            now = u.new_zeros(u.shape[0], *self.nu.shape, 2) if state is None else state.state
            read = []
            for piece in drive.split(CHUNK, dim=1):
                states = self._scan(piece, now)
                now = states[:, -1]
                read.append(states)
            # Re(C h) = Re C Re h - Im C Im h.
            sign = torch.stack([self.out[0], -self.out[1]]).to(wide)
            y = torch.einsum("zhen,bthnz->bthe", sign, torch.cat(read, dim=1))
            y = y + self.skip.to(wide) * u
        return y.to(v.dtype), UnitState(now)

    def powers(self, count: int, dtype: torch.dtype) -> Float[Tensor, "z y h n k"]:
        """lambda^0 ... lambda^(count-1), as real 2x2 matrices that multiply (re, im)."""
        place = torch.arange(count, dtype=dtype, device=self.nu.device)
        size = torch.exp(-self.nu.to(dtype).exp().unsqueeze(-1) * place)
        angle = self.theta.to(dtype).exp().unsqueeze(-1) * place
        re, im = size * angle.cos(), size * angle.sin()
        return torch.stack([torch.stack([re, -im]), torch.stack([im, re])])

    def _scan(self, drive: Tensor, start: Tensor) -> Float[Tensor, "b t h n z"]:
        """States of a few tokens at once."""
        t = drive.shape[1]
        powers = self.powers(t + 1, drive.dtype)
        place = torch.arange(t, device=drive.device)
        ago = place.unsqueeze(-1) - place
        among = powers[..., ago.clamp_min(0)] * (ago >= 0)
        written = torch.einsum("zyhnts,bshny->bthnz", among, drive)
        return written + torch.einsum("zyhnt,bhny->bthnz", powers[..., 1:], start)


class LSTMState(NamedTuple):
    """Hidden and cell vectors."""

    hidden: Float[Tensor, "b h e"]
    cell: Float[Tensor, "b h e"]


class LSTM(nn.Module):
    """The LSTM with a forget gate, one for each head, over the values; a loop over tokens.

    c_n = f c_{n-1} + i tanh(z), h_n = o tanh(c_n), with i, f, z, o affine in v_n and h_{n-1}.

    Args:
        dims: widths; each head's hidden and cell vectors are as wide as its value.
        forget: bias of the forget gate at the start.
    """

    axes: ClassVar[tuple[str, ...]] = ()
    principal: ClassVar[str | None] = "forget"
    source: ClassVar[str] = "Hochreiter and Schmidhuber 1997; Gers et al. 2000 (forget gate)"
    is_mixer: ClassVar[bool] = True
    uses: ClassVar[tuple[str, ...]] = ("v",)

    def __init__(self, dims: Dims, *, forget: float = 1.0) -> None:
        super().__init__()
        h, e = dims.heads, dims.value
        self.start = forget
        self.into = nn.Parameter(torch.empty(h, e, 4 * e))
        self.again = nn.Parameter(torch.empty(h, e, 4 * e))
        self.offset = nn.Parameter(torch.empty(h, 4 * e))

    def init_weights(self, stream: Callable[[str], torch.Generator]) -> None:
        """Draw both maps at variance 1 / fan-in; open the forget gate."""
        width = self.into.shape[1]
        for name, part in (("into", self.into), ("again", self.again)):
            nn.init.normal_(part, std=width**-0.5, generator=stream(name))
        nn.init.zeros_(self.offset)
        nn.init.constant_(self.offset[:, width : 2 * width], self.start)

    def forward(
        self,
        q: Float[Tensor, "b t h d"],
        k: Float[Tensor, "b t h d"],
        v: Float[Tensor, "b t h e"],
        x: Float[Tensor, "b t m"],
        state: LSTMState | None = None,
    ) -> tuple[Float[Tensor, "b t h e"], LSTMState]:
        """Run over `v`; carrying the state from piece to piece equals one call."""
        with wide_numbers(v) as wide:
            u = v.to(wide).permute(1, 2, 0, 3)  # t h b e
            into, again = self.into.to(wide), self.again.to(wide)
            driven = u @ into + self.offset.to(wide).unsqueeze(1)
            if state is None:
                hidden = cell = torch.zeros_like(u[0])
            else:
                hidden, cell = (part.transpose(0, 1) for part in state)
            read = []
            for drive in driven.unbind(0):
                i, f, z, o = torch.baddbmm(drive, hidden, again).chunk(4, dim=-1)
                cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(z)
                hidden = torch.sigmoid(o) * torch.tanh(cell)
                read.append(hidden)
            y = torch.stack(read).permute(2, 0, 1, 3)
        return y.to(v.dtype), LSTMState(hidden.transpose(0, 1), cell.transpose(0, 1))
