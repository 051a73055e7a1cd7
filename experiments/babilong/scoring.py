"""How answers in words are scored: by BABILong's rule, and by lm-evaluation-harness's."""

from __future__ import annotations

from collections.abc import Sequence

from ablate.experiments.babilong.babi import Sample
from ablate.experiments.babilong.words import LABELS

_ENDS = (".", "<context>", "<example>")


def is_correct(output: str, sample: Sample) -> bool:
    """BABILong's rule: the target, and no other label but those that the question names itself.

    Only the output up to the first full stop or example marker counts, in lower case.
    """
    said = output.lower()
    for end in _ENDS:
        said = said.split(end)[0]
    question = sample.question.lower()
    labels = {label.lower() for label in LABELS[sample.qa]}
    named = {label for label in labels if label in said and label not in question}
    return named == {sample.answer.lower()}


def accuracy(outputs: Sequence[str], samples: Sequence[Sample]) -> float:
    """Share of the outputs that are right by BABILong's rule.

    Raises:
        ValueError: no samples, or another number of outputs.
    """
    return _mean([is_correct(*pair) for pair in zip(outputs, samples, strict=True)])


def contains(outputs: Sequence[str], samples: Sequence[Sample]) -> float:
    """Share of the outputs that contain the target anywhere; case does not matter.

    Raises:
        ValueError: no samples, or another number of outputs.
    """
    pairs = zip(outputs, samples, strict=True)
    return _mean([sample.answer.lower() in output.lower() for output, sample in pairs])


def _mean(right: list[bool]) -> float:
    if not right:
        raise ValueError("no samples to score")
    return sum(right) / len(right)
