"""Where documents come from: published corpora by name, folders of tables or text, the sample."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from ablate.errors import Failure, UserError
from ablate.experiments.hub import AUTO, SAMPLE, Dataset, open_rows
from ablate.experiments.language.corpus import STDLIB, split_files, unit_hash
from ablate.experiments.row_files import find_files, listing

COLUMN = "text"
PUBLISHED = {
    "fineweb": Dataset("HuggingFaceFW/fineweb", "sample-10BT", files="sample/10BT/*.parquet"),
    "fineweb_edu": Dataset(
        "HuggingFaceFW/fineweb-edu", "sample-10BT", files="sample/10BT/*.parquet"
    ),
    "c4": Dataset("allenai/c4", "en", files="en/c4-train.*.json.gz"),
}
"""Corpora of the papers, with the configuration that is read where none is named."""
_INSTEAD = (
    "Where there is a network `ablate data prepare STUDY` packs it, for all machines that share "
    "ABLATE_CORPORA; or give the path of a copy; or task_args.corpus=sample for the few packaged "
    "documents that only show how it works."
)
SAMPLE_FILE = Path(__file__).with_name("sample.jsonl")
TABLE_ENDS: tuple[str, ...] = (
    *(".parquet", ".jsonl", ".ndjson", ".arrow"),
    *(".json.gz", ".json.zst", ".jsonl.gz", ".jsonl.zst"),
)
HELD_OUT = {True: 0.005, False: 0.1}
"""Share of the documents that is held out, of a large corpus and of a small one."""
LARGE = 10**9
"""Files of so many bytes are a large corpus; the published ones all are."""


class Document(NamedTuple):
    """One text, valid UTF-8 without a zero byte, and whether it is held out."""

    text: str
    held_out: bool


@dataclass(frozen=True)
class Source:
    """A corpus, found.

    Args:
        corpus: as the task's argument gives it.
        origin: where the text is from, as `ablate.experiments.hub` says it.
        is_sample: whether it only stands in for a corpus.
        key: changes when the text may have changed.
        split: how documents were held out, in words.
        documents: all of them, in one order, from the first.
    """

    corpus: str
    origin: str
    is_sample: bool
    key: str
    split: str
    documents: Callable[[], Iterator[Document]]


def is_text(corpus: str) -> bool:
    """Whether a corpus is plain text files, which bytes are read from without preparing them.

    Raises:
        UserError: neither a name nor a path that is there.
    """
    if not corpus.strip():
        raise UserError(f"task_args.corpus={corpus!r}: give a name or a path; '.' is this folder.")
    if corpus == STDLIB:
        return True
    if corpus == SAMPLE or dataset_of(corpus) is not None:
        return False
    path = Path(corpus).expanduser()
    if not path.is_dir():
        return not (path.is_file() and path.name.endswith(TABLE_ENDS))
    return not any(file.name.endswith(TABLE_ENDS) for file in path.rglob("*"))


def dataset_of(corpus: str) -> Dataset | None:
    """The data set of ``NAME`` or ``NAME:CONFIG``; None for what is no published corpus."""
    name, _, config = corpus.partition(":")
    known = PUBLISHED.get(name)
    if known is None or not config or config == known.config:
        return known
    folder = config.replace("sample-", "sample/")
    files = f"en/c4-{folder}.*.json.gz" if name == "c4" else f"{folder}/*.parquet"
    return Dataset(known.name, config, files=files)


def declared_key(corpus: str) -> str:
    """What a prepared corpus is found again by, without looking for its text.

    A published corpus is its name: once prepared it is used as it is. Files are their names, sizes
    and times of change.

    Raises:
        UserError: no such file or folder.
    """
    if corpus == SAMPLE or dataset_of(corpus) is not None:
        return corpus
    if corpus == STDLIB:
        return open_source(corpus).key
    path = Path(corpus).expanduser()
    if not path.exists():
        split_files(corpus)  # says so
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return hashlib.sha256(repr(listing(files)).encode()).hexdigest()[:16]


def open_source(corpus: str) -> Source:
    """Find a corpus.

    Raises:
        UserError: it is not here, in one line that says where it was looked for.
        Failure: the hub did not answer.
    """
    if is_text(corpus):
        return _of_text(corpus)
    known = dataset_of(corpus)
    if corpus == SAMPLE:
        dataset = Dataset("ablate/sample", columns=(COLUMN,))
        rows = open_rows(dataset, where=SAMPLE, sample=SAMPLE_FILE)
    elif known is not None:
        dataset = Dataset(known.name, known.config, columns=(COLUMN,), files=known.files)
        try:
            rows = open_rows(dataset, where=AUTO, instead=_INSTEAD)
        except (UserError, Failure) as error:
            raise type(error)(f"task_args.corpus={corpus!r}: {error}") from error
    else:
        dataset = Dataset(corpus, columns=(COLUMN,))
        rows = open_rows(dataset, where=corpus)
    share = HELD_OUT[known is not None or _is_large(corpus)]

    def documents() -> Iterator[Document]:
        for row in rows:
            if text := _clean(_text_of(row[COLUMN], corpus)):
                yield Document(text, unit_hash(text) < share)

    split = f"{share:g} of the documents, by the SHA-256 of their text"
    return Source(corpus, rows.source, rows.is_sample, rows.key, split, documents)


def _text_of(given: Any, corpus: str) -> str:
    """A row's text; tables say that there is none by null."""
    if given is not None and not isinstance(given, str):
        raise UserError(
            f"task_args.corpus={corpus!r}: column {COLUMN!r} has {given!r:.40}; must be text."
        )
    return given or ""


def _of_text(corpus: str) -> Source:
    train, validation = split_files(corpus)
    digest = hashlib.sha256()
    for path, text in chain(train.items(), validation.items()):
        digest.update(path.encode() + len(text).to_bytes(8, "big") + text)

    def documents() -> Iterator[Document]:
        for held_out, files in ((True, validation), (False, train)):
            for content in files.values():
                if text := _clean(content.decode("utf-8", "replace")):
                    yield Document(text, held_out)

    single = Path(corpus).expanduser().is_file()
    split = "the last tenth" if single else "a tenth of the files, by the SHA-256 of their path"
    origin = corpus if corpus == STDLIB else f"folder {corpus}"
    return Source(corpus, origin, False, digest.hexdigest()[:16], split, documents)


def _clean(text: str) -> str:
    """Text that every tokenizer sees alike; a zero byte is the end of a document for bytes."""
    return text.replace("\x00", " ").encode("utf-8", "replace").decode()


def _is_large(corpus: str) -> bool:
    if corpus == SAMPLE:
        return False
    files = find_files(Path(corpus).expanduser(), split="train")
    return sum(file.stat().st_size for file in files) >= LARGE
