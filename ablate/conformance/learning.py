"""Checks of a model as something that is trained: gradients, numbers and a few steps."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ablate.components.backbone import ProjectedMixer, unit
from ablate.components.language_model import LanguageModel
from ablate.conformance.subject import Subject, check, gap
from ablate.trial.streams import torch_generator
from ablate.trial.train import TrainConfig, make_optimizer, token_loss

SLOPE_TOLERANCE = 1e-5
AUTOCAST_BOUND = 0.1
STEPS = 20


@check(
    "the gradient of every parameter is the slope that finite differences give (float64)",
    "Training would follow something else than the loss. Usual causes: .detach() or no_grad where "
    "none belongs, an operation in place, a custom backward that is wrong, a round trip through "
    "numpy, a hard threshold.",
)
def check_gradients(subject: Subject) -> tuple[bool, str]:
    """Go a little along one random direction for each parameter, and compare."""
    model, tokens = subject.copy(), subject.tokens[:, : subject.chunk + 3]
    _probe_loss(model, tokens).backward()
    worst, at = 0.0, ""
    with torch.no_grad():
        for name, parameters in _grouped(model):
            error = _slope_error(model, tokens, parameters, name)
            if not error <= worst:
                worst, at = error, name
    passed = worst <= SLOPE_TOLERANCE
    return passed, f"largest relative error {worst:.2g}" + ("" if passed else f" at {at}")


def _slope_error(
    model: LanguageModel, tokens: Tensor, parameters: list[nn.Parameter], name: str
) -> float:
    """Smallest relative error over three sizes of step: a wrong gradient is wrong at each."""
    generator = torch_generator(0, f"conformance/direction/{name}")
    pairs = [
        (p, torch.randn(p.shape, generator=generator, dtype=p.dtype))
        for p in parameters
        if p.grad is not None
    ]
    slope = 0.0
    for parameter, direction in pairs:
        assert parameter.grad is not None
        slope += (parameter.grad * direction).sum().item()
    best = math.inf
    for size in (1e-6, 1e-7, 1e-5):
        numeric = _difference(model, tokens, pairs, size)
        error = abs(slope - numeric) / max(abs(slope), abs(numeric), 1e-3)
        best = min(best, error)
        if best <= SLOPE_TOLERANCE:
            break
    return best


def _grouped(model: LanguageModel) -> list[tuple[str, list[nn.Parameter]]]:
    """Parameters of mixers one by one, those of the backbone together: these are all checked."""
    mixers = [module.mixer for module in model.modules() if isinstance(module, ProjectedMixer)]
    own = {id(parameter) for mixer in mixers for parameter in mixer.parameters()}
    named = list(model.named_parameters())
    alone = [(name, [parameter]) for name, parameter in named if id(parameter) in own]
    return [*alone, ("the backbone", [p for _, p in named if id(p) not in own])]


def _difference(
    model: LanguageModel, tokens: Tensor, pairs: list[tuple[nn.Parameter, Tensor]], size: float
) -> float:
    """Slope of the loss along a direction, from both sides."""
    losses = []
    for move in (size, -2 * size):
        for parameter, direction in pairs:
            parameter.add_(direction, alpha=move)
        losses.append(_probe_loss(model, tokens).item())
    for parameter, direction in pairs:
        parameter.add_(direction, alpha=size)
    return (losses[0] - losses[1]) / (2 * size)


def _probe_loss(model: LanguageModel, tokens: Tensor) -> Tensor:
    """A number to which every logit of every token adds its own share."""
    logits, _ = model(tokens)
    weights = torch.randn(logits.shape, generator=torch_generator(0, "conformance/probe"))
    loss: Tensor = (logits * weights.to(logits)).sum()
    return loss


@check(
    "every parameter gets a gradient that is finite and not zero",
    "A parameter does nothing: it is counted and never learns. Usual causes: it is not used in "
    "forward, a gate that is always 0 or 1 cuts it off, a later part undoes what it does (a scale "
    "before a norm).",
)
def check_parameters(subject: Subject) -> tuple[bool, str]:
    """One backward pass."""
    model = subject.copy()
    _probe_loss(model, subject.tokens).backward()
    wrong = []
    learned = [(name, part) for name, part in model.named_parameters() if part.requires_grad]
    for name, parameter in learned:
        if parameter.grad is None or not parameter.grad.any():
            wrong.append(f"{name} gets none")
        elif not parameter.grad.isfinite().all():
            wrong.append(f"{name} gets one that is not finite")
    count = len(learned)
    shown = "; ".join(wrong[:3]) + (f"; {len(wrong) - 3} more" if len(wrong) > 3 else "")
    return not wrong, shown or f"all {count} parameters"


@check(
    f"under bf16 autocast the logits stay within {AUTOCAST_BOUND:.0%} of those in float32",
    "Mixed precision changes the model. Usual causes: a scan, gate or state in bf16 (cast to "
    "float32 and switch autocast off inside), a difference of large numbers, an iteration that "
    "amplifies rounding.",
)
def check_autocast(subject: Subject) -> tuple[bool, str]:
    """The mean over tokens: a bias that switches may turn one token over, rounding turns all."""
    model = subject.build(dtype=torch.float32)
    with torch.no_grad():
        plain = model(subject.tokens)[0]
        with torch.autocast("cpu", torch.bfloat16):
            mixed = model(subject.tokens)[0].float()
    distance = ((mixed - plain).norm(dim=(0, 2)) / plain.norm(dim=(0, 2))).mean().item()
    return distance <= AUTOCAST_BOUND, f"mean relative distance {distance:.2g}"


@check(
    "zero, equal and large inputs, and gates at exactly 0 and 1, give finite outputs and gradients",
    "One such token turns a run into NaN. Usual causes: a division by a norm or count that can be "
    "0, the logarithm or square root of a gate, a state that grows without bound.",
)
def check_extremes(subject: Subject) -> tuple[bool, str]:
    """Feed the mixers what no trained model would."""
    model = subject.copy()
    wrong, tried = [], 0
    layers = {
        type(layer.mixer).__name__: layer
        for layer in model.modules()
        if isinstance(layer, ProjectedMixer)
    }
    for kind, layer in layers.items():
        for module, name, inputs in _cases(layer):
            model.zero_grad()
            tried += 1
            y, _ = module(*inputs)
            y.square().mean().backward()
            grads = [p.grad for p in (*inputs, *module.parameters()) if p.grad is not None]
            if not y.isfinite().all():
                wrong.append(f"{kind}: output not finite for {name}")
            elif not all(grad.isfinite().all() for grad in grads):
                wrong.append(f"{kind}: gradient not finite for {name}")
    return not wrong, "; ".join(wrong) or f"{tried} inputs, all finite"


def _cases(layer: ProjectedMixer) -> list[tuple[nn.Module, str, tuple[Tensor, ...]]]:
    """Extremes of the mixer, and of what its projections, convolution and gates are given."""
    cases = _extremes(layer)
    stream = (1e3 * cases["zero keys and queries"][3]).detach().requires_grad_()
    return [
        (layer, "a block input of 1000", (stream,)),
        *((layer.mixer, name, inputs) for name, inputs in cases.items()),
    ]


def _extremes(layer: ProjectedMixer) -> dict[str, tuple[Tensor, ...]]:
    """Queries, keys, values and block inputs, by what is extreme about them."""
    dims, rows, length = layer.dims, 2, 9
    generator = torch_generator(0, "conformance/extremes")

    def draw(*shape: int) -> Tensor:
        return torch.randn(rows, length, *shape, generator=generator, dtype=torch.float64)

    q, k = unit(draw(dims.heads, dims.key)), unit(draw(dims.heads, dims.key))
    v, x = draw(dims.heads, dims.value), draw(dims.model)
    usual = (q, k, v, x)
    cases = {
        "zeros": tuple(torch.zeros_like(part) for part in usual),
        "zero keys and queries": (torch.zeros_like(q), torch.zeros_like(k), v, x),
        "equal tokens": tuple(part[:, :1].expand_as(part) for part in usual),
        "gates at 0 or 1": (q, k, v, 1e6 * x),
        "gates the other way": (q, k, v, -1e6 * x),
        "large values": (q, k, 100 * v, x),
        "long keys": (q, 3 * k, v, x),
    }
    return {
        name: tuple(part.clone().requires_grad_() for part in parts)
        for name, parts in cases.items()
    }


@check(
    "the same weights and tokens give the same logits and gradients, to the bit",
    "A trial cannot be repeated. Usual causes: dropout or noise without a generator, a result kept "
    "from the call before, a set or dict whose order changes.",
)
def check_deterministic(subject: Subject) -> tuple[bool, str]:
    """Build and run twice."""
    runs = []
    for model in (subject.copy(), subject.build_shaken()):
        logits, _ = model(subject.tokens)
        logits.sin().sum().backward()
        grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        runs.append({"logits": logits.detach(), **grads})
    differ = [name for name in runs[0] if not torch.equal(runs[0][name], runs[1][name])]
    worst = max((gap(runs[0][name], runs[1][name]) for name in differ), default=0.0)
    return not differ, "two runs: equal" if not differ else f"{differ[0]} differs by {worst:.2g}"


@check(
    f"{STEPS} steps of training on one batch stay finite and lower the loss",
    "The model does not learn. Usual causes: an inner step so large that the memory diverges "
    "(lower lr_max or the chunk), weights that start too large, a wrong gradient.",
)
def check_trains(subject: Subject) -> tuple[bool, str]:
    """The optimiser and its settings are those of a trial."""
    losses = toy_losses(subject, STEPS)
    finite = all(math.isfinite(loss) for loss in losses)
    return finite and losses[-1] < losses[0], f"loss {losses[0]:.3f} to {losses[-1]:.3f}"


def toy_losses(subject: Subject, steps: int) -> list[float]:
    """Losses of training on one batch, from the model's own first weights in float32."""
    model = subject.build(dtype=torch.float32).train()
    config = TrainConfig()
    optimizer = make_optimizer(model, config)
    tokens, losses = subject.tokens[:, : subject.chunk + 3], []
    for _ in range(steps):
        loss = token_loss(model(tokens[:, :-1])[0], tokens[:, 1:])
        losses.append(loss.item())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
    return losses
