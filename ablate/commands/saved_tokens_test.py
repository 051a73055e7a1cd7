from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ablate.commands.evaluate import EvaluateOptions, evaluate_command
from ablate.commands.generate import GenerateOptions, generate_command
from ablate.commands.train import train_command
from ablate.errors import Failure, UserError
from ablate.experiments.language.tokenizer import FILE, train_bpe
from ablate.trial.export import TEXT, load_model
from ablate.trial.generate import Sampling

SMALL = "task=language task_args.tokens=128 task_args.context=16 task_args.batch=4"
SMALL += " train.evaluations=1 backbone.dim=16 backbone.layers=1 backbone.heads=1 chunk=8"
TEXTS = [f"document {i} says salt, water and stone {i * 7}" for i in range(90)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of BPE tokens, whose text was thrown away after the training."""
    folder = tmp_path_factory.mktemp("tokens")
    texts = folder / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ABLATE_HOME", str(folder / "home"))
        settings = [f"task_args.corpus={texts}", "task_args.tokenizer=bpe:280", *SMALL.split()]
        assert train_command("deltanet", settings, save=folder / "saved", quiet=True) == 0
    return folder / "saved"


def test_a_model_carries_its_tokenizer(saved: Path) -> None:
    exported = load_model(saved)
    tokenizer = exported.tokenizer
    assert tokenizer is not None
    assert exported.facts.tokenizer == f"{TEXT}{tokenizer.digest}"
    assert (exported.facts.vocab, tokenizer.vocab) == (280, 280)
    tokens = tokenizer.encode([TEXTS[3]])[0]
    assert len(tokens) < len(TEXTS[3])
    assert b"".join(map(tokenizer.decoder(), tokens.tolist())).decode() == TEXTS[3]


def test_it_scores_as_at_the_end_of_its_training(
    saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ABLATE_HOME", str(saved.parent / "home"))
    assert evaluate_command(saved, [], EvaluateOptions(as_json=True)) == 0
    found = json.loads(capsys.readouterr().out)["tasks"]["language"]
    assert found["metrics"].keys() >= {"val/perplexity", "val/bits_per_byte"}
    for name, value in found["metrics"].items():
        assert value == found["at_end_of_training"][name]


def test_another_text_is_read_with_the_saved_tokenizer(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("ABLATE_HOME", str(tmp_path / "home"))
    other = [f"task_args.corpus={saved.parent / 'texts.jsonl'}", "task_args.corpus_bytes=3000"]
    with pytest.raises(UserError, match="the model was trained on the tokens of tokenizer"):
        evaluate_command(saved, [*other, "task_args.tokenizer=bytes"], EvaluateOptions())
    settings = [*other, f"task_args.tokenizer=hf:{saved}"]
    assert evaluate_command(saved, settings, EvaluateOptions(as_json=True)) == 0
    metrics = json.loads(capsys.readouterr().out)["tasks"]["language"]["metrics"]
    assert 1 < metrics["val/bits_per_byte"] < 8


def test_it_generates_whole_text(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = GenerateOptions("document é", 12, Sampling(0.0), verbose=True)
    assert generate_command(saved, options) == 0
    said = capsys.readouterr()
    assert said.out.startswith("document é")
    assert "tokens, " in said.err
    as_json = GenerateOptions("document é", 12, Sampling(0.0), as_json=True)
    assert generate_command(saved, as_json) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["tokens"]) == 12
    assert said.out == f"document é{found['text']}\n"


def test_another_tokenizer_in_its_place_is_noticed(saved: Path) -> None:
    good = (saved / FILE).read_text()
    try:
        for other in (train_bpe(280, [*TEXTS, "another text " * 9]).to_json(), None):
            (saved / FILE).unlink()
            if other:
                (saved / FILE).write_text(other)
            with pytest.raises(Failure, match="tokenizer.json is missing, damaged, or not the one"):
                load_model(saved)
    finally:
        (saved / FILE).write_text(good)
