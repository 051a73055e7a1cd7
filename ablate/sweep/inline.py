"""Run jobs one after another in this process: for tests, debugging and `ablate train`."""

from __future__ import annotations

from collections.abc import Iterable

from ablate.sweep.execution import Burst, Job, Recorder, RunPack, RunTrial, run_job


class InlineExecutor:
    """Runs each job here; `run` and `pack` are those of `run_job` unless a test gives others."""

    def __init__(self, run: RunTrial | None = None, *, pack: RunPack | None = None) -> None:
        self._run, self._pack = run, pack

    def run(self, jobs: Iterable[Job], recorder: Recorder) -> None:
        """Run `jobs` in order."""

        def report(burst: Burst) -> None:
            for trial_id, message in burst.items():
                recorder.message(trial_id, message)

        for job in jobs:
            for spec in job:
                recorder.begin(spec["id"])
            run_job(job, report, run=self._run, pack=self._pack)
