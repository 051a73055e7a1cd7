"""The recurrence for an infinite feature map: the first fast weight lives on as pairs, not numbers.

With phi* (Atlas Eq. 22) the first weight is W = sum_i u_i phi*(k_i)^T, so a read is the attention
W phi*(x) = sum_i u_i K(k_i, x) and the state a cache of keys k_i and their hidden values u_i. Later
weights read finite vectors and stay matrices. What tokens weigh is folded as in `chunked`.

Linear memory that regresses online needs no token loop either: the errors of a block solve one
triangular system (Atlas Eq. 28-31, signs corrected).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ablate.components.memory import Weights
from ablate.components.recurrence.coefficients import Gates
from ablate.components.recurrence.pairs import (
    Block,
    KernelRule,
    Pairs,
    advance_frozen,
    advance_solved,
)

BLOCK = 64  # tokens read at once; no result depends on it
SOLVED = 32  # pairs (token, window place) grow with the window, so solved blocks are smaller


@dataclass(frozen=True)
class KernelState:
    """What a sequence carries.

    keys, values: of the weights on phi* now, side by side; the anchors, then the tokens. If
    normalised, the last column of the values is the mass. base: values at the open chunk's start,
    so of fewer tokens. weights, base_weights: the later weights now and at the open chunk's start.
    inner: with a span, what the tokens wrote to the later weights, (z, u) each, in place of having
    written it. recent_keys, recent_values: the last c-1 tokens, of which the last `filled` are
    real. said: what they left for the window's gates, if anything. position: tokens already in the
    open chunk. tokens: all so far. Where positions count, `keys` of tokens are turned by theirs.
    """

    keys: Float[Tensor, "b h s d"]
    values: Float[Tensor, "b h s o"]
    base: Float[Tensor, "b h s0 o"]
    weights: Weights
    base_weights: Weights
    inner: tuple[tuple[Tensor, Tensor], ...]
    recent_keys: Float[Tensor, "b c h d"]
    recent_values: Float[Tensor, "b c h e"]
    said: Tensor | None
    filled: int
    position: int
    tokens: int = 0


def run_kernel(
    rule: KernelRule,
    q: Float[Tensor, "b t h d"],
    k: Float[Tensor, "b t h d"],
    v: Float[Tensor, "b t h _n"],
    gates: Gates,
    state: KernelState,
) -> tuple[Float[Tensor, "b t h e"], KernelState]:
    """Read and write `t` tokens from `state` on; calling on pieces equals one call on the whole.

    `v` are values as the bias wants them, so perhaps wider than what is read.
    """
    rows, halo = q.shape[0], rule.window - 1
    keys = torch.cat([state.recent_keys, k], dim=1)
    turned_q, turned_keys = q, keys
    if rule.turn is not None:
        turned_q = rule.turn(q, state.tokens)
        turned_keys = rule.turn(keys, state.tokens - halo)
    values = torch.cat([state.recent_values, v], dim=1)
    flat = _flattened(state)
    advance = advance_solved if rule.solve else advance_frozen
    outputs, start = [], 0
    while start < q.shape[1]:
        length = _length(rule, q.shape[1] - start, flat.position)
        end = start + length
        token = slice(start, end)
        if flat.position == 0 and rule.chunk is not None:
            flat = replace(flat, base=flat.values, base_weights=flat.weights)
            flat = replace(flat, filled=0) if rule.truncated else flat
        block = Block(
            _rows(q[:, token]),
            _rows(turned_q[:, token]),
            _rows(keys[:, start : end + halo]),
            _rows(turned_keys[:, start : end + halo]),
            _rows(values[:, start : end + halo]),
            _rows(gates.keep[:, token]),
            _rows(gates.lr[:, token]),
            _real(_rows(gates.gamma[:, token]), flat.filled),
        )
        y, flat = advance(rule, block, flat)
        position = 0 if rule.chunk is None else (flat.position + length) % rule.chunk
        flat = replace(flat, filled=min(halo, flat.filled + length), position=position)
        outputs.append(y.unflatten(0, (rows, -1)).transpose(1, 2))
        start = end
    if flat.position == 0 and rule.chunk is not None:
        flat = replace(flat, base=flat.values[:, :0], base_weights=())
    recent = [part[:, part.shape[1] - halo :] for part in (keys, values)]
    after = _unflattened(flat, rows, *recent)
    return torch.cat(outputs, dim=1), replace(after, tokens=state.tokens + q.shape[1])


def _length(rule: KernelRule, left: int, position: int) -> int:
    if rule.solve:
        return min(left, max(1, SOLVED // rule.window))
    return min(left, BLOCK) if rule.chunk is None else min(left, BLOCK, rule.chunk - position)


def _rows(x: Tensor) -> Tensor:
    """b t h ... -> b*h t ..."""
    return x.transpose(1, 2).flatten(0, 1)


def _real(gamma: Tensor, filled: int) -> Tensor:
    """Close the gates on tokens before the sequence."""
    n, c = gamma.shape[-2:]
    if filled == c - 1:
        return gamma
    token = torch.arange(n, device=gamma.device).unsqueeze(-1)
    back = torch.arange(c, device=gamma.device)
    return torch.where(token - back >= -filled, gamma, 0.0)


def _flattened(state: KernelState) -> Pairs:
    return Pairs(
        state.keys.flatten(0, 1),
        state.values.flatten(0, 1),
        state.base.flatten(0, 1),
        tuple(w.flatten(0, 1) for w in state.weights),
        tuple(w.flatten(0, 1) for w in state.base_weights),
        tuple((z.flatten(0, 1), u.flatten(0, 1)) for z, u in state.inner),
        state.filled,
        state.position,
    )


def _unflattened(flat: Pairs, rows: int, recent_keys: Tensor, recent_values: Tensor) -> KernelState:
    def split(x: Tensor) -> Tensor:
        parts: Tensor = x.unflatten(0, (rows, -1))
        return parts

    return KernelState(
        keys=split(flat.keys),
        values=split(flat.values),
        base=split(flat.base),
        weights=tuple(map(split, flat.weights)),
        base_weights=tuple(map(split, flat.base_weights)),
        inner=tuple((split(z), split(u)) for z, u in flat.inner),
        recent_keys=recent_keys,
        recent_values=recent_values,
        said=None,
        filled=flat.filled,
        position=flat.position,
    )
