"""A home for studies and a prepared MLflow store, for the tests of the platform."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest


class FreshStore(NamedTuple):
    """A store that two processes met while it was fresh, and how the other one fared."""

    path: Path
    returncode: int
    stderr: str


@pytest.fixture(scope="session")
def fresh_store(tmp_path_factory: pytest.TempPathFactory) -> FreshStore:
    from ablate.track.tracker import connect

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    code = "import sys; from ablate.track.tracker import connect; connect(sys.argv[1])"
    command = [sys.executable, "-c", code, f"sqlite:///{path}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as other:
        connect(f"sqlite:///{path}")
        stderr = other.communicate()[1]
    return FreshStore(path, other.returncode, stderr)


@pytest.fixture
def home(fresh_store: FreshStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ABLATE_HOME with a migrated store: making one takes seconds, copying it does not."""
    folder = tmp_path / "home"
    folder.mkdir()
    shutil.copy(fresh_store.path, folder / "mlflow.db")
    monkeypatch.setenv("ABLATE_HOME", str(folder))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return folder
