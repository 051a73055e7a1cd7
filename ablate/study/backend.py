"""Whether the cells of a study can use the kernels that it asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ablate.components.kernels.backend import KERNELS, WITHOUT, interpreted, served, unfit
from ablate.errors import UserError
from ablate.study.cells import Cell
from ablate.study.schema import Resources
from ablate.trial.build import build_model
from ablate.trial.train import is_trained

KEY = "resources.backend"
SAID = 3


def check_backend(
    cells: Sequence[Cell], resources: Resources, file: str, *, allow: Iterable[str] = ()
) -> list[str]:
    """Refuse ``backend: triton`` where no cell can use a kernel; name the cells that cannot.

    Whether the machines of a cluster have GPUs is not known here: each trial looks again.

    Raises:
        UserError: no trial has a GPU, or no operation of any cell has a kernel that serves it.
    """
    if resources.backend != "triton":
        return []
    if not resources.gpus and not interpreted():
        raise UserError(
            f"{file}: {KEY} is triton, but a trial has no GPU (resources.gpus is 0), and kernels "
            f"need one. {WITHOUT}"
        )
    refused = {cell.label: _refused(cell.config, allow) for cell in cells}
    without = {label: reason for label, reason in refused.items() if reason is not None}
    if len(without) == len(cells):
        reasons = "; ".join(dict.fromkeys(without.values()))
        raise UserError(f"{file}: {KEY} is triton, but no cell can use a kernel: {reasons}.")
    if not without:
        return []
    names = ", ".join(list(without)[:SAID]) + (", ..." if len(without) > SAID else "")
    one = len(without) == 1
    some = (
        "1 cell uses no kernel and runs" if one else f"{len(without)} cells use no kernel and run"
    )
    return [f"{KEY} is triton, but {some} in torch: {names}"]


def _refused(config: Mapping[str, Any], allow: Iterable[str]) -> str | None:
    """Why no kernel serves the trials of a cell, or None if one does."""
    if config["model"] is None:
        return "the task brings its own learner"
    if not is_trained(config):
        return "a memory that learns alone runs in torch"
    built = build_model(config["model"], 2, seed=0, device="meta", allow=allow)
    found = served(built, torch.device("meta"))
    if not found:
        return f"no operation has one (there are: {', '.join(KERNELS)})"
    reasons = [unfit(one.use) for one in found]
    return None if None in reasons else "; ".join(filter(None, dict.fromkeys(reasons)))
