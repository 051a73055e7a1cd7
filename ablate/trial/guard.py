"""What ends a trial from outside: its time is up, or somebody cancelled it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

CANCELLED = "cancelled"
TIMED_OUT = "timed_out"
LOOK = 0.5
"""Seconds between two looks for a request."""
GRACE = 30.0
"""Seconds that a trial over its time gets to reach the end of a step, before its process ends."""


class Stopped(Exception):
    """The trial is to end now; `state` says in which state."""

    def __init__(self, state: str, reason: str) -> None:
        super().__init__(reason)
        self.state = state


def request_path(study: Path, trial_id: str) -> Path:
    """The file whose being there asks that trial to stop; its text says who wants it."""
    return study / "cancel" / trial_id


@dataclass
class Guard:
    """Asked between two steps whether the trial may go on.

    Args:
        request: the file that asks it to stop; None if nobody can.
        seconds: that this attempt may take; None for no limit.
        hard: whether this process runs nothing else, and may end itself when a step hangs.
    """

    request: Path | None = None
    seconds: float | None = None
    hard: bool = False
    grace: float = GRACE
    _began: float = field(default_factory=time.monotonic)
    _looked: float = float("-inf")

    def wanted(self) -> Stopped | None:
        """Return why the trial is to end, if it is; it looks at the disk twice a second at most."""
        now = time.monotonic()
        if self.seconds is not None and now - self._began > self.seconds:
            return Stopped(TIMED_OUT, f"stopped after {self.seconds:g} s, its limit")
        if self.request is None or now - self._looked < LOOK:
            return None
        self._looked = now
        try:
            text = self.request.read_text()
        except OSError:
            return None
        return Stopped(CANCELLED, text.strip() or CANCELLED)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """End this process, if it may, when the body hangs far beyond its time."""
        if self.seconds is None or not self.hard:
            yield
            return
        timer = threading.Timer(self.seconds + self.grace, os._exit, (124,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
