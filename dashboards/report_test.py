"""The page: complete, alone, safe, the same twice, honest when there is little to say."""

from __future__ import annotations

import dataclasses
import re
import shutil
import time
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Literal

import pytest

from ablate.analysis.example_designs import (
    factorial_study,
    search_study,
    size_study,
    tuned_study,
)
from ablate.analysis.example_study import example_study
from ablate.analysis.frame import Cell, Curve, StudyResults, Trial
from ablate.dashboards.provenance import reproduction
from ablate.dashboards.report import html_report, report_bytes
from ablate.dashboards.text_table import MOST_ROWS
from ablate.errors import UserError

BROKEN = {("window=1", 0): "diverged", ("memory=matrix", 2): "failed"}
EVIL = "<script>alert(1)</script>"
CHROMIUM = shutil.which("chromium")


class Page(HTMLParser):
    """Elements, the text outside of scripts and styles, and everything that would be fetched."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str | None] = []
        self.ids: list[str | None] = []
        self.parts: list[str] = []
        self.inside: list[str] = []
        self.feed(html)
        self.close()
        self.text = re.sub(r"\s+", " ", "".join(self.parts))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "srcset")]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag in ("script", "style"):
            self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.inside and self.inside[-1] == tag:
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        if not self.inside:
            self.parts.append(data)


def test_the_page_says_everything_and_fetches_nothing(tmp_path: Path) -> None:
    results = example_study(states=BROKEN)
    path = tmp_path / "report.html"
    path.write_bytes(report_bytes(results, "html"))
    assert path.stat().st_size <= 5_000_000
    page = Page(path.read_text(encoding="utf-8"))
    anchors = [str(link).removeprefix("#") for link in page.links]
    assert anchors[:4] == ["effects", "measures", "curves", "learnability"]
    assert set(anchors) <= set(page.ids)
    assert page.tags.count("script") == 4
    assert results.question in page.text
    for cell in results.cells:
        assert cell.label in page.text
    for piece in (
        "None of the 8 comparisons is significant",
        "smallest p-value that can be reached is 0.25",
        "25 done 1 failed 1 diverged",
        "mlp → matrix",
        "n/a",
        "mat1 and mat2 shapes cannot be multiplied",
        "bigram 3.480",
        "data",
        "ablate run atlas-components",
    ):
        assert piece in page.text


def test_the_same_results_give_the_same_bytes() -> None:
    first = html_report(example_study(states=BROKEN))
    assert first == html_report(example_study(states=BROKEN))


def test_each_row_has_the_command_that_reproduces_it() -> None:
    results = example_study(states={("window=1", 0): "failed", ("window=4", 0): "missing"})
    own = {"model": {"memory": {"_target_": "my_parts.Memory"}}}
    odd = dataclasses.replace(results.cells[3], label="feature map = 2", config=own)
    results = dataclasses.replace(results, cells=(*results.cells[:3], odd, *results.cells[4:]))
    rows = {row[0]: row[1:] for row in reproduction(results).rows}
    facts = ("5f0c1d7e", "9b1d0c4e55af", "4c1f09ab31d2")
    assert rows["baseline"] == ("ablate reproduce atlas-components baseline --seed 0", *facts)
    assert rows["window=1"][0] == "ablate reproduce atlas-components window=1 --seed 1"
    assert rows["feature map = 2"][0] == (
        "ablate reproduce atlas-components 'feature map = 2' --seed 1 --allow my_parts"
    )
    page, text = Page(html_report(results)), report_bytes(results, "md").decode()
    for command, *_ in rows.values():
        assert command in page.text
        assert command in text.replace("\\_", "_")


def test_names_never_become_markup() -> None:
    results = example_study(study=EVIL, states=BROKEN)
    cells = [
        dataclasses.replace(c, label=f"{EVIL}{c.label}", warnings=(EVIL,)) for c in results.cells
    ]
    trials = [
        dataclasses.replace(t, error=EVIL, traceback=EVIL, info={EVIL: EVIL})
        for t in results.trials
    ]
    results = dataclasses.replace(
        results,
        cells=tuple(cells),
        trials=tuple(trials),
        question=EVIL,
        warnings=(EVIL,),
        task_args={EVIL: EVIL},
    )
    page = Page(html_report(results))
    assert page.tags.count("script") == 4
    assert page.text.count(EVIL) > 20


def test_one_seed_opens_and_is_honest() -> None:
    page = Page(html_report(example_study(seeds=1)))
    assert "No difference can be tested" in page.text
    assert "With one seed there is no interval and no p-value" in page.text


def test_nothing_finished_opens_and_is_honest() -> None:
    labels = [cell.label for cell in example_study().cells]
    states = {(label, seed): "missing" for label in labels for seed in range(3)}
    page = Page(html_report(example_study(states=states)))
    assert "No trial has finished yet" in page.text
    assert "27 missing" in page.text
    assert "No finished trial has a curve" in page.text
    # Without a figure the page does not carry plotly either.
    assert page.tags.count("script") == 0


def test_a_missing_baseline_opens_and_is_honest() -> None:
    results = example_study()
    results = dataclasses.replace(results, cells=results.cells[1:])
    page = Page(html_report(results))
    assert "The baseline is not in the plan" in page.text
    assert "3 trials in the ledger are outside the present plan" in page.text


def test_an_empty_plan_opens() -> None:
    results = dataclasses.replace(example_study(), cells=(), trials=(), curves={})
    assert "nothing to conclude" in Page(html_report(results)).text


def test_text_formats() -> None:
    results = example_study(states=BROKEN)
    text = report_bytes(results, "md").decode()
    assert text.startswith("# atlas-components\n")
    assert "| newton\\_schulz.steps=1 |" in text
    assert "1 failed" in text
    assert report_bytes(results, "latex").decode().split("\\end{table}")[0].count("\\\\\n") == 10
    assert report_bytes(results, "csv").decode().count("\n") == 10
    with pytest.raises(UserError, match="'pdf' is no report format"):
        report_bytes(results, "pdf")


def test_many_comparisons_are_in_the_table_alone() -> None:
    few = report_bytes(large_study(13, 2), "md").decode()
    assert few.count("\n- cell ") == 12
    assert "The table has all" not in few
    many = report_bytes(large_study(14, 2), "md").decode()
    assert "\n- cell " not in many
    assert "The table has all 13 comparisons; in words they are in the HTML report." in many


def test_a_long_study_has_the_cells_that_differ_most_and_says_what_is_left_out() -> None:
    results = large_study(130, 2)
    text = report_bytes(results, "md").decode()
    table = text.split("| cell |")[1].split("\n\n")[0].splitlines()[2:]
    assert len(table) == MOST_ROWS
    assert table[0].startswith("| cell 0 |")
    numbers = [line.split("|")[5].split("[")[0].strip() for line in table[1:]]
    sizes = [abs(float(one.replace("\N{MINUS SIGN}", "-"))) for one in numbers]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]
    assert "30 more rows are left out here; `--format csv` has every cell." in text
    assert report_bytes(results, "csv").decode().count("\n") == 131


def large_study(cells: int, seeds: int) -> StudyResults:
    """Return `cells` copies of the example's cells with `seeds` finished trials each."""
    base = example_study(seeds=seeds)
    made: list[Cell] = []
    trials: list[Trial] = []
    curves: dict[str, Mapping[str, Curve]] = {}
    for index in range(cells):
        model = base.cells[index % len(base.cells)]
        cell = Cell(f"c{index}", f"cell {index}", model.axes, {}, "c0" if index else None, 1e5, 1e4)
        made.append(cell)
        for old in base.by_cell[model.id]:
            trial = Trial(f"{cell.id}-s{old.seed}", cell.id, old.seed, "done", info=old.info)
            trials.append(trial)
            curves[trial.id] = base.curves[old.id]
    return dataclasses.replace(
        base, baseline="c0", cells=tuple(made), trials=tuple(trials), curves=curves
    )


