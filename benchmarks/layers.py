"""The memory layer against titans-pytorch, fla's references and the written-out definition.

    python -m benchmarks.layers [--json] [--rounds N] [--dims 64,128] [--tokens 512,2048]
                                [--no-memory] [--targets]

Every case runs forward (without autograd) and forward and backward, all in turns, together with a
product of 512 x 512 matrices, whose rate is that of single-precision arithmetic at that time. Peak
memory is measured by `benchmarks.peak`. Targets are printed with what was measured, met or not.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.cases import Case, make
from benchmarks.interleaved import Spent, interleaved, machine
from benchmarks.peak import peak_bytes

Times = dict[str, Spent]
SQUARE = 512
PRODUCTS = 8


@dataclass(frozen=True)
class Side:
    """A case and what it is called in tables."""

    name: str
    case: Case


def sides(dim: int, tokens: int, *, short: int = 512) -> list[Side]:
    """Our layer and theirs at one size; with Newton-Schulz on `short` tokens at most."""
    few = min(short, tokens)

    def ours(name: str, **words: Any) -> Side:
        return Side(f"ablate, {name}", Case("layer", dim, **{"tokens": tokens, **words}))

    def theirs(name: str, **words: Any) -> Side:
        return Side(
            f"titans-pytorch, {name}", Case("titans-pytorch", dim, **{"tokens": tokens, **words})
        )

    ns = {"optimizer": "muon", "tokens": few}
    return [
        ours("momentum, chunk 64"),
        ours("momentum, chunk 64, window 64", window=64),
        ours("momentum, chunk 1", chunk=1),
        theirs("momentum, gates of 1 token", chunk=1),
        theirs("momentum, gates of 1 token, base 64", chunk=1, base=64),
        theirs("momentum, gates of 16", chunk=16),
        theirs("momentum, gates of 64", chunk=64),
        ours("NS-5 per token, chunk 16", chunk=16, **ns),
        ours("NS-5 per token, chunk 64", chunk=64, **ns),
        theirs("NS-5 per token", chunk=1, **ns),
        theirs("NS-5 per 16 tokens", chunk=16, **ns),
        theirs("NS-5 per 64 tokens", chunk=64, **ns),
    ]


def degrees(tokens: int) -> list[Side]:
    """Features of degree 1 and 2 at the width where they are compared."""
    return [
        Side(
            f"ablate, NS-5 per token, degree {degree}, d=32",
            Case("layer", 32, tokens, chunk=16, degree=degree, optimizer="muon"),
        )
        for degree in (1, 2)
    ]


def wide_chunks(dim: int, tokens: int) -> list[Side]:
    """A window of 1 and of 64 where a chunk is four times as long as the window."""
    return [
        Side(
            f"ablate, momentum, chunk 256, window {window}",
            Case("layer", dim, tokens, chunk=256, window=window),
        )
        for window in (1, 64)
    ]


def cores(dim: int, tokens: int) -> list[Side]:
    """The recurrence alone, each time before the references of the same function."""

    def core(name: str, **words: Any) -> Side:
        return Side(f"core: ablate, {name}", Case("core", dim, tokens, **words))

    def fla(name: str, **words: Any) -> Side:
        return Side(f"core: fla, {name}", Case(f"fla {name}", dim, tokens, **words))

    return [
        core("delta rule", chunk=1, optimizer="gd", forgets=False),
        fla("delta recurrent", forgets=False),
        fla("delta chunked", forgets=False),
        core("gated delta rule", chunk=1, optimizer="decayed"),
        fla("gated delta chunked"),
        core("momentum, chunk 1", chunk=1),
        fla("momentum recurrent"),
        core("momentum and norm, chunk 16", chunk=16, norm=True),
        fla("titans chunked", chunk=16),
        core("momentum, chunk 64"),
        Side("core: the definition, chunk 64", Case("oracle", dim, tokens)),
    ]


def measure(chosen: list[Side], rounds: int) -> Times:
    """Seconds of each case, by ``name forward`` and ``name both``; and of the products, "sgemm"."""
    left = torch.randn(SQUARE, SQUARE)
    runs: dict[str, Callable[[], Any]] = {"sgemm": lambda: [left @ left for _ in range(PRODUCTS)]}
    for side in chosen:
        runnable = make(side.case)
        runs[f"{side.name} forward"] = runnable.forward
        runs[f"{side.name} both"] = runnable.both
    return interleaved(runs, rounds)


def sgemm_rate(times: Times) -> float:
    """Floating-point operations a second of a product of matrices."""
    return 2 * SQUARE**3 * PRODUCTS / times["sgemm"].cpu


def newton_schulz_rate(case: Case, seconds: float, *, backward: bool) -> float:
    """Operations a second of the products that the iteration needs, and nothing else counted.

    Three products a step forward; seven more in the backward pass, which makes the matrices again
    together with their derivatives. One matrix of dim x dim for each token.
    """
    products = 10 if backward else 3
    return products * 2 * case.dim**3 * case.steps * case.tokens / seconds


@dataclass(frozen=True)
class Target:
    """A ratio, what it should at least (or at most) be, and what was measured."""

    name: str
    value: float
    bound: float
    at_least: bool = True

    @property
    def met(self) -> bool:
        """Whether it was reached."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound


