"""Newton-Schulz orthogonalisation of the momentum, and its derivative as a second run of itself.

X_0 = S / (|S|_F + eps), X <- a X + (b A + c A^2) X with A = X X^T (Atlas section 5; Muon, Jordan et
al. 2024). The map is an odd function of the singular values, so its derivative is self-adjoint: the
vector-Jacobian product is the same iteration on dual numbers and stores no iterates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.components.dims import Dims
from ablate.components.limits import Limit
from ablate.components.recurrence.lanes import Slopes, lanes_first

Schedule: TypeAlias = tuple[tuple[float, float, float], ...]  # (a, b, c); the last one repeats

COEFFICIENTS: dict[str, Schedule] = {
    "quintic": ((3.4445, -4.7750, 2.0315),),
    "cubic": ((1.5, -0.5, 0.0),),
    # Each step is the best odd quintic for the singular values that the steps before leave of
    # [0.001, 1]; the test derives them.
    "polar": (
        (8.28721201814563, -23.595886519098837, 17.300387312530933),
        (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
        (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
        (3.3184196573706015, -2.488488024314874, 0.51004894012372),
        (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
        (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
        (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
        (1.875, -1.25, 0.375),
    ),
}
SCALES = ("none", "shape", "rms")
GRANULARITIES = ("token", "chunk")
CACHED = 2**16  # numbers in a batch of matrices that stays in a processor's cache


def _iterate(x: Tensor, other: Tensor, poly: Tensor, schedule: Schedule) -> None:
    """Every step of `x`, which is written over in turns with `other`, where an odd step ends.

    What a step writes holds A before that: the less memory, the more of it lies in a cache.
    """
    gram, later, diagonal = _squares(other), _squares(x), poly.diagonal(dim1=1, dim2=2)
    for a, b, c in schedule:
        torch.bmm(x, x.mT, out=gram)
        _polynomial(gram, b, c, poly)
        diagonal.add_(a)
        torch.bmm(poly, x, out=other)
        x, other, gram, later = other, x, later, gram


def _iterate_dual(
    x: Tensor, other: Tensor, d: Tensor, turned: Tensor, squares: list[Tensor], schedule: Schedule
) -> None:
    """`_iterate` at x, and its derivative in direction d, by carrying both through the loop.

    With A' = C + C^T and C = d X^T, the derivative of the polynomial in A is M + M^T for
    M = b C + c A A'.
    """
    poly, slope = squares
    now, later = [_squares(y) for y in (other, turned)], [_squares(y) for y in (x, d)]
    diagonal = poly.diagonal(dim1=1, dim2=2)
    for a, b, c in schedule:
        gram, cross = now
        torch.bmm(x, x.mT, out=gram)
        torch.bmm(d, x.mT, out=cross)
        torch.add(cross, cross.mT, out=slope)
        if c:
            cross.baddbmm_(gram, slope, beta=b, alpha=c)
            torch.add(cross, cross.mT, out=slope)
        else:
            slope.mul_(b)
        _polynomial(gram, b, c, poly)
        diagonal.add_(a)
        torch.bmm(poly, d, out=turned).baddbmm_(slope, x)
        torch.bmm(poly, x, out=other)
        x, other, d, turned, now, later = other, x, turned, d, later, now


def _squares(x: Tensor) -> Tensor:
    """Squares of x's rows in its own memory."""
    count, rows, _ = x.shape
    return x.view(-1)[: count * rows**2].view(count, rows, rows)


def _polynomial(gram: Tensor, b: float, c: float, out: Tensor) -> None:
    """b A + c A^2. With a on its diagonal, no product has to begin from a copy of X."""
    if c:
        torch.baddbmm(gram, gram, gram, beta=b, alpha=c, out=out)
    else:
        torch.mul(gram, b, out=out)


