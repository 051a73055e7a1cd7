"""What `ablate launch` does: run a study as a job of a Ray cluster, follow or stop such a job."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ablate.commands.plan import totals
from ablate.commands.terminal import BAD_INPUT, FAILED, INTERRUPTED, OK, console, program
from ablate.errors import UserError
from ablate.sweep.launch import Driver, JobServer, environment, pack_folder


@dataclass(frozen=True)
class LaunchOptions:
    """How to launch; the fields are the options of the command."""

    address: str | None = None
    home: str = "~/.ablate"
    job: str | None = None
    stop: bool = False
    follow: bool = True
    env: Sequence[str] = ()
    python: str = "python"
    config_dirs: Sequence[Path] = ()
    allow: Sequence[str] = ()
    passed: Sequence[str] = ()
    """Options of `ablate run` that go to the driver as they are."""
    quiet: bool = False


def launch_command(study: str | None, overrides: Sequence[str], options: LaunchOptions) -> int:
    """Submit, follow or stop a job; the exit code is the job's once it is followed to its end."""
    address = options.address or os.environ.get("RAY_API_SERVER_ADDRESS")
    if not address:
        raise UserError(
            "--address is missing: give the cluster's job server, http://HEAD:8265, or set "
            "RAY_API_SERVER_ADDRESS."
        )
    out = console(quiet=options.quiet)
    if (study is None) == (options.job is None):
        raise UserError("give either a STUDY to launch or --job ID to follow or stop.")
    if options.stop and options.job is None:
        raise UserError("--stop needs --job ID.")
    if options.job is not None:
        server = JobServer(address)
        return _stop(server, options.job, out) if options.stop else _follow(server, options, out)
    assert study is not None
    return _submit(study, overrides, address, options, out)


def _submit(
    study: str, overrides: Sequence[str], address: str, options: LaunchOptions, out: Console
) -> int:
    from ablate.study.load import find_study
    from ablate.study.plan import make_plan

    env = environment(options.env)
    # Mistakes in the study are told here, before anything is sent.
    plan = make_plan(study, list(overrides), config_dirs=options.config_dirs, allow=options.allow)
    server = JobServer(address)
    with tempfile.TemporaryDirectory(prefix="ablate-launch-") as temporary:
        folder = Path(temporary)
        by_path = study.endswith(".yaml") or "/" in study
        file = find_study(study, options.config_dirs) if by_path else None
        named = pack_folder(folder, file, options.config_dirs, options.allow)
        arguments = [*([] if by_path else [study]), *named, *overrides, *options.passed]
        along = folder if any(folder.iterdir()) else None
        driver = Driver(plan.study, arguments, options.home, env, options.python, along)
        job_id = server.submit(driver)
    out.print(f"{plan.study}: {totals(plan)}", style="bold", markup=False)
    again = f"{program()} launch --job {job_id} --address {server.address}"
    for line in (
        f"job {job_id} runs on the cluster; this machine may go to sleep",
        f"results: {options.home}/{plan.study} on the head (ABLATE_HOME)",
        f"follow:  {again}",
        f"stop:    {again} --stop",
    ):
        out.print(line, markup=False, soft_wrap=True)
    if not options.follow:
        return OK
    return _watch(server, job_id, out)


def _follow(server: JobServer, options: LaunchOptions, out: Console) -> int:
    assert options.job is not None
    return _watch(server, options.job, out)


def _stop(server: JobServer, job_id: str, out: Console) -> int:
    running = server.stop(job_id)
    text = "stopped; the same study launched again runs what is missing"
    out.print(f"job {job_id} {text if running else 'had ended'}", markup=False, soft_wrap=True)
    return OK


def _watch(server: JobServer, job_id: str, out: Console) -> int:
    """Print a job's log until it ends; Ctrl-C leaves the job running."""
    missing = False

    def write(text: str) -> None:
        nonlocal missing
        missing = missing or "No module named ablate" in text
        if not out.quiet:
            sys.stdout.write(text)
            sys.stdout.flush()

    try:
        end = server.follow(job_id, write)
    except KeyboardInterrupt:
        out.print(f"\njob {job_id} goes on; --stop ends it", markup=False)
        return INTERRUPTED
    if end.state == "SUCCEEDED":
        return OK
    if end.state == "STOPPED":
        out.print(f"job {job_id} was stopped", markup=False)
        return INTERRUPTED
    if missing:
        print(
            "error: the head's Python has no Ablate: install it in the one that runs 'ray start', "
            "or name another with --python.",
            file=sys.stderr,
        )
        return BAD_INPUT
    code = end.exit_code or FAILED
    print(f"error: job {job_id} ended with exit code {code}: {_last(end.message)}", file=sys.stderr)
    return code if code > 0 else FAILED


def _last(message: str) -> str:
    lines = [line for line in message.strip().splitlines() if line.strip()]
    return lines[0][:200] if lines else "see its log"
