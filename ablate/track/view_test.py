from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ablate.conftest import FreshStore
from ablate.sweep.driver import run_plan
from ablate.sweep.fake_study import (
    FAKE_ENV,
    FakePlan,
    end_message,
    row_message,
    scripted_trial,
    start_message,
)
from ablate.sweep.inline import InlineExecutor
from ablate.sweep.ledger import Ledger
from ablate.track.background import BackgroundView
from ablate.track.tracker import TrackerError, connect
from ablate.track.view import MlflowView

PLAN = FakePlan(cells=2, seeds=2)


@pytest.fixture
def uri(home: Path) -> str:
    return f"sqlite:///{home}/mlflow.db"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "fake" / "ledger.sqlite") as opened:
        yield opened


def run(ledger: Ledger, plan: FakePlan = PLAN, trial=scripted_trial, **settings: Any) -> None:
    run_plan(plan, ledger, executor=InlineExecutor(trial), **settings)


def runs_by_name(uri: str) -> dict[str, Any]:
    client = connect(uri)
    experiment = client.get_experiment_by_name("fake")
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    names = [run.info.run_name for run in runs]
    assert len(set(names)) == len(names)
    return dict(zip(names, runs, strict=True))


def test_two_first_comers_do_not_destroy_a_fresh_store(
    fresh_store: FreshStore,
) -> None:
    assert (fresh_store.returncode, fresh_store.stderr) == (0, "")


