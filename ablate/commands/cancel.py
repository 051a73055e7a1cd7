"""`ablate cancel`: stop a run in another process, or some of its trials."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence

from ablate.commands.ledgers import open_ledger, study_name, trial_ids
from ablate.commands.status import counts_line
from ablate.commands.terminal import OK, console
from ablate.errors import UserError
from ablate.sweep.lock import LockHolder

WAIT = 30.0
"""Seconds to wait for the run to be over."""


def cancel_command(study: str, trials: Sequence[str], *, quiet: bool = False) -> int:
    """Ask the driver of a study to stop, wait for it for a while, and return the exit code."""
    out = console(quiet=quiet)
    name = study_name(study)
    with open_ledger(study, read_only=False) as ledger:
        holder = ledger.lock_holder()
        if holder is None or not holder.alive():
            raise UserError(f"nothing to cancel: no process runs study '{name}' now.")
        chosen = trial_ids(ledger, trials) if trials else None
        by = f"ablate cancel (pid {os.getpid()} on {socket.gethostname()})"
        ledger.request_cancel(chosen, by=by)
        asked = f"asked {holder.describe()}"
        if chosen is not None:
            out.print(f"{asked} to stop {', '.join(chosen)}; the others go on", markup=False,
                      soft_wrap=True)  # fmt: skip
            return OK
        out.print(f"{asked} to stop", markup=False, soft_wrap=True)
        until = time.monotonic() + WAIT
        while _runs(ledger.lock_holder(), holder):
            if time.monotonic() > until:
                out.print("it has not stopped yet: it may still write its report")
                return OK
            time.sleep(0.2)
        out.print(f"stopped: {counts_line(ledger.counts())}", style="bold")
    return OK


def _runs(now: LockHolder | None, holder: LockHolder) -> bool:
    return now == holder and holder.alive()
