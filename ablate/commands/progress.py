"""Show a run as it goes: a bar on a terminal, one line per finished trial elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ablate.analysis.formatting import duration
from ablate.commands.terminal import first_line
from ablate.sweep.execution import Event


class RunProgress:
    """Takes the driver's events; use it as a context around the run."""

    def __init__(self, plan: dict[str, Any], todo: int, out: Console) -> None:
        """Keep what is needed to name trials.

        Args:
            plan: `Plan.to_json`.
            todo: how many trials this run takes.
            out: where to show it.
        """
        self._out = out
        self._todo = todo
        self._primary = plan["measure"]["primary"]
        self._names = {
            f"{cell['id']}-s{seed}": f"{cell['label']} seed {seed}"
            for cell in plan["cells"]
            for seed in plan["seeds"]
        }
        self._states: Counter[str] = Counter()
        self._running: set[str] = set()
        self._began = 0.0
        self._bar = _bar(out) if out.is_terminal and not out.quiet else None
        self._task = self._bar.add_task("starting", total=todo) if self._bar else None

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()

    def name(self, cell: str, label: str, seeds: Iterable[int]) -> None:
        """Know a cell that was not in the plan at the start."""
        self._names |= {f"{cell}-s{seed}": f"{label} seed {seed}" for seed in seeds}

    def event(self, event: Event) -> None:
        """Take one event of the driver."""
        if event.kind == "begin":
            self._running.add(event.trial_id)
            self._began = self._began or time.monotonic()
        elif event.kind == "end":
            self._running.discard(event.trial_id)
            self._states[event.message["state"]] += 1
            self._line(event)
        elif event.kind == "again":
            self._running.discard(event.trial_id)
            name = self._names.get(event.trial_id, "?")
            line = f"again     {name}  {event.message['error']}; it runs once more"
            self._out.print(line, markup=False, soft_wrap=True)
        if self._bar is not None and self._task is not None and event.kind in {"begin", "end"}:
            ended = self._states.total()
            self._bar.update(self._task, completed=ended, description=self._summary())

    def _summary(self) -> str:
        parts = [f"{n} {state}" for state, n in sorted(self._states.items())]
        return ", ".join([*parts, f"{len(self._running)} running"])

    def _line(self, event: Event) -> None:
        state = event.message["state"]
        if self._bar is not None and state == "done":
            return
        ended = self._states.total()
        summary = event.message.get("summary") or {}
        parts = [f"[{ended}/{self._todo}]", f"{state:8}", self._names.get(event.trial_id, "?")]
        if state == "done" and self._primary in summary:
            parts.append(f"{self._primary} {summary[self._primary]:.4f}")
        elif event.message.get("error"):
            parts.append(first_line(event.message["error"]))
        spent = time.monotonic() - self._began
        if self._bar is None and ended < self._todo:
            parts.append(f"({duration(spent / ended * (self._todo - ended))} left)")
        self._out.print("  ".join(parts), markup=False, soft_wrap=True)


def _bar(out: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        MofNCompleteColumn(),
        BarColumn(bar_width=30),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=out,
        redirect_stdout=False,
        redirect_stderr=False,
    )