def _in_cache(*whole: Tensor, wide: int, squares: int) -> Iterator[tuple[list[Tensor], ...]]:
    """Batches that a processor's cache holds through all steps: twice as fast as all at once.

    With each come the same matrices to write over: `wide` ones of the size of the first of `whole`
    and squares of its rows. They are one piece, which is likely where the last call had it.
    """
    like = whole[0]
    count, o, i = like.shape
    size = count if like.device.type != "cpu" else min(count, max(1, CACHED // (o * i)))
    sizes = [size * o * i] * wide + [size * o * o] * squares
    room = like.new_empty(sum(sizes)).split(sizes)
    wides = [x.view(size, o, i) for x in room[:wide]]
    smalls = [x.view(size, o, o) for x in room[wide:]]
    if size == count:
        yield list(whole), wides, smalls
        return
    for parts in zip(*(x.split(size) for x in whole), strict=True):
        n = parts[0].shape[0]
        yield list(parts), [x[:n] for x in wides], [x[:n] for x in smalls]


def _in_turns(schedule: Schedule, last: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """The two in the order in which steps that end in `last` write them."""
    return (last, other) if len(schedule) % 2 == 0 else (other, last)


def _dots(s: Tensor, t: Tensor) -> Tensor:
    """Frobenius products, n 1 1."""
    dots: Tensor = torch.linalg.vecdot(s.flatten(1), t.flatten(1))
    return dots[:, None, None]


def _flat(s: Tensor) -> Tensor:
    """A batch of matrices, row by row."""
    return s.reshape(-1, *s.shape[-2:]).contiguous()


def iterate(s: Float[Tensor, "*p o i"], schedule: Schedule, eps: float) -> Tensor:
    """NS of every matrix in `s`, outside of autograd; without steps, `s` itself.

    `s` may be written over.
    """
    if not schedule:
        return s
    if s.shape[-2] > s.shape[-1]:
        return iterate(s.mT, schedule, eps).mT
    made = _flat(s)
    for (x,), (other,), (poly,) in _in_cache(made, wide=1, squares=1):
        scale = _dots(x, x).sqrt_().add_(eps)
        first, second = _in_turns(schedule, x, other)
        _iterate(torch.div(x, scale, out=first), second, poly, schedule)
    return made.view(s.shape)


def derivative(
    s: Float[Tensor, "*p o i"], direction: Float[Tensor, "*p o i"], schedule: Schedule, eps: float
) -> tuple[Tensor, Tensor]:
    """NS of every matrix in `s`, and its derivative at `s`, which is self-adjoint.

    `direction` may be written over.
    """
    if not schedule:
        return s, direction
    if s.shape[-2] > s.shape[-1]:
        made, h = derivative(s.mT, direction.mT, schedule, eps)
        return made.mT, h.mT
    flat, slopes = _flat(s), _flat(direction)
    made = torch.empty_like(flat)
    for (x, out, d), (other, turned), squares in _in_cache(flat, made, slopes, wide=2, squares=2):
        n = _dots(x, x).sqrt_()
        scale = n + eps
        iterates, duals = _in_turns(schedule, out, other), _in_turns(schedule, d, turned)
        torch.div(x, scale, out=iterates[0])
        torch.div(d, scale, out=duals[0])
        _iterate_dual(*iterates, *duals, squares, schedule)
        # The norm's own share; a zero matrix has none, and its norm no derivative.
        along = _dots(d, x) / (scale * n).masked_fill_(n == 0, torch.inf)
        d.addcmul_(along, x, value=-1)
    return made.view(s.shape), slopes.view(s.shape)


class _Orthogonalise(torch.autograd.Function):
    @staticmethod
    def forward(s: Tensor, schedule: Schedule, eps: float) -> Tensor:
        return iterate(s.clone(), schedule, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Schedule, float], output: Tensor) -> None:
        s, ctx.schedule, ctx.eps = inputs
        ctx.save_for_backward(s)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], s: Tensor, schedule: Schedule, eps: float
    ) -> tuple[Tensor, int]:
        out: Tensor = _Orthogonalise.apply(s.movedim(in_dims[0], 0), schedule, eps)  # type: ignore[no-untyped-call]
        return out, 0

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (s,) = ctx.saved_tensors
        d: Tensor = _Slope.apply(s, grads[0], ctx.schedule, ctx.eps)  # type: ignore[no-untyped-call]
        return d, None, None


class _Slope(Slopes):
    """The gradient of `_Orthogonalise`."""

    @staticmethod
    def forward(s: Tensor, d: Tensor, schedule: Schedule, eps: float) -> Tensor:
        return derivative(s, d.clone(), schedule, eps)[1]

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], s: Tensor, d: Tensor, schedule: Schedule, eps: float
    ) -> tuple[Tensor, int]:
        s, d = (lanes_first(x, at, info.batch_size) for x, at in zip((s, d), in_dims, strict=False))
        out: Tensor = _Slope.apply(s, d, schedule, eps)  # type: ignore[no-untyped-call]
        return out, 0


def orthogonalise(
    s: Float[Tensor, "*p o i"],
    *,
    steps: int,
    coefficients: Schedule = COEFFICIENTS["quintic"],
    eps: float = 1e-7,
) -> Float[Tensor, "*p o i"]:
    """Apply `steps` Newton-Schulz steps to every matrix in `s`; no steps leave `s` as it is."""
    if steps == 0:
        return s
    out: Tensor = _Orthogonalise.apply(s, schedule_of(coefficients, steps), eps)  # type: ignore[no-untyped-call]
    return out


def schedule_of(coefficients: Schedule, steps: int) -> Schedule:
    """The coefficients of each of `steps` steps; the last ones given repeat."""
    return tuple(coefficients[min(i, len(coefficients) - 1)] for i in range(steps))


