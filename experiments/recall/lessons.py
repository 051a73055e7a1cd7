"""Rows to train on: a document, its questions, and their answers, which alone are scored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch

from ablate.experiments.recall.documents import Document
from ablate.experiments.recall.questions import Question, Reader
from ablate.experiments.recall.sets import RecallSet
from ablate.experiments.recall.words import Tokenizer
from ablate.experiments.rows import Rows
from ablate.experiments.task import UNSCORED

Lesson: TypeAlias = tuple[list[int], list[int]]
"""Tokens, and for each of them itself if it is scored, else `UNSCORED`."""


def make_lesson(
    generator: np.random.Generator, one: RecallSet, document: Document, reader: Reader
) -> Lesson:
    """A document and all its questions in random order, each with its answer and a line end."""
    tokens: list[int] = []
    targets: list[int] = []
    for fact in generator.permutation(len(document.rows)):
        if tokens:
            asked = reader.tokenizer.encode(document.asked[fact])
        else:
            asked = reader.questions([document.rows[fact]], one)[0].tokens
        answer = _answer(document.golds[fact], reader.tokenizer)
        tokens += [*asked, *answer]
        targets += [*[UNSCORED] * len(asked), *answer]
    return tokens, targets


def answered(question: Question, tokenizer: Tokenizer) -> Lesson:
    """A question with its first answer and a line end."""
    answer = _answer(question.golds[0], tokenizer)
    unscored = [UNSCORED] * len(question.tokens)
    return [*question.tokens, *answer], [*unscored, *answer]


def to_rows(lessons: Sequence[Lesson], length: int) -> Rows:
    """Rows of `length` inputs; what is behind a lesson's end is unscored and reads as token 0."""
    inputs = torch.zeros(len(lessons), length, dtype=torch.int64)
    targets = torch.full_like(inputs, UNSCORED)
    for row, (tokens, due) in enumerate(lessons):
        inputs[row, : len(tokens) - 1] = torch.tensor(tokens[:-1])
        targets[row, : len(due) - 1] = torch.tensor(due[1:])
    return Rows(inputs, targets)


def _answer(gold: str, tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(f" {gold}\n")
