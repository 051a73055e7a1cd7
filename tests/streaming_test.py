"""A streamed sample takes the same memory whatever its length; that of attention grows."""

from __future__ import annotations

from ablate.experiments.babilong.task import BABILongTask
from benchmarks.streaming import powers, read, small_model

MARKS = {2_000, 32_000}


def test_a_recurrent_model_holds_no_more_after_32_000_tokens_than_after_2_000() -> None:
    task = BABILongTask(segment=1_000, test_rows=1)
    early, late = read(small_model("deltanet", task.vocab), task, 32_000, MARKS)
    assert (early.tokens, late.tokens) == (2_000, 32_000)
    # One head of 32 x 32 numbers, and three inputs each of the convolutions on q, k and v.
    assert early.state_bytes == late.state_bytes == 4 * (32 * 32 + 3 * 96)
    # Keys and values of 30,000 tokens alone would be 7.3 MiB.
    assert late.peak_bytes - early.peak_bytes < 4 * 2**20


def test_attention_holds_every_token() -> None:
    task = BABILongTask(segment=1_000, test_rows=1)
    early, late = read(small_model("transformer", task.vocab), task, 3_000, {1_000, 3_000})
    assert late.state_bytes - early.state_bytes >= 2_000 * 2 * 32 * 4


def test_marks_are_powers_of_ten_and_the_end() -> None:
    assert powers(50_000) == {1_000, 10_000, 50_000}
