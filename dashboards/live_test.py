"""The live page: the ledger's numbers, new ones as trials finish, for this machine alone."""

from __future__ import annotations

import http.client
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ablate.dashboards.live import HOST, LivePage, live_server
from ablate.sweep.driver import run_plan
from ablate.sweep.fake_study import FakePlan, fake_trial
from ablate.sweep.inline import InlineExecutor
from ablate.sweep.ledger import Ledger

CHROMIUM = shutil.which("chromium")
PLAN = FakePlan(cells=2, seeds=3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "fake" / "ledger.sqlite"
    run(path, trials=4)
    return path


def run(path: Path, trials: int | None = None) -> None:
    with Ledger.open(path) as ledger:
        run_plan(PLAN, ledger, executor=InlineExecutor(fake_trial), max_trials=trials)


@contextmanager
def serving(path: Path) -> Iterator[int]:
    server = live_server(LivePage(lambda: Ledger.open(path, read_only=True)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def get(port: int, path: str, host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection(HOST, port, timeout=20)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_the_page_follows_the_ledger(path: Path) -> None:
    with serving(path) as port:
        first = get(port, "/version")
        assert get(port, "/version") == first
        status, page = get(port, "/")
        assert status == 200
        assert "4 done" in page
        assert "2 missing" in page
        assert f'data-version="{first[1]}"' in page
        run(path)
        assert get(port, "/version")[1] != first[1]
        assert "6 done" in get(port, "/")[1]


def test_only_this_machine_and_only_the_page(path: Path) -> None:
    with serving(path) as port:
        assert get(port, "/", host=f"evil.example:{port}")[0] == 403
        assert get(port, "/../ledger.sqlite")[0] == 404
        assert get(port, "/", host=f"localhost:{port}")[0] == 200


def test_a_ledger_that_goes_away_is_an_answer_and_not_the_end(path: Path) -> None:
    with serving(path) as port:
        moved = path.rename(path.with_name("elsewhere"))
        assert get(port, "/version")[0] == 503
        moved.rename(path)
        assert get(port, "/version")[0] == 200


@pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: no chromium on the path")
def test_the_browser_shows_new_trials_by_itself(path: Path) -> None:
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic"]
    with serving(path) as port, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        page = browser.new_page()
        page.goto(f"http://{HOST}:{port}/")
        page.wait_for_selector("text=4 done")
        run(path)
        page.wait_for_selector("text=6 done", timeout=20_000)
        page.wait_for_selector(".chart .main-svg", timeout=20_000)
        browser.close()
