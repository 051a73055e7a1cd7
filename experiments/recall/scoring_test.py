"""What counts as an answer, and that completion is what one prompt at a time would give."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ablate.experiments.recall.scoring import SPREAD, complete, contains, first_line
from ablate.experiments.recall.words import TextTokenizer


@pytest.mark.parametrize(
    ("said", "golds", "right"),
    [
        (" Amber, I think", ["amber"], True),
        ("amb er", ["amber"], False),
        ("nobody knows", ["no"], True),
        ("abc", ["a.c"], False),
        ("costs $5 (net)", ["$5 (net)"], True),
        ("six", ["5", "six"], True),
        ("", ["x"], False),
    ],
)
def test_an_answer_is_right_if_it_is_said_anywhere(
    said: str, golds: Sequence[str], right: bool
) -> None:
    assert contains(said, golds) is right


def test_no_answer_to_look_for_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one answer"):
        contains("x", [])


def test_only_the_first_line_counts() -> None:
    assert first_line(" amber\nred") == " amber"
    assert first_line("amber") == "amber"


class Counting:
    """Says how many tokens it has read, as a letter, and ends the line at every tenth.

    Its state is that number, so padding or reading twice would show.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []

    def __call__(self, tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        self.calls.append(tuple(tokens.shape))
        rows, length = tokens.shape
        before = torch.zeros(rows, dtype=torch.int64) if state is None else state
        read = before[:, None] + torch.arange(1, length + 1)
        said = torch.where(read % 10 == 0, ord("\n"), ord("a") + read % 26)
        return one_hot(said, 256).float(), before + length


def expected(length: int, limit: int) -> str:
    said = ""
    for read in range(length, length + limit):
        if read % 10 == 0:
            break
        said += chr(ord("a") + read % 26)
    return said


def test_prompts_of_any_lengths_are_completed_as_if_alone() -> None:
    prompts = [[1] * length for length in (7, 3, 100, 5, 41, 10, 36, 3)]
    said = complete(Counting(), prompts, TextTokenizer(), batch=3)
    assert said == [expected(len(prompt), 48) for prompt in prompts]
    assert said[0] == "hij"
    assert said[5] == ""  # ends the line at once


def test_rows_are_read_together_only_if_they_are_about_as_long() -> None:
    model = Counting()
    complete(model, [[1] * length for length in (3, 4, 5, 5 + SPREAD)], TextTokenizer(), batch=8)
    assert model.calls[0] == (3, 3)
    assert (1, 5 + SPREAD) in model.calls


def test_no_more_is_said_than_the_limit() -> None:
    said = complete(lambda tokens, state: (one_hot(tokens, 256), state), [[65], [66, 67]],
                    TextTokenizer(), batch=2)  # fmt: skip
    assert said == ["A" * 48, "C" * 48]
