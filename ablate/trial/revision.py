"""The git commit of the code that runs, so that a result can be traced to it."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

SECONDS = 10


@functools.cache
def revision(folder: Path = Path(__file__).parent) -> str | None:
    """Return the commit of the code in `folder`, such as ``1f0c5d7e93ab``.

    ``+changes`` follows if tracked files differ from it. None where the code is not in a git
    repository, an installed package for one, or there is no git. Asked once per process: what is
    edited later is not what this process runs.
    """
    # An installed package may lie in somebody else's repository, which does not track it.
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    commit = _git(folder, "rev-parse", "--short=12", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}+changes" if commit and changes else commit


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