class NewtonSchulz(nn.Module):
    """How the momentum is orthogonalised, and after how many tokens.

    `steps` may be set on a trained model, as test-time compute: no weight depends on it.

    Args:
        dims: widths (unused; every choice takes them).
        steps: k, the number of iterations; 0 writes the raw momentum, without normalising or
            scaling it.
        coefficients: "quintic" reaches singular values in about [0.68, 1.13] from k = 3 on and
            stays there; "cubic" converges to 1, slowly; "polar" converges to 1 fast, by other
            coefficients at every step.
        granularity: tokens between writes: "token" (1), "chunk", or a whole number. Groups restart
            at every chunk start.
        eps: added to the Frobenius norm.
        scale: size of the write for a matrix of o rows and i columns: "none" (spectral norm about
            1), "shape" times sqrt(max(1, o / i)), or "rms" times 0.2 sqrt(max(o, i)).

    Raises:
        ValueError: `steps` < 0, an unknown name, a granularity < 1, or `eps` not positive.
    """

    axes: ClassVar[tuple[str, ...]] = ()
    principal: ClassVar[str | None] = "steps"
    source: ClassVar[str] = (
        "Atlas Eq. 32 and section 5; Jordan et al. 2024 (Muon; shape); Amsel et al. 2025 (polar); "
        "Liu et al. 2025 (rms)"
    )
    limits: ClassVar[tuple[Limit, ...]] = (
        Limit(
            "no steps are the raw momentum, at a step size that does not change",
            {"steps": 0, "granularity": "token"},
            {"inner_optimizer": "momentum", "inner_optimizer.lr_max": 0.1},
            given={"inner_optimizer": "muon", "inner_optimizer.lr_max": 0.1},
            held={"inner_optimizer.lr.project.weight": 0.0},
        ),
        Limit(
            "without steps nothing is scaled",
            {"steps": 0, "scale": "rms"},
            {"newton_schulz.scale": "none"},
        ),
        Limit(
            "in chunks of one token, each token writes",
            {"granularity": "chunk"},
            {"newton_schulz.granularity": "token"},
            given={"chunk": 1},
        ),
        Limit(
            "a wide matrix is not scaled by its shape",
            {"scale": "shape"},
            {"newton_schulz.scale": "none"},
            given={"memory": "matrix"},
        ),
    )

    def __init__(
        self,
        dims: Dims,
        *,
        steps: int = 5,
        coefficients: str = "quintic",
        granularity: str | int = "token",
        eps: float = 1e-7,
        scale: str = "none",
    ) -> None:
        super().__init__()
        for option, given, known in (
            ("coefficients", coefficients, tuple(COEFFICIENTS)),
            ("scale", scale, SCALES),
        ):
            if given not in known:
                names = ", ".join(known)
                raise ValueError(f"NewtonSchulz.{option}={given!r}: must be one of {names}")
        named = isinstance(granularity, str)
        if (named and granularity not in GRANULARITIES) or (
            not named and (isinstance(granularity, bool) or int(granularity) < 1)
        ):
            raise ValueError(
                f"NewtonSchulz.granularity={granularity!r}: must be token, chunk, or a number >= 1"
            )
        if not eps > 0:
            raise ValueError(f"NewtonSchulz.eps={eps!r}: must be > 0")
        self.steps, self.eps, self.granularity, self.scale = steps, eps, granularity, scale
        self.coefficients = COEFFICIENTS[coefficients]

    @property
    def steps(self) -> int:
        """k, the number of iterations; may be set at any time.

        Raises:
            ValueError: set to less than 0.
        """
        return self._steps

    @steps.setter
    def steps(self, given: int) -> None:
        if given < 0:
            raise ValueError(f"NewtonSchulz.steps={given!r}: must be >= 0 (0 is the raw momentum)")
        self._steps = given

    def group(self, chunk: int) -> int:
        """Tokens between two writes when chunks have `chunk` tokens."""
        named = {"token": 1, "chunk": chunk}
        return min(named.get(str(self.granularity)) or int(self.granularity), chunk)

    def forward(self, s: Float[Tensor, "*p o i"]) -> Float[Tensor, "*p o i"]:
        """Orthogonalise every matrix in `s`."""
        y = orthogonalise(s, steps=self.steps, coefficients=self.coefficients, eps=self.eps)
        size = self.size(*s.shape[-2:])
        return y if size == 1.0 else y * size

    @property
    def schedule(self) -> Schedule:
        """(a, b, c) of each step."""
        return schedule_of(self.coefficients, self.steps)

    def size(self, rows: int, columns: int) -> float:
        """What the orthogonalised matrix is multiplied by."""
        if self.steps == 0 or self.scale == "none":
            return 1.0
        if self.scale == "shape":
            return math.sqrt(max(1.0, rows / columns))
        return 0.2 * math.sqrt(max(rows, columns))


def set_steps(model: nn.Module, steps: int) -> int:
    """Set k in every layer of a trained model, as test-time compute; the number of layers set."""
    found = [module for module in model.modules() if isinstance(module, NewtonSchulz)]
    for module in found:
        module.steps = steps
    return len(found)
