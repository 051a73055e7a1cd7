from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from ablate.cli import main
from ablate.commands.train import make_spec
from ablate.experiments.language.shards import INDEX
from ablate.trial.run import run_trial


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study of two tokenizers on a few documents."""
    monkeypatch.setenv("ABLATE_HOME", str(tmp_path / "home"))
    texts = tmp_path / "texts.jsonl"
    rows = [{"text": f"document {i} says salt, water and stone {i * 7}"} for i in range(90)]
    texts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    content = {
        "name": "tokens",
        "question": "Which tokens?",
        "model": "deltanet",
        "model_args": {"backbone": {"dim": 16, "layers": 1, "heads": 1}, "chunk": 8},
        "task": "language",
        "task_args": {"corpus": str(texts), "context": 16, "batch": 2, "tokens": 64},
        "train": {"evaluations": 1},
        "seeds": 1,
        "design": {"factors": {"task_args.tokenizer": ["bytes", "bpe:280"]}},
    }
    path = tmp_path / "tokens.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


def test_data_are_prepared_checked_and_found_damaged(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("data", "check", study) == 2
    assert "is not prepared: ablate data prepare" in capsys.readouterr().err
    assert run("data", "prepare", study) == 0
    said = capsys.readouterr().out
    assert said.count("preparing") == 2
    assert "texts.jsonl in bpe:280: " in said
    assert f"from folder {study.parent / 'texts.jsonl'}" in said
    assert run("data", "prepare", study) == 0
    assert "preparing" not in capsys.readouterr().out
    assert run("data", "check", study) == 0
    assert capsys.readouterr().out.count("whole: ") == 2
    shard = next((study.parent / "home/corpora").glob("*bpe*/train-*.bin"))
    shard.write_bytes(shard.read_bytes()[::-1])
    assert run("data", "check", study) == 1
    assert "train-00000.bin is damaged" in capsys.readouterr().err


def test_a_trial_prepares_what_is_missing_and_names_its_source(study: Path) -> None:
    texts = study.parent / "texts.jsonl"
    small = "task=language task_args.tokens=64 task_args.context=16 task_args.batch=2"
    small += " train.evaluations=1 backbone.dim=16 backbone.layers=1 backbone.heads=1"
    settings = [f"task_args.corpus={texts}", "task_args.tokenizer=bpe:280", *small.split()]
    spec = make_spec("deltanet", settings, config_dirs=[], allow=[])
    messages: list[dict[str, object]] = []
    run_trial(spec, messages.append)
    kinds = {str(message["kind"]): message for message in messages}
    assert kinds["end"]["state"] == "done"
    info = kinds["start"]["info"]
    assert isinstance(info, dict)
    assert info["data_source"] == f"folder {texts}"
    assert str(info["tokenizer"]).startswith("bpe:280 (")
    index = next((study.parent / "home/corpora").glob(f"*/{INDEX}"))
    assert info["data"] == json.loads(index.read_text())["digest"]
    summary = kinds["end"]["summary"]
    assert isinstance(summary, dict)
    assert summary["val/perplexity"] > 1
