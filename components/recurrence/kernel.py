"""The recurrence for an infinite feature map: the first fast weight lives on as pairs, not numbers.

With phi* (Atlas Eq. 22) the first weight is W = sum_i u_i phi*(k_i)^T, so a read is the attention
W phi*(x) = sum_i u_i K(k_i, x) and the state a cache of keys k_i and their hidden values u_i. Later
weights read finite vectors and stay matrices. What tokens weigh is folded as in `chunked`.

Linear memory that regresses online needs no token loop either: the errors of a block solve one
triangular system (Atlas Eq. 28-31, signs corrected).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ablate.components.memory import Memory, Weights
from ablate.components.recurrence.coefficients import Gates, decay_matrix, fold_linear

BLOCK = 64  # tokens read at once; no result depends on it
SOLVED = 32  # pairs (token, window place) grow with the window, so solved blocks are smaller


@dataclass(frozen=True)
class KernelRule:
    """What does not depend on the token.

    kernel: K, `[p n d]` and `[p s d]` to `[p n s]`. error: gradient of the loss at the output.
    chunk: tokens whose gradients share one memory; None takes all at the sequence's start. window:
    c. normalised: divide reads of the first weight by the mass of what they see. span: a read sees
    so many tokens; None for all. solve: errors at every token's own memory, by one solve.
    """

    memory: Memory
    kernel: Callable[[Tensor, Tensor], Tensor]
    error: Callable[[Tensor, Tensor], Tensor]
    chunk: int | None
    window: int
    normalised: bool = False
    span: int | None = None
    solve: bool = False


@dataclass(frozen=True)
class KernelState:
    """What a sequence carries.

    keys, values: of the first weight now; the anchors, then the tokens. If normalised, the last
    column of the values is the mass. base: values at the open chunk's start, so of fewer tokens.
    weights, base_weights: the later weights now and at the open chunk's start. inner: with a span,
    what the tokens wrote to the later weights, (z, u) each, in place of having written it.
    recent_keys, recent_values: the last c-1 tokens, of which the last `filled` are real. position:
    tokens already in the open chunk.
    """

    keys: Float[Tensor, "b h s d"]
    values: Float[Tensor, "b h s o"]
    base: Float[Tensor, "b h s0 o"]
    weights: Weights
    base_weights: Weights
    inner: tuple[tuple[Tensor, Tensor], ...]
    recent_keys: Float[Tensor, "b c h d"]
    recent_values: Float[Tensor, "b c h e"]
    filled: int
    position: int


@dataclass(frozen=True)
class _Flat:
    """A state with rows and heads in one dimension, p; what of it changes from block to block."""

    keys: Tensor  # p s d
    values: Tensor  # p s o
    base: Tensor  # p s0 o
    weights: Weights
    base_weights: Weights
    inner: tuple[tuple[Tensor, Tensor], ...]
    filled: int
    position: int


@dataclass(frozen=True)
class _Block:
    """Tokens read at once. Sources are the c-1 tokens before them, then the tokens themselves."""

    queries: Tensor  # p n d
    keys: Tensor  # p i d
    values: Tensor  # p i e
    keep: Tensor  # p n
    lr: Tensor  # p n
    gamma: Tensor  # p n c


def run_kernel(
    rule: KernelRule,
    q: Float[Tensor, "b t h d"],
    k: Float[Tensor, "b t h d"],
    v: Float[Tensor, "b t h e"],
    gates: Gates,
    state: KernelState,
) -> tuple[Float[Tensor, "b t h e"], KernelState]:
    """Read and write `t` tokens from `state` on; calling on pieces equals one call on the whole."""
    rows, halo = q.shape[0], rule.window - 1
    keys = torch.cat([state.recent_keys, k], dim=1)
    values = torch.cat([state.recent_values, v], dim=1)
    flat = _flattened(state)
    outputs, start = [], 0
    while start < q.shape[1]:
        length = _length(rule, q.shape[1] - start, flat.position)
        end = start + length
        token = slice(start, end)
        block = _Block(
            _rows(q[:, token]),
            _rows(keys[:, start : end + halo]),
            _rows(values[:, start : end + halo]),
            _rows(gates.keep[:, token]),
            _rows(gates.lr[:, token]),
            _real(_rows(gates.gamma[:, token]), flat.filled),
        )
        if flat.position == 0 and rule.chunk is not None:
            flat = replace(flat, base=flat.values, base_weights=flat.weights)
        y, flat = (_solved if rule.solve else _frozen)(rule, block, flat)
        position = 0 if rule.chunk is None else (flat.position + length) % rule.chunk
        flat = replace(flat, filled=min(halo, flat.filled + length), position=position)
        outputs.append(y.unflatten(0, (rows, -1)).transpose(1, 2))
        start = end
    if flat.position == 0 and rule.chunk is not None:
        flat = replace(flat, base=flat.values[:, :0], base_weights=())
    recent = [part[:, part.shape[1] - halo :] for part in (keys, values)]
    return torch.cat(outputs, dim=1), _unflattened(flat, rows, *recent)


def read_pairs(
    rule: KernelRule, reader: Float[Tensor, "p n d"], keys: Tensor, values: Tensor
) -> Tensor:
    """W phi*(x) of a first weight that is made of pairs."""
    return _finished(rule, rule.kernel(reader, keys) @ values)


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


def _flattened(state: KernelState) -> _Flat:
    return _Flat(
        state.keys.flatten(0, 1),
        state.values.flatten(0, 1),
        state.base.flatten(0, 1),
        tuple(w.flatten(0, 1) for w in state.weights),
        tuple(w.flatten(0, 1) for w in state.base_weights),
        tuple((z.flatten(0, 1), u.flatten(0, 1)) for z, u in state.inner),
        state.filled,
        state.position,
    )


def _unflattened(flat: _Flat, rows: int, recent_keys: Tensor, recent_values: Tensor) -> KernelState:
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
        filled=flat.filled,
        position=flat.position,
    )


def _finished(rule: KernelRule, sums: Tensor) -> Tensor:
    """Sums over pairs, divided by their mass (the last column) if normalised."""
    if not rule.normalised:
        return sums
    return sums[..., :-1] / sums[..., -1:].clamp_min(torch.finfo(sums.dtype).tiny)


def _with_mass(rule: KernelRule, values: Tensor, mass: Tensor) -> Tensor:
    return torch.cat([values, mass], dim=-1) if rule.normalised else values


def _frozen(rule: KernelRule, x: _Block, state: _Flat) -> tuple[Tensor, _Flat]:
    """Errors of all tokens at the chunk's first memory; reads as one attention."""
    base_keys = state.keys[:, : state.base.shape[1]]
    at_base = read_pairs(rule, x.keys, base_keys, state.base)
    us, zs = rule.memory.gradients(
        (at_base,), x.keys, (at_base, *state.base_weights), lambda y: rule.error(y, x.values)
    )
    w = fold_linear(x.keep[None], x.lr[None], None, x.gamma[None], step_inside=True)
    carry, read, end_carry, end_read = (
        part[0] for part in (w.carry, w.read, w.end_carry, w.end_read)
    )
    presence = decay_matrix(x.keep)
    seen = _seen(rule, x, state)
    if seen is not None:
        read = read * seen[:, state.keys.shape[1] :]
        presence = presence * seen[:, state.keys.shape[1] + rule.window - 1 :]
    cached, fresh = rule.kernel(x.queries, state.keys), rule.kernel(x.queries, x.keys)
    if seen is not None:
        cached = cached * seen[:, : state.keys.shape[1]]
    mass = (fresh[..., rule.window - 1 :] * presence).sum(-1, keepdim=True)
    written = _with_mass(rule, -torch.bmm(fresh * read, us[0]), mass)
    front = _finished(rule, carry * torch.bmm(cached, state.values) + written)

    def inner(j: int, z: Tensor) -> Tensor:
        y = carry * torch.bmm(z, state.weights[j - 1].mT)
        y = y - torch.bmm(read * torch.bmm(z, zs[j - 1].mT), us[j])
        if not state.inner or seen is None:
            return y
        old_z, old_u = state.inner[j - 1]
        band = seen[:, state.keys.shape[1] - old_z.shape[1] : state.keys.shape[1]]
        return y + carry * torch.bmm(band * torch.bmm(z, old_z.mT), old_u)

    y = rule.memory.read((front,), x.queries, inner)
    last = presence if seen is None else decay_matrix(x.keep)
    values = _appended(rule, state, end_carry, -end_read * us[0], last[:, -1:].mT)
    keys = torch.cat([state.keys, x.keys[:, rule.window - 1 :]], dim=1)
    state = replace(state, keys=keys, values=values)
    if rule.span is None:
        matrices = [
            end_carry * old - torch.bmm((end_read * u).mT, z)
            for old, u, z in zip(state.weights, us[1:], zs, strict=True)
        ]
        return y, replace(state, weights=tuple(matrices))
    inner_pairs = [
        _appended_pairs(state, rule.window - 1, end_carry, z, -end_read * u, old)
        for u, z, old in zip(us[1:], zs, state.inner, strict=True)
    ]
    weights = tuple(end_carry * old for old in state.weights)
    return y, _forgotten(rule, replace(state, weights=weights, inner=tuple(inner_pairs)))


