"""A study on a Ray cluster of three machines, of which one dies, and then the driver does."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ablate.cli import app
from ablate.errors import UserError
from ablate.sweep.cluster import difference, installed, join
from ablate.sweep.driver import run_plan
from ablate.sweep.fake_study import FakePlan, fake_trial
from ablate.sweep.ledger import Ledger
from ablate.sweep.ray_tune import RayTuneExecutor
from ablate.telemetry import set_defaults
from ablate.track.tracker import connect
from ablate.track.view import MlflowView

PLAN = FakePlan(cells=3, seeds=4)

pytestmark = pytest.mark.slow

# A trial leaves a mark, then waits: at its first attempt for the file of its cell to go, later for
# the file ``again``.
DRIVER = """
import os, pathlib, sys, time
import ray
from ablate.sweep.driver import run_plan
from ablate.sweep.fake_study import FakePlan, fake_trial
from ablate.sweep.ledger import Ledger
from ablate.sweep.ray_tune import RayTuneExecutor

place = pathlib.Path(sys.argv[1])

def held(spec, report):
    node = ray.get_runtime_context().get_node_id()
    (place / "seen").joinpath(f"{spec['id']}@{node}@{os.getpid()}").touch()
    again = len(list((place / "seen").glob(f"{spec['id']}@*"))) > 1
    while (place / "hold" / ("again" if again else spec["cell"])).exists():
        time.sleep(0.05)
    fake_trial(spec, report)

