from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ablate.cli import app
from ablate.commands import complete
from ablate.commands.generate import Decoder
from ablate.trial.export import load_model
from ablate.trial.generate import Sampling, generate

SMALL = (
    *("backbone.dim=16", "backbone.layers=2", "backbone.heads=2", "train.evaluations=1"),
    *("task_args.context=16", "task_args.batch=4", "task_args.validation_bytes=64"),
)
NIAH = ("niah.length=192", "niah.test_rows=2", "niah.multiples=[1]", "niah.value_length=1")


def call(*args: str) -> Result:
    return CliRunner().invoke(app, list(args))


def refused(*args: str) -> str:
    result = call(*args)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.output
    return result.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("saved")
    (place / "text").write_text("the cat sat on the mat and the dog sat on the log. " * 100)
    return place


def train(place: Path, model: str, *more: str) -> Path:
    folder = place / model
    corpus = f"task_args.corpus={place / 'text'}"
    result = call(
        *("train", model, "task=language", corpus, *SMALL, *more, "task_args.tokens=64"),
        *("--save", str(folder)),
    )
    assert result.exit_code == 0, result.output
    assert f"saved: {folder}" in result.stdout
    return folder


@pytest.fixture(scope="module")
def atlas(place: Path) -> Path:
    return train(place, "atlas", "chunk=4", "memory.expansion=1", "feature_map=identity")


@pytest.fixture(scope="module")
def titans(place: Path) -> Path:
    return train(place, "titans_lmm", "chunk=4", "seed=3")


def scores(*args: str) -> dict[str, Any]:
    result = call("eval", *args, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("name", ["atlas", "titans"])
def test_eval_gives_what_training_ended_with_to_all_digits(
    name: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(name)
    saved = json.loads((folder / "config.json").read_text())
    trained = dict(saved["metrics"])
    assert trained.pop("train/loss") > 1.0
    own = scores(str(folder))["tasks"]["language"]
    assert own["metrics"] == trained == own["at_end_of_training"]
    assert set(trained) == {
        *("val/loss", "val/bits_per_byte"),
        *("val/bits_per_byte_first_quarter", "val/bits_per_byte_last_quarter"),
    }
    said = call("eval", str(folder)).stdout
    value = f"{trained['val/loss']:.4f}"
    assert f"{value}   at the end of training {value}" in said


def test_the_configuration_is_whole(titans: Path) -> None:
    saved = json.loads((titans / "config.json").read_text())
    assert (saved["format"], saved["seed"], saved["vocab"], saved["tokenizer"]) == (
        *(1, 3, 256),
        "bytes",
    )
    assert saved["model"]["name"] == "titans_lmm"
    assert saved["task"]["args"]["context"] == 16
    assert len(saved["fingerprint"]) == 12


def test_test_time_newton_schulz_changes_the_score(atlas: Path, titans: Path) -> None:
    trained = scores(str(atlas))["tasks"]["language"]["metrics"]["val/loss"]
    losses = {
        k: scores(str(atlas), "--newton-schulz", str(k))["tasks"]["language"]["metrics"]["val/loss"]
        for k in (1, 5)
    }
    assert losses[5] == trained
    assert losses[1] != trained
    assert "no layer of titans_lmm orthogonalises" in refused(
        "eval", str(titans), "--newton-schulz", "3"
    )


def test_other_tasks_and_other_arguments(titans: Path) -> None:
    both = scores(str(titans), "--tasks", "language,niah", *NIAH, "language.context=8")["tasks"]
    assert both["language"]["args"]["context"] == 8
    assert both["language"]["args"]["batch"] == 4, "the rest is as in training"
    assert "at_end_of_training" not in both["language"]
    assert {"val/exact_match", "val/loss@192"} <= set(both["niah"]["metrics"])
    assert call("eval", str(titans), "task_args.validation_bytes=32").exit_code == 0


def test_rows_that_stand_in_for_a_published_set_are_said_to_be_such(titans: Path) -> None:
    args = (str(titans), "--tasks", "recall", "recall.sets=[nq]", "recall.test_rows=2")
    found = scores(*args)["tasks"]["recall"]
    assert set(found["metrics"]) == {"val/contains@sample_nq", "val/sample_contains"}
    assert "NOT the published set" in found["info"]["nq_source"]
    assert "nq_source: packaged sample (made-up rows that come" in call("eval", *args).stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--tasks", "languge"), "Did you mean 'language'?"),
        (("--tasks", "mqar"), "has tokens of its own kind ('mqar'), the model was trained on byte"),
        (("--tasks", "learnability"), "brings its own learner"),
        (("--tasks", "language,,niah"), "each once"),
        (("--tasks", "language,language"), "each once"),
        (("language.contxt=8",), "Did you mean 'context'?"),
        (("niah.length=64",), "'niah.length' is no setting of an evaluation"),
        (("task_args.context=8", "task_args.context=9"), "given twice"),
        (("context",), "write key=value"),
        (("--newton-schulz", "1", "--tasks", "language"), "orthogonalises"),
    ],
)
def test_mistakes_of_an_evaluation(titans: Path, args: tuple[str, ...], said: str) -> None:
    assert said in refused("eval", str(titans), *args)