def _seen(rule: KernelRule, x: _Block, state: _Flat) -> Tensor | None:
    """With a span, 1 where a query sees a pair: of the cache, then of the sources."""
    if rule.span is None:
        return None
    anchors, n = state.base.shape[1], x.queries.shape[1]
    old = state.keys.shape[1] - anchors
    device = x.queries.device
    query = torch.arange(n, device=device).unsqueeze(-1)
    place = torch.cat([
        torch.arange(-old, 0, device=device), torch.arange(1 - rule.window, n, device=device)
    ])  # fmt: skip
    seen = (query - place < rule.span).to(x.keep.dtype)
    return F.pad(seen, (anchors, 0), value=1.0)


def _appended(
    rule: KernelRule, state: _Flat, end_carry: Tensor, written: Tensor, mass: Tensor
) -> Tensor:
    """Values of the pairs after a block: old ones decay, sources before it are written again."""
    halo, columns = rule.window - 1, written.shape[-1]
    old = end_carry * state.values
    again = written[:, halo - state.filled : halo]
    if state.filled:
        width = state.values.shape[-1] - columns
        again = F.pad(again, (0, width, old.shape[1] - state.filled, 0))
        old = old + again
    return torch.cat([old, _with_mass(rule, written[:, halo:], mass)], dim=1)


