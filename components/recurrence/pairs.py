"""Blocks of tokens on a memory that is made of pairs: gradients, reads, and what is kept.

Used by `kernel`, which cuts a sequence into such blocks. p is rows times heads, n the tokens of a
block, i its sources: the c-1 tokens before it, then the tokens themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ablate.components.memory import Memory, Weights
from ablate.components.recurrence.coefficients import decay_matrix, fold_linear


@dataclass(frozen=True)
class KernelRule:
    """What does not depend on the token.

    kernel: K, `[p n d]` and `[p s d]` to `[p n s]`. error: gradient of the loss at the output.
    chunk: tokens whose gradients share one memory; None takes all at the sequence's start. window:
    c. truncated: windows end at their chunk's start. normalised: divide reads of the first weight
    by the mass of what they see. span: a read sees so many tokens; None for all. solve: errors at
    every token's own memory, by one solve. anchors: keys that the cache begins with, which stand at
    no position. turn: rotates `[b t h d]` by its positions from a first one on. read_before: a
    token reads the memory before its own write.
    """

    memory: Memory
    kernel: Callable[[Tensor, Tensor], Tensor]
    error: Callable[[Tensor, Tensor], Tensor]
    chunk: int | None
    window: int
    truncated: bool = False
    normalised: bool = False
    span: int | None = None
    solve: bool = False
    anchors: int = 0
    turn: Callable[[Tensor, int], Tensor] | None = None
    read_before: bool = False


@dataclass(frozen=True)
class Pairs:
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
class Block:
    """Tokens that are read at once, and their sources; `turned` by their positions."""

    queries: Tensor  # p n d
    turned_queries: Tensor  # p n d
    keys: Tensor  # p i d
    turned_keys: Tensor  # p i d
    values: Tensor  # p i e
    keep: Tensor  # p n
    lr: Tensor  # p n
    gamma: Tensor  # p n c


def read_pairs(
    rule: KernelRule,
    reader: Float[Tensor, "p n d"],
    turned: Float[Tensor, "p n d"],
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    """W phi*(x) of a first weight that is made of pairs."""
    return _finished(rule, kernel_to_cache(rule, reader, turned, keys) @ values)


def kernel_to_cache(rule: KernelRule, reader: Tensor, turned: Tensor, keys: Tensor) -> Tensor:
    """K(x, keys), p n s: anchors stand at no position, so they meet readers that are not turned."""
    if rule.turn is None:
        return rule.kernel(reader, keys)
    anchors, tokens = keys[:, : rule.anchors], keys[:, rule.anchors :]
    return torch.cat([rule.kernel(reader, anchors), rule.kernel(turned, tokens)], dim=-1)


def first_outputs(rule: KernelRule, front: Tensor) -> Weights:
    """The outputs of each map on the features; their values lie side by side."""
    widths = [shape[0] for shape in rule.memory.shapes[: rule.memory.fronts]]
    return torch.split(front, widths, dim=-1)


def _finished(rule: KernelRule, sums: Tensor) -> Tensor:
    """Sums over pairs, divided by their mass (the last column) if normalised."""
    if not rule.normalised:
        return sums
    return sums[..., :-1] / sums[..., -1:].clamp_min(torch.finfo(sums.dtype).tiny)


def _with_mass(rule: KernelRule, values: Tensor, mass: Tensor) -> Tensor:
    return torch.cat([values, mass], dim=-1) if rule.normalised else values


@dataclass(frozen=True)
class _Made:
    """What the tokens of a block write: gradients (of the maps on phi* side by side, of later maps
    as u and z), and the weights of memory and mass at each token."""

    first: Tensor  # p i o
    later: Weights  # p i o each
    zs: Weights  # p i z each
    carry: Tensor  # p n 1
    read: Tensor  # p n i
    presence: Tensor  # p n n


def advance_frozen(rule: KernelRule, x: Block, state: Pairs) -> tuple[Tensor, Pairs]:
    """Errors of all tokens at the chunk's first memory; reads as one attention."""
    made = _make(rule, x, state)
    seen = _before(made) if rule.read_before else made
    return _read(rule, x, state, seen), _keep(rule, x, state, made)


def _before(made: _Made) -> _Made:
    """What token n finds: what the one before it leaves."""
    carry = _row_before(made.carry, 1.0)
    read, presence = _row_before(made.read, 0.0), _row_before(made.presence, 0.0)
    return replace(made, carry=carry, read=read, presence=presence)


def _row_before(part: Tensor, first: float) -> Tensor:
    return F.pad(part[:, :-1], (0, 0, 1, 0), value=first)


def _make(rule: KernelRule, x: Block, state: Pairs) -> _Made:
    base_keys = state.keys[:, : state.base.shape[1]]
    front = read_pairs(rule, x.keys, x.turned_keys, base_keys, state.base)
    found = first_outputs(rule, front)
    # A memory asks for the weights of later maps only, by their place among all.
    us, zs = rule.memory.gradients(
        found, x.keys, (*found, *state.base_weights), lambda y: rule.error(y, x.values)
    )
    fronts = rule.memory.fronts
    weights = fold_linear(x.keep[None], x.lr[None], None, x.gamma[None], step_inside=True)
    return _Made(
        torch.cat(us[:fronts], dim=-1),
        us[fronts:],
        zs,
        weights.carry[0],
        weights.read[0],
        decay_matrix(x.keep),
    )


