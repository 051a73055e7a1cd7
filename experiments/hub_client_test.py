from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from ablate.errors import Failure, UserError
from ablate.experiments.hub import Dataset, open_rows
from ablate.experiments.hub_client import ask_revision
from ablate.experiments.language.tokenizer import load_published

SLOW = 0.5
COMMIT = "0a1b" * 10
FILES = {"/api/models/good/one": b'{"id": "good/one", "sha": "%s"}' % COMMIT.encode()}


class SlowHub(BaseHTTPRequestHandler):
    """Knows one model without files, and thinks before each answer."""

    def do_GET(self) -> None:
        time.sleep(SLOW)
        content = FILES.get(self.path)
        self.send_response(200 if content else 404)
        code = "EntryNotFound" if self.path.startswith("/good/one/") else "RepoNotFound"
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content or b"")

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("ABLATE_HOME", str(tmp_path))
    return monkeypatch


@pytest.fixture
def slow_hub(network: pytest.MonkeyPatch) -> Iterator[None]:
    with ThreadingHTTPServer(("127.0.0.1", 0), SlowHub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        _point(network, f"http://127.0.0.1:{server.server_port}")
        yield
        server.shutdown()


def _point(network: pytest.MonkeyPatch, address: str) -> None:
    network.setattr(constants, "ENDPOINT", address)
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    network.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


def _ask(name: str) -> str:
    return ask_revision("model", name, None, label="this", instead="Do that.")


def test_a_slow_hub_is_waited_for(slow_hub: None) -> None:
    assert _ask("good/one") == COMMIT


@pytest.mark.parametrize("name", ["good/none", "not a name"])
def test_what_the_hub_does_not_have_is_the_users_mistake(slow_hub: None, name: str) -> None:
    with pytest.raises(UserError, match=r"^this: (the hub has none|not on the hub).* Do that\.$"):
        _ask(name)


def test_a_model_without_a_tokenizer_is_the_users_mistake(slow_hub: None) -> None:
    with pytest.raises(UserError, match=r"good/one is here\): not on the hub.*tokenizer\.json"):
        load_published("hf:good/one")


def test_a_dead_network_is_said_at_once_with_the_ways_around_it(
    network: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        _point(network, f"http://127.0.0.1:{closed.getsockname()[1]}")
        begun = time.monotonic()
        with pytest.raises(Failure) as caught:
            load_published("hf:good/one")
    assert time.monotonic() - begun < 5  # the client's own five tries take 23 seconds
    said = str(caught.value)
    wanted = "task_args.tokenizer='hf:good/one' (no file or folder good/one is here)"
    assert said.startswith(f"{wanted}: the hub cannot be reached: ")
    assert "hf download good/one tokenizer.json --local-dir FOLDER, and here" in said
    assert said.endswith("bytes and bpe:SIZE need none.")


def test_a_silent_hub_is_given_up(network: pytest.MonkeyPatch) -> None:
    network.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        _point(network, f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(Failure, match="cannot be reached: .*timed out"):
            _ask("good/one")


@pytest.mark.parametrize(
    "ask", [lambda: load_published("hf:good/one"), lambda: open_rows(Dataset("good/rows"))]
)
def test_no_hub_is_a_failure_and_a_forbidden_one_a_mistake(
    network: pytest.MonkeyPatch, ask: Callable[[], object]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        _point(network, f"http://127.0.0.1:{closed.getsockname()[1]}")
        with pytest.raises(Failure, match="the hub cannot be reached"):
            ask()
    network.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=" HF_HUB_OFFLINE or HF_DATASETS_OFFLINE is set"):
        ask()
