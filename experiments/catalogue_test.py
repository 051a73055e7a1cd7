from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ablate.errors import UserError
from ablate.experiments import catalogue
from ablate.experiments.catalogue import make_task, study_names, study_path, task_class, task_names
from ablate.experiments.task import LearnerTask, MemoryTask, Row, SequenceTask, Task

ROOT = Path(catalogue.__file__).parent
HERE = {"commonsense": {"data": "sample"}}
"""Arguments of tasks that by default want data which are not on this machine."""


def test_every_folder_with_a_task_file_is_a_task_of_its_own_name() -> None:
    assert {"language", "learnability"} <= set(task_names())
    for name in task_names():
        task = make_task(name, HERE.get(name))
        assert isinstance(task, Task)
        assert task.name == name
        kinds = (SequenceTask, LearnerTask, MemoryTask)
        assert sum(isinstance(task, kind) for kind in kinds) == 1
        assert task.data_identity()
        assert all(isinstance(fact, float | str) for fact in task.info().values())
        assert (ROOT / name / "README.md").is_file()


def test_wrong_names_are_answered_with_the_nearest_one() -> None:
    with pytest.raises(UserError, match=r"'langage' is no task\. Did you mean 'language'\?"):
        make_task("langage")
    with pytest.raises(UserError, match="Did you mean 'context'"):
        make_task("language", {"contxt": 3})


def test_values_are_checked_as_json_not_guessed() -> None:
    with pytest.raises(UserError, match=r"task_args\.context is '256': must be a whole number\."):
        make_task("language", {"context": "256"})
    assert make_task("learnability", {"lr": 1}) == make_task("learnability", {"lr": 1.0})


class Uniform(nn.Module):
    """A model for which all tokens are alike, and which may be read in pieces."""

    reconstructs = True

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.vocab = vocab

    def forward(self, tokens: Tensor, state: object = None) -> tuple[Tensor, object]:
        return torch.zeros(*tokens.shape, self.vocab), state


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("language", {"context": 64, "validation_bytes": 64}),
        ("mqar", {"more_test": [[32, 2, 2]], "test_rows": 4}),
        ("mad", {"train_rows": 8, "test_rows": 8}),
        ("niah", {"multiples": [1, 2], "test_rows": 2, "generate_rows": 1}),
        ("recall", {"rows": "toy", "test_rows": 1, "sets": ["nq", "fda"]}),
        ("recall", {"data": "sample", "test_rows": 1}),
        ("babilong", {"qa": ["qa1", "qa2"], "test_lengths": [256, 512], "test_rows": 2}),
    ],
)
def test_a_task_declares_exactly_what_it_reports(name: str, args: dict[str, Any]) -> None:
    task = cast(SequenceTask, make_task(name, args))
    reported = task.score(Uniform(task.vocab))
    assert sorted(reported) == sorted(task.metrics)
    assert all(isinstance(value, float) for value in reported.values())


def test_a_learner_declares_exactly_what_it_reports() -> None:
    task = cast(LearnerTask, make_task("learnability", {"dim": 8, "length": 8, "rank": 2}))
    rows: list[Row] = []
    task.run(lambda name: np.random.default_rng(0), rows.append)
    assert sorted(rows[-1].metrics) == sorted(task.metrics)


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


def test_published_tables_are_no_studies() -> None:
    assert (ROOT / "language/published/atlas/table6.yaml").is_file()
    assert "table6" not in study_names()
