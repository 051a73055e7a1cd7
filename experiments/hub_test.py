from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import huggingface_hub
import pyarrow as pa
import pytest
from pyarrow import parquet

from ablate.errors import Failure, UserError
from ablate.experiments.hub import Dataset, Rows, keep_rows, open_rows, part_of
from ablate.experiments.row_files import find_files, read_rows

SET = Dataset("owner/name", config="small", split="validation", columns=("text",))
SAMPLE = [{"text": "a stand-in"}]
ROWS = [{"text": f"row {i}", "id": i} for i in range(5)]


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ABLATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("ABLATE_DATASETS", "HF_HUB_CACHE", "HF_DATASETS_CACHE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def lines(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


class FakeHub:
    """The two packages that lead to the hub, with one data set of five rows behind them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Any] = []
        self.breaks_after: int | None = None
        self.up = True
        data = ModuleType("datasets")
        vars(data)["load_dataset"] = self.load
        api = SimpleNamespace(dataset_info=self.info)
        monkeypatch.setattr(huggingface_hub, "HfApi", lambda: api)
        monkeypatch.setitem(sys.modules, "datasets", data)
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
            monkeypatch.delenv(name)

    def info(self, name: str, revision: str | None, timeout: float) -> SimpleNamespace:
        if not self.up:
            raise OSError("no route to host\nand a page more")
        return SimpleNamespace(sha=revision or "abc123")

    def load(self, *args: Any, **options: Any) -> FakeHub:
        self.asked.append((args, options))
        if args[1] == "unknown":
            raise ValueError("BuilderConfig 'unknown' not found. Available: ['small']")
        return self

    def select_columns(self, columns: list[str]) -> Iterator[dict[str, Any]]:
        for i, row in enumerate(ROWS):
            if i == self.breaks_after:
                raise OSError("connection lost")
            yield {name: row[name] for name in columns}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    return FakeHub(monkeypatch)


def texts(rows: Rows) -> list[str]:
    return [row["text"] for row in rows]


def test_a_folder_is_read_and_nothing_else_is_tried(tmp_path: Path) -> None:
    lines(tmp_path / "mine" / "validation.jsonl")
    rows = open_rows(SET, where=str(tmp_path / "mine"), sample=SAMPLE)
    assert texts(rows) == texts(rows) == [row["text"] for row in ROWS]
    assert next(iter(rows)) == {"text": "row 0"}
    assert rows.source == f"folder {tmp_path / 'mine'}"
    assert rows.facts()["data_is_sample"] == "no"
    with pytest.raises(UserError, match="no such file or folder"):
        open_rows(SET, where=str(tmp_path / "nowhere"), sample=SAMPLE)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="has no parquet, JSON"):
        open_rows(SET, where=str(tmp_path / "empty"), sample=SAMPLE)


def test_one_set_of_several_is_the_part_of_their_folder_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nq").mkdir()
    lines(tmp_path / "drop.jsonl")
    assert part_of(str(tmp_path), "nq") == str(tmp_path / "nq")
    assert part_of(str(tmp_path), "drop") == str(tmp_path / "drop.jsonl")
    assert part_of(str(tmp_path / "drop.jsonl"), "nq") == str(tmp_path / "drop.jsonl")
    with pytest.raises(UserError, match="has no fda "):
        part_of(str(tmp_path), "fda")
    monkeypatch.chdir(tmp_path)
    for name in ("cache", "hub"):
        (tmp_path / name).mkdir()
        assert part_of(name, "nq") == name  # a word, whatever folders there are
    assert part_of("", "nq") == ""


def test_a_changed_file_changes_the_key(tmp_path: Path) -> None:
    path = lines(tmp_path / "validation.jsonl")
    before = open_rows(SET, where=str(tmp_path)).key
    assert open_rows(SET, where=str(tmp_path)).key == before
    lines(path, ROWS[:4])
    assert open_rows(SET, where=str(tmp_path)).key != before


def test_the_caches_come_in_their_order(caches: Path) -> None:
    prepared = caches / "hf/datasets/owner___name/small/0.0.0/ff"
    table = pa.table({"text": ["prepared"]})
    prepared.mkdir(parents=True)
    (prepared / "dataset_info.json").write_text("{}")
    with pa.ipc.new_stream(str(prepared / "name-validation.arrow"), table.schema) as writer:
        writer.write_table(table)
    assert texts(open_rows(SET)) == ["prepared"]
    assert open_rows(SET).source == "cache owner/name:small"

    repository = caches / "hf/hub/datasets--owner--name"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text("0a1b")
    lines(repository / "snapshots/0a1b/small/validation-0.jsonl", [{"text": "downloaded"}])
    lines(repository / "snapshots/0a1b/large/validation-0.jsonl", [{"text": "of another"}])
    assert texts(open_rows(SET)) == ["downloaded"]
    assert open_rows(SET).source == "cache owner/name:small@0a1b"

    lines(caches / "home/datasets/owner--name/train.jsonl", [{"text": "of another split"}])
    assert texts(open_rows(SET)) == ["downloaded"]
    lines(caches / "home/datasets/owner--name/validation.jsonl", [{"text": "own"}])
    assert texts(open_rows(SET, where="cache")) == ["own"]


def test_the_hub_is_streamed_at_one_revision(hub: FakeHub) -> None:
    rows = open_rows(SET)
    assert rows.source == "hub owner/name:small@abc123"
    assert texts(rows) == [row["text"] for row in ROWS]
    args, options = hub.asked[0]
    assert args == ("owner/name", "small")
    assert options == {"split": "validation", "revision": "abc123", "streaming": True}


def test_rows_of_the_hub_can_be_kept(hub: FakeHub) -> None:
    kept = keep_rows(open_rows(SET))
    assert texts(kept) == [row["text"] for row in ROWS]
    hub.up = False
    again = open_rows(SET)
    assert again.source == "cache owner/name:small@abc123"
    assert again.digest() == kept.digest()


def test_a_folder_that_cannot_be_written_is_named(hub: FakeHub, caches: Path) -> None:
    (caches / "home").mkdir()
    (caches / "home/datasets").write_text("a file")
    with pytest.raises(Failure, match="owner/name:small could not be kept in .*datasets"):
        keep_rows(open_rows(SET))


def test_rows_that_break_off_are_not_kept(hub: FakeHub, caches: Path) -> None:
    hub.breaks_after = 3
    with pytest.raises(Failure, match="hub failed after 3 rows: connection lost"):
        keep_rows(open_rows(SET))
    assert [path for path in (caches / "home").rglob("*") if path.is_file()] == []


def test_a_hub_that_does_not_answer_is_said_in_a_line(hub: FakeHub) -> None:
    hub.up = False
    with pytest.raises(
        Failure, match=r"cannot be reached: no route to host \(HF_HUB_OFFLINE"
    ) as no:
        open_rows(SET)
    assert "sample" not in str(no.value)
    with pytest.raises(Failure, match=r"no route to host .*task_args.data=sample for the few pack"):
        open_rows(SET, sample=SAMPLE)


def test_a_part_that_the_hub_does_not_have_is_the_users_mistake(hub: FakeHub) -> None:
    rows = open_rows(Dataset("owner/name", "unknown"))
    with pytest.raises(UserError, match="name:unknown: the hub has no such part.*'small'"):
        list(rows)


def test_what_is_nowhere_is_said_with_all_ways_to_it(caches: Path) -> None:
    place = caches / "home/datasets/owner--name"
    with pytest.raises(UserError) as caught:
        open_rows(SET, where="cache", sample=SAMPLE)
    said = str(caught.value)
    assert said.startswith(f"owner/name:small (validation) is not available: not in {place} nor ")
    assert f"hf download owner/name --repo-type dataset --local-dir {place};" in said
    assert said.endswith("or task_args.data=sample for the few packaged rows that only show how "
                         "it works.")  # fmt: skip
    with pytest.raises(UserError, match=r"not available.*\. Ask a friend\.$"):
        open_rows(SET, where="cache", sample=SAMPLE, instead="Ask a friend.")


@pytest.mark.parametrize("where", ["", " "])
def test_no_place_is_not_this_folder(where: str) -> None:
    with pytest.raises(UserError, match="no place is given.*one of auto, cache, hub, sample"):
        open_rows(SET, where=where)


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"])
def test_the_environment_forbids_the_hub(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(UserError, match=f"owner/name:small.*not available.*{name}"):
        open_rows(SET)
    assert hub.asked == []


def test_missing_packages_are_named_with_their_command(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"pip install 'ablate\[data\]'"):
        open_rows(SET, where="hub")


def test_a_sample_is_the_last_resort_and_says_what_it_is(tmp_path: Path) -> None:
    rows = open_rows(SET, sample=SAMPLE)
    assert (rows.source, rows.is_sample) == ("packaged sample", True)
    assert rows.facts()["data_is_sample"] == "yes"
    real = open_rows(SET, where=str(lines(tmp_path / "validation.jsonl", SAMPLE)))
    assert list(real) == list(rows)
    assert real.digest() != rows.digest()
    with pytest.raises(UserError, match="has no packaged sample"):
        open_rows(SET, where="sample")
    with pytest.raises(UserError, match="not available.*task_args.data=sample"):
        open_rows(SET, where="cache", sample=SAMPLE)


def test_every_form_of_file_gives_the_same_rows(tmp_path: Path) -> None:
    text = "".join(json.dumps(row) + "\n" for row in ROWS)
    (tmp_path / "a.jsonl").write_text(text)
    (tmp_path / "b.json").write_text(json.dumps(ROWS, indent=1))
    (tmp_path / "c.json.gz").write_bytes(gzip.compress(text.encode()))
    parquet.write_table(pa.Table.from_pylist(ROWS), tmp_path / "d.parquet")
    for path in sorted(tmp_path.iterdir()):
        assert list(read_rows([path])) == ROWS
        assert list(read_rows([path], ("id",))) == [{"id": i} for i in range(5)]
        with pytest.raises(UserError, match=f"{path.name}: no column 'label'; it has "):
            list(read_rows([path], ("label",)))
    (tmp_path / "e.jsonl").write_text(text + "{broken")
    with pytest.raises(UserError, match="e.jsonl: line 6 is no JSON"):
        list(read_rows([tmp_path / "e.jsonl"]))


@pytest.mark.parametrize(
    ("text", "said"), [('{"a": 1}\n3\n', "line 2 is 3"), ('[{"a": 1}, "b"]', 'entry 2 is "b"')]
)
def test_a_row_that_is_no_object_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.json").write_text(text)
    for columns in ((), ("a",)):
        with pytest.raises(UserError, match=f"a.json: {said}; a row must be an object"):
            list(read_rows([tmp_path / "a.json"], columns))
    (tmp_path / "f.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(UserError, match="f.parquet cannot be read"):
        list(read_rows([tmp_path / "f.parquet"]))


def test_splits_and_patterns_pick_files(tmp_path: Path) -> None:
    for name in ("en/c4-train.0.jsonl", "en/c4-validation.0.jsonl", "nl/c4-train.0.jsonl"):
        lines(tmp_path / name)
    (tmp_path / "README.md").write_text("about")

    def found(split: str, **options: str) -> list[str]:
        paths = find_files(tmp_path, split=split, **options)
        return [path.relative_to(tmp_path).as_posix() for path in paths]

    assert found("train", config="en") == ["en/c4-train.0.jsonl"]
    assert found("validation") == ["en/c4-validation.0.jsonl"]
    assert found("train", pattern="nl/*.jsonl") == ["nl/c4-train.0.jsonl"]
    with pytest.raises(UserError, match="no file of split 'test', only of train, validation"):
        found("test")
