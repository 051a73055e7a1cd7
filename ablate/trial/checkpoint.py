"""Checkpoints: where a killed trial goes on from, so that it ends bit for bit as if never killed.

A file is a line of JSON and the tensors, written beside the old one, flushed and then renamed over
it, so there is a whole one at any time. It names the code, the configuration and the libraries that
made it, and is used by the very same only.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import torch

from ablate.experiments.task import Row
from ablate.trial.train import Loop, Progress

FILE, LOCK = "checkpoint", "lock"
FORMAT = 1


class Unusable(Exception):
    """A checkpoint that this trial cannot go on from, and why."""


@dataclass
class Checkpoint:
    """The checkpoint of one trial; nobody else writes it while this object is open.

    Args:
        folder: of the trial; those of the study's other trials lie beside it.
        identity: what must be the same to go on: trial, configuration, code, libraries, device.
        every: seconds between two checkpoints.
        keep: bytes that the study's checkpoints may take together.
        attempt: number of this attempt.
        warn: told, in a line, what could not be used or written.
    """

    folder: Path
    identity: dict[str, str]
    every: float
    keep: float
    attempt: int
    warn: Callable[[str], None]
    resumed: str | None = None
    carried: list[str] = field(default_factory=list)
    spent: float = 0.0
    _saved: float = field(default_factory=time.monotonic)
    _lock: IO[str] | None = None
    _silent: bool = False

    def restore(self, loop: Loop) -> Progress:
        """Bring `loop` to where an earlier attempt was; a new start if there is no such thing."""
        path = self._file
        if not path.is_file():
            return Progress()
        try:
            facts, tensors = read(path)
            self._check(facts)
            _replay(loop, facts)
        except Unusable as reason:
            loop.rewind()
            self.warn(f"started anew, not from the checkpoint: {reason}")
            return Progress()
        loop.model.load_state_dict(tensors["model"])
        loop.optimizer.load_state_dict(tensors["optimizer"])
        _set_random_states(tensors)
        self.carried, self.spent = facts["warnings"], facts["spent"]
        progress = _progress(facts["progress"])
        self.resumed = f"from step {progress.step} of attempt {facts['attempt']}"
        return progress

    def due(self) -> bool:
        """Tell whether it is time for the next one."""
        return time.monotonic() - self._saved >= self.every

    def save(self, loop: Loop, progress: Progress, *, warnings: list[str], spent: float) -> None:
        """Write where `loop` is; a full disk or quota is a warning, once, and training goes on.

        Args:
            loop: at rest between two steps.
            progress: how far it is.
            warnings: of the trial so far.
            spent: seconds since the trial's start, those of earlier attempts included.
        """
        self._saved = time.monotonic()
        if not self._hold():
            self._say("no checkpoint: another process writes this trial's, or its folder is closed")
            return
        facts = {
            "identity": self.identity,
            "attempt": self.attempt,
            "drawn": loop.drawn,
            "stream": loop.generator.bit_generator.state,
            "progress": asdict(progress),
            "warnings": warnings,
            "spent": spent,
        }
        tensors = {
            "model": loop.model.state_dict(),
            "optimizer": loop.optimizer.state_dict(),
            **_random_states(),
        }
        try:
            content = pack(facts, tensors)
            if self._fits(len(content)):
                self.folder.mkdir(parents=True, exist_ok=True)
                write(self._file, content)
        except OSError as error:
            self._say(f"no checkpoint could be written: {error}")

    def remove(self) -> None:
        """Delete the files, unless another process uses them."""
        if self._hold():
            shutil.rmtree(self.folder, ignore_errors=True)
            self.close()
            with contextlib.suppress(OSError):
                self.folder.parent.rmdir()

    def close(self) -> None:
        """Let go of the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _hold(self) -> bool:
        """Hold the lock if nobody else does: a worker that outlived its driver, for one."""
        if self._lock is None:
            with contextlib.suppress(OSError):
                self.folder.mkdir(parents=True, exist_ok=True)
                self._lock = _locked(self.folder)
        return self._lock is not None

    def _check(self, facts: dict[str, Any]) -> None:
        for name, value in self.identity.items():
            if (found := facts["identity"].get(name)) != value:
                raise Unusable(f"it is of another {name} ({found}, now {value})")

    def _fits(self, size: int) -> bool:
        """Make room within the study's quota: the oldest of trials that do not run go first."""
        others = [file for file in self.folder.parent.glob(f"*/{FILE}") if file != self._file]
        sizes = {file: _stat(file) for file in others}
        used = size + sum(size for _, size in sizes.values())
        for file in sorted(others, key=lambda one: sizes[one][0]):
            if used <= self.keep:
                break
            if _remove_idle(file.parent):
                used -= sizes[file][1]
        if used > self.keep:
            self._say(
                f"no checkpoint: {used / 1e6:,.1f} MB would be more than checkpoint.keep "
                f"({self.keep / 1e6:,.1f} MB) with those of trials that still run"
            )
        return used <= self.keep

    @property
    def _file(self) -> Path:
        return self.folder / FILE

    def _say(self, text: str) -> None:
        if not self._silent:
            self.warn(text)
        self._silent = True


