"""The path of the real bAbI files: their names, folders and format; the stories are ours."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from ablate.errors import UserError
from ablate.experiments.babilong.oracle import solve
from ablate.experiments.babilong.task import BABILongTask
from ablate.experiments.babilong.words import QA
from ablate.experiments.task import UNSCORED

# Lines as in en-10k of bAbI 1.2: a blank at the end of a fact and of a question.
STORIES = {
    "qa1_single-supporting-fact": """\
1 Sandra journeyed to the office.\x20
2 John went back to the bedroom.\x20
3 Where is Sandra?\x20\toffice\t1
4 Sandra moved to the garden.\x20
5 Where is Sandra?\x20\tgarden\t4
1 Daniel travelled to the kitchen.\x20
2 Where is Daniel?\x20\tkitchen\t1
""",
    "qa2_two-supporting-facts": """\
1 Mary went to the hallway.\x20
2 Mary picked up the milk there.\x20
3 Mary journeyed to the bathroom.\x20
4 Where is the milk?\x20\tbathroom\t2 3
5 Mary put down the milk.\x20
6 Mary moved to the office.\x20
7 Where is the milk?\x20\tbathroom\t3 5
""",
    "qa3_three-supporting-facts": """\
1 John moved to the garden.\x20
2 John took the apple there.\x20
3 John went back to the kitchen.\x20
4 John travelled to the bedroom.\x20
5 Where was the apple before the bedroom?\x20\tkitchen\t2 4 3
""",
    "qa4_two-arg-relations": """\
1 The hallway is east of the office.
2 The garden is north of the office.
3 What is north of the office?\tgarden\t2
1 The kitchen is west of the bathroom.
2 The bedroom is west of the kitchen.
3 What is the bathroom east of?\tkitchen\t1
""",
    "qa5_three-arg-relations": """\
1 Bill grabbed the football there.\x20
2 Bill handed the football to Fred.\x20
3 What did Bill give to Fred?\x20\tfootball\t2
4 Fred passed the football to Jeff.\x20
5 Who received the football?\x20\tJeff\t4
""",
}
QUESTIONS = {"qa1": 3, "qa2": 2, "qa3": 1, "qa4": 2, "qa5": 2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Test files hold the stories; training files the same with another room in them."""
    inside = tmp_path / "tasks_1-20_v1-2" / "en-10k"
    inside.mkdir(parents=True)
    for name, text in STORIES.items():
        (inside / f"{name}_train.txt").write_text(text.replace("office", "hallway"))
        (inside / f"{name}_test.txt").write_text(text)
    return tmp_path


@pytest.mark.parametrize("qa", QA)
def test_every_kind_is_read_and_its_answers_follow_from_the_facts(folder: Path, qa: str) -> None:
    task = BABILongTask(qa=(qa,), babi=str(folder), length=96, test_lengths=(0, 96))  # type: ignore[arg-type]  # a name of QA
    assert len(task.test) == QUESTIONS[qa]
    for sample in task.test:
        assert solve(sample.facts, sample.question) == sample.answer


def test_real_questions_are_trained_on_and_scored_in_noise(folder: Path) -> None:
    task = BABILongTask(qa=("qa1",), babi=str(folder), length=96, test_lengths=(0, 96), batch=4)
    assert task.info()["facts"] == str(folder)
    for batch in islice(task.batches(np.random.default_rng(0)), 3):
        assert batch.inputs.shape == (4, 96)
        scored = batch.targets[batch.targets != UNSCORED]
        answers = {task.words.decode(int(token)) for token in scored}
        assert len(scored) == 4
        assert answers <= {"hallway", "garden", "kitchen"}  # no office in the training file

    def says_office(tokens: torch.Tensor, state: object = None) -> tuple[torch.Tensor, object]:
        (office,) = task.words.encode("office")
        return torch.eye(task.vocab)[torch.full_like(tokens, office)], state

    metrics = task.score(says_office)
    assert metrics["val/accuracy@0"] == metrics["val/accuracy@96"] == pytest.approx(1 / 3)


def test_a_kind_without_its_file_is_refused(folder: Path) -> None:
    next(folder.glob("**/qa3_*_test.txt")).unlink()
    task = BABILongTask(qa=("qa1", "qa3"), babi=str(folder), length=96, test_lengths=(96,))
    with pytest.raises(UserError, match=r"exactly one file qa3_\*_test.txt"):
        task.data_identity()
