"""Rows of a data set from files on this machine: parquet, JSON lines, JSON, Arrow or plain text."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path
from typing import Any

from ablate.errors import UserError
from ablate.experiments.text_files import check_text

Row = dict[str, Any]
"""One row: column name to plain value."""

TABLES = (".parquet", ".jsonl", ".ndjson", ".json", ".arrow")
TEXTS = (".txt", ".text", ".md")
PACKED = (".gz", ".bz2", ".zst", ".lz4")
SPLITS = ("train", "validation", "valid", "dev", "test")
_SAME = {"valid": "validation", "dev": "validation"}
_BOOKKEEPING = ("dataset_info.json", "dataset_dict.json", "dataset_infos.json", "state.json")
_BATCH = 1000


def find_files(
    folder: Path, *, split: str, config: str | None = None, pattern: str | None = None
) -> list[Path]:
    """The files of one split of one configuration below `folder`, sorted by path.

    Args:
        folder: of any layout: files of one split, a copy of a repository, or a single file.
        split: ``train``, ``validation`` or ``test``. Files whose path names it, as a word, are
            taken; where no path names any split, all files are.
        config: a subfolder of this name is looked into alone; else paths that name it win.
        pattern: a glob of relative paths, such as ``sample/10BT/*.parquet``; used where it fits
            any file.

    Raises:
        UserError: the files are of other splits.
    """
    if folder.is_file():
        return [folder]
    found = _below(folder)
    relative = {path: path.relative_to(folder).as_posix() for path in found}
    if pattern and (fits := [path for path in found if fnmatch(relative[path], pattern)]):
        return fits
    if config and (named := [path for path in found if _names(relative[path], config)]):
        found = named
    splits = {path: _split_of(relative[path]) for path in found}
    wanted = [path for path in found if splits[path] == _SAME.get(split, split)]
    if wanted or not found:
        return wanted
    if others := {name for name in splits.values() if name}:
        raise UserError(
            f"{folder}: no file of split {split!r}, only of {', '.join(sorted(others))}."
        )
    return found


def read_rows(files: Sequence[Path], columns: Sequence[str] = ()) -> Iterator[Row]:
    """Rows of all files, one file after the other; nothing is held but a part of one file.

    Args:
        files: compressed ones too (``.gz``, ``.bz2``, ``.zst``). A text file is one row with
            ``text`` and ``path``.
        columns: what every row must have and is cut down to; empty is all there is.

    Raises:
        UserError: a file cannot be read, is no text, or lacks a column.
    """
    for path in files:
        try:
            for row in _read(path, columns):
                yield _cut(row, columns, path) if columns else row
        except (OSError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{path} cannot be read: {error}") from error


def listing(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Name, size and time of change of each file: what tells whether they are still the same."""
    return [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]


def _below(folder: Path) -> list[Path]:
    every = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(p.startswith(".") for p in path.relative_to(folder).parts)
    ]
    tables = [p for p in every if _kind(p) in TABLES and p.name not in _BOOKKEEPING]
    return tables or [path for path in every if _kind(path) in TEXTS]


def _kind(path: Path) -> str:
    name = path.name.lower()
    for packed in PACKED:
        name = name.removesuffix(packed)
    return Path(name).suffix


def _names(relative: str, word: str) -> bool:
    return bool(re.search(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z0-9])", relative, re.IGNORECASE))


def _split_of(relative: str) -> str | None:
    """The split that a path names; the part nearest to the file's name decides."""
    for part in reversed(Path(relative).parts):
        for split in SPLITS:
            if _names(part, split):
                return _SAME.get(split, split)
    return None


def _read(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    kind = _kind(path)
    if kind == ".parquet":
        yield from _read_parquet(path, columns)
    elif kind == ".arrow":
        yield from _read_arrow(path)
    elif kind in TABLES:
        yield from _read_json(path)
    else:
        with _open(path) as file:
            content = check_text(file.read(), str(path))
        yield {"text": content.decode(), "path": path.name}


def _read_parquet(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        there = [name for name in columns if name in file.schema_arrow.names]
        for batch in file.iter_batches(batch_size=_BATCH, columns=there or None):
            yield from batch.to_pylist()


def _read_arrow(path: Path) -> Iterator[Row]:
    import pyarrow

    with pyarrow.memory_map(str(path)) as file:
        try:
            batches: Iterable[Any] = pyarrow.ipc.open_stream(file)
        except pyarrow.ArrowInvalid:
            reader = pyarrow.ipc.open_file(file)
            batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
        for batch in batches:
            yield from batch.to_pylist()


def _read_json(path: Path) -> Iterator[Row]:
    with _open(path) as file:
        lines = io.TextIOWrapper(file, encoding="utf-8")
        first = lines.readline()
        if first.lstrip().startswith("["):
            for number, row in enumerate(json.loads(first + lines.read()), 1):
                yield _object(row, path, f"entry {number}")
            return
        for number, line in enumerate(chain([first], lines), 1):
            if line.strip():
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise UserError(f"{path}: line {number} is no JSON: {error}") from error
                yield _object(row, path, f"line {number}")


def _object(row: Any, path: Path, place: str) -> Row:
    if not isinstance(row, dict):
        shown = json.dumps(row)[:40]
        raise UserError(f"{path}: {place} is {shown}; a row must be an object, {{column: value}}.")
    return row


def _open(path: Path) -> Any:
    """The file's bytes, unpacked."""
    import pyarrow

    return pyarrow.input_stream(str(path), compression="detect")


def _cut(row: Row, columns: Sequence[str], path: Path) -> Row:
    missing = [name for name in columns if name not in row]
    if missing:
        raise UserError(
            f"{path}: no column {', '.join(map(repr, missing))}; it has {', '.join(sorted(row))}."
        )
    return {name: row[name] for name in columns}