def folder_of(study: Path, trial_id: str) -> Path:
    """Where the checkpoint of a trial is."""
    return study / "checkpoints" / trial_id


def write(path: Path, content: bytes) -> None:
    """Put `content` at `path` so that a crash at any moment leaves the old file or the new one.

    Raises:
        OSError: it could not be written; the old file is as it was.
    """
    temporary = path.with_suffix(".new")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def pack(facts: dict[str, Any], tensors: dict[str, Any]) -> bytes:
    """Return the bytes of a checkpoint: a line of JSON with a hash of all the rest, the tensors."""
    stream = io.BytesIO()
    torch.save(tensors, stream)
    body = json.dumps(facts).encode() + b"\n" + stream.getvalue()
    head = {"format": FORMAT, "sha256": hashlib.sha256(body).hexdigest()}
    return json.dumps(head).encode() + b"\n" + body


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the facts and the tensors of a checkpoint.

    Raises:
        Unusable: the file cannot be read, is damaged, or has another format.
    """
    try:
        head, _, body = path.read_bytes().partition(b"\n")
        known = json.loads(head)
        whole = known["sha256"] == hashlib.sha256(body).hexdigest()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unusable(f"{path} cannot be read ({error})") from error
    if known.get("format") != FORMAT:
        raise Unusable(f"it has format {known.get('format')}, this Ablate reads {FORMAT}")
    if not whole:
        raise Unusable(f"{path} is damaged")
    text, _, saved = body.partition(b"\n")
    tensors = torch.load(io.BytesIO(saved), map_location="cpu", weights_only=True)
    return json.loads(text), tensors


def _replay(loop: Loop, facts: dict[str, Any]) -> None:
    """Draw as many batches as were drawn: exact for every task, whatever it holds between two."""
    for _ in range(facts["drawn"]):
        loop.draw()
    if loop.generator.bit_generator.state != facts["stream"]:
        raise Unusable("the task's data are no longer drawn as they were")


def _progress(plain: dict[str, Any]) -> Progress:
    return Progress(**{**plain, "rows": [Row(**row) for row in plain["rows"]]})


def _random_states() -> dict[str, Any]:
    states: dict[str, Any] = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def _set_random_states(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])


def _locked(folder: Path) -> IO[str]:
    """Open the folder's lock and hold it; the system lets go when the process ends.

    Raises:
        OSError: another process holds it.
    """
    file = open(folder / LOCK, "w")  # noqa: SIM115, it stays open as long as it is held
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    return file


def _remove_idle(folder: Path) -> bool:
    """Delete the checkpoint of a trial unless a process runs it."""
    try:
        lock = _locked(folder)
    except OSError:
        return False
    with lock:
        shutil.rmtree(folder, ignore_errors=True)
    return True


def _stat(file: Path) -> tuple[float, int]:
    """Time and size; nothing of a file that is gone by now."""
    try:
        found = file.stat()
    except OSError:
        return 0.0, 0
    return found.st_mtime, found.st_size
