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
from ablate.components.newton_schulz import NewtonSchulz
from ablate.components.recurrence.channels import (
    BothWrite,
    ChannelWrite,
    fold_both,
    fold_channels,
    key_kernel,
)
from ablate.components.recurrence.coefficients import (
    Gates,
    LinearWeights,
    OrthogonalWeights,
    fold_linear,
    fold_orthogonal,
)
from ablate.components.recurrence.mapped import (
    ChunkEndWrite,
    inside_chunk,
    least_squares_write,
    mapped_write,
    minimum,
    shrunk_write,
)
from ablate.components.recurrence.online import BLOCK, online_errors
from ablate.components.recurrence.state import MemoryState, Piece, cut
from ablate.components.recurrence.writes import (
    Carried,
    LinearWrite,
    OrthogonalWrite,
    ReadBefore,
    Write,
)


@dataclass(frozen=True)
class Rule:
    """What does not depend on the token.

    memory, features, error: how a memory is wired, phi, and the gradient of the loss at its output.
    chunk: tokens whose gradients share one memory. window: c. momentum: whether there is one.
    step_inside: lr multiplies the gradient (else the write). orthogonalise: map of each write, None
    to write the momentum itself; then `group` is the number of tokens between two writes.
    nesterov: the momentum is written as it will be one token later. implicit: the step is
    lr / (1 + lr |phi(k)|^2). decayed: the error is that of the memory after this token's decay.
    online: solve for the errors of chunks of one token (see `online`). side: of a matrix that
    retention by channel acts on. mapped: weights from what is written; `linear_inside`: at chunk
    ends only. shrink: what each token does
    to the weights, given its step. reset: what a chunk starts from. ridge: of a memory that is the
    minimum of squared errors itself. truncated: windows end at their
    chunk's start. read_before: a token reads the memory before its own write.
    """

    memory: Memory
    features: Callable[[Tensor], Tensor]
    error: Callable[[Tensor, Tensor], Tensor]
    chunk: int
    window: int
    momentum: bool
    step_inside: bool
    orthogonalise: NewtonSchulz | None = None
    group: int = 1
    nesterov: bool = False
    implicit: bool = False
    decayed: bool = False
    online: bool = False
    side: str = "key"
    mapped: Callable[[Tensor], Tensor] | None = None
    shrink: Callable[[Tensor, Tensor], Tensor] | None = None
    reset: Callable[[Carried], Carried] | None = None
    ridge: float | None = None
    truncated: bool = False
    read_before: bool = False
    linear_inside: bool = False


@dataclass(frozen=True)
class _Stretch:
    """One piece of a chunk. Sources are the halo, then the tokens themselves."""

    raw_keys: Tensor  # p i d
    raw_queries: Tensor  # p n d
    features: Tensor  # p i+n f: of the sources, then of the queries
    keys: Tensor  # p i f
    queries: Tensor  # p n f
    values: Tensor  # p i e
    keep: Tensor  # p n, or p n d by channel
    lr: Tensor  # p n
    kernel: Tensor | None  # p n i: phi(q) . phi(k), weighted; None when orthogonalised
    weights: LinearWeights | OrthogonalWeights  # without g
    ends: bool  # with its chunk


