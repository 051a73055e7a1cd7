"""The words of bAbI's world (Weston et al. 2015), and tokens: those words, and others hashed."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from functools import cached_property

QA = ("qa1", "qa2", "qa3", "qa4", "qa5")
ROOMS = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
PEOPLE = ("Daniel", "John", "Mary", "Sandra")
GIVERS = ("Bill", "Fred", "Jeff", "Mary")
THINGS = ("apple", "football", "milk")
DIRECTIONS = ("north", "south", "east", "west")
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
MOVE = ("moved to", "went to", "went back to", "journeyed to", "travelled to")
TAKE = ("got", "took", "grabbed", "picked up")
DROP = ("dropped", "left", "put down", "discarded")
GIVE = ("gave", "handed", "passed")
ASK = "Where is was before the there What of Who did give to received ? ."
LABELS = {**dict.fromkeys(QA[:4], ROOMS), "qa5": (*GIVERS, *THINGS)}
"""The possible answers of each kind of question."""

PAD, ANSWER = 0, 1
_SPECIAL = 2
_TOKEN = re.compile(r"[A-Za-z]+|[0-9]|[^\sA-Za-z0-9]")


@dataclass(frozen=True)
class Words:
    """Text to tokens: 0 pads, 1 asks for the answer, then the world's words, then hashed words.

    Args:
        noise_words: tokens that all other words are hashed to.
    """

    noise_words: int

    @cached_property
    def known(self) -> dict[str, int]:
        """Token of each word of the world, in lower case."""
        phrases = (*ROOMS, *PEOPLE, *GIVERS, *THINGS, *DIRECTIONS)
        text = " ".join((*phrases, *MOVE, *TAKE, *DROP, *GIVE, ASK)).lower()
        words = dict.fromkeys(text.split())
        return {word: index for index, word in enumerate(words, start=_SPECIAL)}

    @property
    def vocab(self) -> int:
        """Number of tokens."""
        return _SPECIAL + len(self.known) + self.noise_words

    def encode(self, text: str) -> list[int]:
        """Tokens of the words, digits and signs of a text; case does not matter."""
        first = _SPECIAL + len(self.known)
        return [
            self.known.get(word) or first + zlib.crc32(word.encode()) % self.noise_words
            for word in _TOKEN.findall(text.lower())
        ]

    def decode(self, token: int) -> str:
        """The word of a token; all tokens that are no word of the world give ``<other>``."""
        return self._names.get(token, "<other>")

    @cached_property
    def _names(self) -> dict[int, str]:
        return {token: word for word, token in self.known.items()}
