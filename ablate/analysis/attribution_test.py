"""Effects and shares of a study against means over its cells."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ablate.analysis.attribution import factorial, importance, shapley, varied
from ablate.analysis.example_designs import LOSSES, TOGETHER, factorial_study, size_study
from ablate.analysis.example_study import example_study
from ablate.errors import UserError


def test_main_effects_are_differences_of_means_over_all_other_levels() -> None:
    results = factorial_study()
    found = {effect.term: effect.effect for effect in factorial(results).effects}
    for axis in LOSSES:
        first = results.cells[0].axes[axis]
        sides: dict[bool, list[float]] = {True: [], False: []}
        for cell in results.cells:
            sides[cell.axes[axis] == first] += results.values[cell.id].values()
        expected = np.mean(sides[False]) - np.mean(sides[True])
        assert found[(axis,)].estimate == pytest.approx(expected)
    assert found[("memory", "window")].estimate == pytest.approx(TOGETHER, abs=0.005)
    corner: dict[tuple[bool, bool], list[float]] = {}
    for cell in results.cells:
        key = (cell.axes["memory"] == "mlp", cell.axes["window"] == 16)
        corner.setdefault(key, []).extend(results.values[cell.id].values())
    mean = {key: np.mean(values) for key, values in corner.items()}
    both = mean[False, False] - mean[False, True] - mean[True, False] + mean[True, True]
    assert found[("memory", "window")].estimate == pytest.approx(both)


def test_shares_add_up_to_what_all_first_levels_change() -> None:
    results = factorial_study()
    found = shapley(results)
    none, every = results.values[results.cells[-1].id], results.values[results.cells[0].id]
    total = np.mean([every[seed] - none[seed] for seed in results.seeds])
    assert found.total.estimate == pytest.approx(total)
    shares = {name: share.estimate for name, share in found.shares.items()}
    assert sum(shares.values()) == pytest.approx(total)
    # Half of the interaction belongs to either side.
    assert shares["memory"] == pytest.approx(-LOSSES["memory"] - TOGETHER / 2, abs=0.004)


def test_refusals_say_why() -> None:
    assert list(varied(example_study()))[-1] == "newton_schulz.steps"
    with pytest.raises(UserError, match=r"newton_schulz.steps does not apply in some cells"):
        factorial(example_study())
    with pytest.raises(UserError, match=r"two levels: backbone.dim has 6"):
        shapley(size_study())
    results = factorial_study()
    with pytest.raises(UserError, match="Shapley values need all 8 cells"):
        shapley(dataclasses.replace(results, cells=results.cells[:-1]))
    with pytest.raises(UserError, match="needs at least 20 finished trials"):
        importance(factorial_study(seeds=2))


def test_a_half_fraction_keeps_its_main_effects_and_says_what_they_assume() -> None:
    results = factorial_study()
    half = tuple(
        cell
        for cell in results.cells
        if sum(cell.axes[axis] != results.cells[0].axes[axis] for axis in LOSSES) % 2 == 0
    )
    results = dataclasses.replace(results, cells=half, design="fractional")
    found = factorial(results)
    assert [effect.term for effect in found.effects] == [(axis,) for axis in LOSSES]
    assert len(found.assumed_zero) == 3
    # The interaction of memory and window cannot be told from the effect of retention.
    retention = found.effects[2].effect.estimate
    assert abs(retention) == pytest.approx(TOGETHER / 2, abs=0.004)
    with pytest.raises(UserError, match="cannot tell"):
        factorial(dataclasses.replace(results, design="full"))
