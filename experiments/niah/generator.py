"""Single needle in a haystack (Hsieh et al. 2024, RULER, section 3): variants 1, 2 and 3, as bytes.

A prompt is an instruction, a text that hides one sentence (the needle), a question, and the start
of its answer. The construction is RULER's; the wording, word lists and filler are our own.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Literal, TypeAlias

import numpy as np

from ablate.errors import UserError
from ablate.experiments.prose import Prose

Variant: TypeAlias = Literal["single_1", "single_2", "single_3"]

FILLER = "Rain fell. The kettle sang. A dog slept. Nobody hurried. Clocks ticked."
_ADJECTIVES = """
amber brisk calm dusty early faint gentle hollow icy jolly keen little mellow narrow odd plain
quick rusty silent tall upper vivid warm young zesty brave clever dim eager frosty grand humble
"""
_NOUNS = """
anchor barrel candle drum engine feather garden hammer island jacket kite lantern marble needle
otter pebble quilt river saddle temple urn valley wagon yard zebra basket cellar desk ember forest
gate harbor
"""
ADJECTIVES, NOUNS = _ADJECTIVES.split(), _NOUNS.split()
DEPTHS = np.round(np.linspace(0, 100, 40)).astype(int)
"""Percentages of the haystack at which a needle may stand (variants 2 and 3)."""
NUMBER, UUID = 7, 36
"""Characters of a full value."""


@dataclass(frozen=True)
class Needle:
    """What is hidden: `value`, under the name `key`."""

    key: str
    value: str


@dataclass(frozen=True)
class Sample:
    """One prompt and what must follow it.

    Args:
        prompt: text up to the value.
        needle: what is asked.
        depth: share of the haystack's sentences (or lines) before the needle.
    """

    prompt: str
    needle: Needle
    depth: float

    @property
    def text(self) -> str:
        """Prompt and value."""
        return self.prompt + self.needle.value


def kind(variant: Variant) -> str:
    """The word for the value in instruction, needle and question."""
    return "uuid" if variant == "single_3" else "number"


def draw_needle(
    generator: np.random.Generator, variant: Variant, value_length: int, key_words: int
) -> Needle:
    """Draw a name of two words, and a number without leading zero or the start of a uuid4."""
    adjective, noun = (words[generator.integers(key_words)] for words in (ADJECTIVES, NOUNS))
    if variant == "single_3":
        drawn = uuid.UUID(bytes=generator.bytes(16), version=4)
        value = str(drawn)[:value_length]
    else:
        value = str(generator.integers(10 ** (value_length - 1), 10**value_length))
    return Needle(f"{adjective}-{noun}", value)


def shortest(variant: Variant, value_length: int, key_words: int) -> int:
    """The smallest length at which any needle fits, with some text around it."""
    name = max(ADJECTIVES[:key_words], key=len) + "-" + max(NOUNS[:key_words], key=len)
    parts = _fixed(variant, Needle(name, "0" * value_length))
    return sum(map(len, parts)) + value_length + len(FILLER) // 2


def _fixed(variant: Variant, needle: Needle) -> tuple[str, str, str]:
    """Instruction, needle and question with the start of its answer."""
    word = kind(variant)
    statement = f"The {word} of {needle.key} is {needle.value}."
    return (
        f"A {word} is hidden below. Keep it in mind.\n",
        statement,
        f"\nWhich {word} was that of {needle.key}? The {word} of {needle.key} is ",
    )


def hide(
    generator: np.random.Generator, variant: Variant, needle: Needle, prose: Prose, length: int
) -> Sample:
    """Hide `needle` in text so that prompt and value have `length` + 1 characters in all.

    A model that predicts the value's last character has then read `length` of them. The last
    sentence of the haystack is cut to fit. In variant 1 the haystack is lines of one fixed text and
    the needle is a line of its own; in 2 and 3 it is prose, with the needle at one of 40 depths.

    Raises:
        UserError: the length leaves no room for a haystack.
    """
    instruction, statement, question = _fixed(variant, needle)
    room = length + 1 - len(instruction + statement + question + needle.value)
    if room < 1:
        raise UserError(
            f"task_args.length={length}: {1 - room} bytes short of a prompt without any haystack."
        )
    lines = variant == "single_1"
    while True:
        units = fill(repeat(FILLER) if lines else prose.sentences(generator), room)
        if lines:
            place = int(generator.integers(len(units)))
        else:
            place = len(units) * int(generator.choice(DEPTHS)) // 100
        text = ("\n" if lines else " ").join([*units[:place], statement, *units[place:]])
        # Short numbers can stand in prose by chance; the value must stand in the needle alone.
        if (instruction + text + question).count(needle.value) == 1:
            return Sample(instruction + text + question, needle, place / len(units))


def fill(units: Iterator[str], room: int) -> list[str]:
    """Units that take `room` characters with one separator each; the last is cut to fit."""
    found: list[str] = []
    while room > 0:
        unit = next(units)[: room - 1]
        found.append(unit)
        room -= len(unit) + 1
    return found
