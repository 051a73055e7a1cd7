"""Answer a question by running the world through its facts: what no model can do better."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ablate.experiments.babilong.words import DIRECTIONS, DROP, GIVE, MOVE, OPPOSITE, TAKE


def _any(options: Iterable[str]) -> str:
    return "(?:" + "|".join(options) + ")"


_MOVE = re.compile(rf"(\w+) {_any(MOVE)} the (\w+)\.")
_TAKE = re.compile(rf"(\w+) {_any(TAKE)} the (\w+)(?: there)?\.")
_DROP = re.compile(rf"(\w+) {_any(DROP)} the (\w+)(?: there)?\.")
_GIVE = re.compile(rf"(\w+) {_any(GIVE)} the (\w+) to (\w+)\.")
_LIES = re.compile(rf"The (\w+) is ({'|'.join(DIRECTIONS)}) of the (\w+)\.")


class Reader:
    """Reads facts one at a time, in order, and answers from what it knows by then."""

    def __init__(self) -> None:
        self.places: dict[str, str] = {}
        self.carriers: dict[str, str] = {}
        self.paths: dict[str, list[str]] = {}
        self.gifts: list[tuple[str, str, str]] = []
        self.sides: dict[tuple[str, str], str] = {}

    def read(self, sentence: str) -> bool:
        """Take in one sentence; False if it is no fact of this world."""
        if match := _MOVE.fullmatch(sentence):
            person, room = match.groups()
            self.places[person] = room
            for thing, carrier in self.carriers.items():
                if carrier == person:
                    self._see(thing, room)
        elif match := _TAKE.fullmatch(sentence):
            person, thing = match.groups()
            self.carriers[thing] = person
            self._see(thing, self.places.get(person))
        elif match := _DROP.fullmatch(sentence):
            person, thing = match.groups()
            self.carriers.pop(thing, None)
            self._see(thing, self.places.get(person))
        elif match := _GIVE.fullmatch(sentence):
            giver, thing, receiver = match.groups()
            self.carriers[thing] = receiver
            self.gifts.append((giver, thing, receiver))
        elif match := _LIES.fullmatch(sentence):
            room, side, reference = match.groups()
            self.sides[side, reference] = room
            self.sides[OPPOSITE[side], room] = reference
        else:
            return False
        return True

    def _see(self, thing: str, room: str | None) -> None:
        path = self.paths.setdefault(thing, [])
        if room is not None and path[-1:] != [room]:
            path.append(room)

    def answer(self, question: str) -> str | None:
        """The answer, or None if the facts read do not give one."""
        words = question.rstrip("?").split()
        match words:
            case ["Where", "is", "the", thing]:
                return next(reversed(self.paths.get(thing, [])), None)
            case ["Where", "is", person]:
                return self.places.get(person)
            case ["Where", "was", "the", thing, "before", "the", room]:
                path = self.paths.get(thing, [])
                last = len(path) - 1 - path[::-1].index(room) if room in path else 0
                return path[last - 1] if last else None
            case ["What", "is", side, "of", "the", room]:
                return self.sides.get((side, room))
            case ["What", "is", "the", room, side, "of"]:
                return self.sides.get((OPPOSITE[side], room))
        return self._gift(words)

    def _gift(self, words: list[str]) -> str | None:
        for giver, thing, receiver in reversed(self.gifts):
            match words:
                case ["What", "did", a, "give", "to", b] if (a, b) == (giver, receiver):
                    return thing
                case ["Who", "gave", "the", a, "to", b] if (a, b) == (thing, receiver):
                    return giver
                case ["Who", "did", a, "give", "the", b, "to"] if (a, b) == (giver, thing):
                    return receiver
                case ["Who", "gave", "the", a] if a == thing:
                    return giver
                case ["Who", "received", "the", a] if a == thing:
                    return receiver
        return None


def solve(facts: Iterable[str], question: str) -> str | None:
    """The answer that follows from `facts`; None if there is none."""
    reader = Reader()
    for fact in facts:
        reader.read(fact)
    return reader.answer(question)