def _read(rule: KernelRule, x: Block, state: Pairs, made: _Made) -> Tensor:
    """Outputs of the block's tokens."""
    cached = kernel_to_cache(rule, x.queries, x.turned_queries, state.keys)
    fresh = rule.kernel(x.turned_queries, x.turned_keys)
    read, presence, old = made.read, made.presence, state.keys.shape[1]
    seen = _seen(rule, x, state)
    if seen is not None:
        cached = cached * seen[:, :old]
        read, presence = read * seen[:, old:], presence * seen[:, old + rule.window - 1 :]
    mass = (fresh[..., rule.window - 1 :] * presence).sum(-1, keepdim=True)
    written = _with_mass(rule, -torch.bmm(fresh * read, made.first), mass)
    front = _finished(rule, made.carry * torch.bmm(cached, state.values) + written)

    def inner(j: int, z: Tensor) -> Tensor:
        j = j - rule.memory.fronts
        y = made.carry * torch.bmm(z, state.weights[j].mT)
        y = y - torch.bmm(read * torch.bmm(z, made.zs[j].mT), made.later[j])
        if seen is None:
            return y
        old_z, old_u = state.inner[j]
        band = seen[:, old - old_z.shape[1] : old]
        return y + made.carry * torch.bmm(band * torch.bmm(z, old_z.mT), old_u)

    return rule.memory.read(first_outputs(rule, front), x.queries, inner)


def _seen(rule: KernelRule, x: Block, state: Pairs) -> Tensor | None:
    """With a span, 1 where a query sees a pair: of the cache, then of the sources."""
    if rule.span is None:
        return None
    anchors, n = rule.anchors, x.queries.shape[1]
    old = state.keys.shape[1] - anchors
    device = x.queries.device
    query = torch.arange(n, device=device).unsqueeze(-1) - int(rule.read_before)
    place = torch.cat([
        torch.arange(-old, 0, device=device), torch.arange(1 - rule.window, n, device=device)
    ])  # fmt: skip
    seen = (query - place < rule.span).to(x.keep.dtype)
    return F.pad(seen, (anchors, 0), value=1.0)


def _keep(rule: KernelRule, x: Block, state: Pairs, made: _Made) -> Pairs:
    """The memory after the block: later weights as matrices, or as pairs where a span ends."""
    carry, read = made.carry[:, -1:], made.read[:, -1:].mT
    kept = _with_block(rule, x, state, carry, -read * made.first, made.presence[:, -1:].mT)
    weights = tuple(carry * old for old in state.weights)
    writes = [(z, -read * u) for z, u in zip(made.zs, made.later, strict=True)]
    if rule.span is None:
        written = zip(weights, writes, strict=True)
        return replace(kept, weights=tuple(w + torch.bmm(u.mT, z) for w, (z, u) in written))
    halo = rule.window - 1
    inner = tuple(
        (torch.cat([old_z, z[:, halo:]], dim=1), _appended(old_u, carry, u, halo, state.filled))
        for (old_z, old_u), (z, u) in zip(state.inner, writes, strict=True)
    )
    return _forgotten(rule, replace(kept, weights=weights, inner=inner))


def _with_block(
    rule: KernelRule, x: Block, state: Pairs, carry: Tensor, written: Tensor, mass: Tensor
) -> Pairs:
    """The pairs and those of the block, whose sources wrote `written` (p i o), tokens `mass`."""
    halo = rule.window - 1
    written = _with_mass(rule, written, F.pad(mass, (0, 0, halo, 0)))
    return replace(
        state,
        keys=torch.cat([state.keys, x.turned_keys[:, halo:]], dim=1),
        values=_appended(state.values, carry, written, halo, state.filled),
    )


def _appended(old: Tensor, carry: Tensor, written: Tensor, halo: int, filled: int) -> Tensor:
    """Old values decay, those of sources before the block are added to, the others are new."""
    old = carry * old
    if filled:
        again = written[:, halo - filled : halo]
        old = old + F.pad(again, (0, 0, old.shape[1] - filled, 0))
    return torch.cat([old, written[:, halo:]], dim=1)


def _forgotten(rule: KernelRule, state: Pairs) -> Pairs:
    """Drop the tokens that no later query sees; the anchors stay."""
    assert rule.span is not None
    anchors = rule.anchors
    left = rule.span - 1 + int(rule.read_before)
    drop = max(0, state.keys.shape[1] - anchors - left)
    if not drop:
        return state
    keys, values = (
        torch.cat([x[:, :anchors], x[:, anchors + drop :]], dim=1)
        for x in (state.keys, state.values)
    )
    inner = tuple((z[:, drop:], u[:, drop:]) for z, u in state.inner)
    return replace(state, keys=keys, values=values, inner=inner)


def advance_solved(rule: KernelRule, x: Block, state: Pairs) -> tuple[Tensor, Pairs]:
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
    before = _row_before(decay, 0.0)
    carry_before = F.pad(carry[:, :-1], (1, 0), value=1.0)
    step = (x.lr.unsqueeze(-1) * x.gamma).flatten(1).unsqueeze(1)
    among = rule.kernel(x.turned_keys, x.turned_keys)
    found = kernel_to_cache(rule, x.keys, x.turned_keys, state.keys) @ state.values
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
    fresh = rule.kernel(x.turned_queries, x.turned_keys)
    sees, still = (before, carry_before) if rule.read_before else (decay, carry)
    reads = torch.bmm(fresh[:, :, source] * sees[:, :, token], written)
    mass = (fresh[..., c - 1 :] * sees).sum(-1, keepdim=True)
    cached = kernel_to_cache(rule, x.queries, x.turned_queries, state.keys)
    old = still.unsqueeze(-1) * torch.bmm(cached, state.values)
    y = _finished(rule, old + _with_mass(rule, reads, mass))
    last = decay[:, -1:].mT
    sums = torch.zeros_like(x.values).index_add(1, source, last[:, token] * written)
    return y, _with_block(rule, x, state, carry[:, -1:].unsqueeze(-1), sums, last)
