"""What turns text into tokens here: a model's tokenizer, or the words of our made-up documents."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

from ablate.errors import UserError
from ablate.experiments.language.tokenizer import ByteTokenizer
from ablate.experiments.language.tokenizer import Tokenizer as LanguageTokenizer

_PARTS = re.compile(r"\n|\[\w+\]|\w+|[^\w\s]")
_CLOSING = ".,:;?!"


class Tokenizer(Protocol):
    """Text to tokens and back."""

    @property
    def vocab(self) -> int:
        """Number of tokens."""

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, none of them special."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""


class TextTokenizer:
    """A tokenizer of text as tasks of language have it, without special tokens.

    Args:
        tokenizer: `ablate.experiments.language.tokenizer`; bytes if none is given.
    """

    def __init__(self, tokenizer: LanguageTokenizer | None = None) -> None:
        self._tokenizer = tokenizer or ByteTokenizer()

    @property
    def vocab(self) -> int:
        """Number of tokens."""
        return self._tokenizer.vocab

    def encode(self, text: str) -> list[int]:
        """Tokens of a text."""
        tokens: list[int] = self._tokenizer.encode([text])[0].tolist()
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """The text; what is cut or said amiss comes back as replacement characters."""
        decode = self._tokenizer.decoder()
        return b"".join(map(decode, tokens)).decode(errors="replace")


class WordTokenizer:
    """A fixed list of words and marks, words in lower case; spaces come back as English has them.

    Args:
        words: all that texts may consist of.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(sorted(set(words)))

    @property
    def vocab(self) -> int:
        """Number of words."""
        return len(self.words)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    def encode(self, text: str) -> list[int]:
        """One token for each word, mark and line end.

        Raises:
            UserError: a word that is not in the list.
        """
        parts = split(text)
        if unknown := [part for part in parts if part not in self._numbers]:
            raise UserError(
                f"the toy vocabulary of {self.vocab} words cannot read {unknown[0]!r}: "
                "tokenizer=words goes with rows=toy only."
            )
        return [self._numbers[part] for part in parts]

    def decode(self, tokens: Sequence[int]) -> str:
        """The words with spaces between, but not before a closing mark or beside a line end."""
        text = ""
        for token in tokens:
            word = self.words[token]
            joined = not text or text.endswith("\n") or word == "\n" or word in _CLOSING
            text += word if joined else f" {word}"
        return text


def split(text: str) -> list[str]:
    """Words in lower case, marks as they are, and line ends."""
    return [part if part[0] == "[" else part.lower() for part in _PARTS.findall(text)]
