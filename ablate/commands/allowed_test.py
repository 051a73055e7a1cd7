"""`--allow`: packages in the current folder are found, others are refused before anything else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ablate.cli import app
from ablate.commands.allowed import admit
from ablate.errors import UserError

MODULE = """
from ablate.components.retention import ScalarRetention


class Mine(ScalarRetention):
    pass
"""


def test_a_package_that_is_not_there_is_refused_with_the_rule() -> None:
    for arguments in (["plan", "quickstart"], ["show", "atlas"], ["components"], ["run", "x"]):
        result = CliRunner().invoke(app, [*arguments, "--allow", "nosuchpackage"])
        assert result.exit_code == 2
        assert "--allow nosuchpackage: no such package" in result.stderr
        assert "must be installed beside Ablate, or lie in the folder" in result.stderr


@pytest.mark.parametrize("name", ["my.package", "my-package", ""])
def test_a_name_that_no_package_has_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="give the first part of _target_ alone"):
        admit([name])


def test_pythons_own_packages_hold_no_components() -> None:
    with pytest.raises(UserError, match="it is Python's own"):
        admit(["os"])


def test_a_package_in_the_current_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_retentions.py").write_text(MODULE)
    folder = tmp_path / "spaces" / "retention"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("_target_: my_retentions.Mine\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    given = ["show", "titans_lmm", "retention=mine", "--config-dir", "spaces", "--json"]
    refused = CliRunner().invoke(app, given)
    assert refused.exit_code == 2
    assert "--allow PACKAGE admits another" in refused.stderr
    shown = CliRunner().invoke(app, [*given, "--allow", "my_retentions"])
    assert shown.exit_code == 0, shown.stderr
    assert "my_retentions.Mine" in shown.stdout
