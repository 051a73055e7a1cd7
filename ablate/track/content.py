"""What MLflow is told of a trial and of a study: plain tags, parameters and metric values.

Pure functions of ledger records, without MLflow.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ablate.sweep.records import MetricRow, TrialRecord
from ablate.track.names import DIGEST_LIMIT, PARAM_LIMIT, TAG_LIMIT, cut, flat, legal_name, renamed

STATUS = {
    "done": "FINISHED",
    "pruned": "FINISHED",
    "stale": "FINISHED",
    "diverged": "FAILED",
    "failed": "FAILED",
    "oom": "FAILED",
    "timed_out": "FAILED",
    "lost": "KILLED",
    "cancelled": "KILLED",
}
"""MLflow's status of a trial's run by the state of the trial; these states are pushed."""

TRIAL, ATTEMPT, STUDY, ROLE = "ablate.trial", "ablate.attempt", "ablate.study", "ablate.role"


SYSTEM = frozenset({"peak_memory_bytes", "tokens_per_second", "cpu_seconds"})
"""Values of the summary that say how hard the machine worked: MLflow has a page of its own for
metrics below ``system/``."""


@dataclass(frozen=True)
class Data:
    """What a trial learned from, as MLflow's dataset; `source` and `profile` are JSON."""

    name: str
    digest: str
    source: str
    profile: str


@dataclass(frozen=True)
class Point:
    """One value of a metric; `time` in milliseconds since 1970."""

    name: str
    value: float
    time: int
    step: int


def milliseconds(seconds: float | None) -> int:
    """Convert a time of the ledger into MLflow's."""
    return int(1000 * (seconds or 0.0))


def trial_tags(
    record: TrialRecord, names: Iterable[str], *, study: str, cell: Mapping[str, Any], parent: str
) -> dict[str, str]:
    """Return all that sets the trial apart, since the UI loses nesting when it filters.

    Args:
        record: the trial.
        names: its metric names; those that had to change are kept as tags.
        study: name of the study.
        cell: the cell of the plan, or an empty mapping if the plan no longer has it.
        parent: id of the study's run.
    """
    known = {
        "mlflow.parentRunId": parent,
        STUDY: study,
        ROLE: "trial",
        TRIAL: record.trial_id,
        ATTEMPT: record.attempt,
        "ablate.cell": record.cell_id,
        "ablate.label": cell.get("label", record.cell_id),
        "ablate.compared_with": cell.get("compared_with"),
        "ablate.seed": record.seed,
        "ablate.state": record.state,
        "ablate.fingerprint": record.fingerprint,
        "ablate.host": record.host,
        "ablate.device": record.device,
        "ablate.error": record.error,
        "mlflow.source.git.commit": record.info.get("commit"),
        **{f"ablate.{k}": v for k, v in record.info.items() if k.startswith("backend")},
    }
    tags = {name: value for name, value in known.items() if value is not None}
    for axis, level in (cell.get("axes") or {}).items():
        tags[legal_name(f"ablate.axis.{axis}")] = "n/a" if level is None else level
    for legal, original in renamed(set(names)).items():
        tags[legal_name(f"ablate.metric.{legal}")] = original
    return {name: cut(value, TAG_LIMIT) for name, value in tags.items()}


def trial_params(record: TrialRecord, cell: Mapping[str, Any]) -> dict[str, str]:
    """Return the configuration's leaves, the axes' levels and the seed, cut with a mark."""
    axes = {f"axis.{axis}": level for axis, level in (cell.get("axes") or {}).items()}
    names = ("parameters", "state_bytes")
    facts: dict[str, Any] = {name: record.info[name] for name in names if name in record.info}
    params: dict[str, Any] = dict(flat(record.config))
    params |= {**axes, **facts, "seed": record.seed}
    return {
        legal_name(name): cut("n/a" if name in axes and value is None else value, PARAM_LIMIT)
        for name, value in params.items()
        if str(value)
    }


def trial_data(record: TrialRecord) -> Data | None:
    """Return what the trial says about its data, or None if it failed before it had any."""
    digest = record.info.get("data")
    task = record.config.get("task")
    if not digest or not task:
        return None
    # A trial reports the data's identity, then the task's own facts about the data.
    named = list(record.info)
    facts = {name: record.info[name] for name in named[named.index("data") + 1 :]}
    facts.pop("warnings", None)
    source = {"task": task["name"], "args": task.get("args") or {}}
    return Data(
        task["name"],
        str(digest)[:DIGEST_LIMIT],
        json.dumps(source, default=str),
        json.dumps(facts, default=str),
    )


def trial_points(record: TrialRecord, rows: Iterable[MetricRow]) -> Iterator[Point]:
    """Yield the curves, tokens, FLOPs and seconds beside them, then what only the summary has.

    A summary value that differs from the last row of its name comes last, so that it is the one
    that MLflow shows.
    """
    began = milliseconds(record.started)
    flops = record.info.get("flops_per_token")
    last: dict[str, float] = {}
    step, placed, time = 0, -1, began
    for row in rows:
        step, time = row.step, began + milliseconds(row.seconds)
        if step != placed:
            placed = step
            yield Point("progress/tokens", float(row.tokens), time, step)
            yield Point("progress/seconds", row.seconds, time, step)
            if flops is not None:
                yield Point("progress/flops", float(flops) * row.tokens, time, step)
        last[row.name] = row.value
        yield Point(legal_name(row.name), row.value, time, step)
    ended = max(milliseconds(record.ended), time) + 1
    for name, value in record.summary.items():
        if name not in last or not _same(last[name], value):
            yield Point(legal_name(_placed(name)), float(value), ended, step)


def cell_means(
    plan: Mapping[str, Any], records: Iterable[TrialRecord]
) -> dict[str, dict[str, tuple[float, int]]]:
    """Return per cell label and summary metric the mean over done trials and their number.

    Values that are not finite are left out, and what the machine measured, which stands with the
    trials alone; a cell without done trials has an empty entry.
    """
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if record.in_plan and record.state == "done":
            for name, value in record.summary.items():
                if math.isfinite(value) and name not in (*SYSTEM, "tokens", "seconds"):
                    values[record.cell_id][name].append(value)
    return {
        cell["label"]: {
            name: (sum(found) / len(found), len(found))
            for name, found in values[cell["id"]].items()
        }
        for cell in plan["cells"]
    }


def study_points(
    plan: Mapping[str, Any], records: list[TrialRecord]
) -> tuple[list[Point], dict[str, str]]:
    """Return the per-cell means as the study's metrics, and the original names that had to change.

    The same ledger gives the same points, so that pushing again adds nothing.
    """
    time = max((milliseconds(record.ended) for record in records), default=0)
    step = sum(record.state == "done" for record in records)
    names: dict[str, str] = {}
    points = []
    for label, means in cell_means(plan, records).items():
        for metric, (mean, _) in means.items():
            original = f"{metric}/{label}"
            legal = legal_name(original.replace("=", ": "))
            if legal in names:
                legal = legal_name(original)
            names[legal] = original
            points.append(Point(legal, mean, time, step))
    return points, {legal: original for legal, original in names.items() if legal != original}


def _placed(name: str) -> str:
    return f"system/{name}" if name in SYSTEM else name


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))
