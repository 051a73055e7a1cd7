"""Run trials one after another in this process: for tests, debugging and `ablate train`."""

from __future__ import annotations

from ablate.sweep.execution import Message, Recorder, RunTrial, Spec, run_safely


class InlineExecutor:
    """Runs each trial here; `run` is `ablate.trial.run.run_trial` unless a test gives another."""

    def __init__(self, run: RunTrial | None = None) -> None:
        self._run = run

    def run(self, specs: list[Spec], recorder: Recorder) -> None:
        """Run `specs` in order."""
        run = self._run or _run_trial()
        for spec in specs:
            trial_id = spec["id"]
            recorder.begin(trial_id)

            def report(message: Message, trial_id: str = trial_id) -> None:
                recorder.message(trial_id, message)

            run_safely(run, spec, report)


def _run_trial() -> RunTrial:
    from ablate.trial.run import run_trial

    return run_trial
