"""English sentences that every machine has, to hide something in: Python's own help texts.

A text file or folder takes their place, such as the essays or books that the papers use. The source
is part of a task's identity, so a stand-in never passes for the real set.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

from ablate.errors import UserError
from ablate.experiments.text_files import check_text

PYDOC = "pydoc"
HELD_OUT = 5
"""Every so many documents one is held out."""
LETTERS = 0.85
"""A sentence has at least this share of letters and spaces; else it is code or a table."""
SHORTEST, LONGEST = 20, 400
PART = 40
"""Sentences of one document, where a single file has to be cut into documents."""

_END = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True)
class Prose:
    """Documents of sentences, each sentence in printable ASCII and said only once.

    Args:
        source: where it is from, as given.
        documents: sentences in their order.
    """

    source: str
    documents: tuple[tuple[str, ...], ...]

    @property
    def digest(self) -> str:
        """Hash of all sentences."""
        text = "\n".join("\n".join(document) for document in self.documents)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def split(self) -> tuple[Prose, Prose]:
        """Training and held-out documents; they share no sentence."""
        held = self.documents[HELD_OUT - 1 :: HELD_OUT]
        kept = [text for i, text in enumerate(self.documents) if i % HELD_OUT != HELD_OUT - 1]
        return Prose(self.source, tuple(kept)), Prose(self.source, held)

    def sentences(self, generator: np.random.Generator) -> Iterator[str]:
        """Sentences without end: from a random place to the end of its document, then again."""
        while True:
            document = self.documents[generator.integers(len(self.documents))]
            yield from document[generator.integers(len(document)) :]


@lru_cache(maxsize=4)
def load_prose(source: str) -> Prose:
    """Read prose: ``"pydoc"``, the path of a text file, or of a folder of ``*.txt`` files.

    Raises:
        UserError: the path does not exist, is no text, or holds too few sentences to hold a
            document out.
    """
    if source == PYDOC:
        texts = [topics[name] for name in sorted(topics)]
    else:
        path = Path(source).expanduser()
        if not path.exists():
            raise UserError(
                f"task_args.prose={source!r}: no such file or folder (looked at {path.absolute()})."
                f" Give '{PYDOC}', or the path of a text file or of a folder of .txt files."
            )
        files = sorted(path.glob("**/*.txt")) if path.is_dir() else [path]
        said = [check_text(file.read_bytes(), f"task_args.prose: {file}") for file in files]
        texts = [text.decode() for text in said]
    documents = _documents(texts)
    if len(documents) < HELD_OUT:
        raise UserError(
            f"task_args.prose={source!r}: {len(documents)} documents with sentences of prose, but "
            f"at least {HELD_OUT} are needed, one of them to hold out. A single file counts as one "
            f"document for every {PART} sentences."
        )
    return Prose(source, documents)


def _documents(texts: list[str]) -> tuple[tuple[str, ...], ...]:
    said: set[str] = set()
    documents = []
    for text in texts:
        fresh = [one for one in dict.fromkeys(split_sentences(text)) if one not in said]
        said.update(fresh)
        size = PART if len(texts) == 1 else max(1, len(fresh))
        documents += [tuple(fresh[i : i + size]) for i in range(0, len(fresh), size)]
    return tuple(documents)


def split_sentences(text: str) -> list[str]:
    """Sentences of prose in a text: white space made single, accents dropped, code left out."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    found = []
    for block in re.split(r"\n\s*\n", plain):
        found += _END.split(" ".join(block.split()))
    return [one for one in found if _is_prose(one)]


def _is_prose(sentence: str) -> bool:
    if not SHORTEST <= len(sentence) <= LONGEST or not sentence.isprintable():
        return False
    letters = sum(char.isalpha() or char == " " for char in sentence)
    return sentence[0].isupper() and sentence[-1] in ".!?" and letters >= LETTERS * len(sentence)