def run_chunked(
    rule: Rule,
    q: Float[Tensor, "b t h d"],
    k: Float[Tensor, "b t h d"],
    v: Float[Tensor, "b t h _e"],
    gates: Gates,
    state: MemoryState,
) -> tuple[Float[Tensor, "b t h e"], MemoryState]:
    """Read and write `t` tokens from `state` on; calling on pieces equals one call on the whole.

    `v` is what the bias compares with: values, and what it needs beside them.
    """
    halo = rule.window - 1
    keys, values = torch.cat([state.keys, k], dim=1), torch.cat([state.values, v], dim=1)
    gates = _without_padding(gates, halo - state.filled)
    if rule.truncated:
        gates = _inside_chunks(gates, rule.chunk, state.position)
    if rule.implicit:
        gates = _implicit(rule, k, gates)
    kept = None if state.kept is None else state.kept.reshape(-1, 1, 1)
    carried = Carried(_flat(state.weights), _flat(state.momentum), kept)
    base, step = _flat(state.base), state.step
    step = None if step is None else step.flatten()
    outputs = []
    for piece in cut(q.shape[1], BLOCK if rule.online else rule.chunk, state.position):
        stretches, step = _prepare(rule, piece, q, keys, values, gates, step)
        read = []
        for stretch in stretches:
            if piece.position == 0:
                carried = replace(carried, kept=None) if rule.linear_inside else carried
                carried = carried if rule.reset is None else rule.reset(carried)
                base = carried.weights
            y, carried = _advance(rule, stretch, base, carried)
            read.append(y)
        outputs.append(_joined(read, q.shape[0]))
    position = (state.position + q.shape[1]) % rule.chunk
    if position == 0:
        base = carried.weights
    return torch.cat(outputs, dim=1), replace(
        state,
        weights=_unflat(carried.weights, q.shape[0]),
        base=_unflat(base, q.shape[0]) if rule.chunk > 1 else (),
        momentum=_unflat(carried.momenta, q.shape[0]),
        keys=keys[:, keys.shape[1] - halo :],
        values=values[:, values.shape[1] - halo :],
        step=None if state.step is None or step is None else step.reshape(state.step.shape),
        filled=min(halo, state.filled + q.shape[1]),
        position=position,
        kept=carried.kept.reshape(q.shape[0], -1)
        if position and carried.kept is not None
        else None,
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


def _inside_chunks(gates: Gates, chunk: int, position: int) -> Gates:
    """Close the gates on tokens of earlier chunks."""
    t, c = gates.gamma.shape[1], gates.gamma.shape[-1]
    place = (torch.arange(t, device=gates.gamma.device) + position) % chunk
    inside = torch.arange(c, device=gates.gamma.device) <= place.unsqueeze(-1)
    return replace(gates, gamma=torch.where(inside.unsqueeze(1), gates.gamma, 0.0))


def _implicit(rule: Rule, k: Tensor, gates: Gates) -> Gates:
    """Steps of implicit gradient descent on a squared error (Longhorn); the window is 1."""
    square = rule.features(k.transpose(1, 2)).square().sum(-1).transpose(1, 2)
    return replace(gates, lr=gates.lr / (1 + gates.lr * gates.gamma[..., 0] * square))


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
) -> tuple[list[_Stretch], Tensor | None]:
    """All that does not depend on the memory, for every stretch at once; and the steps pending."""
    halo = rule.window - 1
    raw_keys, raw_queries = _sources(keys, piece, halo), _pieces(q, piece)
    if rule.read_before:  # see ReadBefore
        raw_queries = raw_queries.roll(-1, dims=2)
    features = rule.features(torch.cat([raw_keys, raw_queries], dim=2))
    split = features.split([raw_keys.shape[2], raw_queries.shape[2]], dim=2)
    weights = _fold(rule, piece, gates, step)
    kernels: list[Tensor | None] = [None] * piece.count
    pending = None
    if isinstance(weights, LinearWeights):
        kernels = list(_kernel(rule, weights.read, *split).unbind(0))
    else:
        pending = weights.pending[-1]
    tensors = (raw_keys, raw_queries, features, *split, _sources(values, piece, halo))
    tensors = (*tensors, _pieces(gates.keep, piece), _pieces(gates.lr, piece))
    ends = [piece.position + piece.length == rule.chunk] * piece.count
    unbound = _unbound(weights, piece.count)
    parts = zip(*(t.unbind(0) for t in tensors), kernels, unbound, ends, strict=True)
    return [_Stretch(*part) for part in parts], pending


def _kernel(rule: Rule, read: Tensor, keys: Tensor, queries: Tensor) -> Tensor:
    """phi(q) . phi(k), weighted by what a read sees unless that differs by row."""
    if read.ndim == keys.ndim:
        return torch.matmul(queries, keys.mT) * read
    if rule.side != "value":  # of both, the columns come first
        return key_kernel(read[..., : keys.shape[-1], :, :], queries, keys)
    return torch.matmul(queries, keys.mT)


def _unbound(
    weights: LinearWeights | OrthogonalWeights, count: int
) -> list[LinearWeights | OrthogonalWeights]:
    split = [[None] * count if part is None else part.unbind(0) for part in vars(weights).values()]
    return [type(weights)(*parts) for parts in zip(*split, strict=True)]


def _fold(
    rule: Rule, piece: Piece, gates: Gates, step: Tensor | None
) -> LinearWeights | OrthogonalWeights:
    keep, lr = _pieces(gates.keep, piece), _pieces(gates.lr, piece)
    theta = None if gates.theta is None else _pieces(gates.theta, piece)
    gamma = _pieces(gates.gamma, piece)
    keep = keep if rule.shrink is None else torch.zeros_like(keep)
    if rule.side == "both":
        return fold_both(keep, lr, gamma, columns=rule.memory.shapes[0][1])
    if rule.orthogonalise is None or theta is None:
        fold = fold_linear if keep.ndim == lr.ndim else fold_channels
        how = {"step_inside": rule.step_inside, "nesterov": rule.nesterov}
        return fold(keep, lr, theta, gamma, **how)
    ends = [piece.position + n + 1 for n in range(piece.length)]
    writes = [n for n, end in enumerate(ends) if end % rule.group == 0 or end == rule.chunk]
    return fold_orthogonal(
        keep, lr, theta, gamma, writes=writes, step=step if piece.position else None
    )


def _joined(read: list[Tensor], rows: int) -> Tensor:
    """g times p n e -> b g*n h e."""
    y = torch.stack(read)
    return y.view(len(read), rows, -1, *y.shape[2:]).permute(1, 0, 3, 2, 4).flatten(1, 2)


