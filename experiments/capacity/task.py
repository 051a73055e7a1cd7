"""Recall of n random pairs from one memory: where it breaks off is the memory's capacity."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from ablate.errors import UserError
from ablate.experiments.capacity.memory import FeatureMap, Writer, lift, read, write, write_exactly
from ablate.experiments.task import Row, at_least, check_limits

PROTOCOL = "capacity-1"
"""Changed with anything that changes the pairs drawn."""
REPORTS = 16
RECALLED = 0.01
"""A pair is recalled if its squared error is below this share of its value's square."""
DEFAULT_LR: dict[Writer, float] = {"gd": 1.0, "momentum": 0.3, "muon": 0.05, "adam": 0.02}
MLP_SHARE = 0.25
"""An MLP is steeper than its inputs say: gradient descent at the matrix's rate may diverge."""
Stream = Callable[[str], np.random.Generator]


@dataclass(frozen=True, kw_only=True)
class CapacityTask:
    """Recall error of a memory that random pairs were written into (Atlas section 3.1).

    Args:
        pairs: n, random keys with random values of length 1.
        key: d_k, width of a key.
        value: d_v, width of a value.
        unit_keys: keys lie on the unit sphere, as the models' do, and are not Gaussian. There the
            squares sum to 1, so that polynomials have fewer independent features.
        feature_map: what the memory reads; all but ``identity`` are polynomials of `degree`.
        degree: p, of the polynomial.
        layers: 1 is a matrix; more is an MLP with GELU between.
        hidden: width of each hidden layer.
        writer: ``exact`` is the least-squares optimum (a matrix only); the others take `passes`
            steps on the gradient of all pairs.
        lr: of the writer; None takes `DEFAULT_LR`.
        passes: over all pairs.

    Raises:
        UserError: a number is out of range, or an MLP is to be written exactly.
    """

    pairs: int = 8
    key: int = 8
    value: int = 8
    unit_keys: bool = False
    feature_map: FeatureMap = "identity"
    degree: int = 2
    layers: int = 1
    hidden: int = 32
    writer: Writer = "exact"
    lr: float | None = None
    passes: int = 1_000

    name: ClassVar[Literal["capacity"]] = "capacity"
    metrics: ClassVar[tuple[str, ...]] = ("final/error", "final/recalled", "train/error")

    def __post_init__(self) -> None:
        sizes = ("pairs", "key", "value", "degree", "layers", "hidden", "passes")
        check_limits(self, at_least(1, *sizes))
        if self.lr is not None and not 0 < self.lr < math.inf:
            raise UserError(f"task_args.lr={self.lr!r}: must be above 0, or null for the default.")
        if self.writer == "exact" and self.layers > 1:
            raise UserError(
                f"task_args.writer=exact with task_args.layers={self.layers}: only a matrix "
                "(layers=1) has an exact optimum; the writers gd, momentum, muon and adam train."
            )

    @property
    def rate(self) -> float:
        """The learning rate used."""
        if self.lr is not None:
            return self.lr
        careful = MLP_SHARE if self.layers > 1 and self.writer in ("gd", "momentum") else 1.0
        return careful * DEFAULT_LR.get(self.writer, 0.0)

    @property
    def features(self) -> int:
        """Width of what the memory reads: d, C(d+p, p), sum_i d^i or 1 + p d."""
        d, p = self.key, self.degree
        widths: dict[FeatureMap, int] = {
            "identity": d,
            "monomial": math.comb(d + p, p),
            "kronecker": sum(d**i for i in range(p + 1)),
            "elementwise": 1 + p * d,
        }
        return widths[self.feature_map]

    @property
    def independent(self) -> int:
        """How many keys have linearly independent features: the capacity of a matrix."""
        d, p = self.key, self.degree
        lost = self.unit_keys and p > 1
        if self.feature_map == "elementwise":
            return self.features - lost  # the squares sum to the constant
        if self.feature_map == "identity":
            return d
        # Kronecker features hold every monomial, some of them several times. On the sphere a
        # monomial times |k|^2 is the monomial itself.
        return math.comb(d + p, p) - lost * math.comb(d + p - 2, max(0, p - 2))

    @property
    def widths(self) -> list[int]:
        """Widths of the memory's layers, input and output included."""
        return [self.features, *[self.hidden] * (self.layers - 1), self.value]

    def data_identity(self) -> str:
        """Hash of the generator's version: the pairs follow from it, the arguments and the seed."""
        return hashlib.sha256(PROTOCOL.encode()).hexdigest()[:12]

    def info(self) -> dict[str, float | str]:
        """What theory says of a matrix, and the memory's size.

        Values are random, so of n > D pairs a matrix on D features leaves 1 - D / n on average.
        """
        widths = self.widths
        weights = sum(rows * columns for rows, columns in zip(widths[1:], widths, strict=False))
        facts: dict[str, float | str] = {
            "protocol": PROTOCOL,
            "lr": self.rate,
            "memory_weights": float(weights),
            "pairs_per_weight": self.pairs * self.value / weights,
            "zero_output_error": 1.0,
        }
        if self.layers == 1:
            facts["capacity"] = float(self.independent)
            facts["expected_error"] = max(0.0, 1 - self.independent / self.pairs)
        return facts

    def draw(self, stream: Stream) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n e"]]:
        """Keys and values. The first pairs of two tasks of one seed are the same."""
        keys = _drawn(stream("keys"), self.pairs, self.key)
        return _unit(keys) if self.unit_keys else keys, _unit(
            _drawn(stream("values"), self.pairs, self.value)
        )

    def run(self, stream: Stream, report: Callable[[Row], None]) -> None:
        """Write the pairs and report errors on the way, before each pass, and after the last.

        A row has ``train/error``, the mean squared error over pairs (values have length 1); the
        last one also ``final/error``, the same number, and ``final/recalled``, the share of pairs
        with an error below `RECALLED`. A memory that diverges reports what it got, and stops there.
        """
        started = time.perf_counter()
        keys, values = self.draw(stream)
        features = lift(keys, self.feature_map, self.degree)
        if self.writer == "exact":
            memory = [write_exactly(features, values)]
            errors = (read(memory, features) - values).square().sum(-1)
            report(self._row(1, errors, time.perf_counter() - started, ended=True))
            return
        weights = [torch.from_numpy(weight) for weight in self.first_weights(stream("memory"))]
        wanted = report_steps(self.passes)
        writing = write(
            weights, features, values, writer=self.writer, lr=self.rate, passes=self.passes
        )
        for done, errors in enumerate(writing):
            ended = done == self.passes or not bool(errors.isfinite().all())
            if ended or done in wanted:
                report(self._row(done, errors, time.perf_counter() - started, ended=ended))
            if ended:
                return

    def _row(self, step: int, errors: Tensor, seconds: float, *, ended: bool) -> Row:
        mean = errors.mean().item()
        metrics = {"train/error": mean}
        if ended:
            recalled = (errors < RECALLED).double().mean().item()
            metrics |= {"final/error": mean, "final/recalled": recalled}
        return Row(step, step * self.pairs, seconds, metrics)

    def first_weights(self, draws: np.random.Generator) -> list[NDArray[np.float64]]:
        """A matrix starts at zero, to end at the smallest optimum; an MLP as `torch.nn.Linear`."""
        shapes = list(zip(self.widths[1:], self.widths, strict=False))
        if self.layers == 1:
            return [np.zeros(shapes[0])]
        return [draws.uniform(-1, 1, shape) / math.sqrt(shape[1]) for shape in shapes]


def report_steps(passes: int) -> list[int]:
    """After which passes to report: evenly spaced, the last at the end; none twice."""
    return sorted({max(1, round(passes * part / REPORTS)) for part in range(1, REPORTS + 1)})


def _drawn(draws: np.random.Generator, count: int, width: int) -> Float[Tensor, "n d"]:
    """Gaussian rows of length 1 on average."""
    return torch.from_numpy(draws.standard_normal((count, width))) / math.sqrt(width)


def _unit(rows: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    unit: Tensor = rows / rows.norm(dim=1, keepdim=True)
    return unit


TASK = CapacityTask
