from __future__ import annotations

from pathlib import Path

import pytest

from ablate.home import home, study_home


def test_home_is_the_variable_or_a_folder_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ABLATE_HOME", str(tmp_path / "elsewhere"))
    assert study_home("quick") == tmp_path / "elsewhere" / "quick"
    monkeypatch.delenv("ABLATE_HOME")
    monkeypatch.chdir(tmp_path)
    assert home() == tmp_path / ".ablate"
    assert not home().exists()
