from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor
from sklearn.tree import DecisionTreeRegressor

from ablate.analysis.surrogate import surrogate_importance, tree_shares
from ablate.errors import UserError


def test_shares_of_one_tree_by_hand():
    # Four equal boxes 0, 1, 2, 7: main effects of +-1.5 and +-2, and an interaction of +-1.
    points = np.array([[0.25, 0.25], [0.75, 0.25], [0.25, 0.75], [0.75, 0.75]])
    tree = DecisionTreeRegressor(random_state=0).fit(points, [0.0, 1.0, 2.0, 7.0])
    shares = tree_shares(tree.tree_, 2)
    np.testing.assert_allclose(shares, np.array([1.5**2, 2**2, 1]) / (1.5**2 + 2**2 + 1))


def test_shares_agree_with_sobol_indices_by_salib():
    from SALib.analyze import sobol as analyze
    from SALib.sample import sobol as sample

    generator = np.random.default_rng(0)
    x = generator.uniform(size=(150, 3))
    y = 3 * x[:, 0] + 2 * x[:, 0] * x[:, 1] + 0.1 * generator.normal(size=150)
    tree = DecisionTreeRegressor(min_samples_leaf=5, random_state=0).fit(x, y)
    problem = {"num_vars": 3, "names": ["a", "b", "c"], "bounds": [[0, 1]] * 3}
    points = sample.sample(problem, 2**13, calc_second_order=True, seed=1)
    found = analyze.analyze(problem, tree.predict(points), calc_second_order=True, seed=1)
    shares = tree_shares(tree.tree_, 3)
    np.testing.assert_allclose(shares[:3], found["S1"], atol=0.01)
    second = [found["S2"][0, 1], found["S2"][0, 2], found["S2"][1, 2]]
    np.testing.assert_allclose(shares[3:], second, atol=0.015)


def search(count: int = 120, noise: float = 0.05) -> tuple[dict[str, list], np.ndarray]:
    generator = np.random.default_rng(4)
    lr = 10 ** generator.uniform(-4, -1, size=count)
    window = generator.choice([1, 4, 16], size=count)
    memory = generator.choice(["mlp", "matrix"], size=count)
    y = (np.log10(lr) + 2.5) ** 2 + 0.5 * (memory == "matrix")
    columns = {"lr": lr.tolist(), "window": window.tolist(), "memory": memory.tolist()}
    return columns, y + noise * generator.normal(size=count)


def test_axes_that_matter_stand_out_from_one_that_does_nothing():
    columns, y = search()
    found = surrogate_importance(columns, y, log={"lr"}, resamples=20)
    assert found.explained > 0.7
    lr, memory, window = (found.axes[name] for name in ("lr", "memory", "window"))
    assert lr.low > memory.high
    assert memory.low > found.nothing.estimate
    assert memory.estimate > found.nothing.high
    assert window.estimate < 0.05
    # Var (u^2) for u uniform over -1.5 .. 1.5 is 0.45; the memory adds 0.0625.
    assert lr.estimate == pytest.approx(0.45 / 0.5125, abs=0.15)
    assert ("lr", "memory") in found.pairs
    assert lr.low <= lr.estimate <= lr.high


def test_same_seed_same_numbers():
    columns, y = search(40)
    first = surrogate_importance(columns, y, log={"lr"}, resamples=4)
    assert first == surrogate_importance(columns, y, log={"lr"}, resamples=4)


def test_failed_trials_are_dropped_and_counted():
    columns, y = search()
    y[:7] = np.nan
    assert surrogate_importance(columns, y, log={"lr"}, resamples=2).dropped == 7


def test_refusals_say_why():
    columns, y = search(19)
    with pytest.raises(UserError, match="needs at least 20 finished trials, got 19"):
        surrogate_importance(columns, y)
    columns, y = search(60)
    with pytest.raises(UserError, match="'lrr' is no axis of the search. Did you mean 'lr'"):
        surrogate_importance(columns, y, log={"lrr"})
    with pytest.raises(UserError, match="axis 'memory' is not numeric"):
        surrogate_importance(columns, y, log={"memory"})
    with pytest.raises(UserError, match="has the one value 3"):
        surrogate_importance({**columns, "k": [3] * 60}, y)
    noise = np.random.default_rng(9).normal(size=60)
    with pytest.raises(UserError, match="no better than their mean"):
        surrogate_importance(columns, noise)


def test_forest_shares_of_singles_and_pairs_add_up_to_at_most_one():
    from ablate.analysis.surrogate import forest_shares

    columns, y = search()
    x = np.column_stack([np.log(columns["lr"]), columns["window"]])
    x = (x - x.min(axis=0)) / np.ptp(x, axis=0)
    forest = RandomForestRegressor(8, min_samples_leaf=3, random_state=0).fit(x, y)
    assert forest_shares(forest, 2).sum() == pytest.approx(1)
