"""Causal softmax attention as a mixer: the memory that keeps every key and value it has seen.

Reading is a softmax over all stored keys, so nothing is compressed: Atlas Table 1, row "Attention",
and the limit of the Omega rule for a window as long as the sequence (Atlas section 4.1, Eq. 17-18).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from ablate.components.dims import Dims


class AttentionState(NamedTuple):
    """What attention carries between two calls: the cache, and how many tokens came before."""

    keys: Float[Tensor, "b h s d"]
    values: Float[Tensor, "b h s e"]
    position: int


class SoftmaxAttention(nn.Module):
    """Causal softmax attention over L2-normalised keys, with rotary positions and a cache.

    Queries and keys arrive with length 1, so plain logits would lie in [-1, 1] and the softmax over
    many tokens would be flat. Each head therefore has a learned factor, started at sqrt(key width):
    random unit vectors then give logits of variance 1, as in Vaswani et al. 2017 at initialisation.
    It is learned as a logarithm, so that a sharp head is a few relative steps away and never
    negative.

    Args:
        dims: widths; the key width must be even when `rope` is on.
        rope: rotate queries and keys by their absolute position (Su et al. 2021).
        rope_base: base of the rotary frequencies.
        window: tokens that a query sees, itself included; None means all.
        prefix: so many tokens at the start stay visible whatever the window. They stand at no
            position, so that they look the same from everywhere (persistent tokens, Titans Eq. 19).

    Raises:
        ValueError: an odd key width with `rope`, a window below 1, or a prefix below 0.
    """

    axes: ClassVar[tuple[str, ...]] = ()
    principal: ClassVar[str | None] = None
    source: ClassVar[str] = "Vaswani et al. 2017, Eq. 1; Atlas Table 1 and section 4.1"
    is_mixer: ClassVar[bool] = True

    def __init__(
        self,
        dims: Dims,
        *,
        rope: bool = True,
        rope_base: float = 10_000.0,
        window: int | None = None,
        prefix: int = 0,
    ) -> None:
        super().__init__()
        if rope and dims.key % 2:
            raise ValueError(f"rope=True needs an even key width, but dims.key is {dims.key}")
        if window is not None and window < 1:
            raise ValueError(f"window={window!r}: must be None (all tokens) or a whole number >= 1")
        if prefix < 0:
            raise ValueError(f"prefix={prefix!r}: must be a whole number >= 0")
        self.dims = dims
        self.rope = rope
        self.rope_base = rope_base
        self.window = window
        self.prefix = prefix
        self.log_scale = nn.Parameter(torch.empty(dims.heads))

    def init_weights(self, stream: Callable[[str], torch.Generator]) -> None:
        """Start every head at logits of variance 1; nothing is drawn."""
        nn.init.constant_(self.log_scale, 0.5 * math.log(self.dims.key))

    def forward(
        self,
        q: Float[Tensor, "b t h d"],
        k: Float[Tensor, "b t h d"],
        v: Float[Tensor, "b t h e"],
        x: Float[Tensor, "b t m"],
        state: AttentionState | None = None,
    ) -> tuple[Float[Tensor, "b t h e"], AttentionState]:
        """Append keys and values to the cache and read; `x` is not used (there are no gates)."""
        start = 0 if state is None else state.position
        plain = self.scaled(q)
        q = self.turned(plain, start)
        free = max(0, self.prefix - start)
        k = (
            torch.cat((k[:, :free], self.turned(k, start)[:, free:]), dim=1)
            if free
            else (self.turned(k, start))
        )
        keys, values = k.transpose(1, 2), v.transpose(1, 2)
        if state is not None:
            keys = torch.cat((state.keys, keys), dim=2)
            values = torch.cat((state.values, values), dim=2)
        y = self._read(q.transpose(1, 2), plain.transpose(1, 2), keys, values, start)
        position = start + q.shape[1]
        return y.transpose(1, 2), self._kept(keys, values, position)

    def scaled(self, q: Float[Tensor, "b t h d"]) -> Float[Tensor, "b t h d"]:
        """Queries times the learned factor of their head."""
        return q * self.log_scale.exp().to(q.dtype)[:, None]

    def turned(self, x: Float[Tensor, "b t h d"], start: int) -> Float[Tensor, "b t h d"]:
        """Queries or keys from position `start` on, rotated if `rope`."""
        return rotate(x, start=start, base=self.rope_base) if self.rope else x

    def _kept(self, keys: Tensor, values: Tensor, position: int) -> AttentionState:
        """What later queries can still see."""
        first = min(self.prefix, position)
        last = keys.shape[2] if self.window is None else self.window - 1
        if first + last >= keys.shape[2]:
            return AttentionState(keys, values, position)
        end = keys.shape[2] - last
        kept = [torch.cat((x[:, :, :first], x[:, :, end:]), dim=2) for x in (keys, values)]
        return AttentionState(kept[0], kept[1], position)

    def _read(self, q: Tensor, plain: Tensor, keys: Tensor, values: Tensor, start: int) -> Tensor:
        """Softmax over what each query sees; `plain` are the queries before rotation."""
        t, s = q.shape[2], keys.shape[2]
        if self.prefix:
            first = min(self.prefix, start + t)
            places = torch.arange(start, start + t, device=q.device)[:, None]
            ahead = places >= torch.arange(first, device=q.device)
            rest = causal_mask(t, s - first, self.window, q.device)
            return read_with_prefix(plain, q, keys, values, torch.cat((ahead, rest), dim=1), first)
        if self.window is None and t in (1, s):
            return scaled_dot_product_attention(q, keys, values, is_causal=t > 1, scale=1.0)
        mask = causal_mask(t, s, self.window, q.device)
        return scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=1.0)


def read_with_prefix(
    plain: Float[Tensor, "b h t d"],
    turned: Float[Tensor, "b h t d"],
    keys: Float[Tensor, "b h s d"],
    values: Float[Tensor, "b h s e"],
    seen: Bool[Tensor, "t s"],
    first: int,
) -> Float[Tensor, "b h t e"]:
    """Softmax over the `seen` keys; the `first` of them are read by queries without rotation."""
    logits = torch.cat((plain @ keys[:, :, :first].mT, turned @ keys[:, :, first:].mT), dim=3)
    return logits.masked_fill(~seen, -torch.inf).softmax(dim=3) @ values


def causal_mask(
    queries: int, keys: int, window: int | None, device: torch.device
) -> Bool[Tensor, "t s"]:
    """True where a query may read: not the future, and the last `window` tokens if given.

    The last query stands at the last key.
    """
    age = torch.arange(keys - queries, keys, device=device)[:, None] - torch.arange(
        keys, device=device
    )
    return age >= 0 if window is None else (age >= 0) & (age < window)


def rotate(
    x: Float[Tensor, "b t h d"], *, start: int, base: float = 10_000.0
) -> Float[Tensor, "b t h d"]:
    """Turn each pair (x_j, x_{j + d/2}) by its position times base^(-2j/d) (Su et al. 2021).

    The first token stands at position `start`. Lengths do not change, and products of two rotated
    vectors depend on the distance of their positions only.
    """
    half = x.shape[-1] // 2
    # Angles in float64: a float32 position loses the fast pairs beyond about 1e5 tokens.
    places = torch.arange(start, start + x.shape[1], dtype=torch.float64, device=x.device)
    speeds = base ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    angles = (places[:, None] * speeds)[:, None]  # t 1 d/2
    precise = torch.promote_types(x.dtype, torch.float32)
    cos, sin = angles.cos().to(precise), angles.sin().to(precise)
    left, right = torch.split(x.to(precise), half, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1).to(x.dtype)
