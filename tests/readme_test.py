"""What the README prints can be typed: every command exists, and its study is a valid one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ablate.cli import app
from ablate.study.plan import make_plan

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def typed() -> list[str]:
    lines = [line.split("#")[0].strip() for block in blocks("bash") for line in block.splitlines()]
    return [line for line in lines if line.startswith("ablate ")]


@pytest.mark.parametrize("line", typed())
def test_command_exists(line: str) -> None:
    name = line.split()[1]
    result = CliRunner().invoke(app, [name, "--help"])
    assert result.exit_code == 0, result.output
    for option in re.findall(r"--[a-z-]+", line):
        assert option in re.sub(r"\x1b\[[0-9;]*m", "", result.output)


def test_commands_are_found() -> None:
    assert len(typed()) >= 6


def test_study_in_the_readme_plans(tmp_path: Path) -> None:
    (study,) = blocks("yaml")
    file = tmp_path / "my_study.yaml"
    file.write_text(study)
    plan = make_plan(file, [])
    assert [cell.label for cell in plan.cells] == [
        "baseline",
        "window=1",
        "window=16",
        "retention=none",
    ]
    assert len(plan.trials()) == 24


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", "\n".join(blocks("bash")), flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