def test_1500_finished_trials_take_seconds() -> None:
    results = large_study(300, 5)
    started = time.perf_counter()
    html = html_report(results)
    assert time.perf_counter() - started < 10
    page = Page(html)
    assert "1500 done" in page.text
    assert "Only the 40 largest differences are drawn" in page.text
    assert len(html.encode()) <= 5_000_000


def test_a_search_of_1500_trials_takes_seconds() -> None:
    results = search_study(1500, 1)
    started = time.process_time()
    html = html_report(results)
    assert time.process_time() - started < 10
    page = Page(html)
    assert "1500 of 1500 configurations tried" in page.text
    assert page.text.count("ablate reproduce") == 200
    assert len(html.encode()) <= 5_000_000


@pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: no chromium on the path")
@pytest.mark.parametrize(
    ("results", "width", "scheme"),
    [
        (example_study(states=BROKEN, study=EVIL), 1280, "light"),
        (example_study(states=BROKEN, study=EVIL), 390, "dark"),
        (factorial_study(), 390, "light"),
        (size_study(), 1280, "dark"),
        (tuned_study(), 390, "light"),
        (search_study(), 390, "dark"),
    ],
    ids=["plain-wide", "plain-phone", "full-phone", "sizes-wide", "tuned-phone", "search-phone"],
)
def test_a_browser_draws_the_page(
    tmp_path: Path, results: StudyResults, width: int, scheme: Literal["light", "dark"]
) -> None:
    from playwright.sync_api import sync_playwright

    path = tmp_path / "report.html"
    path.write_bytes(report_bytes(results, "html"))
    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic"]
    problems: list[str] = []
    fetched: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        page = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        ).new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        page.on("request", lambda request: fetched.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector('[data-figure="cost_time"] .main-svg')
        drawn = page.locator(".chart:has(.main-svg)").count()
        charts = page.locator(".chart").count()
        wide = page.evaluate("document.documentElement.scrollWidth")
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        browser.close()
    assert problems == []
    assert fetched == [path.as_uri()]
    assert drawn == charts >= 5
    assert wide <= width
    assert paper == ("rgb(253, 253, 251)" if scheme == "light" else "rgb(20, 23, 26)")
