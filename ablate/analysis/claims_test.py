from __future__ import annotations

import math

import pytest

from ablate.analysis.claims import FORM, check_claim, exit_code, judge, parse_claim, same_level
from ablate.errors import UserError


def test_claim_of_the_design_is_read():
    claim = parse_claim("effect(window: 16 -> 1) on val/loss > 0.01")
    assert (claim.factor, claim.before, claim.after) == ("window", "16", "1")
    assert (claim.metric, claim.relation, claim.threshold) == ("val/loss", ">", 0.01)


@pytest.mark.parametrize(
    ("text", "factor", "levels", "threshold"),
    [
        ("effect(newton_schulz.steps:5->1) on val/accuracy@4096 <= -1e-3",
         "newton_schulz.steps", ("5", "1"), -1e-3),
        ("  effect( memory : mlp -> gated_mlp ) on val/loss<+.5 ", "memory",
         ("mlp", "gated_mlp"), 0.5),
        ('effect(name: "a -> b" -> \'c, d\') on x >= 0', "name", ("a -> b", "c, d"), 0.0),
    ],
)  # fmt: skip
def test_spellings_that_are_valid(text, factor, levels, threshold):
    claim = parse_claim(text)
    assert (claim.factor, (claim.before, claim.after)) == (factor, levels)
    assert claim.threshold == threshold


@pytest.mark.parametrize(
    "text",
    [
        "effect(window: 16 → 1) on val/loss > 0.01",
        "effect(window: 16 => 1) on val/loss > 0.01",
        "effect(window = 16 -> 1) on val/loss > 0.01",
        "effect[window: 16 -> 1] in val/loss > 0.01",
        "Effect(window: 16 to 1) on val/loss > 0.01",
        "effect(window: 16 -> 1) val/loss > 0.01",
        "effect(window 16 -> 1) on val/loss > 0.01",
    ],
)
def test_near_misses_are_answered_with_the_claim_that_was_meant(text):
    with pytest.raises(UserError) as caught:
        parse_claim(text, where="study.yaml: claims[0]")
    message = str(caught.value)
    assert message.startswith("study.yaml: claims[0]: ")
    assert "Did you mean 'effect(window: 16 -> 1) on val/loss > 0.01'?" in message


@pytest.mark.parametrize("text", ["", "window matters", "effect(window) on loss", "loss > nan"])
def test_anything_else_is_answered_with_the_form(text):
    with pytest.raises(UserError, match="Did you mean") as caught:
        parse_claim(text)
    assert FORM in str(caught.value)


def test_claim_that_changes_nothing_is_refused():
    with pytest.raises(UserError, match="both levels are 16"):
        parse_claim("effect(window: 16 -> '16') on val/loss > 0")


@pytest.mark.parametrize(
    ("relation", "low", "high", "verdict"),
    [
        (">", 0.02, 0.03, "supported"),
        (">", -0.1, 0.005, "refuted"),
        (">", 0.005, 0.02, "undecided"),
        (">", 0.01, 0.02, "undecided"),
        (">=", 0.01, 0.02, "supported"),
        (">", -0.5, 0.01, "refuted"),
        ("<", -0.5, 0.0, "supported"),
        ("<", 0.011, math.inf, "refuted"),
        ("<=", -math.inf, 0.01, "supported"),
        (">", None, None, "undecided"),
        (">", math.nan, math.nan, "undecided"),
    ],
)
def test_verdict_of_an_interval(relation, low, high, verdict):
    claim = parse_claim(f"effect(window: 16 -> 1) on val/loss {relation} 0.01")
    assert judge(claim, low, high) == verdict


def test_names_are_checked_against_the_study():
    claim = parse_claim("effect(windw: 16 -> 1) on val/loss > 0")
    with pytest.raises(UserError, match="Did you mean 'window'"):
        check_claim(claim, {"window": [16, 1]})
    claim = parse_claim("effect(window: 16 -> 2) on val/los > 0")
    with pytest.raises(UserError, match="'2' is no level of 'window'"):
        check_claim(claim, {"window": [16, 1]})
    claim = parse_claim("effect(window: 16 -> 1) on val/los > 0")
    with pytest.raises(UserError, match="Did you mean 'val/loss'"):
        check_claim(claim, {"window": [16, 1]}, {"val/loss"})


def test_exit_code_passes_only_what_is_supported():
    assert exit_code([]) == 0
    assert exit_code(["supported", "supported"]) == 0
    assert exit_code(["supported", "undecided"]) == 1
    assert exit_code(["supported", "undecided"], allow_undecided=True) == 0
    assert exit_code(["refuted"], allow_undecided=True) == 1


@pytest.mark.parametrize(
    ("text", "level", "same"),
    [
        ("1e-3", 0.001, True),
        ("16", 16, True),
        ("16.0", 16, True),
        ("1", True, False),
        ("true", True, True),
        ("null", None, True),
        ("mlp", "mlp", True),
        ("ml", "mlp", False),
        ("x", 3, False),
    ],
)
def test_level_in_a_claim_means_the_level_of_the_study(text, level, same):
    assert same_level(text, level) is same
