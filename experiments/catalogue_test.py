from __future__ import annotations

from pathlib import Path

import pytest

from ablate.errors import UserError
from ablate.experiments import catalogue
from ablate.experiments.catalogue import make_task, study_names, study_path, task_class, task_names
from ablate.experiments.task import LearnerTask, SequenceTask, Task

ROOT = Path(catalogue.__file__).parent


def test_every_folder_with_a_task_file_is_a_task_of_its_own_name() -> None:
    assert {"language", "learnability"} <= set(task_names())
    for name in task_names():
        task = make_task(name)
        assert isinstance(task, Task)
        assert task.name == name
        assert isinstance(task, SequenceTask) != isinstance(task, LearnerTask)
        assert task.data_identity()
        assert all(isinstance(fact, float | str) for fact in task.info().values())
        assert (ROOT / name / "README.md").is_file()


def test_wrong_names_are_answered_with_the_nearest_one() -> None:
    with pytest.raises(UserError, match=r"'langage' is no task\. Did you mean 'language'\?"):
        make_task("langage")
    with pytest.raises(UserError, match="Did you mean 'context'"):
        make_task("language", {"contxt": 3})


def test_values_are_checked_as_json_not_guessed() -> None:
    with pytest.raises(UserError, match=r"task\.args\.context='256': .*integer"):
        make_task("language", {"context": "256"})
    assert make_task("learnability", {"lr": 1}) == make_task("learnability", {"lr": 1.0})


def test_a_new_task_is_a_new_folder_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parity").mkdir()
    (tmp_path / "parity" / "task.py").touch()
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(catalogue, "ROOT", tmp_path)
    assert task_names() == ["parity"]


def test_studies_are_found_by_name_anywhere_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "ROOT", tmp_path)
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "first.yaml").touch()
    (tmp_path / "a" / "deep" / "second.yaml").touch()
    assert study_names() == ["first", "second"]
    assert study_path("second") == tmp_path / "a" / "deep" / "second.yaml"
    with pytest.raises(UserError, match="Did you mean 'second'"):
        study_path("secnd")
    (tmp_path / "a" / "first.yaml").touch()
    with pytest.raises(UserError, match="names 2 studies"):
        study_path("first")


def test_a_task_class_shows_its_arguments() -> None:
    assert "context" in task_class("language").__init__.__annotations__
