from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from lm_eval.api.instance import Instance
from torch import Tensor
from torch.nn.functional import one_hot

from ablate.components.language_model import LanguageModel
from ablate.components.state_size import tensors
from ablate.errors import UserError
from ablate.experiments.answers import Predictor
from ablate.experiments.commonsense.harness import HarnessModel, Pair
from ablate.experiments.language.tokenizer import ByteTokenizer
from ablate.trial.build import build_model
from ablate.trial.build_test import tiny

NAMES = ("titans_lmm", "atlas", "titans_mac", "transformer")


def model(name: str) -> LanguageModel:
    built = build_model(tiny(name), 256, seed=3).double().eval()
    with torch.no_grad():  # untrained, a block says almost nothing
        for parameter in built.blocks.parameters():
            parameter.mul_(1.5)
    return built


def harness(asked: Predictor, max_length: int = 100, pass_tokens: int = 8192) -> HarnessModel:
    return HarnessModel(asked, ByteTokenizer(), max_length=max_length, pass_tokens=pass_tokens)


def requests(kind: str, *given: tuple[object, ...]) -> list[Instance]:
    return [Instance(kind, {}, arguments, index) for index, arguments in enumerate(given)]


def pairs(count: int) -> list[Pair]:
    """Of many lengths, in no order."""
    draws = torch.Generator().manual_seed(1)
    sizes = torch.randint(1, 14, (count, 2), generator=draws).tolist()
    text = torch.randint(0, 256, (100,), generator=draws).tolist()
    return [Pair(text[:context], text[50 : 50 + due]) for context, due in sizes]


@torch.no_grad()
def by_hand(asked: LanguageModel, context: Sequence[int], due: Sequence[int]) -> float:
    """One token at a time, the state carried: all that the memory learnt is in it."""
    state, total, read = None, 0.0, [*context]
    for number, token in enumerate([*context[1:], *due]):
        logits, state = asked(torch.tensor([[read[0]]]), state)
        read = [token]
        if number >= len(context) - 1:
            total += logits[0, -1].log_softmax(dim=-1)[token].item()
    return total


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_scores_as_each_alone_and_as_one_token_at_a_time(name: str) -> None:
    asked, given = model(name), pairs(5)
    together = harness(asked).score(given)
    for one, (nats, greedy) in zip(given, together, strict=True):
        ((alone, same),) = harness(asked).score([one])
        assert alone == pytest.approx(nats, abs=1e-10)
        assert same == greedy
        assert by_hand(asked, *one) == pytest.approx(nats, abs=1e-10)
    narrow = harness(asked, pass_tokens=30).score(given)
    assert [nats for nats, _ in narrow] == pytest.approx([nats for nats, _ in together], abs=1e-10)


def test_the_memory_learns_while_it_is_asked() -> None:
    asked, text = model("titans_lmm"), "the cat sat on the mat. the cat sat on the"
    (heard, _), (fresh, _) = harness(asked).loglikelihood(
        requests("loglikelihood", (text, " mat"), (text[-1], " mat")), disable_tqdm=True
    )
    states = [asked(torch.tensor([list(part.encode())]))[1] for part in (text, text[-1])]
    assert not torch.equal(*(tensor_of(state) for state in states))
    assert abs(heard - fresh) > 1e-3


def tensor_of(state: object) -> Tensor:
    return torch.cat([part.flatten() for part in tensors(state)])


def uniform(tokens: Tensor, state: object = None) -> tuple[Tensor, object]:
    return torch.zeros(*tokens.shape, 256), state


def test_a_model_that_knows_nothing_gives_every_byte_one_chance_in_256() -> None:
    found = harness(uniform).loglikelihood(
        requests("loglikelihood", ("a", " bcd"), ("", "ü"), ("x ", "yz")), disable_tqdm=True
    )
    # The space at the end of a context is scored with what follows it.
    assert [nats for nats, _ in found] == pytest.approx([-math.log(256) * n for n in (4, 2, 3)])
    assert not any(greedy for _, greedy in found)


