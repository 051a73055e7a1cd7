"""Stretches of one length, from the memory that the first of them finds.

What the states of a linear write are comes first, stretch by stretch; what every token reads of
them then is one attention over all stretches. Other writes are read as they are made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ablate.components.kernels.backend import kernel
from ablate.components.memory import Weights
from ablate.components.recurrence.channels import BothWrite, ChannelWrite
from ablate.components.recurrence.coefficients import (
    Folded,
    LinearWeights,
    OrthogonalWeights,
)
from ablate.components.recurrence.fast_weight import scan_weight
from ablate.components.recurrence.mapped import (
    ChunkEndWrite,
    inside_chunk,
    least_squares_write,
    mapped_write,
    minimum,
    shrunk_write,
)
from ablate.components.recurrence.online import online_errors, online_probes
from ablate.components.recurrence.orthogonal_scan import Orthogonal, scan_orthogonal
from ablate.components.recurrence.rule import Rule
from ablate.components.recurrence.unlifted import Form, UnliftedWrite
from ablate.components.recurrence.writes import (
    Carried,
    LinearWrite,
    OrthogonalWrite,
    ReadBefore,
    Write,
    by_matrix,
    sums_form,
)

Coefficients = Folded | LinearWeights | OrthogonalWeights


@dataclass(frozen=True)
class Stretches:
    """Stretches of a call, g before all shapes. Sources are the halo, then the tokens themselves.

    kernel: phi(q) . phi(k), where retention differs by channel. weights: what the gates fold into.
    starts, ends: whether they start and end with their chunks. form: reads queries that are not
    lifted; None if they are.
    """

    raw_keys: Tensor  # p i d
    raw_queries: Tensor  # p n d
    keys: Tensor  # p i f
    queries: Tensor  # p n f, or p n d if not lifted
    values: Tensor  # p i e
    keep: Tensor  # p n, or p n d by channel
    lr: Tensor  # p n
    kernel: Tensor | None  # p n i
    weights: Coefficients
    starts: bool
    ends: bool
    form: Form | None = None

    def each(self) -> list[Stretches]:
        """One after the other, without g."""
        count = self.lr.shape[0]
        weights = [replace(self.weights, **parts) for parts in _unbound(self.weights, count)]
        return [
            replace(self, **parts, weights=w)
            for parts, w in zip(_unbound(self, count), weights, strict=True)
        ]

    def rows(self) -> Stretches:
        """All at once, as rows."""
        flat = replace(self, **_flattened(self))
        return replace(flat, weights=replace(self.weights, **_flattened(self.weights)))


def _tensors(of: Stretches | Coefficients) -> dict[str, Tensor]:
    return {name: part for name, part in vars(of).items() if isinstance(part, Tensor)}


def _unbound(of: Stretches | Coefficients, count: int) -> list[dict[str, Any]]:
    split = {name: part.unbind(0) for name, part in _tensors(of).items()}
    return [{name: parts[g] for name, parts in split.items()} for g in range(count)]


def _flattened(of: Stretches | Coefficients) -> dict[str, Any]:
    return {name: part.flatten(0, 1) for name, part in _tensors(of).items()}


def advance(
    rule: Rule, x: Stretches, base: Weights, carried: Carried
) -> tuple[Tensor, Weights, Carried]:
    """Reads of all tokens, g*p n e; the open chunk's first weights; what is carried on."""
    if rule.linear and not isinstance(x.weights, OrthogonalWeights):
        return _scanned(rule, x, base, carried)
    if how := _orthogonal(rule, x, carried):
        return _scanned_orthogonal(x, how, base, carried)
    read = []
    for part in x.each():
        base, carried = _opened(rule, part, base, carried)
        us, inner = _gradients(rule, part, base, carried)
        write = _write(rule, part, us, (*[part.keys] * rule.memory.fronts, *inner), base, carried)
        start = _as_read(rule, base, carried) if rule.read_before else ()
        read.append(_read(rule, part, write, start))
        carried = write.end()
    return torch.cat(read), base, carried


