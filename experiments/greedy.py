"""Greedy completion: what a model says after prompts, its likeliest token each time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ablate.experiments.answers import Predictor, device_of

Prompt = Sequence[int]


@torch.no_grad()
def say_greedily(
    model: Predictor,
    prompts: Sequence[Prompt],
    *,
    limit: int,
    stops: Callable[[int], bool] = lambda token: False,
) -> list[list[int]]:
    """Tokens said after each prompt, up to `limit` or one that stops, which is the last given.

    Nothing is padded, as a state would remember padding: prompts are read together up to the end of
    the shortest, then token by token, in which the shorter ones are answered while the longer ones
    are still read. No token is read twice.

    Args:
        model: ``(tokens, state)`` to ``(logits, state)``.
        prompts: tokens of each, at least one.
        limit: tokens said at most, at least 1.
        stops: whether a token is the last that is wanted.
    """
    place = min(map(len, prompts))
    said: list[list[int]] = [[] for _ in prompts]
    ended = [False] * len(prompts)
    state, read = None, [list(prompt[:place]) for prompt in prompts]
    while True:
        logits, state = model(torch.tensor(read, device=device_of(model)), state)
        best = logits[:, -1].argmax(dim=-1).tolist()
        for row, prompt in enumerate(prompts):
            if place >= len(prompt) and not ended[row]:
                said[row].append(best[row])
                ended[row] = len(said[row]) == limit or stops(best[row])
        if all(ended):
            return said
        read = [
            [prompt[place] if place < len(prompt) else token]
            for prompt, token in zip(prompts, best, strict=True)
        ]
        place += 1
