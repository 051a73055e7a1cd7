"""A study that trains nothing, for tests of what runs, tracks and shows studies."""

from __future__ import annotations

import math
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

FAKE_ENV = "ABLATE_FAKE"
"""Environment variable of `scripted_trial`: ``<trial number>:<what>``, separated by commas."""


@dataclass(frozen=True)
class FakePlan:
    """`cells` cells, named after levels of the axis ``memory``, times `seeds` seeds.

    Args:
        cells: how many.
        seeds: how many.
        study: the name.
        extra: stands as ``train`` in each configuration.
        code: code fingerprint of the first cells; the others have ``f0``, as `start_message` has.
        resources: what one trial takes.
        warnings: those of the plan.
    """

    cells: int = 4
    seeds: int = 5
    study: str = "fake"
    extra: dict[str, Any] = field(default_factory=dict)
    code: tuple[str, ...] = ()
    resources: dict[str, float] = field(default_factory=lambda: {"cpus": 1.0, "gpus": 0.0})
    warnings: tuple[str, ...] = ()

    def trials(self) -> list[dict[str, Any]]:
        """Return the specs, cell by cell."""
        return [
            {"id": f"c{c}-s{s}", "cell": f"c{c}", "seed": s, "config": self._config(c)}
            for c in range(self.cells)
            for s in range(self.seeds)
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the plan with the keys of `ablate.study.plan.Plan.to_json`."""
        return {
            "schema": 1,
            "study": self.study,
            "file": "fake.yaml",
            "question": "Does nothing matter?",
            "baseline": "c0",
            "task": "language",
            "measure": {"primary": "val/bits_per_byte", "goal": "min"},
            "seeds": list(range(self.seeds)),
            "cells": [self._cell(c) for c in range(self.cells)],
            "trials": self.cells * self.seeds,
            "cost": {},
            "warnings": list(self.warnings),
        }

    def _config(self, cell: int) -> dict[str, Any]:
        task = {"name": "language", "args": {"context": 8}}
        return {"model": {"name": "fake", "level": cell}, "task": task, "train": self.extra}

    def _cell(self, cell: int) -> dict[str, Any]:
        level = f"level{cell}"
        return {
            "id": f"c{cell}",
            "label": f"memory={level}" if cell else "baseline",
            "axes": {"memory": level, "newton_schulz.steps": None},
            "changed": {"memory": ["level0", level]} if cell else {},
            "compared_with": "c0" if cell else None,
            "parameters": 1000 + cell,
            "state_bytes": 64,
            "flops_per_token": 2000.0,
            "seconds_per_trial": 0.1,
            "config": self._config(cell),
            "fingerprint": self.code[cell] if cell < len(self.code) else "f0",
            "warnings": [],
        }


def fake_trial(spec: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    """Emit the messages of a trial that goes well: two rows; the loss depends on cell and seed."""
    report(start_message())
    loss = 2.0 + 0.1 * int(spec["cell"][1:]) + 0.01 * spec["seed"]
    for step in (10, 20):
        report(row_message(step, loss + 1.0 / step))
    report(end_message("done", {"val/loss": loss, "val/bits_per_byte": loss / math.log(2)}))


def scripted_trial(spec: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    """Do as `FAKE_ENV` says for this trial id: raise, kill, sleep, diverge, nan or infinite."""
    script = dict(part.split(":") for part in os.environ.get(FAKE_ENV, "").split(",") if part)
    match script.get(spec["id"]):
        case "raise":
            report(start_message())
            raise RuntimeError("the fake trial raises")
        case "kill":
            report(start_message())
            os.kill(os.getpid(), signal.SIGKILL)
        case "sleep":
            report(start_message())
            time.sleep(60)
        case "diverge":
            report(start_message())
            report(row_message(10, math.inf))
            report(end_message("diverged", {"val/loss": math.inf}, error="loss is inf at step 10"))
        case "nan":
            report(start_message())
            report(row_message(10, math.nan))
            report(end_message("done", {"val/loss": 2.0}))
        case _:
            fake_trial(spec, report)


def scripted_pack(
    specs: list[dict[str, Any]], report: Callable[[dict[str, dict[str, Any]]], None]
) -> None:
    """Run several as a pack: all start at once, then each goes on and ends as `FAKE_ENV` says."""
    report({spec["id"]: start_message() for spec in specs})
    for spec in specs:

        def tell(message: dict[str, Any], trial_id: str = spec["id"]) -> None:
            if message["kind"] != "start":
                report({trial_id: message})

        scripted_trial(spec, tell)


def start_message() -> dict[str, Any]:
    """Return the message with which a trial starts."""
    return {
        "kind": "start",
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "device": "cpu",
        "fingerprint": "f0",
        "info": {
            **{"parameters": 1000, "flops_per_token": 2000.0, "backend": "fake"},
            **{"data": "d0", "corpus": "fake", "unigram_bits_per_byte": 4.5},
        },
    }


def row_message(step: int, loss: float, name: str = "val/loss") -> dict[str, Any]:
    """Return one row with one metric."""
    tokens, seconds = 8 * step, 0.01 * step
    metrics = {name: loss}
    return {"kind": "row", "step": step, "tokens": tokens, "seconds": seconds, "metrics": metrics}


def end_message(state: str, summary: dict[str, float], error: str | None = None) -> dict[str, Any]:
    """Return the message with which a trial ends."""
    summary = {"tokens": 160.0, "seconds": 0.2, "tokens_per_second": 800.0, **summary}
    trace = f"Traceback\n  {error}" if error else None
    return {
        "kind": "end",
        "state": state,
        "error": error,
        "traceback": trace,
        "summary": summary,
    }
