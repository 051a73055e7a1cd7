"""One neural memory layer: the axes composed, checked, and run chunk by chunk.

M_n = alpha_n M_{n-1} - b_n P(S_n) and y_n = M_n(phi(q_n)) (Atlas Eq. 32-33; Titans Eq. 13-15).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.components.bias import L2, Bias, Dot
from ablate.components.combinations import check_combination, check_steps, is_plain_matrix
from ablate.components.dims import Dims
from ablate.components.feature_map import Polynomial
from ablate.components.inner_optimizer import InnerOptimizer
from ablate.components.kernels.backend import Use
from ablate.components.memory import Memory, Weights
from ablate.components.memory_layer import MemoryLayer, Window, wide_numbers
from ablate.components.multi_step import MultiStepGradientDescent, interleave
from ablate.components.newton_schulz import NewtonSchulz
from ablate.components.recurrence.chunked import run_chunked
from ablate.components.recurrence.coefficients import Gates
from ablate.components.recurrence.mapped import inside_chunk, minimum
from ablate.components.recurrence.rule import Rule
from ablate.components.recurrence.state import MemoryState
from ablate.components.recurrence.writes import Carried
from ablate.components.retention import Retention
from ablate.components.vector_memory import VectorMemory


@runtime_checkable
class FeatureMap(Protocol):
    """What the layer asks of a feature map."""

    width: int

    def __call__(self, x: Tensor) -> Tensor:
        """Lift the last dimension to `width` features."""


class NeuralMemory(MemoryLayer[MemoryState]):
    """A sequence mixer whose state is a memory that learns while it reads.

    One function trains, prefills and decodes: calling it on pieces of any length and carrying the
    state equals one call on the whole.

    Args:
        dims: widths.
        memory, feature_map, window, bias, retention, inner_optimizer, newton_schulz: the axes.
        chunk: tokens whose inner gradients share one memory, that at the chunk's start. It is part
            of the model: 1 is the exact online rule.
        read: "after" the token's own write (y_n = M_n(q_n)), or "before" it (M_{n-1}(q_n)).

    Raises:
        ValueError: `chunk` < 1; an unknown `read`; Muon without newton_schulz or the reverse; a
            memory built for another feature width.
    """

    chunk: int
    span: int | None = None  # chunks between kept states; may be set at any time, no result changes

    def __init__(
        self,
        dims: Dims,
        *,
        memory: nn.Module,
        feature_map: nn.Module,
        window: nn.Module,
        bias: Bias,
        retention: Retention,
        inner_optimizer: InnerOptimizer,
        newton_schulz: NewtonSchulz | None = None,
        chunk: int,
        read: str = "after",
    ) -> None:
        super().__init__(dims, read)
        _check(memory, feature_map, inner_optimizer, newton_schulz, chunk)
        check_combination(memory, window, bias, retention, inner_optimizer, newton_schulz)
        if inner_optimizer.steps > 1:
            check_steps(window, retention, chunk, inner_optimizer.steps)
        self.chunk = chunk
        self.memory, self.feature_map, self.window = memory, feature_map, window
        self.bias, self.retention = bias, retention
        self.inner_optimizer, self.newton_schulz = inner_optimizer, newton_schulz

    @property
    def uses(self) -> tuple[str, ...]:
        """Which of queries, keys and values the layer reads."""
        return ("q", "v") if self.retention.ties else ("q", "k", "v")

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, gates: Gates, state: MemoryState
    ) -> tuple[Tensor, MemoryState]:
        """Chunk by chunk; a token with several steps is as many tokens, of which one is read."""
        if self.retention.ties:
            k = 1 - gates.keep
        optimizer, tail = self.inner_optimizer, state.tail
        if not isinstance(optimizer, MultiStepGradientDescent) or optimizer.steps == 1:
            return run_chunked(self.rule(), q, k, v, gates, state)
        keys, values, tail = optimizer.further(x, tail, q.dtype)
        values = torch.stack([self.bias.target(one, x) for one in values.unbind(2)], dim=2)
        k, v = interleave(keys, k), interleave(values, v)
        asked = q.repeat_interleave(optimizer.steps, dim=1)
        y, state = run_chunked(self.rule(), asked, k, v, gates, state)
        place = 0 if self.read == "before" else optimizer.steps - 1
        return y[:, place :: optimizer.steps], replace(state, tail=tail)

    def frozen(self, state: MemoryState | None, rows: int) -> Weights:
        """The memory as a read finds it now, for `retrieve`."""
        if state is None:
            wide = torch.promote_types(next(self.parameters()).dtype, torch.float32)
            state = self.initial_state(rows, dtype=wide)
        now = state.weights
        if self.inner_optimizer.ridge is not None:
            return (minimum(now[0], state.momentum[0], self.inner_optimizer.ridge),)
        if not self.retention.maps:
            return now
        kept = None if state.kept is None else state.kept.reshape(-1, 1, 1)
        pairs = zip(now, state.base or now, strict=True)
        return tuple(
            inside_chunk(
                self.retention.weights, w.flatten(0, 1), start.flatten(0, 1), kept
            ).unflatten(0, w.shape[:2])
            for w, start in pairs
        )

    def retrieve(self, q: Float[Tensor, "b t h d"], frozen: Weights) -> Float[Tensor, "b t h e"]:
        """M(q) without a write (Titans Eq. 15 and 21, where a star says so)."""
        memory: Memory = self.memory  # type: ignore[assignment]
        with wide_numbers(q) as wide:
            raw = q.to(wide).transpose(1, 2).flatten(0, 1)
            features = self.features(raw)
            weights = [w.to(wide).flatten(0, 1) for w in frozen]
            front = tuple(torch.bmm(features, w.mT) for w in weights[: memory.fronts])
            y = memory.read(front, raw, lambda j, z: torch.bmm(z, weights[j].mT))
        read: Tensor = y.unflatten(0, (q.shape[0], -1)).transpose(1, 2)
        return read.to(q.dtype)

    def features(self, x: Tensor) -> Tensor:
        """What the first maps of the memory read of a key or a query."""
        phi: Tensor = self.feature_map(x)
        return self.memory.features(phi) if isinstance(self.memory, VectorMemory) else phi

    def rule(self) -> Rule:
        """What the recurrence needs beside tokens and gates."""
        memory: Memory = self.memory  # type: ignore[assignment]
        window: Window = self.window  # type: ignore[assignment]
        optimizer, orthogonal = self.inner_optimizer, self.newton_schulz
        return Rule(
            memory=memory,
            features=self.features,
            error=self.bias,
            chunk=self.chunk,
            window=self.seen(),
            truncated=window.truncated,
            read_before=self.read == "before",
            momentum=optimizer.has_momentum,
            step_inside=optimizer.step_inside,
            orthogonalise=orthogonal,
            group=1 if orthogonal is None else orthogonal.group(self.chunk),
            nesterov=optimizer.nesterov,
            implicit=optimizer.implicit,
            decayed=optimizer.decayed,
            ridge=optimizer.ridge,
            online=self._solvable(),
            plain=self._plain(),
            span=self.span,
            lift=self._lift(),
            side=self.retention.side or "key",
            mapped=self.retention.weights if self.retention.maps else None,
            linear_inside=self.retention.applied == "chunk",
            shrink=self.retention.shrink if self.retention.shrinks else None,
            reset=self._reset if self.retention.resets else None,
            backend=self.backend,
        )

    def operations(self) -> tuple[Use, ...]:
        """The operations of this layer that have kernels."""
        rule, retention = self.rule(), self.retention
        shapes = dict.fromkeys(rule.memory.shapes)
        if rule.orthogonalise is None:
            # Of a momentum that is written as it is, to memories that are kept by one gate a head.
            if retention.side is not None or not rule.linear:
                return ()
            name = "scan_weight" if rule.scanned else "write_weight"
            return (*(Use(name, *shape) for shape in shapes), *self._reads(rule.memory))
        blocked = None if rule.orthogonalise.steps else "there are no steps"
        if retention.shrinks or (retention.maps and not rule.linear_inside):
            blocked = f"{type(retention).__name__} needs the memory of every token as a matrix"
        return tuple(Use("newton_schulz", *shape, blocked) for shape in shapes)

    def _reads(self, memory: Memory) -> dict[Use, None]:
        """Reads of linear writes; of the first maps by queries that are not lifted, if may be."""
        uses = [Use("read_weight", *shape) for shape in memory.shapes]
        if isinstance(self.feature_map, Polynomial) and not isinstance(memory, VectorMemory):
            why = self.feature_map.unmade
            for j, use in enumerate(uses[: memory.fronts]):
                uses[j] = Use("read_polynomial", use.rows, use.columns, why, otherwise=use)
        return dict.fromkeys(uses)

    def _lift(self) -> Polynomial | None:
        """The feature map, if linear writes are read by queries that it need not lift."""
        lift, retention = self.feature_map, self.retention
        if not isinstance(lift, Polynomial) or lift.unmade or isinstance(self.memory, VectorMemory):
            return None
        if self.newton_schulz is not None or self.inner_optimizer.ridge is not None:
            return None
        return None if retention.side or retention.maps or retention.shrinks else lift

    def _plain(self) -> str | None:
        """Whether the errors of a stretch are the memory on keys less values, or values alone."""
        linear = {L2: "l2", Dot: "dot"}
        return linear.get(type(self.bias)) if is_plain_matrix(self.memory) else None

    def _solvable(self) -> bool:
        """Whether the exact online rule is linear in the errors, so that blocks solve for them."""
        retention = self.retention
        return (
            self.chunk == 1
            and bool(self.window.length == 1)
            and self._plain() == "l2"
            and self.inner_optimizer.ridge is None
            and self.newton_schulz is None
            and not (retention.maps or retention.shrinks or retention.resets)
            and retention.side in (None, "key")
        )

    def _start(self) -> Weights:
        """What a sequence starts from, h o i each: the learned weights, or their accumulators."""
        memory: Memory = self.memory  # type: ignore[assignment]
        return tuple(self.retention.accumulator(w) for w in memory.initial())

    def _reset(self, carried: Carried) -> Carried:
        """What a chunk starts from; heads are the faster index of the rows."""
        weights, momenta = carried.weights, carried.momenta
        if self.retention.resets != "momentum":
            start = zip(weights, self._start(), strict=True)
            weights = tuple(
                fresh.to(w.dtype).repeat(w.shape[0] // fresh.shape[0], 1, 1) for w, fresh in start
            )
        if self.retention.resets != "memory":
            momenta = tuple(torch.zeros_like(s) for s in momenta)
        return Carried(weights, momenta)

    def initial_state(self, rows: int, *, dtype: torch.dtype = torch.float32) -> MemoryState:
        """State of `rows` fresh sequences: the learned weights, nothing seen."""
        weights = tuple(w.to(dtype).expand(rows, *w.shape) for w in self._start())
        blank, rule, dims = weights[0], self.rule(), self.dims
        window: Window = self.window  # type: ignore[assignment]
        width = window.said_width
        shape = (rows, rule.window - 1, dims.heads)
        return MemoryState(
            weights=weights,
            base=weights if self.chunk > 1 else (),
            momentum=self._blank_momentum(weights),
            keys=blank.new_zeros(*shape, dims.key),
            values=blank.new_zeros(*shape, dims.value + self.bias.extra),
            step=blank.new_zeros(rows, dims.heads) if rule.group > 1 else None,
            filled=0,
            position=0,
            said=None
            if width is None
            else blank.new_zeros(rows, window.length - 1, dims.heads, width),
            tail=self._blank_tail(blank, rows),
        )

    def _blank_tail(self, blank: Tensor, rows: int) -> Tensor | None:
        optimizer = self.inner_optimizer
        if not isinstance(optimizer, MultiStepGradientDescent) or optimizer.steps == 1:
            return None
        return blank.new_zeros(rows, *optimizer.tail)

    def _blank_momentum(self, weights: Weights) -> Weights:
        if self.inner_optimizer.ridge is not None:
            return tuple(w.new_zeros(*w.shape[:2], w.shape[-1], w.shape[-1]) for w in weights)
        has_momentum = self.inner_optimizer.has_momentum
        return tuple(torch.zeros_like(w) for w in weights) if has_momentum else ()


def _check(
    memory: nn.Module,
    feature_map: nn.Module,
    optimizer: InnerOptimizer,
    newton_schulz: NewtonSchulz | None,
    chunk: int,
) -> None:
    if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
        raise ValueError(f"chunk={chunk!r}: must be a whole number >= 1 (1 is the online rule)")
    name = type(optimizer).__name__
    wants = "newton_schulz" in type(optimizer).axes
    if wants and newton_schulz is None:
        raise ValueError(f"inner_optimizer={name} without newton_schulz: it needs one")
    if not wants and newton_schulz is not None:
        raise ValueError(
            f"newton_schulz={type(newton_schulz).__name__} with inner_optimizer={name}: "
            "only Muon has it; leave newton_schulz out or choose Muon"
        )
    given = feature_map.width
    made = memory.takes if isinstance(memory, VectorMemory) else memory.shapes[0][1]  # type: ignore[index]
    if made != given:
        raise ValueError(
            f"{type(memory).__name__} was built for feature width {made}, but "
            f"{type(feature_map).__name__} gives {given}: pass feature_map.width to the memory"
        )
