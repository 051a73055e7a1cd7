"""Run jobs on Ray Tune: on this machine's cores and GPUs, or on a cluster.

Tune only executes. It keeps nothing (its storage is a folder that is deleted afterwards), logs
nothing and restores nothing: the ledger does all three. Tune's word for a job, one trial of ours or
a pack, is a trial. Workers are used again for the next job, since a fresh one imports everything
anew, which takes seconds.
"""

from __future__ import annotations

import io
import itertools
import json
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

from ablate.sweep import cluster
from ablate.sweep.execution import Burst, Job, Recorder, RunPack, RunTrial, run_job
from ablate.sweep.tune_feed import Pruning, feed_searcher, pruned_message, slots
from ablate.telemetry import set_defaults

_OBJECT_STORE_BYTES = 200_000_000
_ATTEMPTS = 3
"""How often a trial is tried in one run if each time the machine goes that ran it."""
_MACHINE_GONE = ("node has died", "node died", "raylet died", "preempted", "is unavailable")
_AUTH = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


class RayTuneExecutor:
    """Runs jobs side by side, each with its share of the CPUs and GPUs."""

    isolated = True
    """A worker runs one job at a time: it may end itself when a step hangs."""

    def __init__(
        self,
        *,
        cpus: float = 1.0,
        gpus: float = 0.0,
        address: str | None = None,
        num_cpus: int | None = None,
        run: RunTrial | None = None,
        pack: RunPack | None = None,
        pruning: Pruning | None = None,
    ) -> None:
        """Keep the settings; Ray is started by `run`.

        Args:
            cpus: CPUs that one job takes; a fraction lets several share one.
            gpus: GPUs that one job takes; a fraction lets several share one.
            address: a running cluster; None starts Ray on this machine alone.
            num_cpus: CPUs that a local Ray may use; all by default.
            run: what runs one trial; `run_job` has the default.
            pack: what runs several together; `run_job` has the default.
            pruning: when lone trials are stopped early; never by default.
        """
        self._cpus, self._gpus = cpus, gpus
        self._address, self._num_cpus = address, num_cpus
        self._run, self._pack, self._pruning = run, pack, pruning

    def run(self, jobs: Iterable[Job], recorder: Recorder) -> None:
        """Run `jobs`; a worker that dies loses the unfinished trials of its own job only.

        Trials that were lost with a whole machine run again once the others are through.

        Raises:
            UserError: the cluster cannot be joined or a machine of it lacks something, or one
                trial asks for more than each of its machines has.
        """
        feed: Iterator[Job] | None = None
        handed: list[Job] = jobs if isinstance(jobs, list) else []
        first = handed[:1]
        if not isinstance(jobs, list):
            feed = iter(jobs)
            first = list(itertools.islice(feed, 1))
            feed = itertools.chain(first, feed)
        if not first:
            return
        allow = tuple(first[0][0].get("allow") or ())  # one plan's trials may use the same
        with _ray(self._address, self._num_cpus, allow), _scratch() as storage:
            cluster.check_resources(self._cpus, self._gpus)
            left = handed
            for attempt in range(1, _ATTEMPTS + 1):
                last = attempt == _ATTEMPTS
                self._fit(left, recorder, f"{storage}/{attempt}", last=last, feed=feed)
                left = [job for job in map(recorder.unfinished, handed) if job]
                feed = None
                if not left:
                    break
        for job in handed:
            for spec in job:
                recorder.lost(spec["id"], "Ray Tune ended without running this trial")

    def _fit(
        self,
        jobs: list[Job],
        recorder: Recorder,
        storage: str,
        *,
        last: bool,
        feed: Iterator[Job] | None,
    ) -> None:
        """Run `jobs`, or what `feed` gives, which is added to them."""
        from ray import tune

        pruning = self._pruning
        trainable = tune.with_parameters(
            _trainable, jobs=list(jobs), run=self._run, pack=self._pack, pruning=pruning
        )
        room = slots(self._cpus, self._gpus)
        listed = {"index": tune.grid_search(list(range(len(jobs))))}
        # A row that the scheduler compares by is one message among others without such a value.
        os.environ.setdefault("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")
        tuner = tune.Tuner(
            tune.with_resources(trainable, {"cpu": self._cpus, "gpu": self._gpus}),
            param_space=listed if feed is None else {},
            tune_config=tune.TuneConfig(
                search_alg=None if feed is None else feed_searcher(feed, jobs, most=room),
                num_samples=1 if feed is None else -1,
                scheduler=pruning.scheduler() if pruning else None,
                reuse_actors=True,
                trial_name_creator=_name,
                trial_dirname_creator=_name,
            ),
            run_config=tune.RunConfig(
                name="ablate",
                storage_path=storage,
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=0, fail_fast=False),
                checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
                callbacks=[_callback(jobs, recorder, last=last, prunes=pruning is not None)],
            ),
        )
        try:
            with _quiet():
                tuner.fit()
        except Exception as error:
            # Tune makes a long text of what its callbacks raise.
            raise recorder.failure or error from error


