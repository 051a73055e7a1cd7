from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablate.errors import UserError
from ablate.experiments.babilong.babi import Sample, emit, load, parse
from ablate.experiments.babilong.oracle import Reader, solve
from ablate.experiments.babilong.words import LABELS, QA, Words
from ablate.experiments.babilong.world import FACTS, draw_sample, tell

SUPPORT = {"qa1": 1, "qa2": 2, "qa3": 3, "qa4": 1, "qa5": 1}


@pytest.mark.parametrize("qa", QA)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), max_facts=st.integers(6, 40))
def test_samples_follow_from_their_facts(qa: str, seed: int, max_facts: int) -> None:
    sample = draw_sample(np.random.default_rng(seed), qa, max_facts)
    fewest, most = FACTS[qa]
    assert fewest <= len(sample.facts) <= min(most, max_facts)
    assert all(Reader().read(fact) for fact in sample.facts)
    assert sample.answer in LABELS[qa]
    assert solve(sample.facts, sample.question) == sample.answer
    assert sample.answer not in sample.question
    # The supporting facts suffice, and none of them can be left out.
    support = [sample.facts[place] for place in sample.support]
    assert len(support) == SUPPORT[qa]
    assert list(sample.support) == sorted(sample.support)
    assert solve(support, sample.question) == sample.answer
    for left_out in range(len(support)):
        fewer = support[:left_out] + support[left_out + 1 :]
        assert solve(fewer, sample.question) != sample.answer
    assert sample == draw_sample(np.random.default_rng(seed), qa, max_facts)


@pytest.mark.parametrize("qa", QA)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), facts=st.integers(2, 20), questions=st.integers(1, 4))
def test_stories_survive_the_line_format(qa: str, seed: int, facts: int, questions: int) -> None:
    stream = np.random.default_rng(seed)
    stories = [tell(stream, qa, facts, questions) for _ in range(3)]
    samples = parse(emit(stories), qa)
    asked = [line for story in stories for line in story if line.answer is not None]
    assert len(samples) == len(asked) == 3 * (1 if qa == "qa4" else questions)
    for sample, line in zip(samples, asked, strict=True):
        assert (sample.question, sample.answer) == (line.text, line.answer)
        assert solve(sample.facts, sample.question) == sample.answer
        support = [sample.facts[place] for place in sample.support]
        assert solve(support, sample.question) == sample.answer


@pytest.mark.parametrize("qa", QA)
def test_answers_are_spread_over_the_labels(qa: str) -> None:
    stream = np.random.default_rng(0)
    answers = [draw_sample(stream, qa, 10).answer for _ in range(600)]
    share = {label: answers.count(label) / len(answers) for label in LABELS[qa]}
    assert max(share.values()) < 0.25
    assert min(share.values()) > 0.04


def test_every_word_of_the_world_has_its_own_token() -> None:
    words = Words(noise_words=7)
    assert len(set(words.known.values())) == len(words.known)
    stream = np.random.default_rng(0)
    for qa in QA:
        for line in tell(stream, qa, 60):
            tokens = words.encode(line.text)
            assert max(tokens) < words.vocab - 7
            said = " ".join(words.decode(token) for token in tokens)
            assert said == line.text.lower().replace(".", " .").replace("?", " ?")
    strange = words.encode("Zebras graze, 12 of them!")
    assert words.decode(strange[0]) == "<other>"
    assert all(token < words.vocab for token in strange)


REAL = """1 Anna moved to the garden.
2 Mary went back to the hallway.
3 Where is Mary? \thallway\t2
4 Mary travelled to the office.
5 Where is Mary? \toffice\t4
1 The office is north of the kitchen.
"""


def test_real_files_have_blanks_before_the_answer_and_many_questions_in_a_story() -> None:
    first, second = parse(REAL, "qa1")
    assert first == Sample(
        "qa1",
        ("Anna moved to the garden.", "Mary went back to the hallway."),
        "Where is Mary?",
        "hallway",
        (1,),
    )
    assert second.facts == (*first.facts, "Mary travelled to the office.")
    assert second.support == (2,)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Mary went home.", "line 1 is 'Mary went home.'"),
        ("1 A b c.\n2 Where?\tx\t5", "line 2 names no earlier fact"),
    ],
)
def test_lines_out_of_format_are_refused(text: str, named: str) -> None:
    with pytest.raises(UserError, match=named):
        parse(text, "qa1", where="file.txt")


def test_a_folder_without_the_file_is_refused(tmp_path: object) -> None:
    with pytest.raises(UserError, match=r"exactly one file qa1_\*_train.txt"):
        load(str(tmp_path), "qa1", "train")
