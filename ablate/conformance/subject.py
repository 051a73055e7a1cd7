"""The model that is checked, and what a check says about it."""

from __future__ import annotations

import copy
import functools
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from ablate.components.language_model import LanguageModel
from ablate.components.state_size import state_bytes
from ablate.errors import UserError
from ablate.trial.build import build_model
from ablate.trial.space import Model
from ablate.trial.streams import torch_generator

VOCAB, ROWS, LENGTH = 11, 2, 11
SHAKE = 0.1


@dataclass(frozen=True)
class Subject:
    """A tiny model to check.

    Args:
        spec: the model as a plain dict, with small widths.
        allow: packages beside Ablate that may hold its components.
        where: what the user named, put first in messages about the user's mistakes.
    """

    spec: Model
    allow: tuple[str, ...] = ()
    where: str = ""

    @property
    def chunk(self) -> int:
        """Tokens of a chunk; 4 where the model has none."""
        chunk: int | None = self.spec["chunk"]
        return chunk or 4

    @functools.cached_property
    def model(self) -> LanguageModel:
        """A shaken model in float64; checks leave it as it is."""
        return self.copy()

    @functools.cached_property
    def tokens(self) -> Tensor:
        """`[ROWS LENGTH]` tokens; no two rows are alike."""
        generator = torch_generator(0, "conformance/tokens")
        return torch.randint(VOCAB, (ROWS, LENGTH), generator=generator)

    @functools.cached_property
    def logits(self) -> Tensor:
        """What `model` says to `tokens` in one call."""
        with torch.no_grad():
            logits: Tensor = self.model(self.tokens)[0]
        return logits

    def build(self, *, dtype: torch.dtype = torch.float64, device: str = "cpu") -> LanguageModel:
        """The model anew, with the weights that training starts from."""
        return build_model(
            self.spec, VOCAB, seed=0, device=device, dtype=dtype, allow=self.allow, where=self.where
        )

    def build_shaken(self) -> LanguageModel:
        """The model anew, a little away from there: a weight that starts at 0 hides nothing."""
        model = self.build()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                generator = torch_generator(0, f"conformance/{name}")
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(SHAKE * noise.to(parameter))
        return model

    @functools.cached_property
    def _pristine(self) -> LanguageModel:
        return self.build_shaken()

    def copy(self) -> LanguageModel:
        """A shaken model that has seen nothing, as `build_shaken` makes it, but quickly."""
        return copy.deepcopy(self._pristine)


@dataclass(frozen=True)
class Result:
    """What one check found.

    Args:
        name: the check.
        passed: whether the promise holds.
        measured: the numbers, or the error that came instead.
        promise: what every model must do.
        causes: what a failure means, and where it usually comes from.
    """

    name: str
    passed: bool
    measured: str
    promise: str
    causes: str


Check: TypeAlias = Callable[[Subject], Result]


def check(promise: str, causes: str) -> Callable[[Callable[[Subject], tuple[bool, str]]], Check]:
    """Make of a measurement (does the promise hold, in numbers) a check.

    An error on the way is a failure of the check; a `UserError` is raised on.
    """

    def make(measure: Callable[[Subject], tuple[bool, str]]) -> Check:
        @functools.wraps(measure)
        def run(subject: Subject) -> Result:
            try:
                passed, measured = measure(subject)
            except UserError:
                raise
            except Exception as error:
                passed, measured = False, one_line(error)
            return Result(name_of(measure), passed, measured, promise, causes)

        return run

    return make


def name_of(measure: Callable[[Subject], object]) -> str:
    """What a check is called in tables."""
    return measure.__name__.removeprefix("check_").replace("_", " ")


def one_line(error: Exception, limit: int = 160) -> str:
    """An error's kind, the start of its message, and the line outside of packages it came from."""
    text = " ".join(str(error).split())
    shown = text if len(text) <= limit else f"{text[:limit]}..."
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if "site-packages" not in Path(one.filename).parts]
    place = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {shown}{place}"


def gap(one: Tensor, other: Tensor) -> float:
    """Largest absolute difference; NaN if there is one anywhere."""
    return (one - other).abs().max().item() if one.numel() else 0.0


def in_pieces(model: LanguageModel, tokens: Tensor, pieces: list[int]) -> Tensor:
    """Logits of the whole sequence, fed in pieces with the state carried."""
    state, logits = None, []
    for piece in torch.split(tokens, pieces, dim=1):
        part, state = model(piece, state)
        logits.append(part)
    return torch.cat(logits, dim=1)


@check(
    "the model can be made, run on one token, and its state counted",
    "The constructor is Choice(dims, *, options), parameters are made with torch.empty and set by "
    "init_weights(stream); a mixer's forward is (q, k, v, x, state=None) -> (y, state); a state is "
    "made of tensors, numbers, None, tuples, lists, mappings and dataclasses.",
)
def check_builds(subject: Subject) -> tuple[bool, str]:
    """Everything else needs this."""
    _, state = subject.model(subject.tokens[:, :1])
    count = sum(parameter.numel() for parameter in subject.model.parameters())
    return True, f"{count:,} parameters, {state_bytes(state):,} bytes of state"
