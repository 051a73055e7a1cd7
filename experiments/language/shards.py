"""A corpus as packed tokens on disk: memory-mapped shards, and an index with their hashes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ablate.errors import Failure, UserError
from ablate.experiments.language.tokenizer import (
    BYTES,
    FILE,
    ByteTokenizer,
    Tokenizer,
    open_tokenizer,
)

FORMAT = 1
INDEX = "index.json"
TRAIN, VALIDATION, SIZES = "train", "validation", "sizes"
HASHED = 2**28
"""Shards of so many bytes together are hashed in full when they are opened, larger ones in part."""
_PROBES, _PROBE = 16, 2**16


@dataclass(frozen=True)
class Part:
    """One file of numbers: tokens, or pairs of a held-out document's tokens and bytes."""

    kind: str
    file: str
    count: int
    sha256: str
    probe: str


class Stream:
    """Tokens of one split, shard after shard, as if they were one array."""

    def __init__(self, shards: list[NDArray[Any]]) -> None:
        self._shards = shards
        self._ends = np.cumsum([len(shard) for shard in shards], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._shards else 0

    def read(self, start: int, count: int) -> NDArray[np.int64]:
        """`count` tokens from `start`, int64, also across shards."""
        pieces = []
        shard = int(np.searchsorted(self._ends, start, side="right"))
        begin = start - (int(self._ends[shard - 1]) if shard else 0)
        while count > 0:
            piece = self._shards[shard][begin : begin + count]
            pieces.append(piece.astype(np.int64))
            count -= len(piece)
            shard, begin = shard + 1, 0
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)


@dataclass(frozen=True)
class Packed:
    """A prepared corpus.

    Args:
        folder: where it is.
        facts: what its index says.
        train: tokens, each document followed by the end token.
        validation: in the same form.
        sizes: of each held-out document its tokens and its bytes, the end counted as one of each.
    """

    folder: Path
    facts: dict[str, Any]
    train: Stream
    validation: Stream
    sizes: NDArray[np.int64]

    @property
    def digest(self) -> str:
        """Hash of the tokens, the tokenizer, the split and of whether it is a sample."""
        return str(self.facts["digest"])

    @property
    def vocab(self) -> int:
        """Number of tokens."""
        return int(self.facts["vocab"])

    @property
    def end(self) -> int:
        """The token after each document."""
        return int(self.facts["end"])

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the tokens.

        Raises:
            Failure: its file is missing, damaged or another's.
        """
        return _tokenizer(self.folder, self.facts)


def open_packed(folder: Path) -> Packed:
    """Open a prepared corpus, once in a process, and check that its files are whole.

    Raises:
        Failure: a file is missing or damaged, or of another version.
    """
    return _open(folder, (folder / INDEX).stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _open(folder: Path, _changed: int) -> Packed:
    facts, parts = _read_index(folder)
    check_parts(folder, parts, facts["dtype"], full=None)
    shards: dict[str, list[NDArray[Any]]] = {TRAIN: [], VALIDATION: [], SIZES: []}
    for part in parts:
        kind = dtype_of(part.kind, facts["dtype"])
        shards[part.kind].append(np.memmap(folder / part.file, dtype=kind, mode="r"))
    sizes = np.concatenate(shards[SIZES]).reshape(-1, 2)
    return Packed(folder, facts, Stream(shards[TRAIN]), Stream(shards[VALIDATION]), sizes)


def check_folder(folder: Path) -> None:
    """Hash all files of a prepared corpus in full.

    Raises:
        Failure: names the file that is damaged.
    """
    facts, parts = _read_index(folder)
    check_parts(folder, parts, facts["dtype"], full=True)
    _tokenizer(folder, facts)


def check_parts(folder: Path, parts: list[Part], dtype: str, *, full: bool | None) -> None:
    """Compare files with what was written.

    Args:
        folder: of the files.
        parts: as the index has them.
        dtype: of tokens.
        full: hash all of each file, or some places of it; None goes by their size.

    Raises:
        Failure: names the file.
    """
    total = sum(part.count * dtype_of(part.kind, dtype).itemsize for part in parts)
    whole = total <= HASHED if full is None else full
    for part in parts:
        path = folder / part.file
        size = part.count * dtype_of(part.kind, dtype).itemsize
        if not path.is_file():
            raise Failure(f"{path} is missing: {_AGAIN.format(folder)}")
        if path.stat().st_size != size:
            raise Failure(
                f"{path} is damaged: {path.stat().st_size} bytes in place of {size}: "
                f"{_AGAIN.format(folder)}"
            )
        found = hash_file(path) if whole else probe_file(path)
        if found != (part.sha256 if whole else part.probe):
            raise Failure(f"{path} is damaged, its hash is another: {_AGAIN.format(folder)}")


_AGAIN = "delete {} and prepare it again (ablate data prepare)."


def dtype_of(kind: str, tokens: str) -> np.dtype[Any]:
    """How the numbers of a part are stored."""
    return np.dtype("<i8" if kind == SIZES else tokens).newbyteorder("<")


def hash_file(path: Path) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def probe_file(path: Path) -> str:
    """Hash of some places of a file, its two ends among them."""
    found = hashlib.sha256()
    size = path.stat().st_size
    with open(path, "rb") as file:
        for place in np.linspace(0, max(0, size - _PROBE), _PROBES).astype(int).tolist():
            file.seek(place)
            found.update(file.read(_PROBE))
    return found.hexdigest()


def _read_index(folder: Path) -> tuple[dict[str, Any], list[Part]]:
    path = folder / INDEX
    try:
        facts: dict[str, Any] = json.loads(path.read_bytes())
        if facts["format"] != FORMAT:
            raise Failure(f"{folder} has format {facts['format']!r}; this Ablate reads {FORMAT}.")
        missing = {"digest", "vocab", "end", "dtype", "tokenizer", "tokenizer_digest"} - set(facts)
        if missing:
            raise KeyError(*sorted(missing))
        return facts, [Part(**part) for part in facts["parts"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Failure(f"{path} is damaged: {error!r}: {_AGAIN.format(folder)}") from error


def _tokenizer(folder: Path, facts: dict[str, Any]) -> Tokenizer:
    if facts["tokenizer"] == BYTES:
        return ByteTokenizer()
    file = folder / FILE
    try:
        found = open_tokenizer(file, facts["tokenizer"])
    except UserError as error:
        raise Failure(f"{error} {_AGAIN.format(folder)}") from error
    if found.digest != facts["tokenizer_digest"]:
        raise Failure(f"{file} is not the one that made the tokens: {_AGAIN.format(folder)}")
    return found
