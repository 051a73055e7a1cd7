"""Who drives a study: a process on a host, and whether that very process still lives.

A pid alone is not enough, since pids are used again: the start time of the process and the boot of
its host tell two processes of one pid apart.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class LockHolder:
    """The process that holds a study's lock."""

    owner: str
    pid: int
    host: str
    born: str
    since: float

    @classmethod
    def this_process(cls, owner: str) -> LockHolder:
        """Describe the calling process."""
        pid = os.getpid()
        return cls(owner, pid, socket.gethostname(), _birth(pid) or "", time.time())

    def alive(self) -> bool:
        """Tell whether the process lives; one on another host counts as living."""
        if self.host != socket.gethostname():
            return True
        return _birth(self.pid) == self.born

    def describe(self) -> str:
        """Name the holder, for a message: who, where, since when."""
        age = max(0.0, time.time() - self.since)
        unit = f"{age:.0f} s" if age < 120 else f"{age / 60:.0f} min"
        started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.since))
        return f"{self.owner} (pid {self.pid} on {self.host}, since {started}, {unit} ago)"

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a plain dict."""
        return asdict(self)


def _birth(pid: int) -> str | None:
    """Return what sets this process apart from all others of its pid; None if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return None if Path("/proc/self/stat").exists() else _birth_by_ps(pid)
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    if fields[0] in {"Z", "X"}:
        return None
    return f"{_BOOT.read_text().strip() if _BOOT.exists() else ''}:{fields[19]}"


def _birth_by_ps(pid: int) -> str | None:
    """Ask ps, where there is no /proc."""
    command = ["ps", "-o", "lstart=", "-p", str(pid)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or None
