"""What a model costs before it runs: parameters, state, arithmetic and memory."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ablate.components.language_model import LanguageModel
from ablate.components.state_size import state_bytes
from ablate.errors import UserError
from ablate.trial.build import build_model
from ablate.trial.long_context import extrapolate, short_lengths
from ablate.trial.space import Model
from ablate.trial.train import token_loss

REAL = 1e8
OPTIMIZER_BYTES = 16  # of one parameter in float32: itself, its gradient and AdamW's two moments


@dataclass(frozen=True)
class Cost:
    """What one model costs.

    Args:
        parameters: trainable and fixed numbers of the model.
        state_bytes: what it carries for one row after one context.
        flops_per_token: matrix products, convolutions and attention of one training step
            (forward and backward), for one token; elementwise work is not counted.
        memory_bytes: about what training holds at its peak: weights, gradients, AdamW's moments
            and what the forward pass keeps for the backward one, for a whole batch.
        seconds_per_trial: how long one trial takes on this machine.
        time_from: where that time comes from: ``runs`` in the ledger, a ``probe``, an ``estimate``
            from the counts alone, or ``gpu_rate``, counted operations at the rate of a GPU that is
            asked for and not here.
    """

    parameters: int | None = None
    state_bytes: int | None = None
    flops_per_token: float | None = None
    memory_bytes: int | None = None
    seconds_per_trial: float | None = None
    time_from: str | None = None


@dataclass(frozen=True)
class Work:
    """One training step on one row, as counted.

    Args:
        parameters: of the model.
        state_bytes: after the row.
        flops: of matrix products, convolutions and attention.
        operations: how many calls of PyTorch's kernels; as many for a whole batch.
        written: bytes of all their results.
        kept: bytes that the forward pass keeps for the backward one.
        trace: what one block computes from seed 0: the loss and a sum of the embedding's gradient;
            empty on the meta device. Equal traces are a sign of equal models.
        unreached: the block's parameters that no gradient reaches, on real numbers.
    """

    parameters: int
    state_bytes: int
    flops: float
    operations: int
    written: int
    kept: int
    trace: tuple[float, ...] = ()
    unreached: tuple[str, ...] = ()


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let PyTorch use `count` threads inside, and as many as before after."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Counter(TorchDispatchMode):
    """Counts operations and sums the formulas of `torch.utils.flop_counter`.

    Its own FlopCounterMode imports torch's compiler first, which takes longer than the counting.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = self.operations = self.written = 0
        self._kept: dict[int, Tensor] = {}

    @property
    def kept(self) -> int:
        """Bytes that a backward pass keeps, each storage once."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._kept.values())

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.operations += 1
        if isinstance(out, Tensor):
            self.written += out.numel() * out.element_size()
        if formula := _formulas().get(func._overloadpacket):
            self.flops += formula(*map(_shape, args), out_shape=_shape(out), **kwargs)
        return out

    def keep(self, tensor: Tensor) -> Tensor:
        """Remember one tensor that a backward pass needs."""
        if not isinstance(tensor, torch.nn.Parameter):
            self._kept.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor


@functools.cache
def _formulas() -> dict[Any, Callable[..., int]]:
    # The registry wraps each formula in a walk through nested containers, which is slow.
    return {packet: getattr(f, "__wrapped__", f) for packet, f in flop_registry.items()}


def _shape(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(map(_shape, value))
    return value.shape if isinstance(value, Tensor) else value


def measure_cost(
    model: Model, vocab: int, context: int, *, batch: int = 1, allow: Iterable[str] = (),
    where: str = "",
) -> Cost:  # fmt: skip
    """Build the model and count over one row of one context.

    Raises:
        UserError: a value that a constructor refuses.
    """
    work = count_work(model, vocab, context, allow=allow, where=where)
    return Cost(
        parameters=work.parameters,
        state_bytes=work.state_bytes,
        flops_per_token=work.flops / context,
        memory_bytes=OPTIMIZER_BYTES * work.parameters + batch * work.kept,
    )


def count_parameters(
    model: Model, vocab: int, *, allow: Iterable[str] = (), where: str = ""
) -> int:
    """Parameters of a model, from shapes alone.

    Raises:
        UserError: a value that a constructor refuses.
    """
    short, times = shortest(model)
    built = build_model(short, vocab, seed=0, device="meta", allow=allow, where=where)
    blocks = _size(built.blocks)
    return _size(built) - blocks + times * blocks


def shortest(model: Model) -> tuple[Model, int]:
    """The model with as few blocks as repeat, and how often they do.

    All blocks are alike, or those of one period of a hybrid that takes turns.
    """
    layers = model["backbone"]["layers"]
    period = (model.get("hybrid") or {}).get("period", 1)
    if not isinstance(layers, int) or not isinstance(period, int) or period < 1 or layers < 1:
        return model, 1  # the constructors say what is wrong with it
    if layers % period:
        return model, 1
    return {**model, "backbone": {**model["backbone"], "layers": period}}, layers // period


def count_work(
    model: Model, vocab: int, context: int, *, allow: Iterable[str] = (), where: str = ""
) -> Work:
    """Count one training step of one row; each model once in a process.

    Raises:
        UserError: a value that a constructor refuses.
    """
    key = json.dumps({**model, "name": ""}, sort_keys=True)
    try:
        return _count(key, vocab, context, tuple(allow))
    except UserError as error:
        raise UserError(f"{where}: {error}" if where else str(error)) from error
    except Exception as error:  # several types, by where PyTorch finds it
        if "overflow" not in str(error).lower():
            raise
        text = "the model has a tensor of more numbers than PyTorch can count"
        raise UserError(f"{where}: {text}" if where else text) from error


@functools.lru_cache(maxsize=1024)
def _count(model: str, vocab: int, context: int, allow: tuple[str, ...]) -> Work:
    """Count a context, or several short ones that say what it costs."""
    spec = json.loads(model)
    lengths = [] if _is_small(spec, context) else short_lengths(spec, context)

    def counts(length: int) -> tuple[int, ...]:
        one = _count_whole(model, vocab, length, allow)
        parts = (one.parameters, one.state_bytes, int(one.flops), one.operations)
        return (*parts, one.written, one.kept)

    found = extrapolate(counts, lengths, context) if lengths else None
    if found is None:
        return _count_whole(model, vocab, context, allow)
    parameters, state, flops, operations, written, kept = found
    return Work(parameters, state, flops, operations, written, kept)


def _count_whole(model: str, vocab: int, context: int, allow: tuple[str, ...]) -> Work:
    """Count the blocks that repeat, and what is around the blocks."""
    spec, times = shortest(json.loads(model))
    device = "cpu" if _is_small(spec, context) else "meta"
    # Tensors this small are slower on many threads, and far slower on a busy machine.
    with threads(1):
        built = build_model(spec, vocab, seed=0, device=device, allow=allow)
        tokens = (torch.arange(context, device=device) ** 2 % vocab)[None]
        around = _count_step(lambda: built.head(built.norm(built.embedding(tokens))), tokens)
        built.zero_grad(set_to_none=True)
        state: list[Any] = []

        def run() -> Tensor:
            logits: Tensor
            logits, carried = built(tokens)
            state.append(carried)
            return logits

        whole = _count_step(run, tokens)
    per_block = (w - a for w, a in zip(whole[0], around[0], strict=True))
    flops, operations, written, kept = (
        a + times * b for a, b in zip(around[0], per_block, strict=True)
    )
    blocks = _size(built.blocks)
    return Work(
        parameters=_size(built) - blocks + times * blocks,
        state_bytes=times * state_bytes(state[0]),
        flops=flops,
        operations=operations,
        written=written,
        kept=kept,
        trace=() if device == "meta" else _trace(built, whole[1]),
        unreached=() if device == "meta" else _unreached(built),
    )


def _count_step(logits: Callable[[], Tensor], tokens: Tensor) -> tuple[list[int], Tensor]:
    """FLOPs, operations, bytes written and kept of one forward and backward pass; and its loss."""
    counter = _Counter()
    # The CPU's fused attention has no formula in torch's table; the two products in it have.
    with counter, sdpa_kernel(SDPBackend.MATH):
        with saved_tensors_hooks(counter.keep, lambda tensor: tensor):
            loss = token_loss(logits(), tokens)
        loss.backward()
    return [counter.flops, counter.operations, counter.written, counter.kept], loss


def _trace(built: LanguageModel, loss: Tensor) -> tuple[float, ...]:
    gradient = built.embedding.weight.grad
    assert gradient is not None
    weights = torch.linspace(-1, 1, gradient.numel(), dtype=torch.float64).view_as(gradient)
    return loss.item(), (gradient.double() * weights).sum().item()


def _unreached(built: LanguageModel) -> tuple[str, ...]:
    return tuple(
        name
        for name, parameter in built.blocks.named_parameters()
        if parameter.requires_grad and (parameter.grad is None or not parameter.grad.any())
    )


def _size(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _is_small(model: Model, context: int) -> bool:
    """Whether a real step is quicker than the meta device, whose kernels are written in Python."""
    backbone = model["backbone"]
    return bool(backbone["dim"] ** 2 * context < REAL)
