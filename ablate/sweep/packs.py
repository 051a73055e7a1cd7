"""Put trials of one shape together into packs, and say which and why."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ablate.errors import UserError
from ablate.sweep.execution import Job, Spec

Packing: TypeAlias = Literal["auto", "off"] | int


@dataclass
class Packer:
    """Makes jobs of trials; `notes` then say what was packed, and what was not and why.

    Args:
        packing: ``auto`` chooses the lanes; a number is taken as it is; ``off`` packs nothing.
        workers: jobs that run side by side; ``auto`` leaves none of them without work.
        tell: hears each note.
    """

    packing: Packing = "auto"
    workers: int = 1
    tell: Callable[[str], None] = lambda note: None
    notes: list[str] = field(default_factory=list)

    def jobs_of(self, specs: list[Spec]) -> list[Job]:
        """Return the jobs, in the order of their first trials."""
        self.notes = []
        if self.packing in ("off", 1):
            return [[spec] for spec in specs]
        jobs = [job for group in self._groups(specs) for job in self._split(group)]
        place = {spec["id"]: number for number, spec in enumerate(specs)}
        jobs.sort(key=lambda job: place[job[0]["id"]])
        packs = [len(job) for job in jobs if len(job) > 1]
        if packs:
            sizes = f"{min(packs)} to {max(packs)}" if min(packs) < max(packs) else f"{packs[0]}"
            self.notes.insert(
                0,
                f"packing: {sum(packs)} of {len(specs)} trials run in {len(packs)} "
                f"pack{'s' if len(packs) > 1 else ''} of {sizes}; their seconds are shares of the "
                "pack's time (--no-packing runs each alone)",
            )
        for note in self.notes:
            self.tell(note)
        return jobs

    def _groups(self, specs: list[Spec]) -> list[list[Spec]]:
        from ablate.trial.lanes import shape_of

        groups: dict[str, list[Spec]] = {}
        for spec in specs:
            groups.setdefault(shape_of(spec) or f"alone {spec['id']}", []).append(spec)
        return list(groups.values())

    def _split(self, group: list[Spec]) -> list[Job]:
        """Cut trials of one shape into packs of nearly equal size."""
        from ablate.trial.lanes import most_lanes, why_alone

        if len(group) < 2:
            return [group]
        if isinstance(self.packing, int):
            lanes = self.packing
        else:
            lanes = min(most_lanes(group[0]), math.ceil(len(group) / self.workers))
        if lanes < 2:
            return [[spec] for spec in group]
        if why := why_alone(group):
            cells = ", ".join(dict.fromkeys(spec["cell"] for spec in group))
            self.notes.append(f"packing: {len(group)} trials of {cells} run alone: {why}")
            return [[spec] for spec in group]
        parts = math.ceil(len(group) / lanes)
        ends = [round(len(group) * part / parts) for part in range(parts + 1)]
        return [group[first:end] for first, end in zip(ends, ends[1:], strict=False)]


def packing_of(given: str) -> Packing:
    """Read ``auto``, ``off`` or a number of lanes.

    Raises:
        UserError: anything else.
    """
    if given in ("auto", "off"):
        return given  # type: ignore[return-value]  # mypy does not narrow by membership
    if given.isdecimal() and int(given) >= 1:
        return int(given)
    raise UserError(f"--packing is '{given}': it must be auto, off, or a number of lanes >= 1.")
