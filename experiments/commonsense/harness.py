"""One of our models as EleutherAI's evaluation harness (lm-eval) wants it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from torch import Tensor

from ablate.errors import UserError
from ablate.experiments.answers import Predictor, device_of
from ablate.experiments.language.tokenizer import Tokenizer

Scored = tuple[float, bool]
"""Log-probability of a continuation in nats, and whether greedy decoding would say it."""
MOST_NEW_TOKENS = 256
"""Of a generation whose task does not say how long it may be."""


class Pair(NamedTuple):
    """Tokens that are read, and those after them that are scored."""

    context: list[int]
    continuation: list[int]


class HarnessModel(TemplateLM):  # type: ignore[misc]  # lm-eval has no types
    """A model behind lm-eval's three questions.

    The memory learns while it reads, as it does in training: nothing here switches it off. Texts of
    several lengths are read together, padded at their ends. A causal model cannot see what comes
    later, so that each gets what it would get alone.

    Args:
        model: ``(tokens, state=None) -> (logits, state)``.
        text: turns text into its tokens and back.
        max_length: tokens that the model reads before any one that it predicts. Longer contexts
            lose their beginning, and documents are cut into windows of this length.
        pass_tokens: at most so many tokens are read in one pass, padding included, unless one
            text alone is longer.
    """

    def __init__(
        self, model: Predictor, text: Tokenizer, *, max_length: int = 2048, pass_tokens: int = 8192
    ) -> None:
        super().__init__()
        self.model, self.text = model, text
        self.max_length, self.pass_tokens = max_length, pass_tokens

    @property
    def eot_token_id(self) -> int:
        """The token between documents."""
        return self.text.end

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """Tokens of a text; none is added, whatever is asked."""
        tokens: list[int] = self.text.encode([string])[0].tolist()
        return tokens

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Log-probability of whole documents, each token predicted once.

        A document is cut into windows that do not overlap in what they predict; the last one has as
        much context as fits.
        """
        pairs: list[Pair] = []
        owners: list[int] = []
        for owner, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0])
            windows = get_rolling_token_windows(tokens, self.text.end, self.max_length, 1)
            found = [Pair(*make_disjoint_window(window)) for window in windows]
            pairs += found
            owners += [owner] * len(found)
        totals = [0.0] * len(requests)
        for owner, (nats, _) in zip(owners, self.score(pairs), strict=True):
            totals[owner] += nats
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """What the model says after each context, up to the first of its stop strings."""
        return [self._generate(*request.args) for request in requests]

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **kwargs: Any
    ) -> list[Scored]:
        return self.score([Pair(context, continuation) for _, context, continuation in requests])

    def score(self, pairs: Sequence[Pair]) -> list[Scored]:
        """Score every continuation after its context, in the order given.

        Raises:
            UserError: a continuation that is empty, or longer than `max_length`.
        """
        rows = [self._row(pair) for pair in pairs]
        order = sorted(range(len(rows)), key=lambda index: -len(rows[index][0]))
        found: list[Scored] = [(0.0, False)] * len(rows)
        start = 0
        while start < len(order):
            many = max(1, self.pass_tokens // len(rows[order[start]][0]))
            taken = order[start : start + many]
            scored = self._read([rows[index] for index in taken])
            for index, one in zip(taken, scored, strict=True):
                found[index] = one
            start += many
        return found

    def _row(self, pair: Pair) -> tuple[list[int], list[int]]:
        """What is read, its beginning cut off where it is too long, and what is due at its end."""
        size = len(pair.continuation)
        if not 1 <= size <= self.max_length:
            raise UserError(
                f"a continuation of {size} tokens cannot be scored with "
                f"task_args.max_length={self.max_length}: at least 1 and at most so many."
            )
        tokens = [*pair.context, *pair.continuation][-(self.max_length + 1) :]
        return tokens[:-1], pair.continuation

    @torch.no_grad()
    def _read(self, rows: Sequence[tuple[list[int], list[int]]]) -> list[Scored]:
        """One pass over rows, the longest first."""
        width = len(rows[0][0])
        inputs = torch.tensor([read + [0] * (width - len(read)) for read, _ in rows])
        logits = self.model(inputs.to(device_of(self.model)))[0]
        found = []
        for place, (read, due) in enumerate(rows):
            said = logits[place, len(read) - len(due) : len(read)].double().cpu()
            wanted = torch.tensor(due)
            nats = said.log_softmax(dim=-1).gather(1, wanted[:, None]).sum().item()
            found.append((nats, bool((said.argmax(dim=-1) == wanted).all())))
        return found

    def _generate(self, context: str, asked: dict[str, Any]) -> str:
        until, most, temperature = _generation(asked)
        read = self.tok_encode(context) or [self.text.end]
        draws = torch.Generator().manual_seed(0)
        decode = self.text.decoder()
        raw, text = b"", ""
        for number, token in enumerate(self._decode(read[-self.max_length :], temperature, draws)):
            if token == self.text.end:
                break
            raw += decode(token)
            text = raw.decode(errors="replace")
            if any(stop in text for stop in until) or number + 1 == most:
                break
        ends = [text.index(stop) for stop in until if stop in text]
        return text[: min(ends)] if ends else text

    def _decode(self, read: list[int], temperature: float, draws: torch.Generator) -> Iterator[int]:
        """Tokens without end; the state is carried, so that none is read twice."""
        state, device = None, device_of(self.model)
        while True:
            with torch.no_grad():
                logits, state = self.model(torch.tensor([read], device=device), state)
            last: Tensor = logits[0, -1].double().cpu()
            if temperature:
                chances = (last / temperature).softmax(dim=0)
                token = int(torch.multinomial(chances, 1, generator=draws))
            else:
                token = int(last.argmax())
            yield token
            read = [token]


def _generation(asked: dict[str, Any]) -> tuple[list[str], int, float]:
    """Stop strings, the most tokens and the temperature, 0 for greedy.

    Raises:
        UserError: an option that would change what is said, and that is not known here.
    """
    options = dict(asked)
    until = options.pop("until", None) or []
    most = options.pop("max_gen_toks", MOST_NEW_TOKENS)
    temperature = float(options.pop("temperature", 0.0) or 0.0)
    sampled = options.pop("do_sample", temperature > 0)
    if options:
        raise UserError(
            f"generation with {', '.join(sorted(options))} is not known here: only until, "
            "max_gen_toks, do_sample and temperature are."
        )
    stops = [until] if isinstance(until, str) else list(until)
    return [stop for stop in stops if stop], int(most), (temperature or 1.0) if sampled else 0.0
