"""What the driver and its executors say to each other.

An executor runs trials somewhere and passes their messages on; the recorder writes each to the
ledger, in the driver's process, and tells whoever listens.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ablate.sweep.ledger import Ledger
from ablate.sweep.records import ENDS

Spec = dict[str, Any]
Message = dict[str, Any]
RunTrial = Callable[[Spec, Callable[[Message], None]], None]


@dataclass(frozen=True)
class Event:
    """A message that is now in the ledger; kind is ``begin``, ``start``, ``row`` or ``end``."""

    kind: str
    trial_id: str
    message: Message


class Executor(Protocol):
    """Runs trials; a trial's own failure must not end the others."""

    def run(self, specs: list[Spec], recorder: Recorder) -> None:
        """Run all of `specs`, telling `recorder` of each message as it comes."""


class Recorder:
    """Writes what trials report to the ledger, then passes it on as events."""

    def __init__(self, ledger: Ledger, on_event: Callable[[Event], None]) -> None:
        self._ledger = ledger
        self._on_event = on_event
        self._running: dict[str, int] = {}
        self._ended: set[str] = set()

    def begin(self, trial_id: str) -> None:
        """Open an attempt, unless this run has begun one."""
        if trial_id in self._running or trial_id in self._ended:
            return
        self._running[trial_id] = self._ledger.begin(trial_id)
        self._on_event(Event("begin", trial_id, {}))

    def message(self, trial_id: str, message: Message) -> None:
        """Record one message; one that cannot be read fails the trial, never the sweep."""
        self.begin(trial_id)
        if trial_id in self._ended:
            return
        try:
            self._ledger.record(trial_id, self._running[trial_id], message)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._close(trial_id, "failed", f"the trial sent an unreadable message: {error!r}")
            return
        if message["kind"] == "end":
            self._ended.add(trial_id)
            del self._running[trial_id]
        self._on_event(Event(message["kind"], trial_id, message))

    def lost(self, trial_id: str, error: str) -> None:
        """Record that whatever ran the trial is gone; nothing happens if it had ended."""
        if trial_id not in self._ended:
            self.begin(trial_id)
            self._close(trial_id, "lost", error)

    def lose_running(self, error: str) -> None:
        """Record every trial that has begun and not ended as lost."""
        for trial_id in list(self._running):
            self.lost(trial_id, error)

    def _close(self, trial_id: str, state: str, error: str) -> None:
        self._ledger.mark(trial_id, state, error)
        self._ended.add(trial_id)
        del self._running[trial_id]
        self._on_event(Event("end", trial_id, {"kind": "end", "state": state, "error": error}))


def run_safely(run: RunTrial, spec: Spec, report: Callable[[Message], None]) -> None:
    """Run one trial so that an end message always comes, even if `run` breaks its promise."""
    ended = False

    def pass_on(message: Message) -> None:
        nonlocal ended
        report(message)
        ended = ended or (message.get("kind") == "end" and message.get("state") in ENDS)

    try:
        run(spec, pass_on)
        problem, trace = "the trial returned without an end message", None
    except Exception as error:
        problem, trace = f"{type(error).__name__}: {error}", traceback.format_exc()
    if not ended:
        report({"kind": "end", "state": "failed", "error": problem, "traceback": trace})