with Ledger.open(place / "ledger.sqlite") as ledger:
    executor = RayTuneExecutor(cpus=0, gpus=1, address=sys.argv[2], run=held)
    counts = run_plan(FakePlan(cells=3, seeds=4), ledger, executor=executor)
    print({state: n for state, n in counts.items() if n})
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without GPUs and its job server, and two workers with two GPUs each."""
    from ray.cluster_utils import Cluster

    before = dict(os.environ)
    os.environ["ABLATE_DEBUG"] = "1"  # a driver that fails on the cluster says where
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    set_defaults()
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 2,
            "include_dashboard": True,
            "dashboard_port": 0,
            "dashboard_host": "127.0.0.1",
        },
    )
    try:
        yield cluster
    finally:
        cluster.shutdown()
        os.environ.clear()
        os.environ.update(before)


def until(place: Path, pattern: str, count: int) -> list[tuple[str, str]]:
    """Wait for files ``trial@node@pid``; return (trial, node) of each."""
    end = time.monotonic() + 120
    while len(found := sorted((place / "seen").glob(pattern))) < count:
        assert time.monotonic() < end, found
        time.sleep(0.1)
    return [(name, node) for name, node, _ in (file.name.split("@") for file in found)]


def attempts(place: Path) -> dict[str, list[tuple[str, str]]]:
    """State and error of every attempt, by trial."""
    with sqlite3.connect(place / "ledger.sqlite") as database:
        rows = database.execute("SELECT trial_id, state, error FROM attempts ORDER BY attempt")
        found: dict[str, list[tuple[str, str]]] = {}
        for trial_id, state, error in rows:
            found.setdefault(trial_id, []).append((state, error or ""))
    return found


def test_a_study_outlives_a_machine_and_its_driver(cluster: Any, tmp_path: Path) -> None:
    workers = [cluster.add_node(num_cpus=1, num_gpus=2) for _ in range(2)]
    (tmp_path / "seen").mkdir()
    (tmp_path / "hold").mkdir()
    for name in ("c0", "again"):
        (tmp_path / "hold" / name).touch()
    command = [sys.executable, "-c", DRIVER, str(tmp_path), cluster.address]
    driver = subprocess.Popen(command)
    try:
        began = until(tmp_path, "c0-*", 4)
        with_it = {trial for trial, node in began if node == workers[1].node_id}
        assert len(with_it) == 2
        cluster.remove_node(workers[1], allow_graceful=False)
        cluster.add_node(num_cpus=1, num_gpus=2)
        (tmp_path / "hold" / "c0").unlink()
        until(tmp_path, "*", 14)
    finally:
        driver.kill()
        driver.wait()
    gone, done = ("lost", "its machine is gone or cannot be reached"), ("done", "")
    others = {spec["id"] for spec in PLAN.trials()} - with_it
    assert attempts(tmp_path) == {
        **{trial: [done] for trial in others},
        **{trial: [gone, ("running", "")] for trial in with_it},
    }

    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        executor = RayTuneExecutor(cpus=0, gpus=1, address=cluster.address, run=fake_trial)
        counts = run_plan(PLAN, ledger, executor=executor)
        assert counts["done"] == sum(counts.values()) == 12
        assert MlflowView(f"sqlite:///{tmp_path}/mlflow.db").push(ledger) == 12
    orphan = ("lost", "the process that drove this trial was gone")
    assert attempts(tmp_path) == {
        **{trial: [done] for trial in others},
        **{trial: [gone, orphan, done] for trial in with_it},
    }
    client = connect(f"sqlite:///{tmp_path}/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("fake").experiment_id])
    tried = Counter(run.data.tags.get("ablate.attempt") for run in runs)
    assert tried == {None: 1, "1": 10, "3": 2}
    assert {run.info.status for run in runs} == {"FINISHED"}


TINY = """
question: Does momentum help?
model: deltanet
model_args: {backbone: {dim: 16, layers: 1, heads: 1}}
task: mqar
task_args: {tokens: 1024, train_rows: 16, test_rows: 16, batch: 16}
seeds: 2
design: {kind: one_factor, factors: {inner_optimizer: [gd, momentum]}}
"""


def launch(cluster: Any, *arguments: str) -> Result:
    address = f"http://{cluster.webui_url}"
    return CliRunner().invoke(app, ["launch", "--address", address, *arguments])


def test_a_study_is_launched_as_a_job_and_followed_to_its_exit_code(
    cluster: Any, tmp_path: Path
) -> None:
    file, home = tmp_path / "tiny.yaml", tmp_path / "home"
    file.write_text(TINY)
    done = launch(cluster, str(file), "seeds=1", "--home", str(home), "--", "--max-trials=1")
    assert done.exit_code == 0, done.output
    assert "running 1 trial" in done.stdout
    job = re.search(r"--job (\S+)", done.stdout)
    assert job is not None
    with Ledger.open(home / "tiny" / "ledger.sqlite", read_only=True) as ledger:
        assert ledger.counts()["done"] == 1
    again = launch(cluster, "--job", job[1])
    assert again.exit_code == 0
    assert "running 1 trial" in again.stdout
    assert launch(cluster, "--job", job[1], "--stop").stdout == f"job {job[1]} had ended\n"
    failed = launch(cluster, str(file), "--home", str(home), "--python", "sh -c 'exit 7'")
    assert failed.exit_code == 7
    assert "ended with exit code 7" in failed.stderr
    missing = launch(cluster, "--job", "nothing")
    assert missing.exit_code == 2
    assert "has no job 'nothing'" in missing.stderr


@pytest.mark.parametrize(
    ("address", "part"),
    [
        ("127.0.0.1:9", "does not answer (connection refused)"),
        ("head", "must be auto or HOST:PORT"),
        ("http://127.0.0.1:8265", "ablate launch STUDY"),
        ("ray://127.0.0.1:10001", "ablate launch STUDY"),
    ],
)
def test_a_wrong_address_is_told_in_seconds(address: str, part: str) -> None:
    began = time.monotonic()
    with pytest.raises(UserError) as told:
        join(address)
    assert part in str(told.value)
    assert time.monotonic() - began < 15


def test_a_port_that_is_no_ray_head_is_told_in_seconds(cluster: Any) -> None:
    began = time.monotonic()
    with pytest.raises(UserError, match="is no Ray head"):
        join(cluster.webui_url)
    assert time.monotonic() - began < 15


def test_a_machine_that_differs_is_named_with_what_to_do() -> None:
    here = installed()
    assert re.fullmatch(r"[0-9a-f]{12}", here["code"])
    assert difference(here, installed()) == ""
    assert difference(here, {**here, "ray": "2.59.0"}).startswith("has ray 2.59.0, the driver's")
    assert "with other code (0)" in difference(here, {**here, "code": "0"})
    assert "lacks a package (No module named 'mine')" in difference(here, installed(["mine"]))
