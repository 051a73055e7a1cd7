"""Text to tokens and back: bytes, byte-level BPE trained on a corpus, or a published tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ablate.errors import UserError, unknown
from ablate.experiments.hub_client import INSTALL, download

BYTES, BPE, HUB = "bytes", "bpe", "hf"
END = "<|end|>"
"""End of a document in a tokenizer that is trained here; its token is 0."""
ENDS = (END, "</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "<|im_end|>", "[SEP]")
"""Ends of a document in published tokenizers, the first that is there."""
FILE = "tokenizer.json"
LEAST_BPE = 257  # every byte, and the end
MOST_BPE = 2**20  # published ones have at most a quarter of that
LONGEST_BPE_TEXT = 256 * 2**20
"""A BPE tokenizer is trained on at most so many bytes of the training text."""

Tokens = NDArray[np.int64]


class Tokenizer(Protocol):
    """What turns text into tokens and back."""

    @property
    def spec(self) -> str:
        """As a task's argument gives it."""

    @property
    def vocab(self) -> int:
        """Number of tokens."""

    @property
    def end(self) -> int:
        """The token after each document."""

    @property
    def digest(self) -> str:
        """Equal in tokenizers that do the same; ``bytes`` for bytes."""

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """Tokens of each text, without an end."""

    def decoder(self) -> Callable[[int], bytes]:
        """Turn tokens into text one by one; what waits for a later token comes with that."""

    def to_json(self) -> str | None:
        """All that it is, as the file ``tokenizer.json`` holds it; None for bytes."""


@dataclass(frozen=True)
class ByteTokenizer:
    """Every byte of UTF-8 is a token; a zero byte, which text does not have, ends a document."""

    spec: str = BYTES
    vocab: int = 256
    end: int = 0
    digest: str = BYTES

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """The bytes of each text."""
        return [np.frombuffer(text.encode(), np.uint8).astype(np.int64) for text in texts]

    def decoder(self) -> Callable[[int], bytes]:
        """Each token is its byte."""
        return lambda token: bytes([token])

    def to_json(self) -> None:
        """There is nothing to keep."""


class TableTokenizer:
    """A tokenizer of the `tokenizers` library, known by its ``tokenizer.json``.

    Args:
        spec: as a task's argument gives it.
        text: of the file.
        where: of it, for messages.

    Raises:
        UserError: it is no such file, has no token that ends a document, or the library is missing.
    """

    def __init__(self, spec: str, text: str, *, where: str) -> None:
        library = _library()
        try:
            self._tokenizer: Any = library.Tokenizer.from_str(text)
        except Exception as error:  # the library raises no other
            raise UserError(f"{where} is no tokenizer: {error}") from error
        # A document that spells the end out has not ended.
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        tokens: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        found = next((tokens[name] for name in ENDS if name in tokens), None)
        if found is None:
            raise UserError(
                f"{where} has no token that ends a document (looked for {', '.join(ENDS)})."
            )
        self.spec, self.end, self._text = spec, found, text
        self.vocab = max(tokens.values()) + 1
        self.digest = hashlib.sha256(text.encode()).hexdigest()[:12]

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """Tokens of each text, without special ones."""
        found = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [np.array(one.ids, dtype=np.int64) for one in found]

    def decoder(self) -> Callable[[int], bytes]:
        """Whole characters, as soon as their last token is there; an end is a zero byte."""
        stream = _library().decoders.DecodeStream(skip_special_tokens=False)

        def decode(token: int) -> bytes:
            if token == self.end:
                return b"\x00"
            piece: str | None = stream.step(self._tokenizer, token)
            return (piece or "").encode()

        return decode

    def to_json(self) -> str:
        """The file's text."""
        return self._text