def test_a_study_is_a_parent_with_one_child_per_trial(
    uri: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(FAKE_ENV, "c1-s1:raise")
    run(ledger)
    report = tmp_path / "report.html"
    report.write_text("<p>report</p>")
    picture = tmp_path / "figures" / "effects.png"
    picture.parent.mkdir()
    picture.write_bytes(b"a picture")
    assert MlflowView(uri).push(ledger, [report, picture]) == 4
    runs = runs_by_name(uri)
    assert set(runs) == {
        "fake",
        "baseline seed 0",
        "baseline seed 1",
        "memory=level1 seed 0",
        "memory=level1 seed 1",
    }
    parent, child = runs["fake"], runs["memory=level1 seed 0"]
    tags = child.data.tags
    assert tags["mlflow.parentRunId"] == parent.info.run_id
    assert tags["ablate.study"] == "fake"
    assert tags["ablate.cell"] == "c1"
    assert tags["ablate.seed"] == "0"
    assert tags["ablate.axis.memory"] == "level1"
    assert tags["ablate.axis.newton_schulz.steps"] == "n/a"
    assert tags["ablate.state"] == "done"
    assert tags["ablate.fingerprint"] == "f0"
    assert child.data.params["task.args.context"] == "8"
    assert child.data.params["axis.memory"] == "level1"
    assert child.data.metrics["val/loss"] == pytest.approx(2.1)
    assert child.data.metrics["system/tokens_per_second"] == 800.0
    assert "tokens_per_second" not in child.data.metrics
    (dataset,) = (found.dataset for found in child.inputs.dataset_inputs)
    assert (dataset.name, dataset.digest) == ("language", "d0")
    assert json.loads(dataset.source) == {"task": "language", "args": {"context": 8}}
    assert json.loads(dataset.profile) == {"corpus": "fake", "unigram_bits_per_byte": 4.5}
    record = ledger.trial("c1-s0")
    assert record.started is not None
    assert child.info.start_time == int(1000 * record.started)
    assert child.info.status == "FINISHED"
    assert runs["memory=level1 seed 1"].info.status == "FAILED"
    assert parent.info.status == "FAILED"
    assert parent.info.start_time <= child.info.start_time <= parent.info.end_time
    assert parent.data.metrics["val/loss/memory: level1"] == pytest.approx(2.1)
    assert parent.data.tags["ablate.trials.done"] == "3"
    client = connect(uri)
    assert {f.path for f in client.list_artifacts(parent.info.run_id)} == {
        "figures",
        "plan.json",
        "report.html",
    }
    (figure,) = client.list_artifacts(parent.info.run_id, "figures")
    assert figure.path == "figures/effects.png"
    assert parent.data.tags["mlflow.note.content"] == (
        "Does nothing matter?\n\n![effects]"
        f"(get-artifact?path=figures%2Feffects.png&run_uuid={parent.info.run_id})"
    )
    history = client.get_metric_history(child.info.run_id, "progress/tokens")
    assert [(point.step, point.value) for point in history] == [(10, 80.0), (20, 160.0)]
    flops = client.get_metric_history(child.info.run_id, "progress/flops")
    assert [(point.step, point.value) for point in flops] == [(10, 160_000.0), (20, 320_000.0)]


def test_pushing_twice_or_to_a_forgetful_ledger_makes_no_duplicates(
    uri: str, ledger: Ledger
) -> None:
    run(ledger, max_trials=3)
    assert MlflowView(uri).push(ledger) == 3
    assert runs_by_name(uri)["fake"].info.status == "SCHEDULED"
    assert MlflowView(uri).push(ledger) == 0
    state = ledger.get("tracker_state")[uri]
    assert sorted(state["trials"]) == ["c0-s0", "c0-s1", "c1-s0"]
    ledger.set("tracker_state", {})
    run(ledger)
    assert MlflowView(uri).push(ledger) == 1
    runs = runs_by_name(uri)
    assert len(runs) == 5
    assert runs["fake"].info.status == "FINISHED"


def test_a_description_that_the_user_wrote_stays(uri: str, ledger: Ledger, tmp_path: Path) -> None:
    run(ledger, FakePlan(cells=1, seeds=1))
    view = MlflowView(uri)
    view.push(ledger)
    parent = runs_by_name(uri)["fake"].info.run_id
    connect(uri).set_tag(parent, "mlflow.note.content", "mine")
    picture = tmp_path / "figures" / "effects.png"
    picture.parent.mkdir()
    picture.write_bytes(b"a picture")
    MlflowView(uri).push(ledger, [picture])
    assert runs_by_name(uri)["fake"].data.tags["mlflow.note.content"] == "mine"


def test_searches_go_past_one_page(
    uri: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(ledger)
    monkeypatch.setattr("ablate.track.view._PAGE", 2)
    assert MlflowView(uri).push(ledger) == 4
    assert MlflowView(uri).push(ledger) == 0


def test_a_second_attempt_replaces_the_first(
    uri: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FAKE_ENV, "c0-s0:raise")
    run(ledger)
    MlflowView(uri).push(ledger)
    assert runs_by_name(uri)["baseline seed 0"].data.tags["ablate.state"] == "failed"
    monkeypatch.delenv(FAKE_ENV)
    run(ledger)
    assert MlflowView(uri).push(ledger) == 1
    runs = runs_by_name(uri)
    assert len(runs) == 5
    assert runs["baseline seed 0"].data.tags["ablate.attempt"] == "2"


def test_a_half_written_run_is_written_anew(uri: str, ledger: Ledger) -> None:
    run(ledger, FakePlan(cells=1, seeds=1))
    MlflowView(uri).push(ledger)
    whole = runs_by_name(uri)["baseline seed 0"]
    connect(uri).update_run(whole.info.run_id, status="RUNNING")
    assert MlflowView(uri).push(ledger) == 1
    again = runs_by_name(uri)["baseline seed 0"]
    assert again.info.run_id != whole.info.run_id
    assert again.info.status == "FINISHED"


def test_a_run_that_the_user_deleted_stays_deleted_but_a_deleted_experiment_comes_back(
    uri: str, ledger: Ledger
) -> None:
    run(ledger)
    view = MlflowView(uri)
    view.push(ledger)
    connect(uri).delete_run(runs_by_name(uri)["baseline seed 0"].info.run_id)
    assert MlflowView(uri).push(ledger) == 0
    assert len(runs_by_name(uri)) == 4
    connect(uri).delete_experiment(view.experiment_id)
    MlflowView(uri).push(ledger)
    assert connect(uri).get_experiment_by_name("fake").lifecycle_stage == "active"


def test_odd_values_and_names_arrive(uri: str, ledger: Ledger) -> None:
    def odd(spec: dict[str, Any], report: Any) -> None:
        report(start_message())
        for step, value in enumerate((1.0, math.inf, -math.inf, math.nan)):
            report(row_message(step, value, "acc@5[0]"))
            report(row_message(step, value, "val/loss"))
        report(end_message("diverged", {"val/loss": math.inf, "best = 1": 2.0}))

    plan = FakePlan(cells=1, seeds=1, extra={f"key{i}": "v" * 7000 for i in range(120)})
    run(ledger, plan, odd)
    MlflowView(uri).push(ledger)
    child = runs_by_name(uri)["baseline seed 0"]
    client = connect(uri)
    legal = next(name for name in child.data.metrics if name.startswith("acc_5_0_--"))
    assert child.data.tags[f"ablate.metric.{legal}"] == "acc@5[0]"
    for name in (legal, "val/loss"):
        values = [p.value for p in client.get_metric_history(child.info.run_id, name)]
        assert values[0] == 1.0
        assert values[1] > 1e308
        assert values[2] < -1e308
        assert any(math.isnan(value) for value in values)
    assert child.data.metrics["val/loss"] > 1e308
    assert len([name for name in child.data.params if name.startswith("train.key")]) == 120
    assert child.data.params["train.key7"].endswith("(cut; whole in config.json)")
    assert child.info.status == "FAILED"


def test_long_curves_go_in_batches(uri: str, ledger: Ledger) -> None:
    def long(spec: dict[str, Any], report: Any) -> None:
        report(start_message())
        for step in range(400):
            report(row_message(step, float(step)))
        report(end_message("done", {"val/loss": 399.0}))

    run(ledger, FakePlan(cells=1, seeds=1), long)
    MlflowView(uri).push(ledger)
    child = runs_by_name(uri)["baseline seed 0"]
    history = connect(uri).get_metric_history(child.info.run_id, "val/loss")
    assert [point.value for point in history] == [float(step) for step in range(400)]


def test_a_tracker_that_refuses_or_is_silent_is_noticed_in_seconds(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(ledger)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    began = time.monotonic()
    with pytest.raises(TrackerError, match=r"http://127.0.0.1:9 is not usable: connection refused"):
        MlflowView("http://127.0.0.1:9").push(ledger)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        with pytest.raises(TrackerError, match="does not answer in time"):
            MlflowView(f"http://127.0.0.1:{port}").push(ledger)
    assert time.monotonic() - began < 15


def test_the_background_pushes_and_a_failure_in_the_middle_is_told_once(
    uri: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(ledger)
    told: list[str] = []
    view = MlflowView(uri)
    write = view._write_run

    def fail_on_third(record: Any, rows: Any) -> None:
        if record.trial_id == "c1-s0":
            raise ConnectionError("the line is cut")
        write(record, rows)

    monkeypatch.setattr(view, "_write_run", fail_on_third)
    background = BackgroundView(view, ledger.path, told.append)
    for record in ledger.trials():
        background.trial_ended(record.trial_id)
    background.close()
    assert told == [f"the tracker {uri} is not usable: the line is cut"]
    assert background.problem == told[0]
    assert MlflowView(uri).push(ledger) == 2
    assert len(runs_by_name(uri)) == 5
