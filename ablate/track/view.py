"""One study in MLflow: a parent run, one nested run per trial, all made from the ledger.

A run is written when its trial has ended, with the times at which it really ran, so that a killed
driver leaves nothing running. The parent is ``SCHEDULED`` as long as trials are missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.errors import UserError
from ablate.sweep.ledger import Ledger
from ablate.sweep.records import FINISHED, MetricRow, TrialRecord
from ablate.track.address import check_uri, public_uri
from ablate.track.address import tracking_uri as default_uri
from ablate.track.content import ATTEMPT, ROLE, STATUS, STUDY, TRIAL, milliseconds, study_points
from ablate.track.names import legal_name
from ablate.track.runs import NOTE, description, log, make_parent, question, write_trial
from ablate.track.tracker import connect, experiment, tracker_errors

_PAGE = 1000


@dataclass(frozen=True)
class _Run:
    run_id: str
    attempt: int
    complete: bool
    active: bool


class MlflowView:
    """Writes studies to one MLflow store; give it to one thread at a time."""

    def __init__(self, uri: str | None = None) -> None:
        """Take the store's address, by default MLFLOW_TRACKING_URI or the one in ABLATE_HOME.

        Raises:
            UserError: MLflow cannot use such an address.
        """
        self.uri = check_uri(uri) if uri else default_uri()
        self.experiment_id = ""
        self._client: Any = None
        self._plan: dict[str, Any] = {}
        self._cells: dict[str, dict[str, Any]] = {}
        self._parent = ""
        self._runs: dict[str, list[_Run]] = {}

    @property
    def public_uri(self) -> str:
        """The address without credentials."""
        return public_uri(self.uri)

    def prepare(self, plan: dict[str, Any], began: float | None = None) -> None:
        """Reach the store, migrate it if it is new, and find or make the study's runs.

        Args:
            plan: `Plan.to_json`.
            began: when the first trial started, if one did; now by default.

        Raises:
            TrackerError: the store cannot be reached.
        """
        self._plan = plan
        self._cells = {cell["id"]: cell for cell in plan["cells"]}
        self._client = self._client or connect(self.uri)
        with tracker_errors(self.uri):
            self.experiment_id = experiment(self._client, plan["study"])
            parents = self._search("study")
            self._parent = (
                parents[0].info.run_id
                if parents
                else make_parent(self._client, self.experiment_id, plan, began)
            )
            self._runs = {}
            for run in self._search("trial"):
                self._remember(run)
            self._client.log_dict(self._parent, plan, "plan.json")

    def push_trial(self, record: TrialRecord, rows: Iterable[MetricRow]) -> bool:
        """Write the trial's run unless it is there; tell whether it was written.

        Runs of earlier attempts, and one that a killed driver left half written, are deleted.

        Raises:
            TrackerError: the store failed; nothing is lost, push again.
        """
        known = self._runs.get(record.trial_id, [])
        there = any(run.attempt == record.attempt and run.complete for run in known)
        with tracker_errors(self.uri):
            if not there:
                self._write_run(record, list(rows))
            for run in list(known):
                if run.active and (run.attempt != record.attempt or not run.complete):
                    self._client.delete_run(run.run_id)
                    known.remove(run)
        return not there

    def push_study(self, records: list[TrialRecord], files: Sequence[Path] = ()) -> None:
        """Write what the study's run shows: per-cell means, counts, state and files.

        Args:
            records: all trials.
            files: the report and others to keep with the run; pictures also by their folder.
        """
        planned = [record for record in records if record.in_plan]
        points, names = study_points(self._plan, planned)
        tags = {legal_name(f"ablate.metric.{legal}"): name for legal, name in names.items()}
        tags |= {f"ablate.trials.{s}": str(n) for s, n in _counts(planned).items()}
        with tracker_errors(self.uri):
            log(self._client, self._parent, points=points, tags=tags)
            for file in files:
                folder = file.parent.name if file.suffix == ".png" else None
                self._client.log_artifact(self._parent, str(file), folder)
            pictures = [f"{f.parent.name}/{f.name}" for f in files if f.suffix == ".png"]
            self._describe(pictures)
            self._close_parent(planned)

    def push(self, ledger: Ledger, files: Sequence[Path] = ()) -> int:
        """Bring the store up to the ledger; return how many runs were written.

        A second push writes nothing: the runs that are there are found by their tags.

        Raises:
            UserError: the ledger has no plan yet.
            TrackerError: the store failed.
        """
        plan = ledger.plan()
        if plan is None:
            raise UserError(f"the ledger {ledger.path} has no plan yet: run the study first.")
        started = [record.started for record in ledger.trials() if record.started is not None]
        self.prepare(plan, min(started, default=None))
        return self.sync(ledger, files)

    def sync(self, ledger: Ledger, files: Sequence[Path] = ()) -> int:
        """Do what `push` does, in a store that is prepared."""
        records = ledger.trials()
        written = 0
        try:
            for record in records:
                if record.state in STATUS and not self._settled(record):
                    written += self.push_trial(record, ledger.rows(record.trial_id))
        finally:
            self.save_state(ledger)
        self.push_study(records, files)
        return written

    def save_state(self, ledger: Ledger) -> None:
        """Note in the ledger which attempts this store has, under ``tracker_state``."""
        if ledger.read_only:
            return
        trials = {
            trial_id: max((run.attempt, run.run_id) for run in runs if run.complete)
            for trial_id, runs in self._runs.items()
            if any(run.complete for run in runs)
        }
        state = ledger.get("tracker_state", {})
        state[self.public_uri] = {
            "experiment": self.experiment_id,
            "parent": self._parent,
            "trials": trials,
        }
        ledger.set("tracker_state", state)

    def _settled(self, record: TrialRecord) -> bool:
        """Tell whether the store has this attempt of the trial, and no other."""
        known = self._runs.get(record.trial_id, [])
        whole = [run for run in known if run.complete and run.attempt == record.attempt]
        return bool(whole) and all(run in whole for run in known if run.active)

    def _write_run(self, record: TrialRecord, rows: list[MetricRow]) -> None:
        run_id = write_trial(
            self._client,
            self.experiment_id,
            record,
            rows,
            study=self._plan["study"],
            cell=self._cells.get(record.cell_id, {}),
            parent=self._parent,
        )
        written = _Run(run_id, record.attempt, complete=True, active=True)
        self._runs.setdefault(record.trial_id, []).append(written)

    def _describe(self, figures: Sequence[str]) -> None:
        """Show the figures on the run's front page, unless somebody wrote a description there."""
        asked = question(self._plan)
        tags = self._client.get_run(self._parent).data.tags
        if figures and tags.get(NOTE, "") == asked:
            note = description(asked, self._parent, figures)
            self._client.set_tag(self._parent, NOTE, note)

    def _close_parent(self, planned: list[TrialRecord]) -> None:
        states = {record.state for record in planned}
        if not states <= STATUS.keys():
            self._client.update_run(self._parent, status="SCHEDULED")
            return
        ended = max((milliseconds(record.ended) for record in planned), default=0)
        status = "FINISHED" if states <= FINISHED | {"stale"} else "FAILED"
        self._client.set_terminated(self._parent, status, ended)

    def _search(self, role: str) -> list[Any]:
        """Find all runs of the study with this role, page by page; parents only if not deleted."""
        from mlflow.entities import ViewType

        view = ViewType.ACTIVE_ONLY if role == "study" else ViewType.ALL
        query = f"tags.`{STUDY}` = '{self._plan['study']}' AND tags.`{ROLE}` = '{role}'"
        runs: list[Any] = []
        token = None
        while True:
            page = self._client.search_runs(
                [self.experiment_id], query, view, _PAGE, ["attributes.start_time ASC"], token
            )
            runs += page
            token = page.token
            if not token:
                return runs

    def _remember(self, run: Any) -> None:
        tags = run.data.tags
        found = _Run(
            run.info.run_id,
            int(tags[ATTEMPT]),
            complete=run.info.status != "RUNNING",
            active=run.info.lifecycle_stage == "active",
        )
        self._runs.setdefault(tags[TRIAL], []).append(found)


def _counts(records: list[TrialRecord]) -> dict[str, int]:
    states = [record.state for record in records]
    return {state: states.count(state) for state in sorted(set(states))}
