"""A small world that tells its events and asks about them: bAbI's tasks 1 to 5, simulated.

People walk between rooms, take, carry, drop and give things; qa4 says how rooms lie. The words are
bAbI's (`words`), so that one vocabulary serves both; the world, and what happens in it, is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from ablate.experiments.babilong.babi import Line, Sample
from ablate.experiments.babilong.words import (
    DIRECTIONS,
    DROP,
    GIVE,
    GIVERS,
    MOVE,
    OPPOSITE,
    PEOPLE,
    ROOMS,
    TAKE,
    THINGS,
)

FACTS = {"qa1": (2, 10), "qa2": (2, 68), "qa3": (4, 32), "qa4": (2, 2), "qa5": (2, 126)}
"""Fewest and most facts of a sample."""
LATER = 2
"""Facts between two questions of one story."""

T = TypeVar("T")


class Asked(NamedTuple):
    """A question, its answer, and the indices of the facts that it follows from."""

    text: str
    answer: str
    support: tuple[int, ...]


class Seen(NamedTuple):
    """Where somebody or something is, and the facts that say so."""

    room: str
    support: tuple[int, ...]


class Held(NamedTuple):
    """Who has a thing, and the fact by which they got it."""

    person: str
    fact: int


class Given(NamedTuple):
    """One thing given, and the fact that says so."""

    giver: str
    thing: str
    receiver: str
    fact: int


class World:
    """What is so, and why: every state remembers the facts that it follows from.

    Args:
        generator: every event and question is drawn from it.
        qa: the task, which decides what can happen and what is asked.
    """

    def __init__(self, generator: np.random.Generator, qa: str) -> None:
        self.generator = generator
        self.qa = qa
        self.people = GIVERS if qa == "qa5" else PEOPLE
        self.facts: list[str] = []
        self.places: dict[str, Seen] = {}
        self.held: dict[str, Held] = {}
        self.lying: dict[str, Seen] = {}
        self.paths: dict[str, list[Seen]] = {}
        self.given: list[Given] = []

    def step(self) -> None:
        """Let one event happen: half of the time a walk, else something with a thing, if it can."""
        deeds = [] if self.qa == "qa1" else self._deeds()
        if not deeds or self.generator.random() < 0.5:
            self._walk()
        else:
            verb, person, thing = self._pick(deeds)
            {"take": self._take, "drop": self._drop, "give": self._give}[verb](person, thing)

    def ask(self) -> Asked | None:
        """Draw one of the questions that can be answered now; None if there is none."""
        questions = {
            "qa1": self._ask_person,
            "qa2": self._ask_thing,
            "qa3": self._ask_before,
            "qa5": self._ask_gift,
        }[self.qa]()
        return self._pick(questions) if questions else None

    def _pick(self, options: Sequence[T]) -> T:
        return options[int(self.generator.integers(len(options)))]

    def _deeds(self) -> list[tuple[str, str, str]]:
        """What anybody could do with a thing; a thing not seen yet may be anywhere."""
        found = []
        for thing in THINGS:
            if thing in self.held:
                person = self.held[thing].person
                found.append(("drop", person, thing))
                if self.qa == "qa5":
                    found += [("give", person, thing)] * 4
                continue
            room = self.lying[thing].room if thing in self.lying else None
            for person, seen in self.places.items():
                if room in (None, seen.room):
                    found.append(("take", person, thing))
        return found

    def _say(self, text: str) -> int:
        self.facts.append(text)
        return len(self.facts) - 1

    def _walk(self) -> None:
        person = self._pick(self.people)
        before = self.places.get(person)
        room = self._pick([room for room in ROOMS if before is None or room != before.room])
        fact = self._say(f"{person} {self._pick(MOVE)} the {room}.")
        for thing, held in self.held.items():
            if held.person == person and before is not None:
                path = self.paths.setdefault(thing, [Seen(before.room, ())])
                path.append(Seen(room, (*before.support, held.fact, fact)))
        self.places[person] = Seen(room, (fact,))

    def _take(self, person: str, thing: str) -> None:
        there = self._pick(("", " there"))
        fact = self._say(f"{person} {self._pick(TAKE)} the {thing}{there}.")
        self.held[thing] = Held(person, fact)
        self.lying.pop(thing, None)

    def _drop(self, person: str, thing: str) -> None:
        there = self._pick(("", " there"))
        fact = self._say(f"{person} {self._pick(DROP)} the {thing}{there}.")
        del self.held[thing]
        if person in self.places:
            room, support = self.places[person]
            self.lying[thing] = Seen(room, (*support, fact))

    def _give(self, giver: str, thing: str) -> None:
        receiver = self._pick([person for person in self.people if person != giver])
        fact = self._say(f"{giver} {self._pick(GIVE)} the {thing} to {receiver}.")
        self.held[thing] = Held(receiver, fact)
        self.given.append(Given(giver, thing, receiver, fact))

    def _ask_person(self) -> list[Asked]:
        return [Asked(f"Where is {who}?", *seen) for who, seen in self.places.items()]

    def _ask_thing(self) -> list[Asked]:
        found = [Asked(f"Where is the {what}?", *seen) for what, seen in self.lying.items()]
        for thing, (person, fact) in self.held.items():
            room, support = self.places[person]
            found.append(Asked(f"Where is the {thing}?", room, tuple(sorted((*support, fact)))))
        return found

    def _ask_before(self) -> list[Asked]:
        """Rooms that a thing came to only once, so that "before" means one time."""
        found = []
        for thing, path in self.paths.items():
            rooms = [seen.room for seen in path]
            for place in range(1, len(path)):
                if rooms.count(rooms[place]) == 1:
                    text = f"Where was the {thing} before the {rooms[place]}?"
                    found.append(Asked(text, rooms[place - 1], tuple(sorted(path[place].support))))
        return found

    def _ask_gift(self) -> list[Asked]:
        """Five questions, each about the latest event that it fits."""
        latest: dict[str, Asked] = {}
        for giver, thing, receiver, fact in self.given:
            for text, answer in (
                (f"What did {giver} give to {receiver}?", thing),
                (f"Who gave the {thing} to {receiver}?", giver),
                (f"Who did {giver} give the {thing} to?", receiver),
                (f"Who gave the {thing}?", giver),
                (f"Who received the {thing}?", receiver),
            ):
                latest[text] = Asked(text, answer, (fact,))
        return list(latest.values())


def tell(generator: np.random.Generator, qa: str, facts: int, questions: int = 1) -> list[Line]:
    """Tell a story: `facts` facts, or more until something can be asked, and its questions.

    A further question follows at least two facts after the one before. qa4 has one question.
    """
    if qa == "qa4":
        return _tell_directions(generator)
    world = World(generator, qa)
    lines: list[Line] = []
    numbers: list[int] = []
    for question in range(questions):
        told = len(world.facts)
        asked = None
        while asked is None or len(world.facts) - told < (LATER if question else facts):
            world.step()
            asked = world.ask()
        for fact in world.facts[told:]:
            lines.append(Line(fact))
            numbers.append(len(lines))
        support = tuple(numbers[fact] for fact in asked.support)
        lines.append(Line(asked.text, asked.answer, support))
    return lines


def _tell_directions(generator: np.random.Generator) -> list[Line]:
    """Two rooms on different sides of a third, each side told and asked either way around."""
    middle, *others = (ROOMS[index] for index in generator.permutation(len(ROOMS))[:3])
    sides = (DIRECTIONS[index] for index in generator.permutation(len(DIRECTIONS))[:2])
    ways = []
    for other, side in zip(others, sides, strict=True):
        ways.append([(other, side, middle), (middle, OPPOSITE[side], other)])
    lines = []
    for way in ways:
        room, side, reference = way[generator.integers(2)]
        lines.append(Line(f"The {room} is {side} of the {reference}."))
    asked = int(generator.integers(2))
    room, side, reference = ways[asked][generator.integers(2)]
    if generator.random() < 0.5:
        question = Line(f"What is {side} of the {reference}?", room, (asked + 1,))
    else:
        question = Line(f"What is the {room} {side} of?", reference, (asked + 1,))
    return [*lines, question]


def draw_sample(generator: np.random.Generator, qa: str, max_facts: int) -> Sample:
    """One story with one question and at most `max_facts` facts; fewer are as likely as more."""
    fewest, most = FACTS[qa]
    most = min(most, max_facts)
    while True:
        *facts, asked = tell(generator, qa, int(generator.integers(fewest, most + 1)))
        if len(facts) <= most:
            assert asked.answer is not None
            support = tuple(number - 1 for number in asked.support)
            return Sample(qa, tuple(f.text for f in facts), asked.text, asked.answer, support)
