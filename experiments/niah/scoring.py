"""How answers in free text are scored (RULER), and greedy completion to get them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ablate.experiments.answers import Predictor
from ablate.experiments.greedy import say_greedily

_CONTROL = re.compile(r"[\x00-\x1f]")


def contains(outputs: Sequence[str], wanted: Sequence[Sequence[str]]) -> float:
    """RULER's score: the mean share of each sample's wanted strings that its output contains.

    Case does not matter; control characters count as line ends. In percent.

    Raises:
        ValueError: no samples, or one without a wanted string.
    """
    if not outputs or len(outputs) != len(wanted) or not all(wanted):
        raise ValueError("every output needs at least one wanted string")
    shares = []
    for output, strings in zip(outputs, wanted, strict=True):
        text = _CONTROL.sub("\n", output.strip()).strip().lower()
        shares.append(sum(string.lower() in text for string in strings) / len(strings))
    return 100 * sum(shares) / len(shares)


def complete(model: Predictor, prompts: Sequence[str], characters: int) -> list[str]:
    """What the model says next, byte by byte, each time its most likely one.

    The prompt is read in one call and every new byte in another, with the state carried on.

    Raises:
        ValueError: prompts of different lengths.
    """
    if len({len(prompt) for prompt in prompts}) > 1:
        raise ValueError("prompts of one call must have the same length")
    tokens = [prompt.encode("latin-1") for prompt in prompts]
    return [bytes(said).decode("latin-1") for said in say_greedily(model, tokens, limit=characters)]
