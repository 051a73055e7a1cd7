"""The comparison of two studies in every format, with the numbers of `side_by_side`."""

from __future__ import annotations

import csv
import dataclasses
import io

import pyarrow.parquet
import pytest

from ablate.analysis.example_study import example_study
from ablate.analysis.formatting import interval, signed
from ablate.analysis.two_studies import TwoStudies, side_by_side
from ablate.dashboards.two_studies import FORMATS, comparison, records, two_studies_bytes
from ablate.errors import UserError


@pytest.fixture(scope="module")
def two() -> TwoStudies:
    first = example_study(4, study="first")
    second = dataclasses.replace(example_study(6), study="second", cells=example_study().cells[:6])
    return side_by_side(first, second)


def test_the_table_has_the_numbers(two: TwoStudies) -> None:
    section = comparison(two)
    rows = {row[0]: row[1:] for row in section.tables[0].rows}
    pair = two.pairs[1]
    assert pair.difference is not None
    assert rows[pair.label][1] == "4"
    assert rows[pair.label][3] == "6"
    decimals = len(rows[pair.label][4].partition(".")[2].partition(" ")[0])
    assert rows[pair.label][4] == (
        f"{signed(pair.difference.estimate, decimals)} "
        f"{interval(pair.difference.low, pair.difference.high, decimals)}"
    )
    assert rows["newton_schulz.steps=1"][2:] == ("\N{EN DASH}",) * 4
    assert "here 6 of 6 pairs have the same configuration" in section.notes[-1]


def test_csv_and_parquet_hold_every_digit(two: TwoStudies) -> None:
    wanted = records(two)
    read = list(csv.DictReader(io.StringIO(two_studies_bytes(two, "csv").decode())))
    assert [row["label"] for row in read] == [pair.label for pair in two.pairs]
    for row, record in zip(read, wanted, strict=True):
        value = record["difference"]
        assert row["difference"] == ("" if value is None else repr(value))
    table = pyarrow.parquet.read_table(io.BytesIO(two_studies_bytes(two, "parquet")))
    assert table.to_pylist() == wanted


@pytest.mark.parametrize("format", FORMATS)
def test_the_same_twice(two: TwoStudies, format: str) -> None:
    assert two_studies_bytes(two, format) == two_studies_bytes(two, format)


def test_the_page_names_both_and_escapes(two: TwoStudies) -> None:
    evil = dataclasses.replace(two, first=dataclasses.replace(two.first, study="<script>x"))
    page = two_studies_bytes(evil, "html").decode()
    assert "&lt;script&gt;x and second" in page
    assert "<script>x" not in page
    with pytest.raises(UserError, match="no report format"):
        two_studies_bytes(two, "pdf")
