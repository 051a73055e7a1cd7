"""`ablate report` over real ledgers: what is written, what is printed, and the exit code."""

from __future__ import annotations

import csv
import dataclasses
import io
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ablate.commands.report import ReportOptions, report_command
from ablate.errors import UserError
from ablate.home import ledger_path
from ablate.sweep.driver import run_plan
from ablate.sweep.fake_study import FakePlan, fake_trial
from ablate.sweep.inline import InlineExecutor
from ablate.sweep.ledger import Ledger


@dataclasses.dataclass(frozen=True)
class ClaimingPlan(FakePlan):
    """A fake study with claims."""

    claims: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "claims": list(self.claims)}


def run(study: str, *, seeds: int = 4, claims: tuple[str, ...] = ()) -> None:
    plan = ClaimingPlan(cells=3, seeds=seeds, study=study, claims=claims)
    with Ledger.open(ledger_path(study)) as ledger:
        run_plan(plan, ledger, executor=InlineExecutor(fake_trial))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ABLATE_HOME", str(tmp_path))
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *studies: str, **options: Any) -> str:
    assert report_command(studies, ReportOptions(**options)) == 0
    return capsys.readouterr().out


def test_kept_results_of_older_code_are_marked_everywhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run("fake")
    edited = FakePlan(cells=3, seeds=4, code=("f0", "f1", "f0"))
    with Ledger.open(ledger_path("fake")) as ledger:
        run_plan(edited, ledger, executor=InlineExecutor(fake_trial), stale="keep")
    text = printed(capsys, "fake", format="md")
    assert "| memory=level1 | memory: level0 \N{RIGHTWARDS ARROW} level1 |" in text
    assert text.count("4 (4 of older code)") == 1
    assert "4 results were made by older code than the plan's and kept, in memory=level1" in text
    assert "4 (4 of older code)" in printed(capsys, "fake", format="latex")
    rows = csv.DictReader(io.StringIO(printed(capsys, "fake", format="csv")))
    assert [row["older_code"] for row in rows] == ["0", "4", "0"]
    with Ledger.open(ledger_path("fake")) as ledger:
        run_plan(edited, ledger, executor=InlineExecutor(fake_trial), stale="rerun", max_trials=0)
    text = printed(capsys, "fake", format="md")
    assert "of older code" not in text
    assert "0/4 (4 stale)" in text


def test_every_number_of_the_table_is_that_of_the_ledgers_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run("fake")
    with sqlite3.connect(ledger_path("fake")) as database:
        rows = database.execute(
            "SELECT t.cell_id, t.seed, json_extract(a.summary, '$.\"val/bits_per_byte\"') "
            "FROM trials t JOIN attempts a USING (trial_id)"
        ).fetchall()
    values = {(cell, seed): value for cell, seed, value in rows}
    text = printed(capsys, "fake", format="md")
    for cell, label in (("c1", "memory=level1"), ("c2", "memory=level2")):
        own = np.array([values[cell, seed] for seed in range(4)])
        differences = own - np.array([values["c0", seed] for seed in range(4)])
        half = stats.t.ppf(0.975, 3) * own.std(ddof=1) / 2
        line = next(line for line in text.splitlines() if line.startswith(f"| {label} |"))
        fields = [field.strip() for field in line.strip("|").split("|")]
        mean, plus = fields[2].split(" \N{PLUS-MINUS SIGN} ")
        places = len(mean.partition(".")[2])
        assert (mean, plus) == (f"{own.mean():.{places}f}", f"{half:.{places}f}")
        assert fields[4].startswith(f"+{differences.mean():.{places}f}")
        assert fields[3] == "4"


def test_each_format_goes_where_it_belongs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("fake")
    assert printed(capsys, "fake") == f"{place}/fake/report.html\n"
    assert printed(capsys, "fake", format="parquet") == f"{place}/fake/report.parquet\n"
    assert printed(capsys, "fake", format="latex").startswith("% \\usepackage{booktabs}")
    output = place / "sub" / "t.csv"
    assert printed(capsys, "fake", format="csv", output=output) == f"{output}\n"
    assert output.read_text().count("\n") == 4


def test_two_studies_are_compared(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("one")
    run("two", seeds=5)
    assert printed(capsys, "one", "two") == f"{place}/one/against-two.html\n"
    text = printed(capsys, "one", "two", format="md")
    assert "| memory=level1 |" in text
    with pytest.raises(UserError, match="--paper, --check and --figures need one study"):
        report_command(("one", "two"), ReportOptions(check=True))
    with pytest.raises(UserError, match="3 were given"):
        report_command(("one", "two", "one"), ReportOptions())


def test_a_paper_is_set_beside(capsys: pytest.CaptureFixture[str]) -> None:
    run("fake")
    text = printed(capsys, "fake", format="md", paper="atlas/table6")
    assert "| w/o Muon | 19.65 | \N{MINUS SIGN}0.32 | 52.56 |" in text
    with pytest.raises(UserError, match="published table"):
        report_command(("fake",), ReportOptions(paper="atlas/table7"))


def test_claims_give_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    true = "effect(memory: level0 -> level1) on val/loss > 0.05"
    false = "effect(memory: level0 -> level2) on val/loss < 0"
    run("good", claims=(true,))
    run("bad", claims=(true, false))
    run("silent")
    assert report_command(("good",), ReportOptions(format="md", check=True)) == 0
    assert capsys.readouterr().err == ""
    assert report_command(("bad",), ReportOptions(format="md", check=True)) == 1
    captured = capsys.readouterr()
    assert captured.err == f"refuted: {false}\n"
    assert "1 supported and 1 refuted" in captured.out
    with pytest.raises(UserError, match="makes no claims"):
        report_command(("silent",), ReportOptions(format="md", check=True))


def test_figures_are_written_beside_and_shown(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("fake")
    output = place / "results" / "fake.md"
    options = {"format": "md", "output": output, "figures": place / "results" / "figures"}
    assert printed(capsys, "fake", **options) == f"{output}\n"
    shown = output.read_text().splitlines()[-3:]
    assert "![fake_effects](figures/fake_effects.png)" in shown
    picture = place / "results" / "figures" / "fake_effects.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    blocked = place / "results" / "fake.md" / "under"
    with pytest.raises(UserError, match="--figures: cannot write"):
        report_command(("fake",), ReportOptions(figures=blocked))