def _advance(rule: Rule, x: _Stretch, base: Weights, carried: Carried) -> tuple[Tensor, Carried]:
    """One stretch: gradients at `base`, then the reads of its tokens, then the carried matrices."""
    fronts = rule.memory.fronts
    us, inner, at_queries = _gradients(rule, x, base, carried)
    write = _write(rule, x, us, (*[x.keys] * fronts, *inner), base, carried)
    if rule.read_before:
        write = ReadBefore(write, _as_read(rule, base, carried))
    front = tuple(
        write.read(j, x.queries, plain, at_features=True) for j, plain in enumerate(at_queries)
    )
    y = rule.memory.read(
        front,
        x.raw_queries,
        lambda j, z: write.read(j, z, torch.bmm(z, carried.weights[j].mT), at_features=False),
    )
    return (y.roll(1, dims=1) if rule.read_before else y), write.end()


def _as_read(rule: Rule, base: Weights, carried: Carried) -> Weights:
    """The memory itself, from what is carried."""
    if rule.ridge is not None:
        return (minimum(carried.weights[0], carried.momenta[0], rule.ridge),)
    if rule.mapped is None:
        return carried.weights
    pairs = zip(carried.weights, base, strict=True)
    return tuple(inside_chunk(rule.mapped, now, start, carried.kept) for now, start in pairs)


def _gradients(
    rule: Rule, x: _Stretch, base: Weights, carried: Carried
) -> tuple[Weights, Weights, Weights]:
    """All u and the z of later maps; and the carried maps on the features of the queries."""
    if rule.online:
        assert isinstance(x.weights, LinearWeights)
        keep = x.keep if rule.decayed else None
        errors = online_errors(x.weights, x.keys, x.values, carried, keep=keep)
        return (errors,), (), (torch.bmm(x.queries, carried.weights[0].mT),)
    if rule.ridge is not None:
        return (-x.values,), (), carried.weights
    fronts = rule.memory.fronts
    if rule.mapped is not None:
        base = tuple(map(rule.mapped, base))
    at_keys, at_queries = _front(x, base[:fronts], carried.weights[:fronts])
    if rule.decayed:
        at_keys = tuple(_kept(rule, x, w, y) for w, y in zip(base, at_keys, strict=True))
    us, inner = rule.memory.gradients(at_keys, x.raw_keys, base, lambda y: rule.error(y, x.values))
    return us, inner, at_queries


def _kept(rule: Rule, x: _Stretch, w: Tensor, y: Tensor) -> Tensor:
    """What the memory says of the keys after their own tokens' decay; `y` is that before it."""
    if x.keep.ndim == x.keys.ndim and rule.side != "value":
        width = x.keys.shape[-1]
        kept = torch.bmm(x.keep[..., :width] * x.keys, w.mT)
        return x.keep[..., width:] * kept if rule.side == "both" else kept
    return (x.keep if x.keep.ndim == y.ndim else x.keep.unsqueeze(-1)) * y


def _front(x: _Stretch, base: Weights, current: Weights) -> tuple[Weights, Weights]:
    """The maps on the features: at the base for the sources, at the current for the queries."""
    if all(b is c for b, c in zip(base, current, strict=True)):
        sizes = [x.keys.shape[1], x.queries.shape[1]]
        both = [torch.bmm(x.features, w.mT).split(sizes, dim=1) for w in current]
        return tuple(b[0] for b in both), tuple(b[1] for b in both)
    return (
        tuple(torch.bmm(x.keys, w.mT) for w in base),
        tuple(torch.bmm(x.queries, w.mT) for w in current),
    )


def _write(
    rule: Rule, x: _Stretch, us: Weights, zs: Weights, base: Weights, carried: Carried
) -> Write:
    write: LinearWrite | OrthogonalWrite
    if isinstance(x.weights, LinearWeights):
        assert x.kernel is not None
        if rule.side == "both":
            return BothWrite(x.weights, us, zs, carried, x.kernel)
        if x.weights.read.ndim > x.kernel.ndim:
            fronts = rule.memory.fronts
            return ChannelWrite(x.weights, us, zs, carried, x.kernel, rule.side, fronts)
        write = LinearWrite(x.weights, us, zs, carried, x.kernel)
        if rule.ridge is not None:
            return least_squares_write(write, rule.ridge)
    else:
        assert rule.orthogonalise is not None
        write = OrthogonalWrite(rule.orthogonalise, x.weights, us, zs, carried)
    if rule.mapped is not None and rule.linear_inside:
        return ChunkEndWrite(write, rule.mapped, base, carried, x.ends)
    if rule.mapped is not None:
        return mapped_write(write, rule.mapped)
    if rule.shrink is not None:
        return shrunk_write(write, rule.shrink, carried, x.keep, x.lr)
    return write
