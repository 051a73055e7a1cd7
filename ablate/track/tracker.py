"""Reach an MLflow store: check its address, migrate it once, find or restore the experiment."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import socket
import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ablate.errors import Failure, UserError, unknown
from ablate.home import home
from ablate.telemetry import set_defaults

_DATABASES = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
_SERVERS = ("http", "https", "databricks")
_TIMEOUT = 5.0


class TrackerError(Failure):
    """The tracker cannot be reached or refuses; the ledger still has everything."""


def tracking_uri() -> str:
    """Return MLFLOW_TRACKING_URI, or the store in ABLATE_HOME.

    Raises:
        UserError: MLflow cannot use such an address.
    """
    given = os.environ.get("MLFLOW_TRACKING_URI")
    return check_uri(given) if given else f"sqlite:///{home() / 'mlflow.db'}"


def check_uri(uri: str) -> str:
    """Return `uri` if its form is one that MLflow can use; nothing is contacted.

    Raises:
        UserError: the scheme is unknown, a part is missing, or the folder does not exist.
    """
    where = "MLFLOW_TRACKING_URI"
    try:
        parts = urlsplit(uri)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise UserError(f"{where}: '{uri}' is no address: {error}.") from error
    kind = parts.scheme.partition("+")[0]
    if kind in {"", "file"}:
        raise UserError(
            f"{where}: '{uri}' is a folder, which MLflow no longer writes to: "
            "use sqlite:////absolute/path/mlflow.db or http://host:port."
        )
    plugins = {plugin.name for plugin in entry_points(group="mlflow.tracking_store")}
    known = {*_DATABASES, *_SERVERS, "sqlite", *plugins}
    if kind not in known:
        raise unknown("kind of tracking address", kind, known, where=where)
    if kind in {"http", "https", *_DATABASES} and not host:
        raise UserError(f"{where}: '{uri}' names no host; write it as {kind}://host:port.")
    if kind == "sqlite":
        folder = sqlite_file(uri).parent
        if not uri.startswith("sqlite:///") or not folder.is_dir():
            raise UserError(
                f"{where}: '{uri}' needs an existing folder ({folder}); "
                "write it as sqlite:////absolute/path/mlflow.db."
            )
    return uri


def sqlite_file(uri: str) -> Path:
    """Return the file of a ``sqlite:///`` address."""
    return Path(uri.partition(":///")[2].partition("?")[0])


def public_uri(uri: str) -> str:
    """Return the address without user and password, to be shown."""
    who, at, _ = urlsplit(uri).netloc.rpartition("@")
    return uri.replace(who + at, "", 1)


@contextmanager
def tracker_errors(uri: str) -> Iterator[None]:
    """Turn whatever MLflow, its database or its connection raises into one line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (TrackerError, UserError):
        raise
    except Exception as error:
        text = f"the tracker {public_uri(uri)} is not usable: {_reason(error)}"
        raise TrackerError(text) from error


def _reason(error: Exception) -> str:
    """The heart of an error: requests and SQLAlchemy wrap it in a paragraph."""
    text = " ".join(str(error).split()) or type(error).__name__
    if system := re.search(r"\[Errno -?\d+\] ([\w ]+)", text):
        return system[1].lower()
    return "it does not answer in time" if "timed out" in text else text[:300]


def connect(uri: str) -> Any:
    """Return an `mlflow.MlflowClient` of a store that answers and has its tables.

    Raises:
        TrackerError: it cannot be reached, within seconds.
    """
    set_defaults()
    with tracker_errors(uri):
        _knock(uri)
        logging.getLogger("mlflow").setLevel(logging.ERROR)
        from mlflow import MlflowClient

        for noisy in ("mlflow", "alembic", "sqlalchemy"):
            logging.getLogger(noisy).setLevel(logging.ERROR)
        # Two processes that migrate one fresh store at once destroy each other's work.
        with _alone(uri):
            client = MlflowClient(tracking_uri=uri)
            client.search_experiments(max_results=1)
    return client


def experiment(client: Any, name: str) -> str:
    """Return the id of the experiment `name`: found, restored if it was deleted, or made."""
    found = client.get_experiment_by_name(name)
    if found is None:
        return str(client.create_experiment(name, artifact_location=_artifact_folder(client, name)))
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return str(found.experiment_id)


def _artifact_folder(client: Any, name: str) -> str | None:
    """A server knows where its artifacts go; a bare database does not."""
    if urlsplit(client.tracking_uri).scheme.partition("+")[0] in _SERVERS:
        return None
    return (home() / "mlartifacts" / name).as_uri()


def _knock(uri: str) -> None:
    """Fail now if nothing answers: MLflow itself tries a database again for many minutes."""
    parts = urlsplit(uri)
    kind = parts.scheme.partition("+")[0]
    if kind == "sqlite":
        sqlite_file(uri).parent.mkdir(parents=True, exist_ok=True)
        with sqlite3.connect(sqlite_file(uri), timeout=_TIMEOUT) as database:
            database.execute("PRAGMA schema_version")
            database.execute("BEGIN IMMEDIATE")
        database.close()
    elif kind in _DATABASES:
        address = (parts.hostname, parts.port or _DATABASES[kind])
        socket.create_connection(address, _TIMEOUT).close()
        from sqlalchemy import create_engine

        # A password that is wrong is no reason to try again either.
        engine = create_engine(uri)
        engine.connect().close()
        engine.dispose()


@contextmanager
def _alone(uri: str) -> Iterator[None]:
    kind = urlsplit(uri).scheme.partition("+")[0]
    if kind not in {"sqlite", *_DATABASES}:
        yield
        return
    path = Path(f"{sqlite_file(uri)}.lock") if kind == "sqlite" else home() / "mlflow.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
