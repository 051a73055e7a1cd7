"""Lay a sample out in noise and give it piece by piece: a million tokens are never held at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ablate.errors import UserError
from ablate.experiments.answers import Predictor, device_of
from ablate.experiments.babilong.babi import Sample
from ablate.experiments.babilong.words import ANSWER, PAD, Words
from ablate.experiments.prose import Prose
from ablate.experiments.rows import Tokens

SHORTEST = 10
"""Noise sentences have at least so many tokens, as in BABILong."""


@dataclass(frozen=True)
class Noise:
    """Sentences of prose as tokens."""

    documents: tuple[tuple[Tokens, ...], ...]

    def sentences(self, seed: Sequence[int], tokens: int) -> Iterator[Tokens]:
        """Sentences of `tokens` tokens in all, the last one cut; the same for the same seed.

        From a random place in a random document to its end, then again.
        """
        generator = np.random.default_rng(seed)
        while tokens > 0:
            document = self.documents[generator.integers(len(self.documents))]
            for sentence in document[generator.integers(len(document)) :]:
                yield sentence[:tokens]
                tokens -= len(sentence)
                if tokens <= 0:
                    return


@lru_cache(maxsize=8)
def noise_of(prose: Prose, words: Words) -> Noise:
    """Tokens of all sentences of prose that are long enough, read once per process.

    Raises:
        UserError: no sentence is.
    """
    documents = []
    for document in prose.documents:
        encoded = [np.array(words.encode(sentence), dtype=np.int64) for sentence in document]
        kept = tuple(sentence for sentence in encoded if len(sentence) >= SHORTEST)
        if kept:
            documents.append(kept)
    if not documents:
        raise UserError(
            f"task_args.prose={prose.source!r}: no sentence has {SHORTEST} tokens or more."
        )
    return Noise(tuple(documents))


def pieces(
    sample: Sample,
    words: Words,
    noise: Noise,
    *,
    length: int,
    seed: int,
    band: tuple[float, float] = (0.0, 1.0),
) -> Iterator[Tokens]:
    """Sentences of a sample: facts in order among noise, then the question and the answer token.

    Every fact goes into a gap between noise sentences, drawn uniformly from those in `band` (shares
    of the gaps). The noise is gone through twice, once to count its gaps, so nothing is held.

    Args:
        length: tokens in all; 0 means the facts and the question without noise.
        seed: of the noise and the gaps.

    Raises:
        ValueError: facts and question alone are longer than `length`.
    """
    facts = [np.array(words.encode(fact), dtype=np.int64) for fact in sample.facts]
    question = np.array([*words.encode(sample.question), ANSWER], dtype=np.int64)
    free = length - len(question) - sum(map(len, facts)) if length else 0
    if free < 0:
        raise ValueError(f"facts and question have {length - free} tokens: more than {length}")
    gaps = sum(1 for _ in noise.sentences((seed, 1), free))
    first, last = round(band[0] * gaps), round(band[1] * gaps)
    places = np.random.default_rng((seed, 0)).integers(first, last + 1, size=len(facts))
    places.sort()
    waiting = 0
    for gap, sentence in enumerate(noise.sentences((seed, 1), free)):
        while waiting < len(facts) and places[waiting] == gap:
            yield facts[waiting]
            waiting += 1
        yield sentence
    yield from facts[waiting:]
    yield question


def segments(parts: Iterable[Tokens], size: int) -> Iterator[Tokens]:
    """The same tokens in pieces of `size`; the last one may be shorter."""
    held: list[Tokens] = []
    count = 0
    for part in parts:
        held.append(part)
        count += len(part)
        if count >= size:
            joined = np.concatenate(held)
            whole = count - count % size
            yield from joined[:whole].reshape(-1, size)
            held, count = [joined[whole:]], count - whole
    if count:
        yield np.concatenate(held)


@torch.no_grad()
def read_last(model: Predictor, streams: Sequence[Iterator[Tokens]]) -> Tensor:
    """Feed streams side by side, carrying the state, and return the logits after each one's end.

    Streams may end at different times; those that have ended are fed padding, whose logits are not
    looked at. Memory is that of one piece of each stream, whatever the length.

    Returns:
        Float ``[streams vocab]``, on the CPU.
    """
    device = device_of(model)
    state: Any = None
    last: list[Tensor] = [torch.empty(0)] * len(streams)
    while True:
        parts = [next(stream, None) for stream in streams]
        width = max((len(part) for part in parts if part is not None), default=0)
        if not width:
            return torch.stack(last)
        tokens = torch.full((len(parts), width), PAD)
        for row, part in enumerate(parts):
            if part is not None:
                tokens[row, : len(part)] = torch.from_numpy(part)
        logits, state = model(tokens.to(device), state)
        for row, part in enumerate(parts):
            if part is not None:
                last[row] = logits[row, len(part) - 1].float().cpu()
