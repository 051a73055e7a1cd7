"""Why a run stops before its end: a limit is reached, or somebody cancelled it.

A thread looks once a second. What it finds stops the driver as Ctrl-C does, so there is one way to
stop, and it is safe at any moment.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from ablate.sweep.ledger import Ledger
from ablate.trial.guard import request_path

Kind = Literal["cancelled", "max_hours", "max_failures", "max_disk"]

LOOK = 1.0
"""Seconds between two looks at the ledger and the clock."""
LOOK_AT_DISK = 10
"""Looks between two measurements of the folder."""


@dataclass(frozen=True)
class Limits:
    """What a run may take; None for no limit.

    Args:
        hours: of wall-clock time.
        trial_seconds: that one attempt of a trial may take.
        failures: trials that may end broken.
        disk: bytes of the study's folder.
    """

    hours: float | None = None
    trial_seconds: float | None = None
    failures: int | None = None
    disk: float | None = None


class Stopped(KeyboardInterrupt):
    """The run was stopped, not by Ctrl-C; `kind` and the text say why."""

    def __init__(self, kind: Kind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class Watch:
    """Watches a run; a context around it, in the thread that is to be stopped."""

    def __init__(self, ledger: Ledger, limits: Limits) -> None:
        """Keep the settings.

        Args:
            ledger: whose lock this process holds; requests that name this holder are heard.
            limits: of the run.
        """
        self.stopped: Stopped | None = None
        self._path, self._limits = ledger.path, limits
        self._holder = ledger.lock_holder()
        self._failures = 0
        self._began = time.monotonic()
        self._asked: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="ablate-watch", daemon=True)
        self._main = threading.get_ident()
        self._listens = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Self:
        shutil.rmtree(request_path(self._path.parent, "any").parent, ignore_errors=True)
        if self._listens:
            self._before = signal.signal(signal.SIGUSR2, _interrupt)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._listens:
            signal.signal(signal.SIGUSR2, self._before)

    def failed(self) -> None:
        """Count one more trial that ended broken."""
        self._failures += 1
        most = self._limits.failures
        if most is not None and self._failures >= most:
            self._stop("max_failures", f"{self._failures} trials failed, the most is {most}")

    def _work(self) -> None:
        with Ledger.open(self._path, read_only=True) as ledger:
            look = 0
            while not self._over.is_set() and self.stopped is None:
                self._hear(ledger)
                self._measure(look)
                look += 1
                self._over.wait(LOOK)

    def _hear(self, ledger: Ledger) -> None:
        try:
            request = ledger.get("cancel")
        except sqlite3.OperationalError:
            return
        if not request or self._holder is None or request["holder"] != self._holder.to_json():
            return
        if request["all"]:
            self._stop("cancelled", f"cancelled by {request['by']}")
        for trial_id in set(request["trials"]) - self._asked:
            self._asked.add(trial_id)
            path = request_path(self._path.parent, trial_id)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"cancelled by {request['by']}")

    def _measure(self, look: int) -> None:
        hours, disk = self._limits.hours, self._limits.disk
        if hours is not None and time.monotonic() - self._began >= 3600 * hours:
            self._stop("max_hours", f"{hours:g} hours are over")
        if disk is not None and look % LOOK_AT_DISK == 0:
            used = folder_bytes(self._path.parent)
            if used > disk:
                text = f"the study's folder takes {used / 1e6:,.3f} MB, the most is"
                self._stop("max_disk", f"{text} {disk / 1e6:,.3f} MB")

    def _stop(self, kind: Kind, reason: str) -> None:
        if self.stopped is not None:
            return
        self.stopped = Stopped(kind, reason)
        if self._listens:
            signal.pthread_kill(self._main, signal.SIGUSR2)


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder."""
    total = 0
    for place, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.stat(os.path.join(place, name)).st_size
            except OSError:
                continue
    return total


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
