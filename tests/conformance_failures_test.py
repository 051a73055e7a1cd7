"""Each check can fail, and says what is broken: components that are wrong in one way each."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablate.conformance.subject import Result, Subject, name_of
from ablate.conformance.suite import CHECKS, run_checks, shrink
from ablate.conformance.target import find_target

BROKEN = Path(__file__).parent / "broken_mixers.py"

# What is broken -> the check that must find it, and words of its explanation that name it.
FAULTS = {
    "LeaksFuture": ("future", "a mean, norm or softmax over all tokens"),
    "SharesRows": ("batch rows", "norm over the batch"),
    "DropsState": ("split", "the state is dropped"),
    "DetachesState": ("split", "detached"),
    "NeedsTwoTokens": ("decode", "a shortcut for calls of one token"),
    "DropsOut": ("modes", "self.training"),
    "HidesState": ("state", "a cache on self"),
    "WritesIntoState": ("state", "in place"),
    "LooksAtValues": ("meta", ".item()"),
    "BeginsWhereItStopped": ("packed", "a state=None that is not a fresh start"),
    "PutsRowsSecond": ("padded", "whose first dimension is not the batch row"),
    "LosesGradient": ("gradients", ".detach()"),
    "HasIdleParameter": ("parameters", "it is not used in forward"),
    "RoundsAway": ("autocast", "a difference of large numbers"),
    "CarriesBf16": ("precision", "inputs that are not cast to float32 first"),
    "AddsUpBf16": ("precision", "inputs that are not cast to float32 first"),
    "KnowsTheCompiler": ("compiled", "torch.compiler.is_compiling()"),
    "DividesByNorm": ("extremes", "a division by a norm"),
    "CountsCalls": ("deterministic", "a result kept from the call before"),
    "TooLargeSteps": ("trains", "the memory diverges"),
    "HasNoRule": ("builds", "init_weights"),
}


def check(name: str, *wanted: str) -> dict[str, Result]:
    """Results of the wanted checks, or of all."""
    target = find_target(f"{BROKEN}:{name}")
    subject = Subject(shrink(target.model, allow=target.allow), target.allow)
    checks = [one for one in CHECKS if not wanted or name_of(one) in wanted]
    return {result.name: result for result in run_checks(subject, checks)}


def test_a_sound_mixer_passes_every_check() -> None:
    results = check("RunningMean")
    assert [one.measured for one in results.values() if not one.passed] == []
    assert list(results) == ["builds", *map(name_of, CHECKS)]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_named(name: str) -> None:
    expected, words = FAULTS[name]
    results = check(name, expected)
    assert not results[expected].passed, results[expected].measured
    assert words in results[expected].causes


def test_every_check_can_fail() -> None:
    every = {"builds", *map(name_of, CHECKS)}
    assert {expected for expected, _ in FAULTS.values()} | {"lengths"} == every
    assert not check("NeedsTwoTokens", "lengths")["lengths"].passed


def test_a_single_fault_leaves_unrelated_checks_alone() -> None:
    failed = {name for name, one in check("HasIdleParameter").items() if not one.passed}
    assert failed == {"parameters"}
    failed = {name for name, one in check("DetachesState").items() if not one.passed}
    assert failed == {"split"}
    failed = {name for name, one in check("PutsRowsSecond").items() if not one.passed}
    assert failed == {"packed", "padded"}
    failed = {name for name, one in check("KnowsTheCompiler").items() if not one.passed}
    assert failed == {"compiled"}
