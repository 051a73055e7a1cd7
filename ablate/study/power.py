"""What so many seeds can show, said before any of them runs."""

from __future__ import annotations

from dataclasses import dataclass

from ablate.study.pilot import Pilot

SIGNIFICANT = 0.05
POWER = 0.8
MANY = 64


@dataclass(frozen=True)
class Power:
    """What a plan can detect, by the exact paired sign-flip test.

    Args:
        seeds: of the plan; each gives one pair of every comparison.
        comparisons: cells beside the baseline.
        smallest_p: that the test can reach, 2 / 2^seeds; None for one seed.
        seeds_for_one: seeds with which one comparison can reach 0.05.
        seeds_for_all: the same for all comparisons with Holm's correction.
        deviation: of paired differences in earlier runs of the study.
        detectable: the effect that is found in 80 of 100 studies, given that deviation.
    """

    seeds: int
    comparisons: int
    smallest_p: float | None
    seeds_for_one: int
    seeds_for_all: int
    deviation: float | None = None
    detectable: float | None = None

    def sentences(self) -> list[str]:
        """What a reader must know; nothing if the seeds suffice and nothing was run yet."""
        found = []
        if self.comparisons and self.smallest_p is None:
            found.append(
                "1 seed: no interval and no test; differences between cells may be chance."
            )
        elif self.comparisons and self.seeds < self.seeds_for_all:
            found.append(
                f"{self.seeds} seeds: the smallest p-value that the exact paired test can give is "
                f"{self.smallest_p:.4g}. To reach {SIGNIFICANT}, one comparison alone needs "
                f"{self.seeds_for_one} seeds" + self._all()
            )
        if self.detectable is not None:
            found.append(
                f"Earlier runs: paired differences vary by {self.deviation:.3g} (standard "
                f"deviation). {self.seeds} seeds find an effect of {self.detectable:.3g} or more "
                f"in {POWER:.0%} of studies, for one comparison by the t test" + self._beyond()
            )
        return found

    def _beyond(self) -> str:
        """The report decides by the exact test, which may not reach what the t test can."""
        if self.smallest_p is None or self.smallest_p <= SIGNIFICANT:
            return "."
        return "; the exact test, which the report decides by, finds none with so few."

    def _all(self) -> str:
        if self.comparisons == 1:
            return "."
        return (
            f"; all {self.comparisons} comparisons of this plan, with Holm's correction for "
            f"testing so many, need {self.seeds_for_all}."
        )


def power_of(seeds: int, comparisons: int, pilot: Pilot, baseline: str) -> Power:
    """What `seeds` can show in so many comparisons with the baseline."""
    deviation = pilot.deviation(baseline)
    return Power(
        seeds=seeds,
        comparisons=comparisons,
        smallest_p=2 / 2**seeds if seeds > 1 else None,
        seeds_for_one=_needed(1),
        seeds_for_all=_needed(max(1, comparisons)),
        deviation=deviation[0] if deviation else None,
        detectable=detectable_effect(deviation[0], seeds) if deviation and seeds > 1 else None,
    )


def _needed(comparisons: int) -> int:
    return next(n for n in range(2, MANY) if comparisons * 2 / 2**n <= SIGNIFICANT)


def detectable_effect(deviation: float, seeds: int) -> float:
    """The effect that a paired t test of `seeds` pairs finds with 80 % power, two-sided.

    Exact for normal differences of this standard deviation, by the noncentral t distribution.
    """
    from scipy.optimize import brentq
    from scipy.special import nctdtr, stdtrit

    free = seeds - 1
    limit = stdtrit(free, 1 - SIGNIFICANT / 2)

    def short(shift: float) -> float:  # the other tail has nothing left at such a power
        return float(1 - nctdtr(free, shift, limit) - POWER)

    return float(brentq(short, 0.0, 10 * limit) * deviation / seeds**0.5)
