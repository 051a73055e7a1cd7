from __future__ import annotations

import subprocess
from pathlib import Path

from ablate.trial.revision import revision


def git(folder: Path, *arguments: str) -> str:
    named = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    command = ["git", "-C", str(folder), *named, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_the_commit_and_whether_files_differ_from_it(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    git(tmp_path, "init", "-q")
    assert revision(package) is None  # not tracked: the code of somebody else
    git(tmp_path, "add", "package")
    git(tmp_path, "commit", "-q", "-m", "first")
    revision.cache_clear()
    commit = git(tmp_path, "rev-parse", "HEAD")[:12]
    assert revision(package) == commit
    (package / "__init__.py").write_text("x = 1\n")
    assert revision(package) == commit  # what runs is what was loaded before
    revision.cache_clear()
    assert revision(package) == f"{commit}+changes"


def test_outside_of_a_repository_there_is_none(tmp_path: Path) -> None:
    assert revision(tmp_path / "missing") is None
