from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ablate.trial.checkpoint as checkpoint_module
import ablate.trial.run as run_module
from ablate.experiments.task import Row
from ablate.trial.checkpoint import FILE, Checkpoint, Unusable, pack, read, write
from ablate.trial.log import log_path
from ablate.trial.train import Loop, Progress, TrainConfig, train
from ablate.trial.train_test import Counting

IDENTITY = {"trial": "c-s0", "code": "f0"}
CONFIG = TrainConfig(evaluations=4, lr=1e-2)


class Dropping(nn.Module):
    """A model that draws from torch's own stream in every step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)

    def forward(self, tokens: Tensor) -> tuple[Tensor, None]:
        """Logits after a random half of the features."""
        return self.head(nn.functional.dropout(self.embedding(tokens), 0.5, self.training)), None


@dataclass
class Ran:
    rows: list[Row]
    warnings: list[str]
    model: nn.Module
    checkpoint: Checkpoint


class Killed(Exception):
    pass


def learn(
    folder: Path, *, stop: int = 99, every: float = 0.0, attempt: int = 1, **given: Any
) -> Ran:
    """Train with a checkpoint in `folder`; killed, as far as can be told, after step `stop`."""
    warnings: list[str] = []
    identity = given.get("identity", IDENTITY)
    keep = given.get("keep", 1e9)
    point = Checkpoint(folder, identity, every, keep, attempt, warnings.append)
    ran = Ran([], warnings, given.get("model") or Dropping(), point)

    def after_step(loop: Loop, progress: Progress) -> None:
        if progress.step < loop.steps and point.due():
            point.save(loop, progress, warnings=[f"at {progress.step}"], spent=progress.step)
        if progress.step == stop:
            raise Killed

    with contextlib.suppress(Killed):
        train(
            ran.model,
            given.get("task") or Counting(),
            CONFIG,
            seed=0,
            report=ran.rows.append,
            begin=point.restore,
            after_step=after_step,
        )
    point.close()
    return ran


def values(rows: list[Row]) -> list[tuple[int, int, dict[str, float]]]:
    return [(row.step, row.tokens, row.metrics) for row in rows]


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("stop", [1, 3, 4, 5, 9])
def test_a_resumed_run_ends_bit_equal_random_draws_and_means_included(
    tmp_path: Path, stop: int
) -> None:
    whole = learn(tmp_path / "whole", every=1e9)
    assert [row.step for row in whole.rows] == [3, 5, 8, 10]
    killed = learn(tmp_path / "killed", stop=stop)
    assert not same(killed.model, whole.model)
    torch.manual_seed(5)
    resumed = learn(tmp_path / "killed", attempt=2)
    assert resumed.checkpoint.resumed == f"from step {stop} of attempt 1"
    assert values(resumed.rows) == values(whole.rows)
    assert same(resumed.model, whole.model)
    assert resumed.checkpoint.carried == [f"at {stop}"]
    assert resumed.checkpoint.spent == stop
    seconds = [row.seconds for row in resumed.rows]
    assert seconds == sorted(seconds)


def test_short_trials_write_none(tmp_path: Path) -> None:
    learn(tmp_path / "c", every=300.0)
    assert not (tmp_path / "c").exists()


def test_a_run_killed_again_and_again_ends_bit_equal(tmp_path: Path) -> None:
    whole = learn(tmp_path / "whole", every=1e9)
    for attempt, stop in enumerate((2, 3, 6, 8), start=1):
        learn(tmp_path / "killed", stop=stop, attempt=attempt)
    resumed = learn(tmp_path / "killed", attempt=5)
    assert resumed.checkpoint.resumed == "from step 8 of attempt 4"
    assert values(resumed.rows) == values(whole.rows)
    assert same(resumed.model, whole.model)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("code", "it is of another code (f0, now f1)"),
        ("trial", "it is of another trial (c-s0, now c-s1)"),
    ],
)
def test_a_checkpoint_of_something_else_is_not_used_and_this_is_said(
    tmp_path: Path, key: str, said: str
) -> None:
    learn(tmp_path / "c", stop=4)
    identity = {**IDENTITY, key: said.split("now ")[1].rstrip(")")}
    ran = learn(tmp_path / "c", identity=identity)
    assert ran.warnings == [f"started anew, not from the checkpoint: {said}"]
    assert ran.checkpoint.resumed is None
    assert same(ran.model, learn(tmp_path / "whole", every=1e9).model)


@pytest.mark.parametrize("how", ["flip", "cut", "empty", "text", "format"])
def test_a_damaged_checkpoint_is_not_used_and_this_is_said(tmp_path: Path, how: str) -> None:
    learn(tmp_path / "c", stop=4)
    file = tmp_path / "c" / FILE
    content = file.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    file.write_bytes(
        {
            "flip": flipped,
            "cut": content[:-10],
            "empty": b"",
            "text": b"hello\nthere",
            "format": content.replace(b'"format": 1', b'"format": 9', 1),
        }[how]
    )
    ran = learn(tmp_path / "c", attempt=2)
    said = {"flip": "is damaged", "cut": "is damaged", "format": "has format 9"}
    assert said.get(how, "cannot be read") in ran.warnings[0]
    assert same(ran.model, learn(tmp_path / "whole", every=1e9).model)


def test_data_that_are_drawn_otherwise_are_noticed(tmp_path: Path) -> None:
    learn(tmp_path / "c", stop=4)
    other = Counting()
    other.batch = 3
    ran = learn(tmp_path / "c", task=other)
    assert "the task's data are no longer drawn as they were" in ran.warnings[0]
    assert ran.rows[-1].step == 7


def test_the_oldest_idle_checkpoint_makes_room_and_a_running_one_stays(tmp_path: Path) -> None:
    for number, name in enumerate(("old", "new", "running")):
        learn(tmp_path / name, stop=4)
        os.utime(tmp_path / name / FILE, (number, number))
    size = (tmp_path / "old" / FILE).stat().st_size
    running = Checkpoint(tmp_path / "running", IDENTITY, 0.0, 1e9, 1, print)
    assert running._hold()
    os.utime(tmp_path / "running" / FILE, (-1, -1))
    ran = learn(tmp_path / "mine", stop=4, keep=3.5 * size)
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["mine", "new", "running"]
    assert ran.warnings == []
    ran = learn(tmp_path / "mine", stop=6, keep=1.5 * size)
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["mine", "running"]
    assert len(ran.warnings) == 1
    assert "more than checkpoint.keep" in ran.warnings[0]
    assert read(tmp_path / "mine" / FILE)[0]["progress"]["step"] == 4
    running.close()


def test_two_processes_never_write_one_checkpoint(tmp_path: Path) -> None:
    first = Checkpoint(tmp_path / "c", IDENTITY, 0.0, 1e9, 1, print)
    assert first._hold()
    ran = learn(tmp_path / "c")
    assert ran.warnings == [
        "no checkpoint: another process writes this trial's, or its folder is closed"
    ]
    assert not (tmp_path / "c" / FILE).exists()
    first.close()


def test_a_full_disk_costs_a_warning_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn(tmp_path / "c", stop=2)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_module.os, "fsync", full)
    ran = learn(tmp_path / "c", attempt=2)
    monkeypatch.undo()
    assert ran.warnings == ["no checkpoint could be written: [Errno 28] No space left on device"]
    assert read(tmp_path / "c" / FILE)[0]["progress"]["step"] == 2
    assert [path.name for path in sorted((tmp_path / "c").iterdir())] == [FILE, "lock"]


def test_a_file_is_what_it_was_or_what_it_is_to_be(tmp_path: Path) -> None:
    write(tmp_path / FILE, pack({"a": [1, 0.1, float("inf")]}, {"t": torch.ones(2)}))
    facts, tensors = read(tmp_path / FILE)
    assert facts == {"a": [1, 0.1, float("inf")]}
    assert torch.equal(tensors["t"], torch.ones(2))
    with pytest.raises(Unusable, match="cannot be read"):
        read(tmp_path / "none")


KILLED = """
import json, os, signal, sys
import ablate.trial.run as run
from ablate.trial.log import log_path
from ablate.trial.train import Loop

