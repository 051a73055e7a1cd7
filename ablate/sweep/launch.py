"""Run the driver of a study as a job of a Ray cluster, so that the caller may go to sleep.

Ray's job server (port 8265 of the head) starts the driver on the head. What lies only on this
machine goes along: the study's file, the user's search spaces and packages.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import shlex
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ablate.errors import Failure, UserError
from ablate.sweep.cluster import local_packages
from ablate.telemetry import set_defaults

_SECONDS = 5.0
_START_SECONDS = 60.0
_STUDY = "ablate.study"
# Ray's own loggers, which have a level of their own each.
_TALKERS = (
    "ray.dashboard.modules.dashboard_sdk",
    "ray.dashboard.modules.job.sdk",
    "ray._private.runtime_env.packaging",
)
_LARGEST = 50_000_000
# Ray may delete the folder in which it starts a job before the job has ended, so go to a copy.
_KEEP = 'kept=$(mktemp -d) && cp -R . "$kept" && cd "$kept"'


@dataclass(frozen=True)
class Driver:
    """What the job is to do: ``ablate run`` with these arguments, on the head."""

    study: str
    arguments: Sequence[str]
    home: str
    env: dict[str, str] = field(default_factory=dict)
    python: str = "python"
    folder: Path | None = None
    """What goes along; the job starts in a copy of it."""

    def command(self) -> str:
        """Return the line that the head's shell runs."""
        words = ["-m", "ablate", "run", *self.arguments, "--address", "auto"]
        line = f"{self.python} {shlex.join(words)}"
        return line if self.folder is None else f"{_KEEP} && exec {line}"


@dataclass(frozen=True)
class JobEnd:
    """How a job ended; `state` is Ray's, ``SUCCEEDED``, ``FAILED`` or ``STOPPED``."""

    state: str
    exit_code: int | None
    message: str


def pack_folder(
    folder: Path, study: Path | None, config_dirs: Sequence[Path], allow: Sequence[str]
) -> list[str]:
    """Copy what lies only on this machine into `folder`; return the arguments that name it there.

    A study with a ``defaults`` list takes all YAML files below its folder along, in which its
    includes lie. The first argument is the study's file, if `study` is one.

    Raises:
        UserError: it is more than 50 MB.
    """
    arguments = []
    if study is not None:
        wanted = [study]
        if re.search(r"^defaults\s*:", study.read_text(encoding="utf-8"), re.MULTILINE):
            wanted = sorted(study.parent.rglob("*.yaml"))
        for file in wanted:
            copy = folder / "study" / file.relative_to(study.parent)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)
        arguments.append(f"study/{study.name}")
    for number, config_dir in enumerate(config_dirs):
        _copy(config_dir, folder / f"config{number}")
        arguments += ["--config-dir", f"config{number}"]
    for place in local_packages(allow):
        _copy(place, folder / place.name)
    for name in allow:
        arguments += ["--allow", name]
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    if size > _LARGEST:
        raise UserError(
            f"the study's folder, --config-dir and --allow hold {size / 1e6:.0f} MB; at most "
            f"{_LARGEST / 1e6:.0f} MB go to the cluster: keep code and YAML only there."
        )
    return arguments


def _copy(place: Path, to: Path) -> None:
    if place.is_dir():
        unwanted = shutil.ignore_patterns("__pycache__", ".git", ".venv", ".ablate", "*.sqlite*")
        shutil.copytree(place, to, ignore=unwanted)
    else:
        shutil.copy(place, to)


