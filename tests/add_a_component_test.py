"""The page on adding a component, followed to the letter."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ablate.cli import app

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "add_a_component.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def write_files(folder: Path) -> list[str]:
    """Write every block that begins with its file's name."""
    names = []
    for block in blocks("python") + blocks("yaml"):
        name = block.splitlines()[0].removeprefix("# ")
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block)
        names.append(name)
    return names


def call(line: str) -> Result:
    program, *words = shlex.split(line)
    assert program == "ablate"
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, f"{line}\n{result.output}"
    return result


def test_the_example_is_about_forty_lines() -> None:
    (code,) = blocks("python")
    choice, study = blocks("yaml")
    assert len((code + choice).splitlines()) < 40
    assert len(study.splitlines()) < 20


@pytest.mark.slow
def test_the_page_works_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ABLATE_HOME", str(tmp_path / "home"))
    files = write_files(tmp_path)
    assert files == ["my_retention.py", "my_space/retention/floor.yaml", "my_study.yaml"]
    check, study = (block.splitlines() for block in blocks("bash"))
    for line in check:
        assert "19 of 19 checks hold" in call(line).stdout
    monkeypatch.delitem(sys.modules, "my_retention")
    assert study.pop(0) == "export PYTHONPATH=."
    monkeypatch.syspath_prepend(str(tmp_path))
    plan, run, report = (call(line).stdout for line in study)
    assert "retention=floor" in plan
    assert "8 done" in run
    assert "retention=floor" in report