def test_other_data_and_other_code_are_said(place: Path, titans: Path) -> None:
    config = titans / "config.json"
    facts = config.read_text()
    plain = json.loads(facts)
    try:
        config.write_text(json.dumps(plain | {"data": "123", "fingerprint": "456"}))
        said = call("eval", str(titans)).stdout
        assert "note: other code trained this model (fingerprint 456, now " in said
        assert "note: language: the data are not those of the training (123): " in said
    finally:
        config.write_text(facts)
    gone = f"language.corpus={place / 'gone'}"
    assert "no such file or folder" in refused("eval", str(titans), gone)


def test_saving_is_refused_before_training(titans: Path, tmp_path: Path) -> None:
    command = ("train", "titans_lmm", "task=language")
    assert "--force overwrites them" in refused(*command, "--save", str(titans))
    assert "--force is for --save" in refused(*command, "--force")
    alone = ("train", "none", "task=learnability", "--save", str(tmp_path / "new"))
    assert "task learnability trains no model" in refused(*alone)
    assert not (tmp_path / "new").exists()


def test_a_task_that_learns_by_itself_trains_without_a_model() -> None:
    result = call(
        *("train", "none", "task=learnability", "task_args.length=40", "task_args.dim=8"),
        *("task_args.hidden_layers=1", "task_args.expansion=1"),
    )
    assert result.exit_code == 0, result.output
    assert "\nfinal/loss " in result.stdout


def test_a_model_of_other_tokens_generates_no_text(tmp_path: Path) -> None:
    small = ("tokens=64", "train_rows=8", "test_rows=4", "batch=4", "length=16", "pairs=2")
    settings = [f"task_args.{one}" for one in small]
    folder = str(tmp_path / "mqar")
    result = call("train", "deltanet", "task=mqar", *SMALL[:4], *settings, "--save", folder)
    assert result.exit_code == 0, result.output
    assert "are those of task mqar, not text" in refused("generate", folder, "--prompt", "a")
    assert "with these arguments, the model 64" in refused("eval", folder, "task_args.vocab=128")
    accuracy = scores(folder, "task_args.test_rows=8")["tasks"]["mqar"]["metrics"]["val/accuracy"]
    assert 0 <= accuracy <= 1


def test_generated_text_is_the_prompt_and_the_bytes_after_it(titans: Path) -> None:
    command = ("generate", str(titans), "--prompt", "the c\u00e4t", "--tokens", "12")
    greedy = (*command, "--temperature", "0")
    found = json.loads(call(*greedy, "--json").stdout)
    prompt = "the c\u00e4t".encode()
    expected = list(generate(load_model(titans).model, prompt, 12, Sampling()))
    assert found["tokens"] == [step.token for step in expected]
    assert found["state_bytes"]["prompt"] == found["state_bytes"]["end"]
    result = call(*greedy, "-v")
    assert result.exit_code == 0
    text = Decoder()(prompt + bytes(found["tokens"]), last=True)
    assert result.stdout == f"{text}\n"
    assert "after the prompt of 8 bytes" in result.stderr
    drawn = [json.loads(call(*command, "--seed", s, "--json").stdout)["tokens"] for s in "112"]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--prompt", ""), "the prompt is empty"),
        (("--prompt", "a", "--top-k", "300"), "--top-k 300: the model has 256 tokens"),
        (("--prompt", "a", "--temperature", "inf"), "must be a number of at least 0"),
    ],
)
def test_mistakes_of_generation(titans: Path, args: tuple[str, ...], said: str) -> None:
    assert said in refused("generate", str(titans), *args)


def test_damaged_and_missing_files_are_one_line(titans: Path, tmp_path: Path) -> None:
    assert "no folder" in refused("eval", str(tmp_path / "nowhere"))
    copy = tmp_path / "copy"
    copy.mkdir()
    assert "is no checkpoint" in refused("generate", str(copy), "--prompt", "a")
    (copy / "config.json").write_bytes((titans / "config.json").read_bytes())
    (copy / "model.safetensors").write_bytes((titans / "model.safetensors").read_bytes()[:-3])
    result = call("eval", str(copy))
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert "is damaged" in result.stderr


def test_bytes_become_text_as_they_complete() -> None:
    decoder = Decoder()
    euro = "\u20ac".encode()
    assert [decoder(bytes([byte])) for byte in b"a" + euro] == ["a", "", "", "\u20ac"]
    assert decoder(b"\xff\x1b[2J\x00\n\t") == "\ufffd\ufffd[2J\ufffd\n\t"
    assert decoder(euro[:2]) == ""
    assert decoder(b"", last=True) == "\ufffd"


def test_tasks_complete_after_a_comma() -> None:
    assert complete.tasks("la") == ["language"]
    assert complete.tasks("language,mq") == ["language,mqar"]