def _scanned(
    rule: Rule, x: Stretches, base: Weights, carried: Carried
) -> tuple[Tensor, Weights, Carried]:
    """Linear writes: all states, then all reads."""
    rows = x.rows()
    if isinstance(x.weights, Folded) and _is_scan(rule, x):
        errors, starts, end = _scan(rule, x, carried)
        first = Carried.of((starts.flatten(0, 1),))
        write = _linear_write(rule, rows, (errors.flatten(0, 1),), (rows.keys,), first)
        last = Carried.of((end,))
        if x.starts:
            base = (starts[-1, :, 0],)
        return _read(rule, rows, write, first.weights), base, last
    gradients, inputs, found = [], [], []
    for part in x.each():
        base, carried = _opened(rule, part, base, carried)
        us, inner = _gradients(rule, part, base, carried)
        gradients.append(us)
        inputs.append(inner)
        found.append(carried)
        zs = (*[part.keys] * rule.memory.fronts, *inner)
        carried = _linear_write(rule, part, us, zs, carried).end()
    us, inner = _side_by_side(gradients), _side_by_side(inputs)
    first = _all_carried(found)
    write = _linear_write(rule, rows, us, (*[rows.keys] * rule.memory.fronts, *inner), first)
    return _read(rule, rows, write, first.weights), base, carried


def _opened(rule: Rule, x: Stretches, base: Weights, carried: Carried) -> tuple[Weights, Carried]:
    """What a stretch finds, which may be the start of a chunk."""
    if not x.starts:
        return base, carried
    carried = replace(carried, kept=None) if rule.linear_inside else carried
    carried = carried if rule.reset is None else rule.reset(carried)
    return carried.weights, carried


def _is_scan(rule: Rule, x: Stretches) -> bool:
    """Whether errors are linear in the states that the stretches start from."""
    return rule.scanned and (x.starts or rule.plain == "dot")


