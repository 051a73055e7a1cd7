"""Write trials to MLflow from a thread, so that a slow tracker never holds training up."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path

from ablate.sweep.ledger import Ledger
from ablate.track.tracker import TrackerError
from ablate.track.view import MlflowView


class BackgroundView:
    """Pushes each trial that ended; after the first failure it is silent and `problem` says why."""

    def __init__(self, view: MlflowView, ledger: Path, on_problem: Callable[[str], None]) -> None:
        """Prepare the store in this thread, then start the other one.

        Args:
            view: not used by anybody else until `close`.
            ledger: path of the study's ledger, which has a plan.
            on_problem: told once, in a line, that the tracker failed.
        """
        self.problem: str | None = None
        self._view = view
        self._path = ledger
        self._on_problem = on_problem
        self._ended: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="ablate-tracker", daemon=True)
        try:
            with Ledger.open(ledger, read_only=True) as reader:
                view.prepare(reader.plan() or {})
        except TrackerError as error:
            self._fail(error)
        self._thread.start()

    def trial_ended(self, trial_id: str) -> None:
        """Have this trial pushed soon; the ledger has its end already."""
        self._ended.put(trial_id)

    def close(self) -> None:
        """Wait until all trials that ended are pushed or the tracker failed."""
        self._ended.put(None)
        self._thread.join()

    def _work(self) -> None:
        with Ledger.open(self._path, read_only=True) as reader:
            while (trial_id := self._ended.get()) is not None:
                if self.problem is not None:
                    continue
                try:
                    self._view.push_trial(reader.trial(trial_id), reader.rows(trial_id))
                except TrackerError as error:
                    self._fail(error)

    def _fail(self, error: TrackerError) -> None:
        self.problem = str(error)
        self._on_problem(self.problem)
