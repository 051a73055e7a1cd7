from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import ablate.commands.new as module
from ablate.cli import app
from ablate.study.plan import make_plan

FLAGS = ["--model", "atlas", "--task", "mqar", "--factor", "window=[4, 1]", "--seeds", "6"]


def new(folder: Path, *arguments: str, answers: str | None = None) -> str:
    result = CliRunner().invoke(app, ["new", *arguments, "--folder", str(folder)], input=answers)
    return f"{result.exit_code} {result.output}"


def test_flags_make_a_commented_file_that_plans(tmp_path: Path) -> None:
    said = new(tmp_path, "mine", *FLAGS, "model_args.backbone.dim=16", "train.lr=1e-3")
    assert said.startswith("0 ")
    assert "2 cells, 12 trials" in said.replace("\n", " ")
    text = (tmp_path / "mine.yaml").read_text()
    content = yaml.safe_load(text)
    assert content["design"] == {"kind": "one_factor", "factors": {"window": [4, 1]}}
    assert content["model_args"] == {"backbone.dim": 16}
    assert "# The same seeds in every cell" in text
    made = make_plan(tmp_path / "mine.yaml")
    assert [cell.label for cell in made.cells] == ["baseline", "window=1"]
    assert len(made.seeds) == 6


def test_what_is_missing_is_asked_for_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_is_terminal", lambda: True)
    answers = "mqar\nDoes it forget?\n\nretention=[scalar, none]\n\n4\nval/accuracy\n"
    assert new(tmp_path, "asked", "--goal", "max", answers=answers).startswith("0 ")
    content = yaml.safe_load((tmp_path / "asked.yaml").read_text())
    assert content["question"] == "Does it forget?"
    assert (content["model"], content["task"], content["seeds"]) == ("atlas", "mqar", 4)
    assert content["measure"] == {"primary": "val/accuracy", "goal": "max"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x", "--factor", "window=[4, 1]"], "a study needs a task"),
        (["x", "--task", "mqar", "--model", "atlas"], "a study needs a factor"),
        (["x", *FLAGS, "--factor", "widow=[1]"], "Did you mean 'window'?"),
        (["x", *FLAGS, "--design", "ful"], "Did you mean 'full'?"),
        (["there", *FLAGS], "is there already; --force"),
    ],
)
def test_nothing_is_written_when_something_is_wrong(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "there.yaml").write_text("task: mqar\n")
    said = new(tmp_path, *arguments)
    assert said.startswith("2 ")
    assert message in said.replace("\n", " ")
    assert [path.name for path in tmp_path.iterdir()] == ["there.yaml"]