def _name(trial: Any) -> str:
    return f"job_{trial.config['index']}"


def _trainable(
    config: dict[str, Any],
    jobs: list[Job],
    run: RunTrial | None,
    pack: RunPack | None,
    pruning: Pruning | None,
) -> None:
    """Run one job in a worker; each burst of messages is one Tune result, as JSON text.

    Text, since Tune flattens and measures what it gets: a dict with odd keys would not survive.
    """
    from ray import tune

    def report(burst: Burst) -> None:
        compared = pruning.result(burst) if pruning else {}
        tune.report({"burst": json.dumps(burst), **compared})

    job = json.loads(config["job"]) if "job" in config else jobs[config["index"]]
    run_job(job, report, run=run, pack=pack)


def _callback(jobs: list[Job], recorder: Recorder, *, last: bool, prunes: bool) -> Any:
    """Make the Tune callback, in the driver, that passes messages to `recorder`."""
    from ray import tune

    class PassOn(tune.Callback):
        def __init__(self, jobs: list[Job], recorder: Recorder) -> None:
            self.jobs, self.recorder = jobs, recorder
            self.rows: dict[str, dict[str, Any]] = {}

        def __getstate__(self) -> dict[str, Any]:
            # Tune pickles its callbacks to restore them later, which is never done here.
            return {}

        def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            for trial_id in self.ids_of(trial):
                self.recorder.begin(trial_id)

        def on_trial_result(
            self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any
        ) -> None:
            if "burst" in result:
                for trial_id, message in json.loads(result["burst"]).items():
                    self.recorder.message(trial_id, message)
                    if prunes and message.get("kind") == "row":
                        self.rows[trial_id] = message

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            for trial_id in self.ids_of(trial) if prunes else ():
                # Nothing to a trial that has ended: then the scheduler did not stop it.
                self.recorder.message(trial_id, pruned_message(self.rows.pop(trial_id, None)))

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            reason, with_machine = _reason(trial)
            lost = self.recorder.lost_but_again if with_machine and not last else self.recorder.lost
            for trial_id in self.ids_of(trial):
                lost(trial_id, reason)

        def ids_of(self, trial: Any) -> list[str]:
            return [spec["id"] for spec in self.jobs[int(trial.config["index"])]]

    return PassOn(jobs, recorder)


def _reason(trial: Any) -> tuple[str, bool]:
    """Say in a line why Tune gave a trial up, and whether the whole machine is gone."""
    try:
        text = Path(trial.error_file).read_text(errors="replace")
    except (OSError, TypeError):
        text = ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if any("worker process has died" in line for line in lines):
        pid = next((line for line in lines if line.startswith("pid:")), "pid unknown")
        return f"the worker died ({pid}): killed, crashed, or out of the machine's memory", False
    if any(sign in text for sign in _MACHINE_GONE):
        return "its machine is gone or cannot be reached", True
    return f"the worker was lost: {lines[-1] if lines else 'Ray gives no reason'}", False


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Ray takes SIGTERM for itself and aborts the process; give it back to who had it before."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _ray(address: str | None, num_cpus: int | None, allow: tuple[str, ...]) -> Iterator[None]:
    """Have Ray running: one that this process has already, or one that is stopped afterwards."""
    set_defaults()
    import ray

    if ray.is_initialized():
        yield
        return
    local: dict[str, Any] = {
        "num_cpus": num_cpus or os.cpu_count(),
        "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE_BYTES,
    }
    if not address and not any(name in os.environ for name in _AUTH):
        # Left alone, Ray writes a lasting token into the user's home folder, and fails without one.
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    try:
        with _quiet(), _own_sigterm():
            if address:
                cluster.join(address, allow)
            else:
                ray.init(address="local", log_to_driver=False, logging_level=logging.ERROR, **local)
        yield
    finally:
        ray.shutdown()


@contextmanager
def _scratch() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="ablate-tune-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Ray's own lines off the terminal; what matters comes back as trial states."""
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(_WithoutRaylet(sys.stdout)):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


class _WithoutRaylet(io.TextIOBase):
    """Standard output without the paragraphs that Ray prints from a thread when a worker dies."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._dropped = False

    def write(self, text: str) -> int:
        if "(raylet)" in text or (self._dropped and not text.strip()):
            self._dropped = True
            return len(text)
        self._dropped = False
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()
