"""`ablate track push` and `ablate ui`: the MLflow view of a study, and the page that shows it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from ablate.analysis.formatting import several
from ablate.commands.ledgers import open_ledger, study_name
from ablate.commands.report import results_of, write_files
from ablate.commands.terminal import FAILED, OK, console, stopped_by_sigterm
from ablate.errors import Failure, UserError
from ablate.home import home
from ablate.track.address import SERVERS, kind_of, public_uri, sqlite_file, tracking_uri
from ablate.track.tracker import TrackerError, experiment_name

_START_SECONDS = 120


def push_command(study: str, *, quiet: bool = False) -> int:
    """Bring the MLflow store up to the study's ledger; twice is the same as once."""
    from ablate.track.view import MlflowView

    view = MlflowView()
    with open_ledger(study, read_only=False) as ledger:
        ledger.acquire_lock("ablate track push")
        try:
            written = view.push(ledger, write_files(results_of(ledger)))
        except TrackerError as error:
            print(f"error: {error}", file=sys.stderr)
            return FAILED
    line = f"{several(written, 'run')} written to {view.public_uri}"
    console(quiet=quiet).print(line, markup=False, soft_wrap=True)
    return OK


def ui_command(study: str | None, *, port: int | None = None) -> int:
    """Serve the MLflow store on this machine alone, until Ctrl-C; print the study's address."""
    uri = tracking_uri()
    out = console()
    kind = kind_of(uri)
    if kind == "databricks":
        where = experiment_name(uri, study_name(study)) if study else "/Shared"
        raise UserError(f"the store is in Databricks: open {where} in the workspace's own pages.")
    if kind in SERVERS:
        out.print(_address(uri, study), markup=False, soft_wrap=True)
        return OK
    if kind == "sqlite" and not sqlite_file(uri).is_file():
        raise UserError(f"no MLflow store at {sqlite_file(uri)} yet: run a study first.")
    port = port or _free_port()
    base = f"http://127.0.0.1:{port}"
    out.print(f"starting the MLflow UI for {public_uri(uri)} ...", markup=False, soft_wrap=True)
    log = home() / "mlflow-server.log"
    with open(log, "w") as output:
        server = subprocess.Popen(
            _server_command(port),
            stdout=output,
            stderr=output,
            start_new_session=True,
            # Not an argument, which every user of the machine can read: it may hold a password.
            env={**os.environ, "MLFLOW_BACKEND_STORE_URI": uri},
        )
    try:
        with stopped_by_sigterm():
            _wait(server, base, log)
            out.print(_address(base, study), markup=False, soft_wrap=True)
            out.print("Ctrl-C ends it.", style="dim")
            server.wait()
    except KeyboardInterrupt:
        return OK
    finally:
        _end(server)
        log.unlink(missing_ok=True)
    return FAILED


def _server_command(port: int) -> list[str]:
    artifacts = (home() / "mlartifacts").as_uri()
    return [
        *(sys.executable, "-m", "mlflow", "server"),
        *("--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
        *("--default-artifact-root", artifacts),
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(server: subprocess.Popen[bytes], base: str, log: Path) -> None:
    """Return when the server answers.

    Raises:
        Failure: it ended, or did not answer in two minutes.
    """
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until:
        if server.poll() is not None:
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise Failure(f"the MLflow server ended at once: {''.join(last)}")
        try:
            with urllib.request.urlopen(f"{base}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise Failure(f"the MLflow server did not answer within {_START_SECONDS} s")


def _address(base: str, study: str | None) -> str:
    """The page of the study's runs, or the front page if the server does not know the study.

    Raises:
        Failure: the server does not answer, or asks for another user.
    """
    from ablate.track.tracker import connect, tracker_errors

    client = connect(base)
    page = public_uri(base).rstrip("/")
    if study is None:
        return page
    name = study_name(study)
    with tracker_errors(base):
        found = client.get_experiment_by_name(name)
    if found is None:
        print(f"note: MLflow has no experiment '{name}' yet", file=sys.stderr)
        return page
    # Else MLflow opens in its view for language-model applications.
    return f"{page}/#/experiments/{found.experiment_id}/runs?workflowType=machine_learning"


def _end(server: subprocess.Popen[bytes]) -> None:
    """End the server and its workers, which are a process group of their own."""
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
