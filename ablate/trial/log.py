"""The log of a trial: what it prints and logs, in a file that cannot grow for ever."""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

MOST_BYTES = 1_000_000
CUT = "[... earlier lines were dropped ...]\n"


def log_path(study: Path, trial_id: str) -> Path:
    """Where the log of a trial is."""
    return study / "logs" / f"{trial_id}.log"


class TrialLog:
    """A file that keeps the last lines, `most` bytes at the most; a disk that fails is ignored."""

    def __init__(self, path: Path, *, most: int = MOST_BYTES) -> None:
        self._path, self._most = path, most
        self._lock = threading.Lock()
        self._file: io.BufferedRandom | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a+b")  # noqa: SIM115, open until `close`
        except OSError:
            pass

    def write(self, text: str) -> None:
        """Append text, and have it on the disk should this process be killed."""
        with self._lock:
            if self._file is None:
                return
            try:
                self._file.write(text.encode(errors="replace"))
                self._file.flush()
                if self._file.tell() > self._most:
                    self._cut()
            except OSError:
                pass

    def line(self, text: str) -> None:
        """Append a line with the time, UTC."""
        self.write(f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())}  {text}\n")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _cut(self) -> None:
        """Keep the later half, from the start of a line."""
        assert self._file is not None
        self._file.seek(-(self._most // 2), os.SEEK_END)
        kept = self._file.read().partition(b"\n")[2]
        self._file.truncate(0)
        self._file.write(CUT.encode() + kept)
        self._file.flush()


def tail(path: Path, lines: int) -> list[str]:
    """Return the last lines of a log; none if there is no such file."""
    try:
        text = path.read_bytes()[-200 * max(lines, 1) :] if lines else path.read_bytes()
    except OSError:
        return []
    found = text.decode(errors="replace").splitlines()
    return found[-lines:] if lines else found


@contextmanager
def captured(log: TrialLog | None) -> Iterator[None]:
    """Copy what the body prints, warns and logs to `log`; where it went before, it still goes."""
    if log is None:
        yield
        return
    outputs = sys.stdout, sys.stderr
    handler = logging.StreamHandler(_Both(None, log))
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    sys.stdout, sys.stderr = _Both(outputs[0], log), _Both(outputs[1], log)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = outputs
        root.removeHandler(handler)


class _Both(io.TextIOBase):
    """A stream that writes to a log too."""

    def __init__(self, stream: TextIO | None, log: TrialLog) -> None:
        self._stream, self._log = stream, log

    def write(self, text: str) -> int:
        self._log.write(text)
        return self._stream.write(text) if self._stream is not None else len(text)

    def flush(self) -> None:
        if self._stream is not None:
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def fileno(self) -> int:
        if self._stream is None:
            raise io.UnsupportedOperation("fileno")
        return self._stream.fileno()
