"""The report of a running study as a page that reloads itself, for this machine alone."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ablate.analysis.frame import load_results
from ablate.analysis.published import Published
from ablate.dashboards.report import html_report
from ablate.sweep.ledger import Ledger

HOST = "127.0.0.1"


def ledger_version(ledger: Ledger) -> str:
    """Return a name of what the page shows: it changes when a trial starts or ends, or the plan."""
    trials = [(one.trial_id, one.attempt, one.state) for one in ledger.trials()]
    text = json.dumps([ledger.plan(), trials], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class LivePage:
    """The page of one study, made anew only when its ledger has changed."""

    def __init__(self, open_ledger: Callable[[], Ledger], paper: Published | None = None) -> None:
        """Take how to open the ledger read-only, and a published table to set beside the study."""
        self._open = open_ledger
        self._paper = paper
        self._made: tuple[str, bytes] = ("", b"")
        self._lock = threading.Lock()

    def version(self) -> str:
        """Return the version of the ledger as it is now."""
        with self._open() as ledger:
            return ledger_version(ledger)

    def html(self) -> bytes:
        """Return the page of the ledger as it is now."""
        with self._lock, self._open() as ledger:
            version = ledger_version(ledger)
            if version != self._made[0]:
                page = html_report(load_results(ledger), paper=self._paper, live=version)
                self._made = (version, page.encode())
            return self._made[1]


def live_server(page: LivePage, port: int = 0) -> ThreadingHTTPServer:
    """Return a server of `page` that listens on this machine alone; port 0 takes a free one."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # A page elsewhere that calls itself by our address must not read the study.
            host = (self.headers.get("Host") or "").rpartition(":")[0]
            if host not in (HOST, "localhost"):
                self.send_error(HTTPStatus.FORBIDDEN)
            elif self.path == "/":
                self._answer(page.html, "text/html; charset=utf-8")
            elif self.path == "/version":
                self._answer(lambda: page.version().encode(), "text/plain; charset=utf-8")
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        def _answer(self, make: Callable[[], bytes], kind: str) -> None:
            try:
                content = make()
            except Exception as error:
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, explain=str(error))
                return
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: the page asks every two seconds."""

    return ThreadingHTTPServer((HOST, port), Handler)
