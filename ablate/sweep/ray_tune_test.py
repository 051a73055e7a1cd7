from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ablate.errors import UserError
from ablate.sweep.driver import run_plan
from ablate.sweep.execution import Event
from ablate.sweep.fake_study import FAKE_ENV, FakePlan, fake_trial, scripted_pack, scripted_trial
from ablate.sweep.inline import InlineExecutor
from ablate.sweep.ledger import Ledger
from ablate.sweep.ray_tune import RayTuneExecutor

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ray() -> Iterator[None]:
    import ray

    os.environ[FAKE_ENV] = "c0-s1:raise,c1-s0:kill,c1-s1:diverge,c1-s2:nan"
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=200_000_000,
        log_to_driver=False,
    )
    yield
    ray.shutdown()
    del os.environ[FAKE_ENV]


def test_a_raising_and_a_killed_trial_leave_the_others_alone(
    ray: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    events: list[Event] = []
    plan = FakePlan(cells=2, seeds=3)
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        executor = RayTuneExecutor(cpus=0.5, run=scripted_trial)
        counts = run_plan(plan, ledger, executor=executor, on_event=events.append)
        assert {state: n for state, n in counts.items() if n} == {
            "done": 3,
            "failed": 1,
            "diverged": 1,
            "lost": 1,
        }
        assert ledger.trial("c0-s1").error == "RuntimeError: the fake trial raises"
        assert "the worker died (pid" in (ledger.trial("c1-s0").error or "")
        assert [row.step for row in ledger.rows("c0-s0")] == [10, 20]
        assert ledger.rows("c0-s0")[1].value == pytest.approx(2.05)
        ended = [event.trial_id for event in events if event.kind == "end"]
        assert sorted(ended) == sorted(spec["id"] for spec in plan.trials())
    assert "raylet" not in capfd.readouterr().out


def test_a_killed_pack_loses_its_own_unfinished_trials_only(ray: None, tmp_path: Path) -> None:
    plan = FakePlan(cells=2, seeds=3)
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        run_plan(
            plan,
            ledger,
            executor=RayTuneExecutor(cpus=0.5, run=scripted_trial, pack=scripted_pack),
            jobs_of=lambda specs: [specs[2:5], specs[:2], specs[5:]],
        )
        states = {record.trial_id: record.state for record in ledger.trials()}
        assert states == {
            "c0-s0": "done",
            "c0-s1": "failed",
            "c0-s2": "done",
            "c1-s0": "lost",
            "c1-s1": "lost",
            "c1-s2": "done",
        }
        assert "the worker died (pid" in (ledger.trial("c1-s1").error or "")
        assert [row.step for row in ledger.rows("c0-s2")] == [10, 20]


def test_more_than_the_machine_has_is_refused(ray: None, tmp_path: Path) -> None:
    plan = FakePlan(cells=1, seeds=1)
    with (
        Ledger.open(tmp_path / "ledger.sqlite") as ledger,
        pytest.raises(UserError, match="one trial asks for 1 GPU and Ray has 0"),
    ):
        run_plan(plan, ledger, executor=RayTuneExecutor(gpus=1, run=scripted_trial))


DRIVER = """
import sys
from ablate.commands.terminal import stopped_by_sigterm
from ablate.sweep.driver import run_plan
from ablate.sweep.fake_study import FakePlan, scripted_trial
from ablate.sweep.ledger import Ledger
from ablate.sweep.ray_tune import RayTuneExecutor

def tell(event):
    print(event.trial_id, event.kind, flush=True)

with Ledger.open(sys.argv[1]) as ledger, stopped_by_sigterm():
    executor = RayTuneExecutor(cpus=1, num_cpus=1, run=scripted_trial)
    try:
        run_plan(FakePlan(cells=1, seeds=3), ledger, executor=executor, on_event=tell)
    except KeyboardInterrupt:
        sys.exit(130)
"""


def test_a_polite_kill_ends_a_run_through_ray_as_ctrl_c_does(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    command = [sys.executable, "-c", DRIVER, str(path)]
    env = os.environ | {FAKE_ENV: "c0-s1:sleep"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as driver:
        assert driver.stdout is not None
        for line in driver.stdout:
            if line == "c0-s1 start\n":
                os.kill(driver.pid, signal.SIGTERM)
                break
        driver.communicate(timeout=60)
    assert driver.returncode == 130
    with Ledger.open(path) as ledger:
        found = {record.trial_id: record.state for record in ledger.trials()}
        assert found == {"c0-s0": "done", "c0-s1": "lost", "c0-s2": "missing"}


def test_after_a_killed_driver_only_the_missing_trials_run(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    command = [sys.executable, "-c", DRIVER, str(path)]
    user = tmp_path / "user"
    user.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    env |= {FAKE_ENV: "c0-s1:sleep", "HOME": str(user)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env
    ) as driver:
        assert driver.stdout is not None
        for line in driver.stdout:
            if line == "c0-s1 start\n":
                os.kill(driver.pid, signal.SIGKILL)
                break
        driver.communicate(timeout=60)
    assert not (user / ".ray").exists()  # Ray would leave a token there
    begun: list[str] = []

    def note(event: Event) -> None:
        if event.kind == "begin":
            begun.append(event.trial_id)

    with Ledger.open(path) as ledger:
        assert ledger.trial("c0-s0").state == "done"
        assert ledger.trial("c0-s1").state == "running"
        plan = FakePlan(cells=1, seeds=3)
        counts = run_plan(plan, ledger, executor=InlineExecutor(fake_trial), on_event=note)
        assert counts["done"] == 3
        assert begun == ["c0-s1", "c0-s2"]
