from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ablate.experiments.niah.scoring import complete, contains


def test_the_share_of_wanted_strings_is_counted() -> None:
    outputs = ["  It is AB-12, I think.", "no", "12\x0034"]
    wanted = [["ab-12"], ["7"], ["12", "1234"]]
    assert contains(outputs, wanted) == pytest.approx(100 * (1 + 0 + 0.5) / 3)
    assert contains(["12\x0034"], [["12\n34"]]) == 100


@pytest.mark.parametrize(("outputs", "wanted"), [([], []), (["a"], []), (["a"], [[]])])
def test_a_sample_without_answer_is_refused(outputs: list[str], wanted: list[list[str]]) -> None:
    with pytest.raises(ValueError, match="at least one wanted string"):
        contains(outputs, wanted)


def successor(tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Says the byte after the last; its state is all that it has read."""
    seen = tokens if state is None else torch.cat((state, tokens), dim=1)
    return torch.nn.functional.one_hot((tokens + 1) % 256, 256).float(), seen


def test_completion_reads_every_byte_once() -> None:
    states = []

    def watched(tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        logits, seen = successor(tokens, state)
        states.append(seen)
        return logits, seen

    assert complete(watched, ["xa", "y0"], 4) == ["bcde", "1234"]
    assert bytes(states[-1][0].tolist()) == b"xabcd"


def test_prompts_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="same length"):
        complete(successor, ["a", "bc"], 1)