def targets(times: Times, chosen: list[Side]) -> list[Target]:
    """The targets on time: `chosen` holds `sides`, `degrees` and `wide_chunks` at one size each."""
    by_name = {side.name: side.case for side in chosen}

    def per_token(name: str, what: str = "both") -> float:
        return times[f"{name} {what}"].cpu / by_name[name].tokens

    online, one = "ablate, momentum, chunk 64", "titans-pytorch, momentum, gates of 1 token"
    ns = "ablate, NS-5 per token, chunk 16"
    shares = {
        what: newton_schulz_rate(by_name[ns], times[f"{ns} {what}"].cpu, backward=what == "both")
        / sgemm_rate(times)
        for what in ("forward", "both")
    }
    whole, two = (side.name for side in degrees(0))
    narrow, wide = (side.name for side in wide_chunks(0, 0))
    return [
        Target("titans-pytorch, per-token momentum / ours", per_token(one) / per_token(online), 10),
        Target(
            "  the same function (base 64) / ours",
            per_token(f"{one}, base 64") / per_token(online), 10,
        ),
        Target(
            "titans-pytorch, per-token NS-5 / ours",
            per_token("titans-pytorch, NS-5 per token") / per_token(ns), 2,
        ),
        Target(
            "titans-pytorch, gates of 64 / ours",
            per_token("titans-pytorch, momentum, gates of 64") / per_token(online), 1,
        ),
        Target(
            "window 64 / window 1",
            per_token(f"{online}, window 64") / per_token(online), 1.4, False,
        ),
        Target("  the same, chunks of 256", per_token(wide) / per_token(narrow), 1.4, False),
        Target("degree 2 / degree 1, d=32, NS-5", per_token(two) / per_token(whole), 4, False),
        Target("NS-5 / sgemm, forward", shares["forward"], 0.6),
        Target("NS-5 / sgemm, forward and backward", shares["both"], 0.6),
    ]  # fmt: skip


def memory_target(tokens: int) -> Target:
    """Peak memory of forward and backward, ours over theirs, at chunk 1."""
    ours = peak_bytes(Case("layer", tokens=tokens))
    theirs = peak_bytes(Case("titans-pytorch", tokens=tokens, chunk=1))
    return Target(f"peak memory, ours / titans-pytorch, T={tokens}", ours / theirs, 0.25, False)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description="The memory layer against others.")
    options.add_argument("--json", action="store_true", help="print one JSON object")
    options.add_argument("--rounds", type=int, default=3, help="turns of all cases")
    options.add_argument("--dims", type=_numbers, default=[64], help="widths, as 64,128")
    options.add_argument("--tokens", type=_numbers, default=[512], help="lengths, as 512,2048")
    options.add_argument("--no-memory", action="store_true", help="time only")
    options.add_argument("--targets", action="store_true", help="the targets only")
    given = options.parse_args()
    torch.set_num_threads(1)
    print_facts = not given.json
    facts: dict[str, Any] = {"machine": machine(), "cases": []}
    if not given.targets:
        for dim in given.dims:
            for tokens in given.tokens:
                facts["cases"] += _table(dim, tokens, given, printed=print_facts)
    chosen = sides(64, 2048) + degrees(512) + wide_chunks(64, 2048)
    found = targets(measure(chosen, given.rounds), chosen)
    if not given.no_memory:
        found.append(memory_target(4096))
    facts["targets"] = {
        one.name: {"value": one.value, "bound": one.bound, "met": one.met} for one in found
    }
    if given.json:
        print(json.dumps(facts, indent=2))
        return
    print(f"\n{'d=64, T=2048; NS-5 at T=512; CPU time':48} measured    wanted")
    for one in found:
        wanted = f"{'>=' if one.at_least else '<='} {one.bound:g}"
        print(f"{one.name:48}{one.value:9.2f}{wanted:>10}  {'met' if one.met else 'NOT MET'}")


def _table(
    dim: int, tokens: int, given: argparse.Namespace, *, printed: bool
) -> list[dict[str, Any]]:
    chosen = sides(dim, tokens) + cores(dim, min(512, tokens))
    times = measure(chosen, given.rounds)
    rows = []
    for side in chosen:
        spent = {what: times[f"{side.name} {what}"] for what in ("forward", "both")}
        row: dict[str, Any] = {"name": side.name, "dim": dim, "tokens": side.case.tokens}
        row |= {f"{what}_seconds": one.cpu for what, one in spent.items()}
        row |= {f"{what}_wall_seconds": one.wall for what, one in spent.items()}
        row["peak_bytes"] = None if given.no_memory else peak_bytes(side.case)
        rows.append(row)
    rate = sgemm_rate(times) / 1e9
    if printed:
        state = machine()
        print(f"\nd={dim}, load {state['load']} on {state['cores']} cores, one thread; "
              f"sgemm {rate:.0f} GF/s; CPU time")  # fmt: skip
        print(f"{'thousand tokens a second':52}     T  forward  and backward  peak MB")
        for row in rows:
            speeds = [row["tokens"] / row[f"{what}_seconds"] / 1e3 for what in ("forward", "both")]
            peak = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e6:9.1f}"
            print(f"{row['name']:52}{row['tokens']:6}{speeds[0]:9.2f}{speeds[1]:14.2f}{peak}")
    return [{**row, "sgemm": rate * 1e9} for row in rows]


if __name__ == "__main__":
    main()
