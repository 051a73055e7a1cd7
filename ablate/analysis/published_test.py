"""What the papers print, recomputed: the known contradictions are found, and no others."""

from __future__ import annotations

import pytest

from ablate.analysis.published import load_published, mismatches, published_names
from ablate.errors import UserError


def found(name: str) -> dict[tuple[str, str, str], tuple[float, float]]:
    return {
        (one.row.name, one.row.group, one.column): (one.printed, round(one.computed, 2))
        for one in mismatches(load_published(name))
    }


def test_averages_of_atlas_table_2() -> None:
    assert found("atlas/table2") == {
        ("TTT", "760M parameters", "average"): (47.32, 49.38),
        ("SWDT", "760M parameters", "average"): (50.1, 50.16),
        ("Memora", "1.3B parameters", "average"): (55.87, 55.76),
    }


def test_perplexities_of_atlas_table_6_are_means_of_table_2_and_no_muon_is_omeganet() -> None:
    assert found("atlas/table6") == {}
    six, two = load_published("atlas/table6"), load_published("atlas/table2")
    omeganet = two.row("OmegaNet", "760M parameters").values
    without = six.row("w/o Muon").values
    assert without["ppl"] == pytest.approx((omeganet["wiki_ppl"] + omeganet["lambada_ppl"]) / 2)
    assert without["accuracy"] == omeganet["average"]
    # Muon and MAL make the perplexity worse, whatever the caption says.
    atlas = six.row("Atlas").values
    assert without["ppl"] < atlas["ppl"] < six.row("+ attention (MAL)").values["ppl"]


def test_averages_of_atlas_table_5_add_up_and_attention_is_best_in_every_column() -> None:
    assert found("atlas/table5") == {}
    first, *others = load_published("atlas/table5").rows
    assert first.name == "Transformer"
    assert all(first.values[key] > row.values[key] for row in others for key in first.values)


def test_averages_of_miras_table_3() -> None:
    assert found("miras/table3") == {
        ("Moneta", "", "average"): (93.5, 93.31),
        ("Yaad", "", "average"): (92.9, 92.51),
        ("Memora", "", "average"): (92.1, 92.49),
    }


def test_the_average_of_yaad_in_miras_table_4_has_no_source() -> None:
    assert found("miras/table4") == {("Yaad", "", "average"): (53.98, 52.42)}


def test_perplexities_of_titans_table_5_are_means_of_table_1() -> None:
    assert found("titans/table5") == {}


@pytest.mark.parametrize("name", published_names())
def test_every_table_is_whole(name: str) -> None:
    table = load_published(name)
    assert table.source
    assert table.rows
    for row in table.rows:
        assert set(row.values) == set(table.columns)
    assert set(table.columns.values()) <= {"min", "max"}
    assert len({(row.name, row.group) for row in table.rows}) == len(table.rows)


def test_an_unknown_table_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match=r"Did you mean 'atlas/table6'"):
        load_published("atlas/tabel6")
