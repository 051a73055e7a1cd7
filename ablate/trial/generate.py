"""Let a model go on with a sequence: one pass over the prompt, then one token at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ablate.components.language_model import LanguageModel
from ablate.components.state_size import state_bytes
from ablate.errors import Failure, UserError
from ablate.experiments.answers import device_of
from ablate.trial.streams import torch_generator


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen.

    Args:
        temperature: what logits are divided by; 0 takes the most likely token.
        top_k: choose among so many most likely tokens; None is all.
        seed: of the draws.

    Raises:
        UserError: a value outside its range.
    """

    temperature: float = 0.0
    top_k: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"--temperature {self.temperature}: must be a number of at least 0.")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"--top-k {self.top_k}: must be at least 1.")


class Step(NamedTuple):
    """A generated token, and the bytes of the state that it was predicted from."""

    token: int
    state_bytes: int


def generate(
    model: LanguageModel, prompt: Sequence[int], tokens: int, sampling: Sampling
) -> Iterator[Step]:
    """Yield `tokens` tokens after `prompt`.

    The state is carried, nothing is read twice: with a memory every step costs the same, however
    long the sequence has become.

    Raises:
        UserError: an empty prompt, a token outside the vocabulary, or more ``top_k`` than tokens.
        Failure: the model's logits are not finite.
    """
    if not prompt:
        raise UserError("the prompt is empty: give at least one token to go on from.")
    if not all(0 <= token < model.vocab for token in prompt):
        raise UserError(f"the prompt has tokens outside [0, {model.vocab}).")
    if sampling.top_k is not None and sampling.top_k > model.vocab:
        raise UserError(f"--top-k {sampling.top_k}: the model has {model.vocab} tokens.")
    draws = torch_generator(sampling.seed, "generate")
    state, read = None, list(prompt)
    for done in range(tokens):
        logits, state = _read(model, read, state)
        if not logits.isfinite().all():
            raise Failure(f"the model's logits are not finite after {len(prompt) + done} tokens.")
        token = choose(logits, sampling, draws)
        yield Step(token, state_bytes(state))
        read = [token]


def choose(logits: Tensor, sampling: Sampling, draws: torch.Generator) -> int:
    """Choose one token by its logits, shape ``[vocab]``; greedy ties go to the lowest token."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    best, tokens = logits.double().topk(sampling.top_k or len(logits))
    chances = ((best - best[0]) / sampling.temperature).softmax(dim=0)
    return int(tokens[torch.multinomial(chances, 1, generator=draws)])


@torch.no_grad()
def _read(model: LanguageModel, tokens: list[int], state: Any) -> tuple[Tensor, Any]:
    """Logits after the last token, on the CPU, and the state."""
    inputs = torch.tensor([tokens], device=device_of(model))
    logits, state = model(inputs, state)
    return logits[0, -1].cpu(), state
