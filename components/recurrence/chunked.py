"""The recurrence as it is run: chunk by chunk, without per-token weights and token loops.

Token i's gradient at the chunk's first memory is u_i z_i^T. A fast weight W is then read at token n
as carry_n W x - m_n S x - sum_i read[n,i] u_i (z_i . x), a masked attention over the sources, and a
later fast weight is read with the vectors that the earlier one gave. Orthogonalised momentum is no
sum of outer products, so it is made, one matrix for each write. docs/memory_layer.md derives this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ablate.components.memory import Memory, Weights
from ablate.components.recurrence.coefficients import (
    Coefficients,
    Gates,
    fold_linear,
    fold_orthogonal,
)
from ablate.components.recurrence.state import MemoryState, Piece, cut


@dataclass(frozen=True)
class Rule:
    """What does not depend on the token.

    memory, features, error: how a memory is wired, phi, and the gradient of the loss at its output.
    chunk: tokens whose gradients share one memory. window: c. momentum: whether there is one.
    step_inside: lr multiplies the gradient (else the write). orthogonalise: map of each write, None
    to write the momentum itself; then `group` is the number of tokens between two writes.
    """

    memory: Memory
    features: Callable[[Tensor], Tensor]
    error: Callable[[Tensor, Tensor], Tensor]
    chunk: int
    window: int
    momentum: bool
    step_inside: bool
    orthogonalise: Callable[[Tensor], Tensor] | None = None
    group: int = 1


@dataclass(frozen=True)
class _Stretch:
    """One piece of a chunk. Sources (halo, then tokens) and readers lie behind each other."""

    raw: Tensor  # p i+n d
    features: Tensor  # p i+n f
    values: Tensor  # p i e
    kernel: Tensor | None  # p n i: phi(q) . phi(k), weighted by `read`
    weights: Coefficients  # without g


@dataclass(frozen=True)
class _Carried:
    current: Weights  # p o i
    momentum: Weights  # p o i


def run_chunked(
    rule: Rule,
    q: Float[Tensor, "b t h d"],
    k: Float[Tensor, "b t h d"],
    v: Float[Tensor, "b t h e"],
    gates: Gates,
    state: MemoryState,
) -> tuple[Float[Tensor, "b t h e"], MemoryState]:
    """Read and write `t` tokens from `state` on; calling on pieces equals one call on the whole."""
    halo = rule.window - 1
    keys, values = torch.cat([state.keys, k], dim=1), torch.cat([state.values, v], dim=1)
    gates = _without_padding(gates, halo - state.filled)
    carried = _Carried(_flat(state.weights), _flat(state.momentum))
    base, step = _flat(state.base), state.step
    step = None if step is None else step.flatten()
    outputs = []
    for piece in cut(q.shape[1], rule.chunk, state.position):
        stretches, weights = _prepare(rule, piece, q, keys, values, gates, step)
        read = []
        for stretch in stretches:
            if piece.position == 0:
                base = carried.current
            y, carried = _advance(rule, stretch, base, carried)
            read.append(y)
        step = None if weights.pending is None else weights.pending[-1]
        outputs.append(_joined(read, q.shape[0]))
    position = (state.position + q.shape[1]) % rule.chunk
    if position == 0:
        base = carried.current
    return torch.cat(outputs, dim=1), replace(
        state,
        weights=_unflat(carried.current, q.shape[0]),
        base=_unflat(base, q.shape[0]) if rule.chunk > 1 else (),
        momentum=_unflat(carried.momentum, q.shape[0]),
        keys=keys[:, keys.shape[1] - halo :],
        values=values[:, values.shape[1] - halo :],
        step=None if state.step is None or step is None else step.reshape(state.step.shape),
        filled=min(halo, state.filled + q.shape[1]),
        position=position,
    )


def _flat(weights: Weights) -> Weights:
    return tuple(w.reshape(-1, *w.shape[2:]) for w in weights)


def _unflat(weights: Weights, rows: int) -> Weights:
    return tuple(w.unflatten(0, (rows, -1)) for w in weights)


def _without_padding(gates: Gates, missing: int) -> Gates:
    """Close the gates on tokens before the sequence: a zero key still has a constant feature."""
    t, c = gates.gamma.shape[1], gates.gamma.shape[-1]
    if missing <= 0 or t == 0:
        return gates
    token = torch.arange(t, device=gates.gamma.device).unsqueeze(-1)
    back = torch.arange(c, device=gates.gamma.device)
    real = token - back + (c - 1) >= missing
    return replace(gates, gamma=torch.where(real.unsqueeze(1), gates.gamma, 0.0))


def _pieces(x: Tensor, piece: Piece) -> Tensor:
    """Stretches of a per-token tensor: b t h ... -> g b*h n ..."""
    x = x[:, piece.start : piece.start + piece.count * piece.length]
    x = x.unflatten(1, (piece.count, piece.length)).movedim(3, 1).movedim(2, 0)
    return x.flatten(1, 2)  # g b h n ... -> g p n ...


def _sources(x: Tensor, piece: Piece, halo: int) -> Tensor:
    """Stretches with the halo before each: b halo+t h d -> g b*h halo+n d."""
    if halo == 0:
        return _pieces(x, piece)
    x = x[:, piece.start : piece.start + piece.count * piece.length + halo]
    x = x.unfold(1, piece.length + halo, piece.length)  # b g h d i
    return x.permute(1, 0, 2, 4, 3).flatten(1, 2)


def _prepare(
    rule: Rule,
    piece: Piece,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    gates: Gates,
    step: Tensor | None,
) -> tuple[list[_Stretch], Coefficients]:
    """All that does not depend on the memory, for every stretch of the piece at once."""
    halo = rule.window - 1
    readers = _pieces(q, piece)
    raw = torch.cat([_sources(keys, piece, halo), readers], dim=2)
    features = rule.features(raw)
    weights = _fold(rule, piece, gates, step)
    sources = piece.length + halo
    kernels: list[Tensor | None] = [None] * piece.count
    if weights.read is not None:
        kernel = torch.matmul(features[:, :, sources:], features[:, :, :sources].mT)
        kernels = list((kernel * weights.read).unbind(0))
    parts = zip(
        raw.unbind(0),
        features.unbind(0),
        _sources(values, piece, halo).unbind(0),
        kernels,
        _unbound(weights, piece.count),
        strict=True,
    )
    return [_Stretch(*part) for part in parts], weights


def _unbound(weights: Coefficients, count: int) -> list[Coefficients]:
    split = {
        name: [None] * count if part is None else part.unbind(0)
        for name, part in vars(weights).items()
    }
    return [Coefficients(**{name: parts[g] for name, parts in split.items()}) for g in range(count)]


def _fold(rule: Rule, piece: Piece, gates: Gates, step: Tensor | None) -> Coefficients:
    keep, lr = _pieces(gates.keep, piece), _pieces(gates.lr, piece)
    theta = None if gates.theta is None else _pieces(gates.theta, piece)
    gamma = _pieces(gates.gamma, piece)
    if rule.orthogonalise is None or theta is None:
        return fold_linear(keep, lr, theta, gamma, step_inside=rule.step_inside)
    ends = [piece.position + n + 1 for n in range(piece.length)]
    writes = [n for n, end in enumerate(ends) if end % rule.group == 0 or end == rule.chunk]
    return fold_orthogonal(
        keep, lr, theta, gamma, writes=writes, step=step if piece.position else None
    )


def _joined(read: list[Tensor], rows: int) -> Tensor:
    """g times p n e -> b g*n h e."""
    y = torch.stack(read).unflatten(1, (rows, -1))  # g b h n e
    return y.permute(1, 0, 3, 2, 4).flatten(1, 2)


def _advance(rule: Rule, x: _Stretch, base: Weights, carried: _Carried) -> tuple[Tensor, _Carried]:
    """One stretch: gradients at `base`, then the reads of its tokens, then the carried matrices."""
    memory, sources = rule.memory, x.values.shape[1]
    fronts = memory.fronts
    keyed = [x.features[:, :sources]] * fronts
    if base is carried.current:
        both = [torch.bmm(x.features, w.mT) for w in base[:fronts]]
        at_keys = tuple(f[:, :sources] for f in both)
        at_queries = [f[:, sources:] for f in both]
    else:
        at_keys = tuple(torch.bmm(z, w.mT) for z, w in zip(keyed, base, strict=False))
        at_queries = [torch.bmm(x.features[:, sources:], w.mT) for w in carried.current[:fronts]]
    us, inner = memory.gradients(
        at_keys, x.raw[:, :sources], base, lambda y: rule.error(y, x.values)
    )
    zs = (*keyed, *inner)
    if rule.orthogonalise is None:
        made, momentum = carried.momentum, _end_momentum(x.weights, us, zs, carried.momentum)
    else:
        made, momentum = _momenta(rule.orthogonalise, x.weights, us, zs, carried.momentum)

    def read(j: int, z: Tensor, plain: Tensor, kernel: Tensor | None) -> Tensor:
        if rule.orthogonalise is not None:
            return _read_orthogonal(x.weights, z, plain, made[j] if made else None)
        return _read_linear(x.weights, z, plain, kernel, us[j], zs[j], made[j] if made else None)

    queries = x.features[:, sources:]
    front = tuple(read(j, queries, at_queries[j], x.kernel) for j in range(fronts))
    y = memory.read(
        front,
        x.raw[:, sources:],
        lambda j, z: read(j, z, torch.bmm(z, carried.current[j].mT), None),
    )
    if rule.orthogonalise is None:
        current = _end_linear(x.weights, us, zs, carried)
    else:
        current = _end_orthogonal(x.weights, carried.current, made)
    return y, _Carried(current, momentum)


def _read_linear(
    weights: Coefficients,
    z: Tensor,
    plain: Tensor,
    kernel: Tensor | None,
    u: Tensor,
    key: Tensor,
    momentum: Tensor | None,
) -> Tensor:
    y = weights.carry * plain
    if momentum is not None:
        assert weights.momentum_read is not None
        y = y - weights.momentum_read * torch.bmm(z, momentum.mT)
    if kernel is None:
        assert weights.read is not None
        kernel = weights.read * torch.bmm(z, key.mT)
    return torch.baddbmm(y, kernel, u, alpha=-1)


def _end_linear(weights: Coefficients, us: Weights, zs: Weights, carried: _Carried) -> Weights:
    assert weights.read is not None
    last, carry = weights.read[:, -1].unsqueeze(-1), weights.carry[:, -1:]
    out = []
    for j, (u, z) in enumerate(zip(us, zs, strict=True)):
        w = carry * carried.current[j]
        if weights.momentum_read is not None:
            w = w - weights.momentum_read[:, -1:] * carried.momentum[j]
        out.append(torch.baddbmm(w, (last * u).mT, z, alpha=-1))
    return tuple(out)


def _end_momentum(weights: Coefficients, us: Weights, zs: Weights, momentum: Weights) -> Weights:
    if weights.rows is None or weights.momentum_carry is None:
        return ()
    last = weights.rows[:, 0].unsqueeze(-1)
    return tuple(
        torch.baddbmm(weights.momentum_carry * s, (last * u).mT, z)
        for s, u, z in zip(momentum, us, zs, strict=True)
    )


def _momenta(
    orthogonalise: Callable[[Tensor], Tensor],
    weights: Coefficients,
    us: Weights,
    zs: Weights,
    momentum: Weights,
) -> tuple[Weights, Weights]:
    """Writes of the stretch (p w o i; none if it has no write), and the momentum at its end."""
    assert weights.rows is not None
    assert weights.momentum_carry is not None
    count = 0 if weights.written is None else weights.written.shape[-1]
    writes, ends = [], []
    for s, u, z in zip(momentum, us, zs, strict=True):
        parts = weights.rows.unsqueeze(2) * u.mT.unsqueeze(1)  # p r o i
        sums = torch.bmm(parts.flatten(1, 2), z).unflatten(1, parts.shape[1:3])
        sums = sums + weights.momentum_carry.unsqueeze(-1) * s.unsqueeze(1)
        ends.append(sums[:, -1])
        if count:
            writes.append(orthogonalise(sums[:, :count]))
    return tuple(writes), tuple(ends)


def _read_orthogonal(
    weights: Coefficients, z: Tensor, plain: Tensor, writes: Tensor | None
) -> Tensor:
    y = weights.carry * plain
    if writes is None or weights.written is None:
        return y
    each = torch.bmm(z, writes.flatten(1, 2).mT).unflatten(-1, writes.shape[1:3])  # p n w o
    return y - (weights.written.unsqueeze(-1) * each).sum(2)


def _end_orthogonal(weights: Coefficients, current: Weights, writes: Weights) -> Weights:
    carry = weights.carry[:, -1:]
    if weights.written is None:
        return tuple(carry * w for w in current)
    last = weights.written[:, -1:]  # p 1 w
    return tuple(
        torch.baddbmm((carry * w).flatten(1).unsqueeze(1), last, y.flatten(2), alpha=-1).view_as(w)
        for w, y in zip(current, writes, strict=True)
    )
