from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from ablate.components.language_model import LanguageModel
from ablate.errors import Failure, UserError
from ablate.trial.build import build_model
from ablate.trial.build_test import tiny
from ablate.trial.export import CONFIG, WEIGHTS, check_folder, load_model, save_model
from ablate.trial.fingerprint import fingerprint
from ablate.trial.space import resolve

TASK = {"name": "language", "args": {"context": 16}}
CONFIGURATION = {"model": resolve(tiny("deltanet")), "task": TASK, "train": {"lr": 0.01}}


def built(seed: int = 1) -> LanguageModel:
    return build_model(CONFIGURATION["model"], 256, seed=seed)


def write(folder: Path, model: LanguageModel, *, force: bool = False) -> None:
    save_model(
        folder,
        model,
        {"config": CONFIGURATION, "seed": 7, "resources": {"cpus": 1.0, "gpus": 0.0}},
        code=fingerprint(CONFIGURATION),
        data="abc",
        metrics={"val/loss": 0.1 + 0.2},
        force=force,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "saved", built())
    return tmp_path / "saved"


def change(folder: Path, **values: Any) -> None:
    facts = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(facts | values))


def put_weights(folder: Path, content: bytes) -> None:
    """Other weights, under a hash that says they are the right ones."""
    (folder / WEIGHTS).write_bytes(content)
    change(folder, sha256=hashlib.sha256(content).hexdigest())


def test_every_weight_comes_back_bit_for_bit(folder: Path) -> None:
    back = load_model(folder)
    saved = built().state_dict()
    loaded = back.model.state_dict()
    assert list(loaded) == list(saved)
    assert all(torch.equal(loaded[key], saved[key]) for key in saved)
    assert not back.model.training
    assert back.facts.config == json.loads(json.dumps(CONFIGURATION))
    assert (back.facts.seed, back.facts.vocab, back.facts.tokenizer) == (7, 256, "bytes")
    assert back.facts.metrics == {"val/loss": 0.1 + 0.2}
    assert back.notes == ()
    assert sorted(path.name for path in folder.iterdir()) == [CONFIG, WEIGHTS]


def test_a_checkpoint_is_overwritten_by_force_only(folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"has model.safetensors and config.json already; --force"):
        write(folder, built(2))
    assert torch.equal(load_model(folder).model.head.weight, built(1).head.weight)
    write(folder, built(2), force=True)
    assert torch.equal(load_model(folder).model.head.weight, built(2).head.weight)
    assert (folder / "notes.txt").read_text() == "mine"
    for below in ("notes.txt", "notes.txt/deep/deeper"):
        with pytest.raises(UserError, match=r"notes.txt is a file; give a folder"):
            write(folder / below, built())


def test_a_closed_folder_is_noticed_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    def access(path: Path, mode: int) -> bool:
        closed.append((path, mode))
        return False

    monkeypatch.setattr(os, "access", access)  # root may write everywhere
    with pytest.raises(UserError, match="is closed to writing"):
        check_folder(tmp_path / "new" / "deep", force=False)
    assert closed == [(tmp_path, os.W_OK | os.X_OK)]


def test_a_place_that_takes_no_folder_is_noticed_before_training(tmp_path: Path) -> None:
    for long in (tmp_path / ("x" * 300), tmp_path / "new" / ("x" * 300)):
        with pytest.raises(UserError, match="nothing can be written there: .*name too long"):
            check_folder(long, force=False)
    check_folder(tmp_path / "other" / "deep", force=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("survives", "seed"), [(0, 1), (1, 2), (2, 2)])
def test_a_killed_overwrite_leaves_one_whole_checkpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch, survives: int, seed: int
) -> None:
    replace, done = os.replace, []

    def killed(source: Path, target: Path) -> None:
        if len(done) == survives:
            raise KeyboardInterrupt
        done.append(target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", killed)
    if survives < 2:
        with pytest.raises(KeyboardInterrupt):
            write(folder, built(2), force=True)
    else:
        write(folder, built(2), force=True)
    assert torch.equal(load_model(folder).model.head.weight, built(seed).head.weight)


def test_a_full_disk_leaves_the_old_checkpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Failure, match="No space left on device"):
        write(folder, built(2), force=True)
    assert sorted(path.name for path in folder.iterdir()) == [CONFIG, WEIGHTS]
    assert torch.equal(load_model(folder).model.head.weight, built(1).head.weight)


