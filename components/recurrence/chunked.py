"""The recurrence as it is run: chunk by chunk, without weights for every token.

Only coefficients, which are numbers, are made token after token (see `folding`).

Token i's gradient at the chunk's first memory is u_i z_i^T. A fast weight W is then read at token n
as carry_n W x - m_n S x - sum_i read[n,i] u_i (z_i . x), a masked attention over the sources, and a
later fast weight is read with the vectors that the earlier one gave. Orthogonalised momentum is no
sum of outer products, so it is made, one matrix for each write. docs/memory_layer.md derives this.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from ablate.components.memory import Weights
from ablate.components.recurrence.channels import fold_both, fold_channels, key_kernel
from ablate.components.recurrence.coefficients import (
    Gates,
    LinearWeights,
    OrthogonalWeights,
    fold_orthogonal,
    fold_states,
)
from ablate.components.recurrence.online import BLOCK
from ablate.components.recurrence.rule import Rule
from ablate.components.recurrence.segments import again_in_backward, kept_every, segments
from ablate.components.recurrence.sources import with_halo
from ablate.components.recurrence.state import MemoryState, Piece, cut
from ablate.components.recurrence.stretches import Coefficients, Stretches, advance
from ablate.components.recurrence.unlifted import Form, form_of
from ablate.components.recurrence.writes import Carried


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
    keys, values = k, v
    if halo:
        keys, values = _after(state.keys, k), _after(state.values, v)
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
    pieces = cut(q.shape[1], BLOCK if rule.online else rule.chunk, state.position)
    span = kept_every(
        rule.span, max(piece.count for piece in pieces), (*carried.weights, *carried.momenta)
    )
    for piece in segments(pieces, span):
        y, base, carried, step = again_in_backward(
            span, _advanced, rule, piece, (q, keys, values, gates), step, base, carried
        )
        outputs.append(y)
    position = (state.position + q.shape[1]) % rule.chunk
    if position == 0:
        base = carried.weights
    y = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
    return y, replace(
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


def _advanced(
    rule: Rule,
    piece: Piece,
    given: tuple[Tensor, Tensor, Tensor, Gates],
    step: Tensor | None,
    base: Weights,
    carried: Carried,
) -> tuple[Tensor, Weights, Carried, Tensor | None]:
    form = form_of(rule.lift, rule.backend, carried.weights[0])
    x, step = _prepare(rule, piece, *given, step, form)
    y, base, carried = advance(rule, x, base, carried)
    return _joined(y, given[0].shape[0], piece), base, carried, step


def _flat(weights: Weights) -> Weights:
    return tuple(w.reshape(-1, *w.shape[2:]) for w in weights)


def _unflat(weights: Weights, rows: int) -> Weights:
    return tuple(w.unflatten(0, (rows, -1)) for w in weights)


def _after(before: Tensor, x: Tensor) -> Tensor:
    """Tokens after those that came before, and one more in front of all, see `_idle`."""
    return torch.cat([torch.zeros_like(before[:, :1]), before, x], dim=1)


def _idle(rule: Rule, piece: Piece) -> int:
    """Tokens among the sources that are in no window: one if it makes the sources even.

    Products of an odd width take a fifth more time than those one wider.
    """
    return (piece.length + rule.window - 1) % 2 if rule.window > 1 else 0


def _without_padding(gates: Gates, missing: int) -> Gates:
    """Close the gates on tokens before the sequence: a zero key still has a constant feature."""
    t, c = gates.gamma.shape[1], gates.gamma.shape[-1]
    if missing <= 0 or t == 0:
        return gates
    first, rest = gates.gamma.split([min(missing, t), max(0, t - missing)], dim=1)
    token = torch.arange(first.shape[1], device=first.device).unsqueeze(-1)
    back = torch.arange(c, device=first.device)
    real = token - back + (c - 1) >= missing
    first = torch.where(real.unsqueeze(1), first, 0.0)
    return replace(gates, gamma=torch.cat([first, rest], dim=1))


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


def _sources(rule: Rule, x: Tensor, piece: Piece) -> Tensor:
    """Stretches with the halo before each: b 1+halo+t h d -> g b*h i d."""
    if rule.window == 1:
        return _pieces(x, piece)
    end, idle = piece.start + piece.count * piece.length + rule.window, _idle(rule, piece)
    x = x[:, piece.start + 1 - idle : end].transpose(1, 2).flatten(0, 1)
    return with_halo(x, rule.window - 1 + idle, piece.length)


def _prepare(
    rule: Rule,
    piece: Piece,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    gates: Gates,
    step: Tensor | None,
    form: Form | None,
) -> tuple[Stretches, Tensor | None]:
    """All that does not depend on the memory, for every stretch at once; and the steps pending."""
    raw_keys, raw_queries = _sources(rule, keys, piece), _pieces(q, piece)
    if rule.read_before:  # see ReadBefore
        raw_queries = raw_queries.roll(-1, dims=2)
    phi_keys = rule.features(raw_keys)
    lifted = rule.features if form is None or rule.lift is None else rule.lift.projected
    phi_queries = lifted(raw_queries)
    keep, lr = _pieces(gates.keep, piece), _pieces(gates.lr, piece)
    weights = _fold(rule, piece, keep, lr, gates, step)
    kernel = pending = None
    if isinstance(weights, OrthogonalWeights):
        pending = weights.pending[-1]
    elif isinstance(weights, LinearWeights):
        kernel = _kernel(rule, weights.read, phi_keys, phi_queries)
    return Stretches(
        raw_keys,
        raw_queries,
        phi_keys,
        phi_queries,
        _sources(rule, values, piece),
        keep,
        lr,
        kernel,
        weights,
        starts=piece.position == 0,
        ends=piece.position + piece.length == rule.chunk,
        form=form,
    ), pending


def _kernel(rule: Rule, read: Tensor, keys: Tensor, queries: Tensor) -> Tensor:
    """phi(q) . phi(k), weighted by what a read sees unless that differs by row."""
    if rule.side != "value":  # of both, the columns come first
        return key_kernel(read[..., : keys.shape[-1], :, :], queries, keys)
    return torch.matmul(queries, keys.mT)


def _fold(
    rule: Rule, piece: Piece, keep: Tensor, lr: Tensor, gates: Gates, step: Tensor | None
) -> Coefficients:
    theta = None if gates.theta is None else _pieces(gates.theta, piece)
    gamma, idle = _pieces(gates.gamma, piece), _idle(rule, piece)
    keep = keep if rule.shrink is None else torch.zeros_like(keep)
    if rule.side == "both":
        return fold_both(keep, lr, gamma, columns=rule.memory.shapes[0][1])
    if rule.orthogonalise is None or theta is None:
        fold = fold_states if keep.ndim == lr.ndim else fold_channels
        how = {"step_inside": rule.step_inside, "nesterov": rule.nesterov}
        return fold(keep, lr, theta, gamma, **how, idle=idle)
    ends = [piece.position + n + 1 for n in range(piece.length)]
    writes = [n for n, end in enumerate(ends) if end % rule.group == 0 or end == rule.chunk]
    step = step if piece.position else None
    return fold_orthogonal(keep, lr, theta, gamma, writes=writes, step=step, idle=idle)


def _joined(y: Tensor, rows: int, piece: Piece) -> Tensor:
    """g*p n e -> b g*n h e."""
    y = y.view(piece.count, rows, -1, *y.shape[1:])
    return y.permute(1, 0, 3, 2, 4).flatten(1, 2)
