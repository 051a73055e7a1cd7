"""Show a run as it goes: a bar on a terminal, one line per finished trial elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from ablate.analysis.formatting import duration
from ablate.commands.pace import Best, Pace, cell_of
from ablate.commands.terminal import first_line
from ablate.sweep.execution import Event
from ablate.sweep.records import TrialRecord


class RunProgress:
    """Takes the driver's events; use it as a context around the run."""

    def __init__(
        self,
        plan: dict[str, Any],
        todo: int,
        out: Console,
        before: Iterable[TrialRecord] = (),
    ) -> None:
        """Keep what is needed to name trials.

        Args:
            plan: `Plan.to_json`.
            todo: how many trials this run takes.
            out: where to show it.
            before: what earlier runs found.
        """
        self._out = out
        self._todo = todo
        self._primary = plan["measure"]["primary"]
        self._names = {
            f"{cell['id']}-s{seed}": f"{cell['label']} seed {seed}"
            for cell in plan["cells"]
            for seed in plan["seeds"]
        }
        self._labels = {cell["id"]: cell["label"] for cell in plan["cells"]}
        self._ended: dict[str, str] = {}
        self._pace = Pace(plan, todo)
        self._best = Best(self._primary, plan["measure"]["goal"])
        for record in before:
            if record.state == "done" and record.in_plan:
                self._best.add(record.cell_id, record.trial_id, record.summary)
        self._bar = _bar(out) if out.is_terminal and not out.quiet else None
        self._task = self._bar.add_task("starting", total=todo, left="") if self._bar else None

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
        self._labels[cell] = label

    def event(self, event: Event) -> None:
        """Take one event of the driver."""
        trial_id, message = event.trial_id, event.message
        if event.kind == "begin":
            self._ended.pop(trial_id, None)  # one that is tried once more
            self._pace.begin(trial_id)
        elif event.kind == "end":
            self._ended[trial_id] = message["state"]
            self._pace.end(trial_id, done=message["state"] == "done")
            if message["state"] == "done":
                self._best.add(cell_of(trial_id), trial_id, message.get("summary") or {})
            self._line(event)
        elif event.kind == "again":
            self._pace.end(trial_id, done=False)
            name = self._names.get(trial_id, "?")
            line = f"again     {name}  {message['error']}; it runs once more"
            self._out.print(line, markup=False, soft_wrap=True)
        if self._bar is not None and self._task is not None:
            ended = len(self._ended)
            self._bar.update(
                self._task, completed=ended, description=self._summary(), left=self._left()
            )

    def _summary(self) -> str:
        states = Counter(self._ended.values())
        parts = [f"{n} {state}" for state, n in sorted(states.items())]
        parts.append(f"{self._pace.running} running")
        if best := self._best_text():
            parts.append(best)
        return escape(", ".join(parts))

    def _best_text(self) -> str:
        found = self._best.cell()
        if found is None:
            return ""
        cell, mean = found
        return f"best so far {self._labels.get(cell, cell)} {mean:.4f}"

    def _left(self) -> str:
        seconds = self._pace.left(len(self._ended))
        return "" if seconds is None else f"{duration(seconds)} left"

    def _line(self, event: Event) -> None:
        state = event.message["state"]
        if self._bar is not None and state == "done":
            return
        ended = len(self._ended)
        summary = event.message.get("summary") or {}
        parts = [f"[{ended}/{self._todo}]", f"{state:8}", self._names.get(event.trial_id, "?")]
        if state == "done" and self._primary in summary:
            parts.append(f"{self._primary} {summary[self._primary]:.4f}")
        elif event.message.get("error"):
            parts.append(first_line(event.message["error"]))
        if self._bar is None and ended < self._todo:
            notes = [part for part in (self._left(), self._best_text()) if part]
            parts += [f"({'; '.join(notes)})"] if notes else []
        self._out.print("  ".join(parts), markup=False, soft_wrap=True)


def _bar(out: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        MofNCompleteColumn(),
        BarColumn(bar_width=30),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        console=out,
        redirect_stdout=False,
        redirect_stderr=False,
    )