def successor(tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Says the byte after the last; its state is all that it has read."""
    seen = tokens if state is None else torch.cat((state, tokens), dim=1)
    return 30 * one_hot((tokens + 1) % 256, 256).float(), seen


def test_what_greedy_decoding_would_say_is_known() -> None:
    given = requests("loglikelihood", ("a", "bc"), ("a", "bd"), ("xa", "b"))
    found = harness(successor).loglikelihood(given, disable_tqdm=True)
    assert [greedy for _, greedy in found] == [True, False, True]
    assert found[0][0] == pytest.approx(0, abs=1e-9)


def test_a_long_context_loses_its_beginning() -> None:
    asked = model("gated_deltanet")
    long = Pair(list(range(200)), [7, 8, 9])
    (cut,) = harness(asked, max_length=20).score([long])
    # The last token that is due is never read: 18 of the context and 2 of the continuation are.
    assert cut[0] == pytest.approx(by_hand(asked, long.context[-18:], long.continuation))
    with pytest.raises(UserError, match="21 tokens cannot be scored with task_args.max_length=20"):
        harness(asked, max_length=20).score([Pair([1], list(range(21)))])
    with pytest.raises(UserError, match="a continuation of 0 tokens"):
        harness(asked).score([Pair([1], [])])


def test_documents_are_scored_window_by_window() -> None:
    asked = model("titans_lmm")
    text = "A document of some length, cut into windows; each byte is due in one of them."
    whole = [0, *text.encode()]
    size = 16
    total = by_hand(asked, whole[:1], whole[1 : size + 1])
    for start in range(size, len(text), size):
        end = min(start + size, len(text))
        # The last window is filled with context, and the others have one token of it.
        total += by_hand(asked, whole[end - size : start + 1], whole[start + 1 : end + 1])
    given = requests("loglikelihood_rolling", (text,), ("",), ("short",))
    found = harness(asked, max_length=size).loglikelihood_rolling(given)
    assert found[0] == pytest.approx(total, abs=1e-9)
    assert found[1] == 0
    assert found[2] == pytest.approx(by_hand(asked, [0], list(b"short")), abs=1e-9)


@pytest.mark.parametrize("name", ["titans_lmm", "transformer"])
def test_generation_is_greedy_and_stops(name: str) -> None:
    asked, text = model(name), list(b"the cat")
    with torch.no_grad():
        for _ in range(12):
            text.append(int(asked(torch.tensor([text]))[0][0, -1].argmax()))
    said = bytes(text[7:]).decode(errors="replace")
    options = {"until": [], "max_gen_toks": 12}
    assert harness(asked).generate_until(requests("generate_until", ("the cat", options))) == [said]


def test_a_stop_string_of_several_tokens_ends_the_text_before_it() -> None:
    stops = {"until": ["zz", "ij", "fgh"], "max_gen_toks": 40}
    given = requests(
        *("generate_until", ("ab", stops), ("x", {"until": "}"}), ("", {"max_gen_toks": 3})),
    )
    # After the end of a document, byte 0, comes byte 1.
    assert harness(successor).generate_until(given) == ["cde", "yz{|", "\x01\x02\x03"]


def test_the_end_of_a_document_ends_the_text() -> None:
    def predecessor(tokens: Tensor, state: object = None) -> tuple[Tensor, object]:
        return one_hot((tokens - 1) % 256, 256).float(), state

    given = requests("generate_until", ("\x05", {"max_gen_toks": 20}))
    assert harness(predecessor).generate_until(given) == ["\x04\x03\x02\x01"]


def test_draws_are_the_same_each_time_and_unknown_options_are_refused() -> None:
    given = requests("generate_until", ("a", {"do_sample": True, "max_gen_toks": 20}))
    first, second = (harness(uniform).generate_until(given) for _ in range(2))
    assert first == second
    assert len(set(first[0])) > 3
    with pytest.raises(UserError, match="generation with top_p is not known here"):
        harness(uniform).generate_until(requests("generate_until", ("a", {"top_p": 0.9})))