def _scan(rule: Rule, x: Stretches, carried: Carried) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients, the states that stretches start from, and the last one."""
    assert isinstance(x.weights, Folded)
    values, probes = x.values, None
    if rule.online:
        keep = x.keep if rule.decayed else None
        probes, values = online_probes(x.weights, x.keys, x.values, keep=keep)
    elif rule.plain == "l2":
        keys = x.keep.unsqueeze(-1) * x.keys if rule.decayed else x.keys
        probes = keys.unsqueeze(2)
    (state,) = carried.states()
    form = kernel("scan_weight", rule.backend, state) or scan_weight
    us, starts, end = form(state, probes, x.keys, values, x.weights.mix, x.weights.last)
    return us, starts, end


def _orthogonal(rule: Rule, x: Stretches, carried: Carried) -> Orthogonal | None:
    """How a matrix is written, where all stretches are one scan; else None."""
    w, ns = x.weights, rule.orthogonalise
    if ns is None or not isinstance(w, OrthogonalWeights) or w.write is None or rule.read_before:
        return None
    if not rule.linear or not _is_scan(rule, x):
        return None
    (state,) = carried.momenta
    form, size = sums_form(ns, rule.backend, state), ns.size(*state.shape[-2:])
    return Orthogonal(form, ns.schedule, ns.eps, size, errors=rule.plain == "l2")


def _scanned_orthogonal(
    x: Stretches, how: Orthogonal, base: Weights, carried: Carried
) -> tuple[Tensor, Weights, Carried]:
    assert isinstance(x.weights, OrthogonalWeights)
    (weight,), (momentum,) = carried.weights, carried.momenta
    y, start, weight, momentum = scan_orthogonal(
        weight, momentum, x.keys, x.values, x.queries, x.weights, how
    )
    return y.flatten(0, 1), (start,) if x.starts else base, Carried((weight,), (momentum,))


def _side_by_side(parts: list[Weights]) -> Weights:
    """Stretches as rows."""
    return tuple(torch.cat(each) for each in zip(*parts, strict=True))


def _all_carried(parts: list[Carried]) -> Carried:
    """As one, of more rows."""
    weights = _side_by_side([part.weights for part in parts])
    if parts[-1].stacked:  # the first may have been carried here in two parts
        return Carried.of(_side_by_side([part.states() for part in parts]))
    return Carried(weights, _side_by_side([part.momenta for part in parts]))


def _read(rule: Rule, x: Stretches, write: Write, start: Weights) -> Tensor:
    """What the memory of each token says of its query; `start`: what the stretch found."""
    apply = by_matrix
    if x.form is not None:
        assert isinstance(write, LinearWrite)
        assert rule.lift is not None
        write = UnliftedWrite.of(write, x.form, rule.lift, x.queries, x.raw_keys)
        apply = write.apply
    if rule.read_before:
        write = ReadBefore(write, start, apply)
    fronts = range(rule.memory.fronts)
    front = tuple(write.read(j, x.queries, at_features=True) for j in fronts)
    y = rule.memory.read(front, x.raw_queries, lambda j, z: write.read(j, z, at_features=False))
    return y.roll(1, dims=1) if rule.read_before else y


def _as_read(rule: Rule, base: Weights, carried: Carried) -> Weights:
    """The memory itself, from what is carried."""
    if rule.ridge is not None:
        return (minimum(carried.weights[0], carried.momenta[0], rule.ridge),)
    if rule.mapped is None:
        return carried.weights
    pairs = zip(carried.weights, base, strict=True)
    return tuple(inside_chunk(rule.mapped, now, start, carried.kept) for now, start in pairs)


def _gradients(
    rule: Rule, x: Stretches, base: Weights, carried: Carried
) -> tuple[Weights, Weights]:
    """All u, and the z of later maps."""
    if rule.online:
        assert isinstance(x.weights, LinearWeights)
        keep = x.keep if rule.decayed else None
        return (online_errors(x.weights, x.keys, x.values, carried, keep=keep),), ()
    if rule.ridge is not None:
        return (-x.values,), ()
    if rule.mapped is not None:
        base = tuple(map(rule.mapped, base))
    at_keys = tuple(torch.bmm(x.keys, w.mT) for w in base[: rule.memory.fronts])
    if rule.decayed:
        at_keys = tuple(_kept(rule, x, w, y) for w, y in zip(base, at_keys, strict=True))
    return rule.memory.gradients(at_keys, x.raw_keys, base, lambda y: rule.error(y, x.values))


def _kept(rule: Rule, x: Stretches, w: Tensor, y: Tensor) -> Tensor:
    """What the memory says of the keys after their own tokens' decay; `y` is that before it."""
    if x.keep.ndim == x.keys.ndim and rule.side != "value":
        width = x.keys.shape[-1]
        kept = torch.bmm(x.keep[..., :width] * x.keys, w.mT)
        return x.keep[..., width:] * kept if rule.side == "both" else kept
    return (x.keep if x.keep.ndim == y.ndim else x.keep.unsqueeze(-1)) * y


def _linear_write(
    rule: Rule, x: Stretches, us: Weights, zs: Weights, carried: Carried
) -> LinearWrite | ChannelWrite | BothWrite:
    if isinstance(x.weights, Folded):
        return LinearWrite(x.weights, us, zs, carried.states(), rule.backend)
    assert isinstance(x.weights, LinearWeights)
    assert x.kernel is not None
    if rule.side == "both":
        return BothWrite(x.weights, us, zs, carried, x.kernel)
    return ChannelWrite(x.weights, us, zs, carried, x.kernel, rule.side)


def _write(
    rule: Rule, x: Stretches, us: Weights, zs: Weights, base: Weights, carried: Carried
) -> Write:
    if rule.ridge is not None:
        assert isinstance(x.weights, Folded)
        return least_squares_write(x.weights, x.values, x.keys, carried, rule.ridge)
    write: LinearWrite | OrthogonalWrite
    if isinstance(x.weights, OrthogonalWeights):
        assert rule.orthogonalise is not None
        write = OrthogonalWrite(rule.orthogonalise, x.weights, us, zs, carried, rule.backend)
    else:
        assert isinstance(x.weights, Folded)
        write = LinearWrite(x.weights, us, zs, carried.states())
    if rule.mapped is not None and rule.linear_inside:
        return ChunkEndWrite(write, rule.mapped, base, carried, x.ends)
    if rule.mapped is not None:
        return mapped_write(write, rule.mapped)
    if rule.shrink is not None:
        return shrunk_write(write, rule.shrink, carried, x.keep, x.lr)
    return write
