"""Tuned cells over whole studies, each number recomputed by hand from the trials' values."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from scipy import stats

from ablate.analysis.comparisons import compare
from ablate.analysis.example_designs import tuned_study
from ablate.analysis.example_study import example_study
from ablate.analysis.frame import StudyResults
from ablate.analysis.tuned_cells import tuned_cells
from ablate.analysis.verdict import conclude


def scores(results: StudyResults, memory: str) -> np.ndarray:
    """The values of one memory, [settings, seeds]."""
    cells = [cell for cell in results.cells if cell.axes["memory"] == memory]
    return np.array([[results.values[c.id][seed] for seed in results.seeds] for c in cells])


def held_out(table: np.ndarray) -> np.ndarray:
    seeds = range(table.shape[1])
    others = [[other for other in seeds if other != seed] for seed in seeds]
    return np.array(
        [table[table[:, o].mean(axis=1).argmin(), s] for s, o in zip(seeds, others, strict=True)]
    )


def test_every_number_is_that_of_the_values() -> None:
    results = tuned_study(noise=0.05)
    base, matrix = tuned_cells(results)
    tables = {name: scores(results, name) for name in ("mlp", "matrix")}
    for found, table in zip((base, matrix), tables.values(), strict=True):
        assert found.settings == ("train.lr=0.001", "train.lr=0.003", "train.lr=0.01")
        assert found.best is not None
        assert found.best.naive == pytest.approx(table.mean(axis=1).min())
        assert found.best.honest.estimate == pytest.approx(held_out(table).mean())
        for m in (1, 2, 3):
            drawn = [min(some) for some in itertools.combinations(table.mean(axis=1), m)]
            assert found.expected[m - 1] == pytest.approx(np.mean(drawn))
    differences = held_out(tables["matrix"]) - held_out(tables["mlp"])
    effect = matrix.effect
    assert effect is not None
    assert effect.difference == pytest.approx(differences.mean())
    half = stats.t.ppf(0.975, 3) * differences.std(ddof=1) / 2
    assert (effect.low, effect.high) == pytest.approx(
        (differences.mean() - half, differences.mean() + half)
    )
    signs = np.array(list(itertools.product([1, -1], repeat=4)))
    reached = np.abs((signs * differences).sum(axis=1)) >= abs(differences.sum()) - 1e-12
    assert effect.p == matrix.p_holm == reached.mean()
    assert (base.name, base.reference, base.effect) == ("baseline", None, None)
    assert (matrix.name, matrix.reference) == ("memory=matrix", "baseline")


def test_each_cell_finds_its_own_setting_where_the_noise_is_small() -> None:
    base, matrix = tuned_cells(tuned_study(noise=0.001))
    assert base.best is not None
    assert matrix.best is not None
    assert matrix.effect is not None
    assert (base.best.chosen, matrix.best.chosen) == ("train.lr=0.003", "train.lr=0.01")
    # Without tuning the matrix would look worse by what the wrong rate costs it.
    assert matrix.effect.difference == pytest.approx(0.05, abs=0.004)
    results = tuned_study(noise=0.001)
    limits = conclude(results, compare(results)).limits
    assert any(text.startswith("Cells are tuned over train.lr: the table") for text in limits)


def test_settings_that_have_not_ended_do_not_count_and_diverged_ones_lose() -> None:
    results = tuned_study()
    states = {results.cells[0].id: "missing", results.cells[3].id: "diverged"}
    trials = tuple(
        dataclasses.replace(trial, state=states[trial.cell])
        if trial.cell in states and trial.seed == 0
        else trial
        for trial in results.trials
    )
    base, matrix = tuned_cells(dataclasses.replace(results, trials=trials))
    assert (len(base.settings), base.planned) == (2, 3)
    assert (len(matrix.settings), matrix.planned) == (3, 3)
    assert matrix.best is not None
    assert matrix.best.chosen == "train.lr=0.01"
    assert matrix.expected[0] == math.inf


def test_one_seed_cannot_judge_its_own_choice() -> None:
    (base, matrix) = tuned_cells(tuned_study(seeds=1))
    assert base.best is None
    assert base.refusal.startswith("the best of 3 settings cannot be judged on the one seed")
    assert (matrix.effect, matrix.reference) == (None, "baseline")


def test_a_study_without_tuning_has_none() -> None:
    assert tuned_cells(example_study()) == ()