class JobServer:
    """The job server of a cluster's head, which needs ``ray[default]`` there and here."""

    def __init__(self, address: str) -> None:
        """Reach the server.

        Raises:
            UserError: the address is no ``http://host:port``, nothing answers there in seconds, it
                is no job server, or it wants a token.
        """
        set_defaults()
        self.address = address.rstrip("/")
        _knock(self.address)
        with self._clear():
            from ray.job_submission import JobSubmissionClient

            for talker in _TALKERS:
                logging.getLogger(talker).setLevel(logging.ERROR)
            self._client: Any = JobSubmissionClient(self.address)

    def submit(self, driver: Driver) -> str:
        """Start the driver on the cluster and return the id of its job.

        Raises:
            UserError: a job of this cluster runs the study already, or the server refuses.
        """
        with self._clear():
            for job in self._client.list_jobs():
                if (job.metadata or {}).get(_STUDY) == driver.study and not _ended(job):
                    raise UserError(
                        f"job {job.submission_id} runs {driver.study} on this cluster already: "
                        f"ablate launch --job {job.submission_id} --address {self.address}"
                    )
            environment: dict[str, Any] = {"env_vars": {**driver.env, "ABLATE_HOME": driver.home}}
            if driver.folder is not None:
                environment["working_dir"] = str(driver.folder)
            name = re.sub(r"[^\w.-]+", "-", driver.study)
            return self._submit(
                entrypoint=driver.command(),
                submission_id=f"{name}-{secrets.token_hex(3)}",
                runtime_env=environment,
                metadata={_STUDY: driver.study, "ablate.home": driver.home},
            )

    def _submit(self, **job: Any) -> str:
        """Submit; a head that has just started has no agent yet that takes jobs."""
        until = time.monotonic() + _START_SECONDS
        while True:
            try:
                return str(self._client.submit_job(**job))
            except RuntimeError as error:
                if "No available agent" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(1.0)

    def follow(self, job_id: str, write: Callable[[str], None]) -> JobEnd:
        """Pass the job's log to `write` from its start until it ends.

        Raises:
            UserError: there is no such job.
            Failure: the line to the server broke; the job goes on.
        """

        async def tail() -> None:
            async for piece in self._client.tail_job_logs(job_id):
                write(piece)

        with self._clear(job_id):
            job = self._client.get_job_info(job_id)
            try:
                if _ended(job):
                    write(self._client.get_job_logs(job_id))
                else:
                    asyncio.run(tail())
                    job = self._client.get_job_info(job_id)
            except (RuntimeError, OSError) as error:
                raise Failure(
                    f"the line to {self.address} broke ({error}); the job goes on. Follow it: "
                    f"ablate launch --job {job_id} --address {self.address}"
                ) from error
        return JobEnd(str(job.status), job.driver_exit_code, job.message or "")

    def stop(self, job_id: str) -> bool:
        """Stop a job; tell whether it was running.

        Raises:
            UserError: there is no such job.
        """
        with self._clear(job_id):
            return bool(self._client.stop_job(job_id))

    @contextmanager
    def _clear(self, job_id: str = "") -> Iterator[None]:
        """Turn what Ray's client raises into a line for the user."""
        try:
            yield
        except (UserError, Failure):
            raise
        except ImportError as error:
            raise UserError(
                f"Ray's job client is not installed ({error}): pip install 'ablate[cluster]'."
            ) from error
        except Exception as error:
            raise UserError(_why(self.address, job_id, error)) from error


def _ended(job: Any) -> bool:
    return str(job.status) in {"SUCCEEDED", "FAILED", "STOPPED"}


def _why(address: str, job_id: str, error: Exception) -> str:
    text = " ".join(str(error).split())
    if type(error).__name__ == "AuthenticationError":
        return (
            f"the job server {address} wants a token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN "
            "(or RAY_AUTH_TOKEN_PATH) as on the head."
        )
    if job_id and ("404" in text or "does not exist" in text):
        return f"the cluster {address} has no job '{job_id}'; it forgets all when it restarts."
    return f"the job server {address} refuses: {text[:400] or type(error).__name__}"


def _knock(address: str) -> None:
    """Fail in seconds if nothing answers; Ray's client would wait without end."""
    parts = urlsplit(address)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if parts.scheme not in {"http", "https"} or not host:
        raise UserError(
            f"--address '{address}' must be the job server of the head, http://HEAD:8265. On a "
            "machine of the cluster, `ablate run STUDY --address auto` needs no job."
        )
    port = port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((host, port), _SECONDS).close()
    except OSError as error:
        reason = (error.strerror or str(error) or type(error).__name__).lower()
        raise UserError(
            f"the job server {address} does not answer ({reason}): does the head run with its "
            "dashboard (ray[default], --dashboard-host=0.0.0.0), is the port open or forwarded?"
        ) from error


def environment(given: Sequence[str]) -> dict[str, str]:
    """Read ``NAME=VALUE`` or ``NAME``, whose value is then that of this machine.

    MLFLOW_TRACKING_URI goes along by itself if it is a server's address.

    Raises:
        UserError: a name that is not set here.
    """
    tracker = os.environ.get("MLFLOW_TRACKING_URI", "")
    found = {"MLFLOW_TRACKING_URI": tracker} if "://" in tracker else {}
    if tracker.startswith(("sqlite:", "file:")):
        found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise UserError(f"--env '{text}' must be NAME=VALUE or NAME.")
        if not equals and name not in os.environ:
            raise UserError(f"--env {name} is not set on this machine: write {name}=VALUE.")
        found[name] = value if equals else os.environ[name]
    return found
