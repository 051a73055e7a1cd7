"""`ablate retry`: run trials once more, whatever came of them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ablate.commands.ledgers import open_ledger, study_name, trial_ids
from ablate.commands.run import COMMAND, RunOptions, run_command
from ablate.commands.status import count_states, counts_line
from ablate.errors import UserError, unknown
from ablate.sweep.driver import CHOSEN
from ablate.sweep.execution import RunTrial
from ablate.sweep.records import STATES, TrialRecord

NEVER = {"running", "missing"}


@dataclass(frozen=True)
class RetryOptions:
    """What to run again, and how; the fields are the options of the command."""

    states: str = "failed"
    trials: Sequence[str] = ()
    fresh: bool = False
    executor: Literal["ray", "inline"] = "ray"
    address: str | None = None
    quiet: bool = False
    trial: RunTrial | None = None
    """What runs one trial; for tests."""


def retry_command(study: str, options: RetryOptions) -> int:
    """Mark the chosen trials, run them as the study was run last, and return the exit code."""
    states = chosen_states(options.states)
    with open_ledger(study, read_only=False) as ledger:
        holder = ledger.lock_holder()
        if holder is not None and holder.alive():
            raise UserError(f"the study is being run by {holder.describe()}: wait or cancel it.")
        named = set(trial_ids(ledger, options.trials)) if options.trials else None
        planned = [record for record in ledger.trials() if record.in_plan]
        chosen = _choose(planned, states, named, study_name(study))
        command = ledger.get(COMMAND)
        if command is None:
            raise UserError(
                f"the ledger of '{study_name(study)}' does not say how it was run: "
                "run it once more with `ablate run`."
            )
        ledger.set(CHOSEN, sorted({*ledger.get(CHOSEN, []), *chosen}))
        if options.fresh:
            for trial_id in chosen:
                folder = ledger.path.parent / "checkpoints" / trial_id
                shutil.rmtree(folder, ignore_errors=True)
    return run_command(
        command["study"],
        command["overrides"],
        RunOptions(
            executor=options.executor,
            address=options.address,
            config_dirs=[Path(folder) for folder in command["config_dirs"]],
            allow=command["allow"],
            only=tuple(chosen),
            quiet=options.quiet,
            trial=options.trial,
        ),
    )


def chosen_states(text: str) -> set[str]:
    """Read ``failed,diverged``.

    Raises:
        UserError: a state that does not exist, or that has nothing to run again.
    """
    given = [part.strip() for part in text.split(",") if part.strip()]
    valid = [state for state in STATES if state not in NEVER]
    for state in given:
        if state not in valid:
            raise unknown("state to retry", state, valid)
    return set(given)


def _choose(
    records: list[TrialRecord], states: set[str], named: set[str] | None, study: str
) -> list[str]:
    found = [
        record.trial_id
        for record in records
        if (named is None and record.state in states)
        or (named is not None and record.trial_id in named and record.state not in NEVER)
    ]
    if not found:
        there = counts_line(count_states(records))
        wanted = ", ".join(sorted(named or states))
        raise UserError(f"study '{study}' has nothing to retry for {wanted}; it has {there}.")
    return found
