"""The Triton kernels on a GPU: right against float64, and how near to what the GPU can do.

    python -m benchmarks.gpu [--precision highest,medium] [--only NAME] [--seconds 270] [--json]

Ceilings are measured in the same run: products of 8192 x 8192 matrices in the number type of the
kernels' factors, and a copy of 1 GiB. Times are the least of five, after the tuning of each kernel.
Exit codes: 0 every kernel is right, 1 one is wrong or does not run, 2 a wrong argument, 4 there is
no GPU or no Triton. Cases that would begin after `--seconds` are left out, and named.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ablate.components.kernels.backend import load, missing
from ablate.components.kernels.exactness import worst
from benchmarks.gpu_cases import CASES, Case

OK, WRONG, NO_GPU = 0, 1, 4
PRECISIONS = ("highest", "high", "medium")
ALLOWED = {"highest": 2e-3, "high": 0.05, "medium": 0.2}
"""Relative error of outputs and gradients; bfloat16 has 8 bits, and five steps of Newton-Schulz."""
CHECKED = 2  # rows of the batch that are compared with float64
SQUARE, COPIED, REPEATS = 8192, 1 << 30, 5
Clock = Callable[[Callable[[], Any]], float]


@dataclass(frozen=True)
class Ceilings:
    """Operations and bytes a second of a large product and a large copy."""

    flops: float
    bytes: float


@dataclass(frozen=True)
class Result:
    """One case at one precision; seconds of the kernel and of torch's form."""

    name: str
    precision: str
    error: float
    forward: float
    both: float
    torch_forward: float
    torch_both: float
    flops: float
    flops_both: float
    bytes: float
    problem: str | None = None

    @property
    def right(self) -> bool:
        """Whether it ran and is as exact as its precision allows."""
        return self.problem is None and self.error <= ALLOWED[self.precision]


def gpu_clock(call: Callable[[], Any]) -> float:
    """Seconds of a call on the current GPU, the least of some."""
    from ablate.components.kernels.tuning import seconds_on_gpu  # which cannot do without Triton

    return seconds_on_gpu(call, REPEATS)


def ceilings(
    device: torch.device, precision: str, clock: Clock, *, square: int = SQUARE,
    copied: int = COPIED,
) -> Ceilings:  # fmt: skip
    """What a product and a copy reach here."""
    kind = torch.bfloat16 if precision == "medium" else torch.float32
    a = torch.randn(square, square, device=device, dtype=kind)
    source = torch.zeros(copied, dtype=torch.uint8, device=device)
    into = torch.empty_like(source)
    product = clock(lambda: a @ a)
    return Ceilings(2 * square**3 / product, 2 * copied / clock(lambda: into.copy_(source)))