kind, _, number = sys.argv[2].partition(":")
real = {"step": Loop.step, "replace": os.replace}
seen = []

def hit(what):
    seen.append(what)
    if what == kind and seen.count(what) == int(number):
        os.kill(os.getpid(), signal.SIGKILL)

def step(self, index):
    hit("step")
    return real["step"](self, index)

def replace(*args):
    hit("replace")
    real["replace"](*args)

Loop.step, os.replace = step, replace
run.run_trial(json.loads(sys.argv[1]), lambda message: hit(message["kind"]))
"""

WHERE = {"row:1": 4, "replace:8": 7}
"""Where a trial of ten steps, scored at 5 and 10, is killed, and the step it goes on from."""


def spec(home: Path, name: str) -> dict[str, Any]:
    from ablate.trial.build_test import tiny
    from ablate.trial.space import resolve

    text = home / "text.txt"
    text.write_text("the cat sat on the mat and the dog sat on the log. " * 200)
    args = {"corpus": str(text), "context": 16, "batch": 2, "tokens": 320, "validation_bytes": 64}
    task = {"name": "language", "args": args}
    train = {"evaluations": 2}
    return {
        "id": "c-s0",
        "cell": "c",
        "seed": 0,
        "config": {"model": resolve(tiny("titans_lmm")), "task": task, "train": train},
        "files": {
            "study": str(home / name),
            "attempt": 1,
            "checkpoint": {"every": 0, "keep": 1e9},
        },
    }


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the studies of real trials that SIGKILL hit."""
    home = tmp_path_factory.mktemp("home")
    children = [
        subprocess.Popen([sys.executable, "-c", KILLED, json.dumps(spec(home, where)), where])
        for where in WHERE
    ]
    assert [child.wait(timeout=250) for child in children] == [-signal.SIGKILL] * len(WHERE)
    return home


def run(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], nn.Module]:
    """The messages of a trial and its model."""
    models: list[nn.Module] = []
    messages: list[Any] = []

    def kept(model: nn.Module, *args: Any, **kwargs: Any) -> None:
        models.append(model)
        train(model, *args, **kwargs)

    monkeypatch.setattr(run_module, "train", kept)
    run_module.run_trial(given, messages.append)
    return messages, models[0]


@pytest.mark.parametrize("where", WHERE)
def test_a_trial_killed_anywhere_ends_with_the_bits_of_one_that_never_was(
    killed: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, model = run(spec(killed, "whole"), monkeypatch)
    resumed, other = run(spec(killed, where), monkeypatch)
    assert [message["kind"] for message in whole] == ["start", "row", "row", "end"]
    assert resumed[0]["info"]["resumed"] == f"from step {WHERE[where]} of attempt 1"
    assert resumed[-1]["state"] == "done"
    keys = ("step", "tokens", "metrics")
    rows = [[[m[key] for key in keys] for m in found[1:3]] for found in (resumed, whole)]
    assert rows[0] == rows[1]
    assert same(model, other)
    assert not (killed / where / "checkpoints").exists()
    log = log_path(killed / where, "c-s0").read_text()
    assert log.count("started on ") == 2
    assert log.endswith("  done\n")
