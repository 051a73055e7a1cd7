from __future__ import annotations

import pytest
import torch

from ablate.components.language_model import LanguageModel
from ablate.errors import Failure, UserError
from ablate.trial.build import build_model
from ablate.trial.build_test import tiny
from ablate.trial.generate import Sampling, choose, generate

PROMPT = b"the cat sat"
TOKENS = 14


def model(name: str) -> LanguageModel:
    built = build_model(tiny(name), 256, seed=3).double().eval()
    # Untrained logits are so small that the best byte would be that of the last token alone.
    with torch.no_grad():
        for parameter in built.blocks.parameters():
            parameter.mul_(1.5)
    return built


@pytest.mark.parametrize("name", ["atlas", "titans_lmm", "deltanet", "titans_mac", "transformer"])
def test_greedy_decoding_is_the_full_forward_at_each_step(name: str) -> None:
    built = model(name)
    steps = list(generate(built, PROMPT, TOKENS, Sampling()))
    text = list(PROMPT)
    for step in steps:
        with torch.no_grad():
            logits, _ = built(torch.tensor([text]))
        assert step.token == int(logits[0, -1].argmax())
        text.append(step.token)
    assert len(steps) == TOKENS
    assert len({step.token for step in steps}) > 2


@pytest.mark.parametrize(("name", "grows"), [("atlas", 0), ("titans_lmm", 0), ("transformer", 512)])
def test_only_attention_s_state_grows(name: str, grows: int) -> None:
    sizes = [step.state_bytes for step in generate(model(name), PROMPT, TOKENS, Sampling())]
    # Two layers keep a key and a value of 16 numbers of 8 bytes for each token.
    assert [after - before for before, after in zip(sizes, sizes[1:], strict=False)] == [
        grows for _ in range(TOKENS - 1)
    ]
    assert sizes[0] > 1000


def test_draws_are_named_by_their_seed() -> None:
    built = model("deltanet")

    def said(**options: float) -> list[int]:
        return [step.token for step in generate(built, PROMPT, 20, Sampling(**options))]  # type: ignore[arg-type]

    assert said(temperature=1.0, seed=1) == said(temperature=1.0, seed=1)
    assert said(temperature=1.0, seed=1) != said(temperature=1.0, seed=2)
    assert said(temperature=1.0, top_k=1) == said() == said(temperature=1e-300)


def test_tokens_are_drawn_by_their_chance() -> None:
    logits = torch.tensor([0.1, 0.2, 0.7]).log()
    draws = torch.Generator().manual_seed(0)

    def shares(sampling: Sampling) -> list[float]:
        drawn = [choose(logits, sampling, draws) for _ in range(3000)]
        return [drawn.count(token) / 3000 for token in range(3)]

    assert shares(Sampling(1.0)) == pytest.approx([0.1, 0.2, 0.7], abs=0.03)
    assert shares(Sampling(1.0, top_k=2)) == pytest.approx([0, 2 / 9, 7 / 9], abs=0.03)
    squared = [1 / 54, 4 / 54, 49 / 54]
    assert shares(Sampling(0.5)) == pytest.approx(squared, abs=0.03)


def test_what_cannot_be_generated_is_refused() -> None:
    built = model("deltanet")
    with pytest.raises(UserError, match="the prompt is empty"):
        next(generate(built, b"", 1, Sampling()))
    with pytest.raises(UserError, match=r"tokens outside \[0, 256\)"):
        next(generate(built, [256], 1, Sampling()))
    with pytest.raises(UserError, match="--top-k 257: the model has 256 tokens"):
        next(generate(built, b"a", 1, Sampling(1.0, top_k=257)))
    for temperature in (-1.0, float("nan"), float("inf")):
        with pytest.raises(UserError, match="must be a number of at least 0"):
            Sampling(temperature)
    with torch.no_grad():
        built.head.weight.fill_(torch.inf)
    with pytest.raises(Failure, match="not finite after 1 tokens"):
        next(generate(built, b"a", 1, Sampling()))
