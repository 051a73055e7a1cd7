"""Text as bytes, split by file: the Python standard library's source, or a file or folder given."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ablate.errors import UserError
from ablate.experiments.text_files import check_text

STDLIB = "stdlib"
"""Name of the running Python's standard library as a corpus."""
SEPARATOR = b"\x00"
"""Put after every document; Python source cannot contain it."""
HELD_OUT = 0.1
"""Share of the files that is held out for validation."""
SKIPPED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
# Code pages are tables that differ in a few characters: no split by file keeps them apart.
SKIPPED_FOLDERS |= {"encodings"}
# One file of prose, larger than all held-out source together.
SKIPPED_FOLDERS |= {"pydoc_data"}
# Written when Python was built or installed, so other on each machine.
SKIPPED_NAMES = ("_sysconfigdata", "sitecustomize", "config-")

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Corpus:
    """Two disjoint sets of documents, each as one array of bytes.

    Args:
        source: ``"stdlib"`` or the path as given.
        train: the training documents, each followed by `SEPARATOR`, in the order of their hash.
        validation: the held-out documents, in the same form.
        train_files: relative paths behind `train`; for a single file, the file itself.
        validation_files: relative paths behind `validation`.
        digest: hash of both arrays.
    """

    source: str
    train: Bytes
    validation: Bytes
    train_files: tuple[str, ...]
    validation_files: tuple[str, ...]
    digest: str


@lru_cache(maxsize=4)
def load_corpus(source: str) -> Corpus:
    """Read a corpus once per process.

    ``"stdlib"`` is the standard library of the running Python: ``*.py``, without tests, installed
    packages, code-page tables, the help texts and files written by the build. A folder gives all
    its files but hidden ones. A file falls into validation if the hash of its relative path falls
    into the lowest tenth, whatever other files there are; if none does, the one with the lowest
    hash. A single file cannot be split so: its first nine tenths train, the rest validates.

    Raises:
        UserError: the path does not exist, or holds no text, or something that is none.
    """
    path = Path(source).expanduser()
    if source != STDLIB and path.is_file():
        return _from_file(source, path)
    train, validation = split_files(source)
    return _corpus(
        source,
        b"".join(text + SEPARATOR for text in train.values()),
        b"".join(text + SEPARATOR for text in validation.values()),
        list(train),
        list(validation),
    )


def split_files(source: str) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Training and held-out files of ``"stdlib"`` or of a folder: path to content, by hash.

    A single file is both parts of itself.

    Raises:
        UserError: as `load_corpus`.
    """
    if source == STDLIB:
        return _split(source, _read_folder(_stdlib_folder(), suffix=".py"))
    path = Path(source).expanduser()
    if path.is_file():
        text = _read(path)
        cut = round(len(text) * (1 - HELD_OUT))
        return {path.name: text[:cut]}, {path.name: text[cut:]}
    if path.is_dir():
        return _split(source, _read_folder(path, suffix=""))
    raise UserError(
        f"task_args.corpus={source!r}: no such file or folder (looked at {path.absolute()}). "
        "Give 'stdlib', 'sample', the name of a published corpus (fineweb, fineweb_edu, c4), or "
        "the path of a file or folder."
    )


def unit_hash(text: str) -> float:
    """A number in [0, 1), the same on every machine, of a file's relative path or a document."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def _stdlib_folder() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _read_folder(folder: Path, *, suffix: str) -> dict[str, bytes]:
    documents = {}
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if _is_kept(name, stdlib=bool(suffix))]
        for name in files:
            if name.endswith(suffix) and _is_kept(name, stdlib=bool(suffix)):
                file = Path(place, name)
                documents[file.relative_to(folder).as_posix()] = _read(file, checked=not suffix)
    return documents


def _read(file: Path, *, checked: bool = True) -> bytes:
    """A file's bytes, if they are text; Python source may declare another encoding, unchecked.

    Raises:
        UserError: it cannot be read, or is no text.
    """
    if file.exists() and not file.is_file():  # a pipe would be waited for without end
        raise UserError(f"task_args.corpus: {file} is no file that can be read.")
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(f"task_args.corpus: {file} cannot be read: {error.strerror}.") from error
    return check_text(content, f"task_args.corpus: {file}") if checked else content


def _is_kept(name: str, *, stdlib: bool) -> bool:
    if name.startswith("."):
        return False
    return not stdlib or (name not in SKIPPED_FOLDERS and not name.startswith(SKIPPED_NAMES))


def _split(source: str, documents: dict[str, bytes]) -> tuple[dict[str, bytes], dict[str, bytes]]:
    order = sorted((path for path in documents if documents[path]), key=unit_hash)
    if len(order) < 2:
        raise UserError(
            f"task_args.corpus={source!r}: {len(order)} files with text, but a folder needs at "
            "least 2, one to train on and one to hold out. A single file is given by its own path."
        )
    held_out = max(1, sum(unit_hash(path) < HELD_OUT for path in order))
    held_out = min(held_out, len(order) - 1)
    validation, train = order[:held_out], order[held_out:]
    return {path: documents[path] for path in train}, {path: documents[path] for path in validation}


def _from_file(source: str, path: Path) -> Corpus:
    train, validation = split_files(source)
    return _corpus(source, train[path.name], validation[path.name], [path.name], [path.name])


def _corpus(
    source: str, train: bytes, validation: bytes, train_files: list[str], held_out: list[str]
) -> Corpus:
    digest = hashlib.sha256(len(train).to_bytes(8, "big") + train + validation).hexdigest()[:12]
    return Corpus(
        source=source,
        train=np.frombuffer(train, dtype=np.uint8),
        validation=np.frombuffer(validation, dtype=np.uint8),
        train_files=tuple(train_files),
        validation_files=tuple(held_out),
        digest=digest,
    )
