"""Write one run into MLflow: the study's own, or that of a trial that has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlencode

from ablate.sweep.records import MetricRow, TrialRecord
from ablate.track.content import (
    ROLE,
    STATUS,
    STUDY,
    Data,
    Point,
    milliseconds,
    trial_data,
    trial_params,
    trial_points,
    trial_tags,
)
from ablate.track.names import TAG_LIMIT, cut

NOTE = "mlflow.note.content"
"""The tag that MLflow shows as a run's description."""


def make_parent(
    client: Any, experiment_id: str, plan: Mapping[str, Any], began: float | None
) -> str:
    """Make the run of the study and return its id; it is ``SCHEDULED`` until all trials are there.

    Args:
        client: an `mlflow.MlflowClient`.
        experiment_id: where it goes.
        plan: `Plan.to_json`.
        began: when the first trial started, if one did; now by default.
    """
    study = plan["study"]
    tags = {STUDY: study, ROLE: "study", "ablate.question": question(plan), NOTE: question(plan)}
    for key in ("baseline", "task", "file"):
        tags[f"ablate.{key}"] = str(plan.get(key) or "")
    tags = {name: cut(value, TAG_LIMIT) for name, value in tags.items() if value}
    start = None if began is None else milliseconds(began)
    run = client.create_run(experiment_id, start, tags=tags, run_name=study)
    client.update_run(run.info.run_id, status="SCHEDULED")
    return str(run.info.run_id)


def question(plan: Mapping[str, Any]) -> str:
    """Return what the study asks, in the length that MLflow keeps."""
    return cut(plan.get("question") or "", TAG_LIMIT)


def description(asked: str, run_id: str, figures: Sequence[str]) -> str:
    """Return the question in Markdown with the run's own figures below it.

    Args:
        asked: what the study asks.
        run_id: the run whose artifacts they are.
        figures: artifact paths of pictures.
    """
    images = []
    for path in figures:
        name = PurePosixPath(path).stem.replace("_", " ")
        query = urlencode({"path": path, "run_uuid": run_id})
        images.append(f"![{name}](get-artifact?{query})")
    return "\n\n".join(part for part in (asked, *images) if part)


def write_trial(
    client: Any,
    experiment_id: str,
    record: TrialRecord,
    rows: Sequence[MetricRow],
    *,
    study: str,
    cell: Mapping[str, Any],
    parent: str,
) -> str:
    """Write the run of a trial, with the times at which it really ran, and return its id.

    Args:
        client: an `mlflow.MlflowClient`.
        experiment_id: where it goes.
        record: the trial, in one of the states of `STATUS`.
        rows: its curves.
        study: name of the study.
        cell: its cell of the plan, or an empty mapping.
        parent: id of the study's run.
    """
    names = {row.name for row in rows} | set(record.summary)
    run = client.create_run(
        experiment_id,
        start_time=milliseconds(record.started),
        tags=trial_tags(record, names, study=study, cell=cell, parent=parent),
        run_name=f"{cell.get('label', record.cell_id)} seed {record.seed}",
    )
    run_id = str(run.info.run_id)
    points = list(trial_points(record, rows))
    log(client, run_id, points=points, params=trial_params(record, cell))
    data = trial_data(record)
    if data is not None:
        client.log_inputs(run_id, datasets=[_dataset(data)])
    client.log_dict(run_id, _facts(record), "config.json")
    if record.traceback:
        client.log_text(run_id, record.traceback, "traceback.txt")
    # Last of all, so that a run that is not RUNNING is whole.
    client.set_terminated(
        run_id, STATUS[record.state], milliseconds(record.ended or record.started)
    )
    return run_id


def log(
    client: Any,
    run_id: str,
    *,
    points: Sequence[Point] = (),
    params: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
) -> None:
    """Write many values at once; the client cuts them into calls of the size that MLflow takes."""
    from mlflow.entities import Metric, Param, RunTag

    client.log_batch(
        run_id,
        metrics=[Metric(point.name, point.value, point.time, point.step) for point in points],
        params=[Param(*pair) for pair in (params or {}).items()],
        tags=[RunTag(*pair) for pair in (tags or {}).items()],
    )


def _dataset(data: Data) -> Any:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    dataset = Dataset(data.name, data.digest, "ablate", data.source, profile=data.profile)
    return DatasetInput(dataset, tags=[InputTag("mlflow.data.context", "training")])


def _facts(record: TrialRecord) -> dict[str, Any]:
    """Everything about a trial that is not a curve."""
    return {
        "trial": record.trial_id,
        "cell": record.cell_id,
        "seed": record.seed,
        "attempt": record.attempt,
        "fingerprint": record.fingerprint,
        "config": record.config,
        "info": record.info,
        "summary": record.summary,
    }