def check_spec(spec: str) -> None:
    """Refuse what names no tokenizer.

    Raises:
        UserError: with what may be given.
    """
    kind, _, rest = spec.partition(":")
    if kind not in (BPE, HUB) and spec != BYTES:
        raise unknown("tokenizer", spec, [BYTES, f"{BPE}:SIZE", f"{HUB}:NAME"],
                      where="task_args.tokenizer")  # fmt: skip
    size = int(rest) if rest.isdecimal() and len(rest) < 10 else 0
    if kind == BPE and not LEAST_BPE <= size <= MOST_BPE:
        raise UserError(
            f"task_args.tokenizer={spec!r}: {BPE}:SIZE takes a number of tokens of at least "
            f"{LEAST_BPE}: every byte, and the end of a document, and at most {MOST_BPE}."
        )
    if kind == HUB and not rest:
        raise UserError(f"task_args.tokenizer={spec!r}: {HUB}:NAME takes a name or a folder.")


def vocab_of(spec: str) -> int:
    """Number of tokens, known without the text.

    Raises:
        UserError: a published tokenizer that is not here.
    """
    check_spec(spec)
    if spec == BYTES:
        return ByteTokenizer.vocab
    kind, _, rest = spec.partition(":")
    return int(rest) if kind == BPE else load_published(spec).vocab


def make_tokenizer(spec: str, texts: Callable[[], Iterable[str]]) -> Tokenizer:
    """The tokenizer that `spec` names; ``bpe:SIZE`` is trained on `texts`.

    Raises:
        UserError: see `load_published`; or too little text for so many tokens.
    """
    check_spec(spec)
    if spec == BYTES:
        return ByteTokenizer()
    kind, _, rest = spec.partition(":")
    return train_bpe(int(rest), texts()) if kind == BPE else load_published(spec)


def train_bpe(size: int, texts: Iterable[str]) -> TableTokenizer:
    """Byte-level BPE of exactly `size` tokens; any text can be said in it, and comes back whole.

    Raises:
        UserError: the text has too few pairs of bytes to merge.
    """
    library = _library()
    made = library.Tokenizer(library.models.BPE())
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(_up_to(texts, LONGEST_BPE_TEXT), trainer)
    if made.get_vocab_size() < size:
        raise UserError(
            f"task_args.tokenizer={BPE}:{size}: the training text gives only "
            f"{made.get_vocab_size()} tokens; take fewer tokens or more text."
        )
    spec = f"{BPE}:{size}"
    return TableTokenizer(spec, made.to_str(), where=spec)


def load_published(spec: str) -> TableTokenizer:
    """``hf:NAME``: a file, a folder with ``tokenizer.json`` such as a saved model, or of the hub.

    Raises:
        UserError: it is nowhere.
        Failure: the hub did not answer.
    """
    name = spec.partition(":")[2]
    path = Path(name).expanduser()
    file = path / FILE if path.is_dir() else path
    if file.is_file():
        return open_tokenizer(file, spec)
    if path.is_dir():
        raise UserError(f"task_args.tokenizer={spec!r}: {name} has no {FILE}.")
    return open_tokenizer(_from_hub(spec, name), spec)


def open_tokenizer(file: Path, spec: str) -> TableTokenizer:
    """Read a ``tokenizer.json``, such as that of a saved model.

    Raises:
        UserError: it cannot be read.
    """
    try:
        text = file.read_text(encoding="utf-8")
        json.loads(text)
    except (OSError, ValueError) as error:
        raise UserError(f"{file} is no tokenizer: {error}") from error
    return TableTokenizer(spec, text, where=str(file))


def _from_hub(spec: str, name: str) -> Path:
    """The file of a published tokenizer, from Hugging Face's cache or the hub."""
    _library()
    instead = (
        f"Where there is a network: hf download {name} {FILE} --local-dir FOLDER, and here "
        f"task_args.tokenizer={HUB}:FOLDER; {BYTES} and {BPE}:SIZE need none."
    )
    label = f"task_args.tokenizer={spec!r} (no file or folder {name} is here)"
    return download(name, FILE, label=label, instead=instead)


def _up_to(texts: Iterable[str], size: int) -> Iterator[str]:
    for text in texts:
        if size <= 0:
            return
        yield text
        size -= len(text)


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise UserError(
            f"tokenizers other than bytes need the package tokenizers: {INSTALL}"
        ) from error
    return tokenizers
