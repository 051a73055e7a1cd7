"""Ratios of the memory layer against stored ones: has something become slower, or larger?

    python -m benchmarks.check [--json] [--rounds N] [--store]

Ratios of two sides that ran in turns depend little on the machine and its load. A ratio may leave
its stored value by a factor of 1.5 either way; beyond that the exit code is 1. What has become
better is to be stored anew, by `--store`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.cases import Case
from benchmarks.interleaved import machine
from benchmarks.layers import Side, measure, newton_schulz_rate, sgemm_rate
from benchmarks.peak import peak_bytes

STORED = Path(__file__).with_name("stored.json")
BAND = 1.5
NS = Case("layer", tokens=256, chunk=16, optimizer="muon")
CASES = {
    "ours": Case("layer", tokens=1024),
    "window": Case("layer", tokens=1024, window=64),
    "online": Case("layer", tokens=1024, chunk=1),
    "deep": Case("layer", tokens=512, layers=2),
    "ns": NS,
    "degree 1": Case("layer", 32, 256, chunk=16, optimizer="muon"),
    "degree 2": Case("layer", 32, 256, chunk=16, degree=2, optimizer="muon"),
    "titans 1": Case("titans-pytorch", tokens=1024, chunk=1),
    "titans 64": Case("titans-pytorch", tokens=1024, chunk=64),
    "titans ns": Case("titans-pytorch", tokens=256, chunk=1, optimizer="muon"),
    "titans deep": Case("titans-pytorch", tokens=512, chunk=64, layers=2),
}
RATIOS = {
    "titans-pytorch, per-token momentum / ours": ("titans 1", "ours"),
    "titans-pytorch, gates of 64 / ours": ("titans 64", "ours"),
    "titans-pytorch, two layers, gates of 64 / ours": ("titans deep", "deep"),
    "titans-pytorch, per-token NS-5 / ours": ("titans ns", "ns"),
    "window 1 / window 64": ("ours", "window"),
    "chunk 64 / chunk 1": ("ours", "online"),
    "degree 1 / degree 2, NS-5": ("degree 1", "degree 2"),
}
SHARE = "NS-5 / sgemm"
MEMORY = "peak memory, titans-pytorch with per-token momentum / ours"


@dataclass(frozen=True)
class Finding:
    """A ratio of which more is better, what is stored, and how far it may be from that."""

    name: str
    found: float
    stored: float | None
    band: float

    @property
    def verdict(self) -> str:
        """What became of it."""
        if self.stored is None:
            return "not stored"
        change = self.found / self.stored
        if change < 1 / self.band:
            return "worse"
        return "better: store it" if change > self.band else "same"


def ratios(rounds: int) -> dict[str, float]:
    """Every ratio, measured now."""
    chosen = [Side(name, case) for name, case in CASES.items()]
    times = measure(chosen, rounds)
    found = {
        name: times[f"{above} both"].cpu / times[f"{below} both"].cpu
        for name, (above, below) in RATIOS.items()
    }
    found[SHARE] = newton_schulz_rate(NS, times["ns both"].cpu, backward=True) / sgemm_rate(times)
    found[MEMORY] = peak_bytes(CASES["titans 1"]) / peak_bytes(CASES["ours"])
    return found


def compare(found: Mapping[str, float], stored: Mapping[str, float]) -> list[Finding]:
    """Every ratio beside its stored one; a stored one that is no longer measured is an error.

    Raises:
        ValueError: which stored ratio is not measured.
    """
    gone = sorted(set(stored) - set(found))
    if gone:
        raise ValueError(f"stored but not measured: {', '.join(gone)}; run with --store")
    return [Finding(name, value, stored.get(name), BAND) for name, value in found.items()]


def main() -> None:
    """Measure, compare and print; exit with 1 if anything is outside its band."""
    options = argparse.ArgumentParser(description="Compare ratios with the stored ones.")
    options.add_argument("--json", action="store_true", help="print one JSON object")
    options.add_argument("--rounds", type=int, default=5, help="turns of all cases")
    options.add_argument("--store", action="store_true", help="store what is measured now")
    given = options.parse_args()
    torch.set_num_threads(1)
    before, found = machine(), ratios(given.rounds)
    if given.store:
        facts = {"machine": before, "ratios": {name: round(n, 3) for name, n in found.items()}}
        STORED.write_text(json.dumps(facts, indent=2) + "\n")
        return
    findings = compare(found, json.loads(STORED.read_text())["ratios"])
    if given.json:
        print(
            json.dumps({"machine": before, "findings": [_row(one) for one in findings]}, indent=2)
        )
    else:
        print(f"load {before['load']} on {before['cores']} cores, one thread; more is better")
        print(f"{'':60}   found  stored  band")
        for one in findings:
            stored = "" if one.stored is None else f"{one.stored:.2f}"
            print(f"{one.name:60}{one.found:8.2f}{stored:>8}{one.band:6.2f}  {one.verdict}")
    sys.exit(any(one.verdict != "same" for one in findings))


if __name__ == "__main__":
    main()