def _appended_pairs(
    state: _Flat,
    halo: int,
    end_carry: Tensor,
    z: Tensor,
    written: Tensor,
    old: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    old_z, old_u = old
    old_u = end_carry * old_u
    if state.filled:
        again = written[:, halo - state.filled : halo]
        old_u = old_u + F.pad(again, (0, 0, old_u.shape[1] - state.filled, 0))
    return torch.cat([old_z, z[:, halo:]], dim=1), torch.cat([old_u, written[:, halo:]], dim=1)


def _forgotten(rule: KernelRule, state: _Flat) -> _Flat:
    """Drop the tokens that no later query sees; the anchors stay."""
    assert rule.span is not None
    anchors = state.base.shape[1]
    drop = max(0, state.keys.shape[1] - anchors - (rule.span - 1))
    if not drop:
        return state
    keys, values = (
        torch.cat([x[:, :anchors], x[:, anchors + drop :]], dim=1)
        for x in (state.keys, state.values)
    )
    inner = tuple((z[:, drop:], u[:, drop:]) for z, u in state.inner)
    return replace(state, keys=keys, values=values, inner=inner)


def _solved(rule: KernelRule, x: _Block, state: _Flat) -> tuple[Tensor, _Flat]:
    """Linear memory, l2: the error of every (token n, place j) at the memory before token n.

    e[n,j] = f_{n-1}(k_{n-j}) - v_{n-j}, and f_{n-1} holds the errors of earlier tokens: a unit
    lower triangular system (I + L) e = f_before - v.
    """
    n, c = x.gamma.shape[1:]
    token = torch.arange(n, device=x.keys.device).repeat_interleave(c)
    source = token + c - 1 - torch.arange(c, device=x.keys.device).repeat(n)
    decay = decay_matrix(x.keep)
    carry = x.keep[:, :1] * decay[..., 0]
    # Row n of what token n finds: row n-1 of what it leaves.
    before = F.pad(decay[:, :-1], (0, 0, 1, 0))
    carry_before = F.pad(carry[:, :-1], (1, 0), value=1.0)
    step = (x.lr.unsqueeze(-1) * x.gamma).flatten(1).unsqueeze(1)
    among = rule.kernel(x.keys, x.keys)
    found = rule.kernel(x.keys, state.keys) @ state.values
    pairs = among[:, source][:, :, source] * before[:, token][:, :, token] * step
    plain = carry_before[:, token].unsqueeze(-1) * found[:, source]
    if rule.normalised:
        own = among[:, source][:, :, c - 1 :] * before[:, token]
        mass = plain[..., -1:] + own.sum(-1, keepdim=True)
        mass = mass.clamp_min(torch.finfo(mass.dtype).tiny)
        plain, pairs = plain[..., :-1] / mass, pairs / mass
    right = plain - x.values[:, source]
    errors = torch.linalg.solve_triangular(pairs, right, upper=False, unitriangular=True)
    written = -step.mT * errors
    fresh = rule.kernel(x.queries, x.keys)
    reads = torch.bmm(fresh[:, :, source] * decay[:, :, token], written)
    mass = (fresh[..., c - 1 :] * decay).sum(-1, keepdim=True)
    old = carry.unsqueeze(-1) * torch.bmm(rule.kernel(x.queries, state.keys), state.values)
    y = _finished(rule, old + _with_mass(rule, reads, mass))
    last = decay[:, -1:].mT
    sums = torch.zeros_like(x.values).index_add(1, source, last[:, token] * written)
    values = _appended(rule, state, carry[:, -1:].unsqueeze(-1), sums, last)
    keys = torch.cat([state.keys, x.keys[:, c - 1 :]], dim=1)
    return y, replace(state, keys=keys, values=values)
