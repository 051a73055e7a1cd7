"""Build a model from its plain dict: the only place where Hydra instantiates a class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ablate.components.backbone import Backbone
from ablate.components.exponential import ExponentialMemory
from ablate.components.hybrid import Hybrid
from ablate.components.kernels.backend import set_backend
from ablate.components.language_model import LanguageModel
from ablate.components.neural_memory import NeuralMemory
from ablate.errors import UserError
from ablate.trial.space import (
    AXES,
    LAYER,
    ConfigDirs,
    Inactive,
    Model,
    apply,
    check_component,
    choices,
    compose_model,
    is_kernel,
    resolve,
    target_class,
)
from ablate.trial.streams import torch_generator

__all__ = [
    "AXES",
    "ConfigDirs",
    "Inactive",
    "Model",
    "apply",
    "build_model",
    "check_component",
    "choices",
    "compose_model",
    "initialise",
    "resolve",
]


def build_model(
    model: Model,
    vocab: int,
    *,
    seed: int,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    allow: Iterable[str] = (),
    where: str = "",
    backend: str = "auto",
) -> LanguageModel:
    """Build and initialise; on the device ``meta`` shapes only, without weights.

    Weights are drawn on the CPU in float32, so they do not depend on device or dtype. `backend`
    says what runs the operations that have kernels (`ablate.components.kernels.backend`).

    Raises:
        UserError: anything that `resolve` refuses, a value that a constructor refuses, or a backend
            that cannot be had here.
    """
    allow = tuple(allow)
    spec = resolve(model, allow=allow, where=where)
    on_meta = device == "meta"
    with shapes_only() if on_meta else torch.device("cpu"):
        backbone = make_part("backbone", spec["backbone"], allow=allow, where=where)
        assert isinstance(backbone, Backbone)
        hybrid: Hybrid = make_part("hybrid", spec["hybrid"], allow=allow, where=where)
        try:
            layers = hybrid.layers(
                backbone, lambda other=None: make_mixer(other or spec, backbone, allow, where)
            )
        except UserError:
            raise
        except ValueError as error:
            raise UserError(f"{where}: {error}" if where else str(error)) from error
        built = LanguageModel(vocab, backbone, layers)
    if not on_meta:
        initialise(built, seed)
    built = built.to(device=device, dtype=dtype)
    if not on_meta:
        try:
            set_backend(built, backend, torch.device(device))
        except ValueError as error:
            raise UserError(f"{where}: {error}" if where else str(error)) from error
    return built


@contextmanager
def shapes_only() -> Iterator[None]:
    """Let everything made inside have shapes alone, on the meta device."""
    with torch.device("meta"), _Undrawn():
        yield


class _Undrawn(TorchFunctionMode):
    """Leaves out the draws of PyTorch's own constructors.

    On the meta device the first would load PyTorch's compiler, which takes seconds.
    """

    draws = (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func in self.draws:
            return given["tensor"] if "tensor" in given else args[0]
        return func(*args, **given)


def make_mixer(
    spec: Model,
    backbone: Backbone,
    allow: tuple[str, ...],
    where: str,
    part: Callable[..., Any] | None = None,
) -> nn.Module:
    """One layer's mixer: attention as it is, or a neural memory put together from its axes.

    Args:
        spec: a resolved model.
        part: what makes one component, `make_part` by default.
    """

    def make(axis: str, *given: object) -> Any:
        return spec[axis] and (part or make_part)(
            axis, spec[axis], *given, allow=allow, where=where
        )

    dims = backbone.dims
    memory = target_class(spec["memory"]["_target_"], allow=allow)
    if getattr(memory, "is_mixer", False):
        mixer: nn.Module = make("memory", dims)
        return mixer
    feature_map = make("feature_map", dims)
    parts = {axis: make(axis, dims) for axis in AXES if axis not in ("memory", "feature_map")}
    parts |= {"memory": make("memory", dims, feature_map.width), "feature_map": feature_map}
    layer = ExponentialMemory if is_kernel(spec, allow) else NeuralMemory
    try:
        return layer(dims, **parts, **{key: spec[key] for key in LAYER})
    except ValueError as error:
        raise UserError(f"{where}: {error}" if where else str(error)) from error


def make_part(
    axis: str, component: Model, *given: object, allow: tuple[str, ...], where: str
) -> Any:
    """Instantiate one component; what its constructor refuses is the user's mistake."""
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    target_class(component["_target_"], allow=allow, where=where)
    try:
        return instantiate(component, *given, _recursive_=False, _convert_="all")
    except InstantiationException as error:
        if not isinstance(error.__cause__, ValueError):
            raise
        place = f"{where}: " if where else ""
        raise UserError(f"{place}{axis}: {error.__cause__}") from error


def initialise(model: nn.Module, seed: int) -> None:
    """Set every parameter, each from its own stream ``init/<qualified name>``, in place.

    A module with ``init_weights(stream)`` sets its own (and may overrule its children's); linear,
    convolution and embedding weights are normal with variance 1 / fan-in, their biases zero.

    Raises:
        TypeError: a module has parameters and neither ``init_weights`` nor a rule here.
        ValueError: ``init_weights`` left a parameter unset.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
        # Children come first, so that a parent has the last word.
        for path, module in reversed(list(model.named_modules())):
            _initialise_one(module, path, seed)
    for path, parameter in model.named_parameters():
        if parameter.isnan().any():
            raise ValueError(f"{path} was left unset; init_weights must set every parameter.")


def _initialise_one(module: nn.Module, path: str, seed: int) -> None:
    def stream(name: str) -> torch.Generator:
        return torch_generator(seed, f"init/{path}.{name}" if path else f"init/{name}")

    own = [name for name, _ in module.named_parameters(recurse=False)]
    rule: Callable[..., None] | None = getattr(module, "init_weights", None)
    if rule is not None:
        rule(stream)
    elif isinstance(module, (nn.Linear, nn.Embedding, nn.Conv1d)):
        _normal_fan_in(module, stream)
    elif own:
        raise TypeError(
            f"{path} ({type(module).__name__}) has parameters {', '.join(own)} and no rule to set "
            "them: give it init_weights(stream)."
        )


def _normal_fan_in(
    module: nn.Linear | nn.Embedding | nn.Conv1d, stream: Callable[[str], torch.Generator]
) -> None:
    fan_in = module.weight[0].numel()
    module.weight.normal_(0.0, fan_in**-0.5, generator=stream("weight"))
    bias = getattr(module, "bias", None)
    if bias is not None:
        bias.zero_()
