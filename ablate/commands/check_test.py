from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ablate.cli import app

SOUND = """
from ablate.components.retention import ScalarRetention

class Mine(ScalarRetention):
    pass
"""
LEAKY = """
from ablate.components.feature_map import Identity

class Leaky(Identity):
    def forward(self, x):
        return x - x.mean(dim=-2, keepdim=True)
"""


def call(*args: str) -> Result:
    return CliRunner().invoke(app, ["check", *args])


def write(folder: Path, name: str, text: str) -> str:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return str(file)


def test_a_preset_passes_with_exit_code_0() -> None:
    result = call("deltanet", "inner_optimizer=momentum")
    assert result.exit_code == 0, result.output
    assert "19 of 19 checks hold" in result.stdout
    assert "FAILED" not in result.stdout


def test_a_component_that_leaks_is_explained_with_exit_code_1(tmp_path: Path) -> None:
    result = call(write(tmp_path, "leaky_map.py", LEAKY))
    assert result.exit_code == 1
    assert "Leaky as feature_map of omeganet" in result.stdout
    assert "The future leaks" in result.stdout


def test_json_says_all_of_it(tmp_path: Path) -> None:
    module = write(tmp_path, "sound_retention.py", SOUND)
    result = call(module, "--json", "--host", "titans_lmm", "retention.init=2.0")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["passed"] is True
    assert found["checked"] == "Mine as retention of titans_lmm"
    assert found["model"]["retention"] == {"_target_": "sound_retention.Mine", "init": 2.0}
    assert {"name", "passed", "promise", "measured", "causes"} == set(found["checks"][0])
    assert "future" in [one["name"] for one in found["checks"]]


@pytest.mark.parametrize("name", ["model/mine.yaml", "mine.yaml"])
def test_a_file_of_a_model_is_checked(tmp_path: Path, name: str) -> None:
    text = "defaults:\n  - deltanet\n  - _self_\nchunk: 2\n"
    found = json.loads(call(write(tmp_path, name, text), "--json").stdout)
    assert found["model"]["name"] == "mine"
    assert found["model"]["chunk"] == 2
    assert found["passed"] is True


@pytest.mark.parametrize(
    ("file", "text", "extra", "said"),
    [
        ("nothing.py", "x = 1", (), "defines no class"),
        ("two.py", "class A: pass\nclass B: pass", (), "name one: "),
        ("plain.py", "class A: pass", (), "pass --axis, or write"),
        ("typo.py", "class A:\n    axis = 'retntion'", (), "Did you mean 'retention'?"),
        ("broken.py", "import nowhere_to_be_found", (), "cannot be imported: ModuleNotFoundError"),
        ("json.py", "", (), "another module is called 'json'"),
        ("my-file.py", "", (), "cannot be the name of a module"),
        ("axed.py", "class A: pass", ("--axis", "windw"), "Did you mean 'window'?"),
        ("hosted.py", SOUND, ("--host", "transformer"), "--host transformer has no retention"),
        ("option.py", SOUND, ("retention.inti=1",), "Did you mean 'init'?"),
        ("model.yaml", "defaults: [deltanet]\nchnk: 2\n", (), "Did you mean 'chunk'?"),
    ],
)
def test_mistakes_are_told_with_exit_code_2(
    tmp_path: Path, file: str, text: str, extra: tuple[str, ...], said: str
) -> None:
    result = call(write(tmp_path, file, text), *extra)
    assert result.exit_code == 2, result.output
    assert said in result.stderr


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("atlsa", "Did you mean 'atlas'?"),
        ("absent.py", "absent.py: there is no such file"),
        ("absent.yaml", "absent.yaml: there is no such file"),
    ],
)
def test_targets_that_are_not_there(target: str, said: str) -> None:
    result = call(target)
    assert result.exit_code == 2
    assert said in result.stderr


def test_an_axis_belongs_to_a_module() -> None:
    assert "--axis and --host belong to a module" in call("atlas", "--axis", "bias").stderr
