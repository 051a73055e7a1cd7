from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from ablate.analysis.shapley import shapley_values
from ablate.errors import UserError

Table = dict[frozenset[str], dict[int, float]]


def random_table(names: str, seeds: int, seed: int = 0) -> Table:
    generator = np.random.default_rng(seed)
    return {
        frozenset(chosen): dict(enumerate(generator.normal(size=seeds)))
        for size in range(len(names) + 1)
        for chosen in itertools.combinations(names, size)
    }


def by_permutations(table: Table, names: str, seed: int) -> dict[str, float]:
    """Average each component's gain over every order in which they can be switched on."""
    shares = dict.fromkeys(names, 0.0)
    for order in itertools.permutations(names):
        on: frozenset[str] = frozenset()
        for name in order:
            shares[name] += table[on | {name}][seed] - table[on][seed]
            on |= {name}
    return {name: share / math.factorial(len(names)) for name, share in shares.items()}


@pytest.mark.parametrize("names", ["a", "ab", "abcd", "abcdef"])
def test_shares_equal_the_mean_over_all_orders_and_add_up(names: str):
    table = random_table(names, 3)
    found = shapley_values(table, list(names))
    orders = [by_permutations(table, names, seed) for seed in range(3)]
    for name in names:
        gains = np.array([order[name] for order in orders])
        assert found.shares[name].estimate == pytest.approx(gains.mean())
        half = 4.302652729749464 * gains.std(ddof=1) / math.sqrt(3)
        assert found.shares[name].high - found.shares[name].estimate == pytest.approx(half)
    total = sum(share.estimate for share in found.shares.values())
    assert total == pytest.approx(found.total.estimate)


def test_interaction_is_shared_equally_by_hand():
    table = {
        frozenset(): {0: 1.0},
        frozenset("a"): {0: 2.0},
        frozenset("b"): {0: 4.0},
        frozenset("ab"): {0: 9.0},
    }
    found = shapley_values(table, ["a", "b"])
    assert found.shares["a"].estimate == pytest.approx(1 + 4 / 2)
    assert found.shares["b"].estimate == pytest.approx(3 + 4 / 2)
    assert found.shares["a"].low is None


def test_seed_that_lacks_a_cell_is_left_out_and_named():
    table = random_table("ab", 3)
    del table[frozenset("b")][1]
    table[frozenset()][2] = math.nan
    found = shapley_values(table, ["a", "b"])
    assert (found.seeds, found.dropped) == ((0,), (1, 2))


def test_missing_cells_are_named():
    table = random_table("abc", 2)
    del table[frozenset("ac")], table[frozenset()]
    with pytest.raises(UserError, match=r"all 8 cells of a, b, c; missing: none on, a \+ c"):
        shapley_values(table, list("abc"))


def test_seven_components_are_refused():
    with pytest.raises(UserError, match="1 to 6 components"):
        shapley_values({}, list("abcdefg"))


def test_intervals_cover():
    generator, hits = np.random.default_rng(3), 0
    for _ in range(1000):
        noise = generator.normal(size=(4, 4))
        table = {
            frozenset(on): dict(enumerate(noise[row] + 2.0 * ("a" in on)))
            for row, on in enumerate(["", "a", "b", "ab"])
        }
        hits += 2.0 in shapley_values(table, ["a", "b"]).shares["a"]
    assert 0.93 <= hits / 1000 <= 0.97
