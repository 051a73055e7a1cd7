"""The ledger: one SQLite file per study that remembers the plan and every attempt of every trial.

It is the source of truth; the MLflow view and the report are made from it. One process writes,
one transaction per message, in write-ahead mode with ``synchronous=FULL``: what is recorded
survives a killed process as well as a power cut. Rows alone wait for the next flush; a power cut
may take them, but then their trial has no end either and runs again. Readers open the file
read-only at any time.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Iterable
from typing import Any

from ablate.sweep.records import CUT, ENDS, STATES, MetricRow, TrialRecord
from ablate.sweep.store import Store, dump

_SCHEMA = """
CREATE TABLE IF NOT EXISTS trials (
  position INTEGER PRIMARY KEY, trial_id TEXT UNIQUE NOT NULL, cell_id TEXT NOT NULL,
  seed INTEGER NOT NULL, config TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS attempts (
  trial_id TEXT NOT NULL, attempt INTEGER NOT NULL, state TEXT NOT NULL, started REAL, ended REAL,
  host TEXT, pid INTEGER, device TEXT, error TEXT, traceback TEXT, fingerprint TEXT,
  stale INTEGER NOT NULL DEFAULT 0, info TEXT NOT NULL DEFAULT '{}',
  summary TEXT NOT NULL DEFAULT '{}',
  PRIMARY KEY (trial_id, attempt)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rows (
  trial_id TEXT NOT NULL, attempt INTEGER NOT NULL, step INTEGER NOT NULL, tokens INTEGER NOT NULL,
  seconds REAL NOT NULL, name TEXT NOT NULL, value REAL,
  PRIMARY KEY (trial_id, attempt, step, name)) WITHOUT ROWID;
"""
_LATEST = """
SELECT t.trial_id, t.cell_id, t.seed, t.config, a.attempt,
       CASE WHEN a.stale THEN 'stale' ELSE a.state END, a.started, a.ended, a.host, a.device,
       a.error, a.traceback, a.fingerprint, a.info, a.summary
FROM trials t LEFT JOIN attempts a ON a.trial_id = t.trial_id
  AND a.attempt = (SELECT max(attempt) FROM attempts WHERE trial_id = t.trial_id)
ORDER BY t.position
"""


class Ledger(Store):
    """A study's ledger; make one with `Ledger.open`."""

    schema = _SCHEMA

    def save_plan(self, plan_json: dict[str, Any]) -> None:
        """Keep the plan (`Plan.to_json`); the last one says what is in the plan, and the order."""
        self.set("plan", plan_json)

    def plan(self) -> dict[str, Any] | None:
        """Return the last plan that was saved."""
        found: dict[str, Any] | None = self.get("plan")
        return found

    def add_trials(self, specs: Iterable[dict[str, Any]]) -> None:
        """Add the trials that the ledger does not know yet, as ``missing``."""
        entries = [(s["id"], s["cell"], int(s["seed"]), dump(s["config"])) for s in specs]
        with self._write():
            self._db.executemany(
                "INSERT OR IGNORE INTO trials (trial_id, cell_id, seed, config) VALUES (?,?,?,?)",
                entries,
            )

    def trials(self) -> list[TrialRecord]:
        """Return the latest attempt of every trial, in the order of the plan, then the others."""
        place = _places(self.plan())
        records = [_record(row, place) for row in self._db.execute(_LATEST)]
        if place is None:
            return records
        return sorted(records, key=lambda r: place.get((r.cell_id, r.seed), len(place)))

    def trial(self, trial_id: str) -> TrialRecord:
        """Return the latest attempt of one trial."""
        query = _LATEST.replace("ORDER BY", "WHERE t.trial_id = ? ORDER BY")
        row = self._db.execute(query, (trial_id,)).fetchone()
        if row is None:
            raise KeyError(f"the ledger {self.path} has no trial {trial_id!r}")
        return _record(row, _places(self.plan()))

    def counts(self) -> dict[str, int]:
        """Count the trials of the plan by state; every state has an entry."""
        counts = dict.fromkeys(STATES, 0)
        for record in self.trials():
            if record.in_plan:
                counts[record.state] += 1
        return counts

    def rows(self, trial_id: str) -> list[MetricRow]:
        """Return the metrics of the trial's latest attempt, by step and name."""
        query = (
            "SELECT step, tokens, seconds, name, value FROM rows WHERE trial_id = ? AND attempt ="
            " (SELECT max(attempt) FROM attempts WHERE trial_id = ?) ORDER BY step, name"
        )
        found = self._db.execute(query, (trial_id, trial_id))
        return [
            MetricRow(step, tokens, seconds, name, math.nan if value is None else value)
            for step, tokens, seconds, name, value in found
        ]

    def begin(self, trial_id: str) -> int:
        """Open a new attempt, ``running`` from now, and return its number, 1 for the first."""
        with self._write():
            return self._insert_attempt(trial_id, "running")

    def record(self, trial_id: str, attempt: int, message: dict[str, Any]) -> None:
        """Write one message of `ablate.trial.run.run_trial`.

        Raises:
            ValueError: the message has an unknown kind or end state.
        """
        match message["kind"]:
            case "start":
                self._start(trial_id, attempt, message)
            case "row":
                self._db.execute("PRAGMA synchronous = NORMAL")
                try:
                    self._row(trial_id, attempt, message)
                finally:
                    self._db.execute("PRAGMA synchronous = FULL")
            case "end":
                self._end(trial_id, attempt, message)
            case kind:
                raise ValueError(f"message kind {kind!r} is none of start, row, end")

    def mark(self, trial_id: str, state: str, error: str | None = None) -> None:
        """Set the state of the trial's latest attempt from outside.

        One that has ended is never made ``lost`` or ``cancelled``: whoever says so came too late.
        """
        if state not in STATES or state in {"missing", "stale"}:
            raise ValueError(f"state {state!r} cannot be set")
        with self._write():
            attempt = self._latest_attempt(trial_id) or self._insert_attempt(trial_id, state)
            self._db.execute(
                "UPDATE attempts SET state = ?, error = coalesce(?, error),"
                " ended = CASE WHEN ? = 'running' THEN NULL ELSE coalesce(ended, ?) END"
                " WHERE trial_id = ? AND attempt = ? AND (state = 'running' OR NOT ?)",
                (state, error, state, time.time(), trial_id, attempt, state in CUT),
            )

    def request_cancel(self, trial_ids: Iterable[str] | None = None, *, by: str) -> None:
        """Ask whoever holds the lock to stop, or to stop these trials alone; the others go on.

        The request names that holder, so a later run does not hear it.
        """
        with self._write():
            holder = self.lock_holder()
            named = holder.to_json() if holder else None
            before = self.get("cancel") or {}
            if before.get("holder") != named:
                before = {"all": False, "trials": []}
            trials = [*before["trials"], *(trial_ids or [])]
            whole = before["all"] or trial_ids is None
            self._put("cancel", {"holder": named, "all": whole, "trials": trials, "by": by})

    def mark_stale(self, trial_ids: Iterable[str]) -> None:
        """Say which trials have results of other code than today's; all others have not."""
        with self._write():
            self._db.execute("UPDATE attempts SET stale = 0")
            self._db.executemany(
                "UPDATE attempts SET stale = 1 WHERE trial_id = ?"
                " AND state IN ('done', 'diverged', 'pruned')",
                [(trial_id,) for trial_id in trial_ids],
            )

    def mark_orphans(
        self, state: str = "lost", reason: str = "the process that drove this trial was gone"
    ) -> list[str]:
        """Turn each ``running`` trial, in the plan or not, into `state`; return their ids.

        Only the holder of the lock may call it: then whoever ran these trials is gone.
        """
        orphans = [r.trial_id for r in self.trials() if r.state == "running"]
        for trial_id in orphans:
            self.mark(trial_id, state, reason)
        return orphans

    def _start(self, trial_id: str, attempt: int, message: dict[str, Any]) -> None:
        with self._write():
            self._db.execute(
                "UPDATE attempts SET host = ?, pid = ?, device = ?, fingerprint = ?, info = ?"
                " WHERE trial_id = ? AND attempt = ?",
                (
                    *(message.get(key) for key in ("host", "pid", "device", "fingerprint")),
                    dump(message.get("info") or {}),
                    trial_id,
                    attempt,
                ),
            )

    def _row(self, trial_id: str, attempt: int, message: dict[str, Any]) -> None:
        place = (
            trial_id,
            attempt,
            int(message["step"]),
            int(message.get("tokens") or 0),
            float(message.get("seconds") or 0.0),
        )
        values = [(*place, name, _real(value)) for name, value in message["metrics"].items()]
        with self._write():
            self._db.executemany("INSERT OR REPLACE INTO rows VALUES (?,?,?,?,?,?,?)", values)

    def _end(self, trial_id: str, attempt: int, message: dict[str, Any]) -> None:
        state = message["state"]
        if state not in ENDS:
            raise ValueError(f"end state {state!r} is none of {', '.join(sorted(ENDS))}")
        key = (trial_id, attempt)
        with self._write():
            query = "SELECT info FROM attempts WHERE trial_id = ? AND attempt = ?"
            info = json.loads(self._db.execute(query, key).fetchone()[0])
            for name in ("warnings", "retry"):
                if message.get(name):
                    info[name] = message[name]
            self._db.execute(
                "UPDATE attempts SET state = ?, ended = ?, error = ?, traceback = ?, summary = ?,"
                " info = ? WHERE trial_id = ? AND attempt = ?",
                (
                    state,
                    time.time(),
                    message.get("error"),
                    message.get("traceback"),
                    dump(message.get("summary") or {}),
                    dump(info),
                    *key,
                ),
            )

    def _latest_attempt(self, trial_id: str) -> int:
        query = "SELECT max(attempt) FROM attempts WHERE trial_id = ?"
        return int(self._db.execute(query, (trial_id,)).fetchone()[0] or 0)

    def _insert_attempt(self, trial_id: str, state: str) -> int:
        known = self._db.execute("SELECT 1 FROM trials WHERE trial_id = ?", (trial_id,)).fetchone()
        if known is None:
            raise KeyError(f"the ledger {self.path} has no trial {trial_id!r}")
        attempt = self._latest_attempt(trial_id) + 1
        self._db.execute(
            "INSERT INTO attempts (trial_id, attempt, state, started) VALUES (?,?,?,?)",
            (trial_id, attempt, state, time.time()),
        )
        return attempt


def _places(plan: dict[str, Any] | None) -> dict[tuple[str, int], int] | None:
    """Number the (cell, seed) pairs of a plan; None if there is no plan."""
    if plan is None:
        return None
    pairs = itertools.product((cell["id"] for cell in plan["cells"]), plan["seeds"])
    return {pair: i for i, pair in enumerate(pairs)}


def _record(row: tuple[Any, ...], place: dict[tuple[str, int], int] | None) -> TrialRecord:
    trial_id, cell, seed, config, attempt, state, *facts, info, summary = row
    started, ended, host, device, error, traceback, fingerprint = facts
    return TrialRecord(
        trial_id,
        cell,
        seed,
        state or "missing",
        attempt or 0,
        started,
        ended,
        host,
        device,
        error,
        traceback,
        fingerprint,
        info=json.loads(info or "{}"),
        summary=json.loads(summary or "{}"),
        config=json.loads(config),
        in_plan=place is None or (cell, seed) in place,
    )


def _real(value: Any) -> float | None:
    """Turn a metric into what SQLite keeps; it has no NaN, which is kept as NULL."""
    number = float(value)
    return None if math.isnan(number) else number
