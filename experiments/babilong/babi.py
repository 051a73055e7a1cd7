"""bAbI's line format: what our world writes and what the real files hold, by one parser.

    1 Mary moved to the garden.
    2 Where is Mary?<tab>garden<tab>1

Numbers start again at 1 with each story. A question has its answer and the numbers of the
supporting facts. As in BABILong, every question becomes one sample with all facts before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ablate.errors import UserError
from ablate.experiments.text_files import check_text

_LINE = re.compile(r"(\d+) ([^\t]+?) *(?:\t([^\t]+)\t([\d ]*))?")


@dataclass(frozen=True)
class Line:
    """A fact, or a question with its answer and the numbers of the lines that support it."""

    text: str
    answer: str | None = None
    support: tuple[int, ...] = ()


@dataclass(frozen=True)
class Sample:
    """One question, the facts before it, and which of them (from 0) it can be answered from."""

    qa: str
    facts: tuple[str, ...]
    question: str
    answer: str
    support: tuple[int, ...]


def emit(stories: Iterable[Sequence[Line]]) -> str:
    """Write stories as numbered lines."""
    lines = []
    for story in stories:
        for number, line in enumerate(story, start=1):
            tail = ""
            if line.answer is not None:
                tail = f"\t{line.answer}\t{' '.join(map(str, line.support))}"
            lines.append(f"{number} {line.text}{tail}\n")
    return "".join(lines)


def parse(text: str, qa: str, *, where: str = "") -> list[Sample]:
    """Read one sample for each question; earlier questions of its story are left out.

    Raises:
        UserError: a line that is not in the format, with its number in the file.
    """
    samples = []
    facts: dict[int, str] = {}
    for index, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line.rstrip())
        if not match:
            raise UserError(
                f"{where or 'bAbI text'}: line {index} is {line!r}; it must be 'number text', or "
                "'number question<tab>answer<tab>numbers of supporting lines'."
            )
        number, said, answer, support = match.groups()
        if int(number) == 1:
            facts = {}
        if answer is None:
            facts[int(number)] = said
            continue
        order = {name: place for place, name in enumerate(facts)}
        names = [int(name) for name in (support or "").split()]
        if not all(name in order for name in names):
            raise UserError(f"{where or 'bAbI text'}: line {index} names no earlier fact: {names}.")
        places = tuple(order[name] for name in names)
        samples.append(Sample(qa, tuple(facts.values()), said, answer, places))
    return samples


def load(folder: str, qa: str, split: str) -> list[Sample]:
    """Read the real bAbI file of a task: ``<qa>_*_<split>.txt`` anywhere in a folder.

    Raises:
        UserError: no such file, more than one, no text, or a line that is not in the format.
    """
    found = sorted(Path(folder).expanduser().glob(f"**/{qa}_*_{split}.txt"))
    if len(found) != 1:
        names = ", ".join(str(path) for path in found) or "none"
        raise UserError(
            f"task_args.babi={folder!r}: needs exactly one file {qa}_*_{split}.txt (found: "
            f"{names}). Give one folder of bAbI 1.2, such as en-10k; without task_args.babi "
            "stories of the same form are made up."
        )
    text = check_text(found[0].read_bytes(), f"task_args.babi: {found[0]}").decode()
    return parse(text, qa, where=str(found[0]))
