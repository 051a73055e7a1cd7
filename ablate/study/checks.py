"""What is checked of a whole plan: memory, and what a design cannot tell apart."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ablate.analysis.formatting import size
from ablate.errors import UserError
from ablate.study.cells import Cell, Laid
from ablate.study.expand import Expanded
from ablate.study.fractional import is_regular
from ablate.study.schema import Resources

GB = 1 << 30
LARGE = 64 * GB  # what not every GPU has
SAID = 8
MANY_FACTORS = 12
MAIN_AND_PAIRS = 5


def check_memory(cells: Sequence[Cell], resources: Resources, file: str) -> list[str]:
    """Refuse what cannot fit, and warn of what fits only alone.

    Raises:
        UserError: a trial needs more memory than this machine, or its share of a GPU, has.
    """
    needs = [(cell.cost.memory_bytes or 0, cell) for cell in cells]
    most, worst = max(needs, key=lambda pair: pair[0])
    if not most:
        return []
    have, name = _memory(resources)
    batch = worst.config["task"]["args"].get("batch")
    if have is None:
        return _unchecked(most, worst.label, batch)
    if most > have:
        fits = f" task_args.batch={max(1, int(batch * have / most))} would fit." if batch else ""
        raise UserError(
            f"{file}: cell {worst.label} needs about {most / GB:.1f} GiB for one trial, but "
            f"{name} has {have / GB:.1f} GiB.{fits}"
        )
    slots = 1 if resources.gpus else max(1, int((os.cpu_count() or 1) // resources.cpus))
    if most * slots > have:
        return [
            f"{slots} trials side by side need about {most * slots / GB:.1f} GiB, {name} has "
            f"{have / GB:.1f}: give each trial more resources.cpus"
        ]
    return []


def _unchecked(most: float, label: str, batch: int | None) -> list[str]:
    """What to say of much memory on a GPU that is not here."""
    if most < LARGE or not batch:
        return []
    return [
        f"no GPU here to check memory against: {label} needs about {size(most)} with its {batch} "
        f"rows in one pass, about {size(most / batch)} a row; a trial that runs out of memory "
        "goes on with half the rows at a time"
    ]


def _memory(resources: Resources) -> tuple[float | None, str]:
    """Bytes that one trial may have, and whose; None where that cannot be known here."""
    if resources.gpus:
        import torch

        if not torch.cuda.is_available():
            return None, ""
        whole = torch.cuda.get_device_properties(0).total_memory
        share = min(1.0, resources.gpus)
        return whole * share, f"its {share:g} of a GPU"
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "this machine"


def alias_sentences(laid: Laid) -> list[str]:
    """What each fractional design cannot tell apart, in words; main effects and pairs."""
    found = []
    for one in laid.designs:
        if one.design.kind == "fractional":
            found += _aliases(one, laid.cells)
    return found


def _aliases(one: Expanded, cells: Sequence[Cell]) -> list[str]:
    from ablate.analysis.factorial import aliases, term_name

    regular = is_regular(one.design, one.factors)
    keys = [f.key for f in one.factors if f.key not in one.design.blocks and not f.when]
    columns = {key: [str(cell.axes[key]) for cell in cells] for key in keys}
    mains: list[tuple[str, ...]] = [(key,) for key in keys]
    found = []
    for group in aliases(columns, None if regular and len(keys) <= MANY_FACTORS else mains):
        rest = " + ".join(term_name(term) for term in group[:-1])
        found.append(f"this design cannot tell {term_name(group[-1])} from {rest}")
    if not regular and one.design.resolution != MAIN_AND_PAIRS:
        found.append(
            "this design tells single factors apart only if no two of them interact; "
            f"resolution: {MAIN_AND_PAIRS} takes as many cells as pairs need"
        )
    return found
