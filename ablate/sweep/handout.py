"""What a trial is handed along with its spec: where its files are, and what it may take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.sweep.execution import Spec
from ablate.sweep.ledger import Ledger

CHECKPOINT = {"every": 300.0, "keep": 2e9}
"""Seconds between two checkpoints of a trial, and bytes that those of a study may take."""


@dataclass(frozen=True)
class HandOut:
    """Completes specs; what it adds does not change what a trial computes.

    Args:
        study: the folder of checkpoints, logs and requests.
        checkpoint: ``every`` and ``keep``, as `CHECKPOINT` has them; None for no checkpoints.
        seconds: that one attempt may take; None for no limit.
        hard: whether a worker may end its own process when a step hangs beyond that.
    """

    study: Path
    checkpoint: dict[str, float] | None = None
    seconds: float | None = None
    hard: bool = False

    def complete(self, specs: list[Spec], ledger: Ledger) -> list[Spec]:
        """Return the specs with what `ablate.trial.run.run_trial` reads beside the configuration.

        A trial that ran out of memory gets its batches in the smaller parts that it asked for.
        """
        records = {record.trial_id: record for record in ledger.trials()}
        completed = []
        for spec in specs:
            record = records.get(spec["id"])
            found: Spec = {
                **spec,
                "files": {
                    "study": str(self.study.absolute()),
                    "attempt": 1 + (record.attempt if record else 0),
                    "checkpoint": self.checkpoint,
                },
                "limits": {"seconds": self.seconds, "hard": self.hard},
            }
            if record is not None and record.state == "oom":
                parts = record.info.get("micro_batches", 1)
                retry: dict[str, Any] = record.info.get("retry") or {"micro_batches": parts}
                found |= retry
            completed.append(found)
        return completed
