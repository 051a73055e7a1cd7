"""Write a corpus as packed tokens: next to where they will be, then give them their name.

What a kill interrupts goes on after the last whole shard.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ablate.errors import Failure, UserError
from ablate.experiments.language.shards import (
    FORMAT,
    INDEX,
    SIZES,
    TRAIN,
    VALIDATION,
    Part,
    dtype_of,
    hash_file,
    probe_file,
)
from ablate.experiments.language.sources import Document, Source
from ablate.experiments.language.tokenizer import FILE, Tokenizer, make_tokenizer, open_tokenizer

PROGRESS = "progress.json"
SHARD_TOKENS = 2**27
BATCH = 256
"""Documents that are tokenized at once."""

Progress = Callable[[int, str], None]
"""Told the bytes of text done so far, and what is being done."""


@dataclass
class Counts:
    """How far a build is."""

    documents: int = 0
    held_out: int = 0
    train_bytes: int = 0
    validation_bytes: int = 0
    parts: list[Part] = field(default_factory=list)


def build(
    folder: Path,
    source: Callable[[], Source],
    tokenizer: str,
    *,
    limit: int | None = None,
    progress: Progress = lambda done, what: None,
) -> None:
    """Write a corpus as tokens into `folder`, unless it is there; one process does it at a time.

    Args:
        folder: of this corpus and tokenizer alone.
        source: finds the corpus; called only if there is something to do.
        tokenizer: its spec; BPE is trained on the training documents.
        limit: read about so many bytes of text, in the source's order; None is all.
        progress: told how far it is.

    Raises:
        UserError: the corpus or the tokenizer is not to be had, or no document is held out.
        Failure: it could not be written, or the hub did not answer.
    """
    work = folder.with_name(f"{folder.name}.building")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f"{folder.name}.lock")):
            if not (folder / INDEX).is_file():
                _build(work, source(), tokenizer, limit, progress)
                os.rename(work, folder)
                _sync(folder.parent)
    except OSError as error:
        raise Failure(f"{folder} could not be written: {error}") from error


def _build(work: Path, source: Source, spec: str, limit: int | None, progress: Progress) -> None:
    key = [FORMAT, source.key, spec, limit]
    counts = _resume(work, key)
    tokenizer = _tokenizer(work, source, spec, limit, progress)
    dtype = "uint16" if tokenizer.vocab <= 2**16 else "uint32"
    if tokenizer.vocab > 2**32:
        raise UserError(f"task_args.tokenizer={spec!r}: more than 2**32 tokens.")
    writer = _Writer(work, key, counts, np.dtype(dtype), tokenizer)
    documents = islice(_limited(source, limit), counts.documents, None)
    while batch := list(islice(documents, BATCH)):
        writer.add(batch)
        progress(counts.train_bytes + counts.validation_bytes, "tokenizing")
    writer.flush()
    if not counts.held_out or counts.held_out == counts.documents:
        raise UserError(
            f"task_args.corpus={source.corpus!r}: of {counts.documents} documents "
            f"{counts.held_out} are held out ({source.split}); both parts need at least one: "
            "give more text."
        )
    _write_index(work, source, tokenizer, dtype, counts)


def _limited(source: Source, limit: int | None) -> Iterator[Document]:
    """Documents until there are `limit` bytes."""
    read = 0
    for document in source.documents():
        if limit is not None and read >= limit:
            return
        read += len(document.text.encode())
        yield document


def _tokenizer(
    work: Path, source: Source, spec: str, limit: int | None, progress: Progress
) -> Tokenizer:
    file = work / FILE
    if file.is_file():
        return open_tokenizer(file, spec)

    def texts() -> Iterator[str]:
        read = 0
        for document in _limited(source, limit):
            if not document.held_out:
                read += len(document.text)
                progress(read, "reading text for the tokenizer")
                yield document.text

    made = make_tokenizer(spec, texts)
    if (text := made.to_json()) is not None:
        _write(file, text.encode())
    return made


class _Writer:
    """Collects tokens and writes them as shards, with how far it is after each."""

    def __init__(
        self, work: Path, key: Any, counts: Counts, dtype: np.dtype[Any], tokenizer: Tokenizer
    ) -> None:
        self.work, self.key, self.counts = work, key, counts
        self.dtype, self.tokenizer = dtype, tokenizer
        self._empty()

    def _empty(self) -> None:
        self.waiting: dict[str, list[NDArray[np.int64]]] = {TRAIN: [], VALIDATION: [], SIZES: []}
        self.tokens = 0

    def add(self, documents: list[Document]) -> None:
        end = np.array([self.tokenizer.end])
        encoded = self.tokenizer.encode([document.text for document in documents])
        for document, tokens in zip(documents, encoded, strict=True):
            size = len(document.text.encode()) + 1
            kind = VALIDATION if document.held_out else TRAIN
            self.waiting[kind] += [tokens, end]
            self.tokens += len(tokens) + 1
            self.counts.documents += 1
            if document.held_out:
                self.waiting[SIZES].append(np.array([len(tokens) + 1, size]))
                self.counts.held_out += 1
                self.counts.validation_bytes += size
            else:
                self.counts.train_bytes += size
        if self.tokens >= SHARD_TOKENS:
            self.flush()

    def flush(self) -> None:
        for kind, arrays in self.waiting.items():
            if arrays:
                number = sum(part.kind == kind for part in self.counts.parts)
                numbers = np.concatenate(arrays).astype(dtype_of(kind, self.dtype.name))
                file = f"{kind}-{number:05d}.bin"
                _write(self.work / file, numbers.tobytes())
                path = self.work / file
                part = Part(kind, file, len(numbers), hash_file(path), probe_file(path))
                self.counts.parts.append(part)
        self._empty()
        plain = {"key": self.key, "counts": asdict(self.counts)}
        _write(self.work / PROGRESS, json.dumps(plain).encode())


def _resume(work: Path, key: Any) -> Counts:
    """How far an interrupted build of the same text came; else an empty folder."""
    try:
        saved = json.loads((work / PROGRESS).read_bytes())
        if saved["key"] == key:
            counts = saved["counts"]
            return Counts(**{**counts, "parts": [Part(**part) for part in counts["parts"]]})
    except (OSError, ValueError, KeyError, TypeError):
        pass  # there is none, or it is of another version
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    return Counts()


def _write_index(
    work: Path, source: Source, tokenizer: Tokenizer, dtype: str, counts: Counts
) -> None:
    identity = [
        FORMAT,
        source.is_sample,
        source.split,
        tokenizer.digest,
        [part.sha256 for part in counts.parts],
    ]
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]
    facts = {
        "format": FORMAT,
        "corpus": source.corpus,
        "origin": source.origin,
        "is_sample": source.is_sample,
        "split": source.split,
        "tokenizer": tokenizer.spec,
        "tokenizer_digest": tokenizer.digest,
        "vocab": tokenizer.vocab,
        "end": tokenizer.end,
        "dtype": dtype,
        "digest": digest,
        **asdict(counts),
    }
    _write(work / INDEX, json.dumps(facts, indent=1).encode())
    (work / PROGRESS).unlink()  # the last: without it all is read again


def _write(path: Path, content: bytes) -> None:
    """Put a whole file in place, or none."""
    fresh = path.with_name(f".{path.name}.new")
    with open(fresh, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Wait for whoever builds the same; the system lets go when a process ends."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
