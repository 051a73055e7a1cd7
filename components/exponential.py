"""Memories of infinite width by the kernel trick: DeepTransformers, SWDT and Dot.

phi*(x) = (1, x, x (x) x / sqrt(2!), ...) has phi*(q) . phi*(k) = exp(q . k) (Atlas Eq. 22-23). It
is never made: `recurrence.kernel` keeps what the sequence wrote as keys and hidden values. A matrix
memory with the dot bias is un-normalised softmax attention; a deep one is attention in its first
layer and linear attention over hidden features in its second (DeepTransformers).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.components.attention import rotate
from ablate.components.bias import L2, Bias, Dot
from ablate.components.dims import Dims
from ablate.components.inner_optimizer import GradientDescent, InnerOptimizer
from ablate.components.memory import GatedMLPMemory, MatrixMemory, Memory, MLPMemory, Weights
from ablate.components.memory_layer import MemoryLayer, wide_numbers
from ablate.components.recurrence.coefficients import Gates
from ablate.components.recurrence.kernel import KernelState, run_kernel
from ablate.components.recurrence.pairs import KernelRule, first_outputs, read_pairs
from ablate.components.retention import (
    ConstantRetention,
    NoRetention,
    Retention,
    ScalarRetention,
)
from ablate.components.window import OmegaWindow

EXIST: dict[str, tuple[type, ...]] = {
    "memory": (MatrixMemory, MLPMemory, GatedMLPMemory),
    "retention": (NoRetention, ConstantRetention, ScalarRetention),
    "inner_optimizer": (GradientDescent,),
}


class Exponential(nn.Module):
    """phi*, known by its kernel exp(s (x . y - 1)) alone; s is learned for each head.

    Queries and keys have length 1, so without s the kernel would be flat. It starts at sqrt(key
    width), where random pairs have logits of variance 1. The -1 makes K(x, x) = 1: with plain
    exp(s x . y) a step size would have to stay below 2 exp(-s).

    The first weight of a memory starts in the span of learned anchors, W phi*(x) = A exp(Z x), so
    A takes the place of a matrix and `width` is the number of anchors.

    Args:
        dims: widths.
        anchors: points in key space whose features the initial memory is made of; 0 makes it
            empty, which only a matrix can be.
        normalised: divide reads by the kernel mass of what they see, as softmax does.
        span: a read sees the last `span` tokens only (and the anchors): SWDT as sliding-window
            attention is to attention. None: all tokens.
        rope: rotate queries and keys by their position, as attention does (MIRAS section 5.4); the
            anchors stand at none.

    Raises:
        ValueError: `anchors` < 0, `span` < 1, or an odd key width with `rope`.
    """

    axes: ClassVar[tuple[str, ...]] = ()
    principal: ClassVar[str | None] = "anchors"
    source: ClassVar[str] = "Atlas Eq. 22-26; Table 1, rows DeepTransformer, SWDT and Dot"
    is_kernel: ClassVar[bool] = True

    def __init__(
        self,
        dims: Dims,
        *,
        anchors: int = 16,
        normalised: bool = False,
        span: int | None = None,
        rope: bool = False,
    ) -> None:
        super().__init__()
        if anchors < 0:
            raise ValueError(f"Exponential.anchors={anchors!r}: must be a whole number >= 0")
        if span is not None and span < 1:
            raise ValueError(f"Exponential.span={span!r}: must be None or a whole number >= 1")
        if rope and dims.key % 2:
            raise ValueError(f"Exponential.rope=True needs an even key width, not {dims.key}")
        self.width, self.normalised, self.span, self.key = anchors, normalised, span, dims.key
        self.rope = rope
        self.anchors = nn.Parameter(torch.empty(dims.heads, anchors, dims.key))
        self.log_scale = nn.Parameter(torch.empty(dims.heads))

    def init_weights(self, stream: Callable[[str], torch.Generator]) -> None:
        """Draw anchors on the unit sphere, where the keys are; start s at sqrt(key width)."""
        nn.init.normal_(self.anchors, generator=stream("anchors"))
        with torch.no_grad():
            self.anchors.div_(self.anchors.norm(dim=-1, keepdim=True))
        nn.init.constant_(self.log_scale, 0.5 * math.log(self.key))

    def kernel(
        self, x: Float[Tensor, "p n d"], y: Float[Tensor, "p s d"]
    ) -> Float[Tensor, "p n s"]:
        """exp(s (x . y - 1)); heads are the faster index of p."""
        scale = self.log_scale.to(x.dtype).exp().repeat(x.shape[0] // len(self.log_scale))
        return torch.exp(scale[:, None, None] * (torch.bmm(x, y.mT) - 1))


class ExponentialMemory(MemoryLayer[KernelState]):
    """The neural memory layer for feature maps that are known by their kernel.

    The same update as `NeuralMemory` with gradient descent; the state grows with the sequence.

    Args:
        dims: widths.
        memory, feature_map, window, bias, retention, inner_optimizer, newton_schulz: the axes.
        chunk: tokens whose inner gradients share one memory; None takes all gradients at the
            sequence's start, as DeepTransformers need to be run like attention.
        read: "after" the token's own write (y_n = M_n(q_n)), or "before" it (M_{n-1}(q_n)).

    Raises:
        ValueError: `chunk` < 1, an unknown `read`, or a choice that does not exist for an
            exponential map.
    """

    window: OmegaWindow
    feature_map: Exponential

    def __init__(
        self,
        dims: Dims,
        *,
        memory: nn.Module,
        feature_map: Exponential,
        window: OmegaWindow,
        bias: Bias,
        retention: Retention,
        inner_optimizer: InnerOptimizer,
        newton_schulz: nn.Module | None = None,
        chunk: int | None = None,
        read: str = "after",
    ) -> None:
        super().__init__(dims, read)
        parts = {
            "memory": memory,
            "retention": retention,
            "inner_optimizer": inner_optimizer,
        }
        for axis, part in parts.items():
            _check_exists(axis, part)
        _check_options(memory, feature_map, window, bias, newton_schulz, chunk)
        self.chunk = chunk
        self.memory, self.feature_map, self.window = memory, feature_map, window
        self.bias, self.retention, self.inner_optimizer = bias, retention, inner_optimizer

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, gates: Gates, state: KernelState
    ) -> tuple[Tensor, KernelState]:
        """Block by block."""
        return run_kernel(self.rule(), q, k, v, gates, state)

    def rule(self) -> KernelRule:
        """What the recurrence needs beside tokens and gates."""
        memory: Memory = self.memory  # type: ignore[assignment]
        plain = isinstance(self.memory, MatrixMemory) and not (
            self.memory.output.residual or self.memory.output.norm
        )
        online = self.chunk == 1 and plain and type(self.bias) is L2
        truncated = self.window.truncated and self.chunk is not None
        # The gradient of a plain matrix with the dot bias is -v, wherever it is taken.
        free = plain and isinstance(self.bias, Dot) and not truncated
        return KernelRule(
            memory=memory,
            kernel=self.feature_map.kernel,
            error=self.bias,
            chunk=None if free else self.chunk,
            window=self.seen(),
            truncated=truncated,
            normalised=self.feature_map.normalised,
            span=self.feature_map.span,
            solve=online,
            anchors=self.feature_map.width,
            turn=_turn if self.feature_map.rope else None,
            read_before=self.read == "before",
        )

    def initial_state(self, rows: int, *, dtype: torch.dtype = torch.float32) -> KernelState:
        """State of `rows` fresh sequences: the anchors and their values, nothing seen."""
        memory: Memory = self.memory  # type: ignore[assignment]
        rule, dims = self.rule(), self.dims
        initial = [w.to(dtype) for w in memory.initial()]
        later = initial[memory.fronts :]
        values = torch.cat(initial[: memory.fronts], dim=1).mT
        if rule.normalised:
            values = torch.cat([values, torch.ones_like(values[..., :1])], dim=-1)
        anchors = self.feature_map.anchors
        keys = anchors.to(dtype).expand(rows, *anchors.shape)
        values = values.expand(rows, *values.shape)
        weights = tuple(w.expand(rows, *w.shape) for w in later)
        shape = (rows, rule.window - 1, dims.heads)
        pairs = tuple(
            (values.new_zeros(rows, dims.heads, 0, i), values.new_zeros(rows, dims.heads, 0, o))
            for o, i in memory.shapes[memory.fronts :]
        )
        told = (rows, self.window.length - 1, dims.heads)
        said = self.window.said_width
        return KernelState(
            keys=keys,
            values=values,
            base=values,
            weights=weights,
            base_weights=weights,
            inner=pairs if rule.span is not None else (),
            recent_keys=values.new_zeros(*shape, dims.key),
            recent_values=values.new_zeros(*shape, dims.value + self.bias.extra),
            said=None if said is None else values.new_zeros(*told, said),
            filled=0,
            position=0,
        )

    def frozen(self, state: KernelState | None, rows: int) -> Frozen:
        """The memory as a read finds it now, for `retrieve`."""
        if state is None:
            wide = torch.promote_types(next(self.parameters()).dtype, torch.float32)
            state = self.initial_state(rows, dtype=wide)
        later = state.weights
        if state.inner:
            pairs = zip(later, state.inner, strict=True)
            later = tuple(w + u.mT @ z for w, (z, u) in pairs)
        return Frozen(state.keys, state.values, later, state.tokens)

    def retrieve(self, q: Float[Tensor, "b t h d"], frozen: Frozen) -> Float[Tensor, "b t h e"]:
        """M(q) without a write; with `rope` the queries stand where the first new token will."""
        memory: Memory = self.memory  # type: ignore[assignment]
        rule = self.rule()
        with wide_numbers(q) as wide:
            asked = q.to(wide)
            turned = asked
            if rule.turn is not None:  # each query alone, so that all stand at one position
                turned = rule.turn(asked.flatten(0, 1).unsqueeze(1), frozen.tokens).view_as(asked)
            raw, turned = (part.transpose(1, 2).flatten(0, 1) for part in (asked, turned))
            keys, values, *later = (
                part.to(wide).flatten(0, 1) for part in (frozen.keys, frozen.values, *frozen.later)
            )
            outputs = first_outputs(rule, read_pairs(rule, raw, turned, keys, values))
            y = memory.read(outputs, raw, lambda j, z: torch.bmm(z, later[j - memory.fronts].mT))
        read: Tensor = y.unflatten(0, (q.shape[0], -1)).transpose(1, 2)
        return read.to(q.dtype)


class Frozen(NamedTuple):
    """A memory that is read without a write: keys, hidden values, later weights, tokens so far."""

    keys: Float[Tensor, "b h s d"]
    values: Float[Tensor, "b h s o"]
    later: Weights
    tokens: int


def _turn(x: Tensor, start: int) -> Tensor:
    return rotate(x, start=start)


def _check_exists(axis: str, part: nn.Module) -> None:
    known = EXIST[axis]
    if type(part) not in known:
        names = ", ".join(cls.__name__ for cls in known)
        raise ValueError(
            f"{axis} {type(part).__name__} with an exponential feature_map: its features are "
            f"infinitely many, and only these exist by the kernel trick: {names}"
        )


def _check_options(
    memory: nn.Module,
    feature_map: Exponential,
    window: OmegaWindow,
    bias: Bias,
    newton_schulz: nn.Module | None,
    chunk: int | None,
) -> None:
    if newton_schulz is not None:
        raise ValueError("newton_schulz with an exponential feature_map: there is no matrix")
    if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1):
        raise ValueError(f"chunk={chunk!r}: must be None (whole sequence) or a whole number >= 1")
    if feature_map.width == 0 and not isinstance(memory, MatrixMemory):
        raise ValueError(
            "feature_map.anchors=0 with a deep memory: its first layer would say 0 of every key, "
            "so its second would never be written; give at least 1"
        )
    span, length = feature_map.span, window.length
    if span is None:
        return
    if chunk is not None or not isinstance(bias, Dot):
        raise ValueError(
            f"feature_map.span={span} needs bias dot and chunk null: otherwise tokens outside the "
            "span would still act, through the memory that later gradients are taken at"
        )
    if span < length:
        raise ValueError(f"feature_map.span={span} is shorter than window.length={length}")