def measure(case: Case, precision: str, device: torch.device, clock: Clock) -> Result:
    """Errors and times of one case."""
    stream = torch.Generator().manual_seed(0)
    inputs = [
        (torch.randn(shape, generator=stream) / case.scale).to(device).requires_grad_()
        for shape in case.shapes
    ]
    kernel = _kernel(case)
    error = _error(case, kernel, inputs)
    outputs = _outputs(kernel, inputs)
    moved = sum(x.numel() * x.element_size() for x in (*inputs, *outputs))
    weights = [torch.ones_like(y) for y in outputs]

    def both(form: Callable[..., Any]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(_outputs(form, inputs), inputs, weights)

    def forward(form: Callable[..., Any]) -> Callable[[], Any]:
        def run() -> Any:
            with torch.no_grad():
                return _outputs(form, inputs)

        return run

    plain = _plain(case)
    return Result(
        case.name,
        precision,
        error,
        clock(forward(kernel)),
        clock(both(kernel)),
        clock(forward(plain)),
        clock(both(plain)),
        case.forward,
        2 * case.forward + case.backward,
        moved,
    )


def _kernel(case: Case) -> Callable[..., Any]:
    return functools.partial(load(case.operation), **case.words)


def _plain(case: Case) -> Callable[..., Any]:
    return functools.partial(case.form, **case.words)


def _outputs(form: Callable[..., Any], inputs: Sequence[Tensor]) -> list[Tensor]:
    made = form(*inputs)
    return [made] if isinstance(made, Tensor) else list(made)


def _error(case: Case, kernel: Callable[..., Any], inputs: Sequence[Tensor]) -> float:
    """The largest relative error of outputs and gradients, in some rows of the batch."""
    axes = case.batch or (0,) * len(inputs)
    some = [
        x.detach().narrow(axis, 0, min(CHECKED, x.shape[axis]))
        for x, axis in zip(inputs, axes, strict=True)
    ]
    found, true = (
        _with_slopes(form, [x.to(kind).requires_grad_() for x in some])
        for form, kind in ((kernel, torch.float32), (_plain(case), torch.float64))
    )
    return worst(found, true)


def _with_slopes(form: Callable[..., Any], inputs: list[Tensor]) -> list[Tensor]:
    outputs = _outputs(form, inputs)
    stream = torch.Generator().manual_seed(1)
    weights = [torch.randn(y.shape, generator=stream).to(y) for y in outputs]
    slopes = torch.autograd.grad(outputs, inputs, weights)
    return [y.detach() for y in (*outputs, *slopes)]


def run_all(
    cases: Sequence[Case], precisions: Sequence[str], device: torch.device, clock: Clock,
    *, until: float, most: dict[str, Ceilings],
) -> tuple[list[Result], list[str]]:  # fmt: skip
    """Every case at every precision, and the names of those that time was too short for."""
    results, left = [], []
    before = torch.get_float32_matmul_precision()
    try:
        for precision in precisions:
            torch.set_float32_matmul_precision(precision)
            most[precision] = ceilings(device, precision, clock)
            for case in cases:
                if time.monotonic() > until:
                    left.append(f"{case.name}, {precision}")
                    continue
                results.append(_tried(case, precision, device, clock))
    finally:
        torch.set_float32_matmul_precision(before)
    return results, left


def _tried(case: Case, precision: str, device: torch.device, clock: Clock) -> Result:
    try:
        return measure(case, precision, device, clock)
    except Exception as error:  # a compiler's or a driver's: the other kernels are tried still
        nan = float("nan")
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
        return Result(case.name, precision, *[nan] * 8, problem)


def table(results: Sequence[Result], most: dict[str, Ceilings]) -> str:
    """A line for each case, in Markdown."""
    lines = [
        "| case | products | error | right | forward ms | TFLOP/s | of product | GB/s | of copy "
        "| forward+backward ms | TFLOP/s | of product | torch / kernel, forward | both |",
        "|---" * 14 + "|",
    ]
    for one in results:
        if one.problem:
            lines.append(f"| {one.name} | {one.precision} | {one.problem} | no |" + " |" * 10)
            continue
        top = most[one.precision]
        rate, rate_both = one.flops / one.forward, one.flops_both / one.both
        moved = one.bytes / one.forward
        cells = [
            one.name, one.precision, f"{one.error:.1e}", "yes" if one.right else "NO",
            f"{one.forward * 1e3:.3f}", f"{rate / 1e12:.1f}", f"{rate / top.flops:.0%}",
            f"{moved / 1e9:.0f}", f"{moved / top.bytes:.0%}", f"{one.both * 1e3:.3f}",
            f"{rate_both / 1e12:.1f}", f"{rate_both / top.flops:.0%}",
            f"{one.torch_forward / one.forward:.2f}", f"{one.torch_both / one.both:.2f}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    for precision, top in most.items():
        lines.append(
            f"\nproducts at '{precision}': a product of matrices reaches {top.flops / 1e12:.1f} "
            f"TFLOP/s, a copy {top.bytes / 1e9:.0f} GB/s"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; see the module for options and exit codes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("--precision", default="highest,medium")
    parser.add_argument("--only", default="", help="cases with this in their names")
    parser.add_argument("--seconds", type=float, default=270.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    precisions = given.precision.split(",")
    if unknown := [one for one in precisions if one not in PRECISIONS]:
        parser.error(f"--precision {unknown[0]}: must be of {', '.join(PRECISIONS)}")
    cases = [case for case in (make() for make in CASES) if given.only in case.name]
    if not cases:
        parser.error(f"--only {given.only}: no case has that in its name")
    device = torch.device("cuda")
    reason = "torch sees no GPU" if not torch.cuda.is_available() else missing(device)
    if reason:
        print(f"benchmarks.gpu: nothing was measured: {reason}.", file=sys.stderr)
        return NO_GPU
    most: dict[str, Ceilings] = {}
    until = time.monotonic() + given.seconds
    results, left = run_all(cases, precisions, device, gpu_clock, until=until, most=most)
    if given.json:
        print(report(results, left, most, torch.cuda.get_device_name()))
    else:
        print(table(results, most))
        for name in left:
            print(f"not run, time was up: {name}")
    return OK if all(one.right for one in results) else WRONG


def report(
    results: Sequence[Result], left: Sequence[str], most: dict[str, Ceilings], device: str
) -> str:
    """Everything, as JSON."""
    content = {
        "device": device,
        "torch": torch.__version__,
        "ceilings": {name: asdict(top) for name, top in most.items()},
        "results": [
            {name: None if value != value else value for name, value in asdict(one).items()}
            | {"right": one.right}
            for one in results
        ],
        "not_run": list(left),
    }
    return json.dumps(content, indent=2)


if __name__ == "__main__":
    sys.exit(main())