def test_missing_files_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no folder .*nowhere: give one that `ablate train"):
        load_model(tmp_path / "nowhere")
    for name in (WEIGHTS, CONFIG):
        part = tmp_path / f"without {name}"
        shutil.copytree(folder, part)
        (part / name).unlink()
        with pytest.raises(UserError, match=f"is no checkpoint: {name} missing"):
            load_model(part)


@pytest.mark.parametrize("damage", ["bit", "cut", "empty"])
def test_damaged_weights_are_noticed(folder: Path, damage: str) -> None:
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-5] ^= 4
    damaged = {"bit": bytes(content), "cut": bytes(content[:-5]), "empty": b""}[damage]
    (folder / WEIGHTS).write_bytes(damaged)
    with pytest.raises(Failure, match=r"model.safetensors is damaged, or not the file"):
        load_model(folder)
    if damage != "bit":
        put_weights(folder, damaged)
        with pytest.raises(Failure, match=r"model.safetensors is damaged: "):
            load_model(folder)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"format": 2}, "has format 2; this Ablate reads 1"),
        ({"vocab": "many"}, "vocab is 'many'"),
        ({"vocab": -5}, "vocab is -5"),
        ({"versions": 3}, "versions is 3"),
        ({"resources": []}, r"resources is \[\]"),
        ({"task": {"name": "language", "args": [1]}}, "needs name and args"),
        ({"task": {"name": "language"}}, "needs name and args"),
        ({"extra": 1}, "damaged: .*'extra'"),
        ({"model": {}}, "its model cannot be read"),
    ],
)
def test_a_damaged_configuration_is_noticed(
    folder: Path, values: dict[str, Any], said: str
) -> None:
    change(folder, **values)
    with pytest.raises(Failure, match=said):
        load_model(folder)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{}", "it has no format"),
        (b"[]", "it has no format"),
        (b"{", "it is no JSON"),
        (b"\xff", "it is no JSON"),
    ],
)
def test_a_configuration_that_is_none_is_said_in_words(
    folder: Path, content: bytes, said: str
) -> None:
    (folder / CONFIG).write_bytes(content)
    with pytest.raises(Failure, match=rf"config.json is damaged: {said}"):
        load_model(folder)


def test_other_code_is_a_note_and_other_shapes_are_an_error(folder: Path) -> None:
    change(folder, fingerprint="0" * 12, versions={"torch": "1.0"})
    first, second = load_model(folder).notes
    now = fingerprint(CONFIGURATION)
    assert first.startswith(f"other code trained this model (fingerprint {'0' * 12}, now {now})")
    assert second == f"trained with torch 1.0, this is {torch.__version__}"
    change(folder, model=resolve(tiny("deltanet", **{"backbone.dim": 32})))
    with pytest.raises(
        UserError,
        match=r"embedding.weight is float32 \[256, 16\], the model's is float32 \[256, 32\]; .*mor",
    ):
        load_model(folder)


def test_weights_must_be_all_there_and_no_others(folder: Path) -> None:
    weights = dict(built().state_dict())
    taken = weights.pop("head.weight")
    put_weights(folder, save(weights | {"tail.weight": taken.clone()}))
    with pytest.raises(
        UserError, match=r"head.weight is missing; tail.weight is no part of the model\."
    ):
        load_model(folder)
    put_weights(folder, save(dict(built().state_dict()) | {"head.weight": taken.half()}))
    with pytest.raises(UserError, match=r"head.weight is float16 .*, the model's is float32"):
        load_model(folder)


def test_a_checkpoint_cannot_name_foreign_code(folder: Path) -> None:
    model = json.loads(json.dumps(CONFIGURATION["model"]))
    model["memory"]["_target_"] = "os.system"
    change(folder, model=model)
    with pytest.raises(UserError, match="'os.system' is refused"):
        load_model(folder)
