"""MLflow's own pages over a study of ours, in a real browser."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from ablate.commands.report import results_of, write_files
from ablate.dashboards.static_image import WIDTH
from ablate.home import ledger_path
from ablate.sweep.driver import run_plan
from ablate.sweep.fake_study import FakePlan, end_message, row_message, start_message
from ablate.sweep.inline import InlineExecutor
from ablate.sweep.ledger import Ledger
from ablate.track.tracker import connect
from ablate.track.view import MlflowView

CHROMIUM = shutil.which("chromium")
PLAN = FakePlan(cells=2, seeds=2)
TRIALS = "tags.\"ablate.role\" = 'trial'"


@contextmanager
def mlflow_pages() -> Iterator[str]:
    """Yield the address of the study's runs, as `ablate ui` prints it."""
    command = [sys.executable, "-m", "ablate", "ui", PLAN.study]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as server:
        try:
            assert server.stdout is not None
            yield next(
                line.strip() for line in server.stdout if line.startswith("http://127.0.0.1")
            )
        finally:
            server.terminate()
            server.wait(30)


def curved_trial(spec: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    """Learn in seven rows, each seed along its own curve."""
    report(start_message())
    for step in (1, 2, 5, 10, 20, 50, 100):
        bits = 2 + 0.1 * int(spec["cell"][1:]) + 0.02 * spec["seed"] * step**-0.5 + 1 / step
        report(row_message(step, bits, "val/bits_per_byte"))
    summary = {"val/bits_per_byte": bits, "peak_memory_bytes": 3e8, "cpu_seconds": 0.3}
    report(end_message("done", summary))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: no chromium on the path")
def test_a_study_is_found_grouped_compared_and_reported_in_mlflow(home: Path) -> None:
    from playwright.sync_api import sync_playwright

    with Ledger.open(ledger_path(PLAN.study)) as ledger:
        run_plan(PLAN, ledger, executor=InlineExecutor(curved_trial))
        view = MlflowView()
        view.push(ledger, write_files(results_of(ledger)))
    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic"]
    with mlflow_pages() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        page = browser.new_page(viewport={"width": 1500, "height": 1300})
        page.set_default_timeout(90_000)
        found = connect(view.uri).search_runs([view.experiment_id], "tags.`ablate.role` = 'trial'")
        runs = {run.info.run_name: run.info.run_id for run in found}
        assert len(runs) == 4
        _see_all_trials(page, address, runs)
        _group_and_compare(page, address)
        experiment = f"{address.partition('#')[0]}#/experiments/{view.experiment_id}"
        parent = found[0].data.tags["mlflow.parentRunId"]
        _see_the_study(page, f"{experiment}/runs/{parent}")
        _see_a_trial(page, f"{experiment}/runs/{runs['memory=level1 seed 1']}")
        browser.close()


def _see_all_trials(page: Any, address: str, names: Iterable[str]) -> None:
    page.goto(address)
    page.wait_for_selector(".ag-row >> text=fake")
    page.locator(".ag-row button").first.click()
    for name in names:
        page.wait_for_selector(f".ag-row >> text={name}")


def _group_and_compare(page: Any, address: str) -> None:
    """One curve for each level of an axis, over tokens."""
    page.goto(f"{address}&compareRunsMode=CHART&searchFilter={quote(TRIALS)}")
    page.get_by_text("Group by").first.click()
    page.get_by_placeholder("Search", exact=True).fill("ablate.axis.memory")
    page.get_by_text("ablate.axis.memory", exact=True).click()
    page.keyboard.press("Escape")
    for level in ("level0", "level1"):
        page.get_by_text(f"Group: {level}").first.wait_for()
    page.get_by_placeholder("Search metric charts").fill("val/bits_per_byte$")
    page.get_by_label("Configure charts").click()
    page.get_by_role("menuitem", name="Metric").click()
    page.get_by_text("progress/tokens", exact=True).last.click()
    page.keyboard.press("Escape")
    chart = page.locator("svg.main-svg").filter(has_text="progress/tokens").first
    chart.wait_for()
    assert page.locator(".scatterlayer .trace").count() >= 2


def _see_the_study(page: Any, run: str) -> None:
    """The figures on the front page, and the report in place."""
    page.goto(run)
    page.get_by_text("Show more").click()
    for name in ("effects", "learning_curves"):
        picture = page.locator(f"img[src*='{name}.png']")
        picture.wait_for()
        page.wait_for_function("image => image.naturalWidth > 0", arg=picture.element_handle())
        assert picture.evaluate("image => image.naturalWidth") == WIDTH
    page.goto(f"{run}/artifacts/report.html")
    report = page.frame_locator("iframe")
    report.locator("h1").get_by_text(PLAN.study).wait_for()
    report.locator(".chart .main-svg").first.wait_for()


def _see_a_trial(page: Any, run: str) -> None:
    page.goto(run)
    page.get_by_text("language (d0)").wait_for()
    page.get_by_text("ablate.axis.memory").first.wait_for()
    page.goto(f"{run}/system-metrics")
    for name in ("cpu_seconds", "peak_memory_bytes", "tokens_per_second"):
        page.get_by_text(name, exact=True).first.wait_for()
