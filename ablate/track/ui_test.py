"""MLflow's own pages over a study of ours, in a real browser."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ablate.analysis.frame import load_results
from ablate.dashboards.report import report_bytes
from ablate.home import ledger_path
from ablate.sweep.driver import run_plan
from ablate.sweep.fake_study import FakePlan, fake_trial
from ablate.sweep.inline import InlineExecutor
from ablate.sweep.ledger import Ledger
from ablate.track.tracker import connect
from ablate.track.view import MlflowView

CHROMIUM = shutil.which("chromium")
PLAN = FakePlan(cells=2, seeds=2)


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


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: no chromium on the path")
def test_the_run_list_the_compare_page_and_the_report_show_their_charts(
    home: Path, tmp_path: Path
) -> None:
    from playwright.sync_api import sync_playwright

    with Ledger.open(ledger_path(PLAN.study)) as ledger:
        run_plan(PLAN, ledger, executor=InlineExecutor(fake_trial))
        written = tmp_path / "report.html"
        written.write_bytes(report_bytes(load_results(ledger), "html"))
        view = MlflowView()
        view.push(ledger, [written])
    found = connect(view.uri).search_runs([view.experiment_id], "tags.`ablate.role` = 'trial'")
    names = {run.info.run_name for run in found}
    assert len(names) == 4
    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic"]
    with mlflow_pages() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(90_000)

        page.goto(f"{address}?compareRunsMode=CHART")
        page.wait_for_selector(".ag-row >> text=fake")
        page.locator(".ag-row button").first.click()
        for name in names:
            page.wait_for_selector(f".ag-row >> text={name}")
        page.wait_for_selector("svg.main-svg")
        page.screenshot(path=tmp_path / "runs.png")

        runs = json.dumps([run.info.run_id for run in found])
        base = address.partition("#")[0]
        page.goto(f'{base}#/compare-runs?runs={runs}&experiments=["{view.experiment_id}"]')
        page.wait_for_selector("text=Comparing 4 Runs")
        page.wait_for_selector("svg.main-svg")
        assert page.locator("text=axis.memory").count() > 0
        page.screenshot(path=tmp_path / "compare.png")

        parent = found[0].data.tags["mlflow.parentRunId"]
        page.goto(f"{base}#/experiments/{view.experiment_id}/runs/{parent}/artifacts/report.html")
        report = page.frame_locator("iframe")
        report.locator("h1").get_by_text(PLAN.study).wait_for()
        report.locator(".chart .main-svg").first.wait_for()
        page.screenshot(path=tmp_path / "report.png")
        browser.close()
    for shot in ("runs.png", "compare.png", "report.png"):
        assert (tmp_path / shot).stat().st_size > 10_000
