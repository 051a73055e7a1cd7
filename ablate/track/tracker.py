"""Reach an MLflow store: knock, migrate it once, find or restore the experiment."""

from __future__ import annotations

import fcntl
import logging
import re
import socket
import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ablate.errors import Failure, UserError
from ablate.home import home
from ablate.telemetry import set_defaults
from ablate.track.address import (
    DATABASES,
    SERVERS,
    kind_of,
    public_uri,
    sqlite_file,
    without_credentials,
)

_TIMEOUT = 5.0
_WRITER_TIMEOUT = 30
"""Seconds that one process waits for the others that write to the same SQLite store."""

_MIGRATION = 20_261_129
"""Key of the lock that PostgreSQL gives to one process at a time, wherever the others run."""


class TrackerError(Failure):
    """The tracker cannot be reached or refuses; the ledger still has everything."""


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
        reason = without_credentials(_reason(error), uri)
        raise TrackerError(f"the tracker {public_uri(uri)} is not usable: {reason}") from error


def _reason(error: Exception) -> str:
    """The heart of an error: requests and SQLAlchemy wrap it in a paragraph."""
    text = " ".join(str(error).split()) or type(error).__name__
    if system := re.search(r"\[Errno -?\d+\] ([\w ]+)", text):
        return system[1].lower()
    if re.search(r"\b401 (!= 200|Client Error)", text):
        return (
            "it asks for a user name and a password that it knows: "
            "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        )
    if re.search(r"\b403 (!= 200|Client Error)|PERMISSION_DENIED", text):
        return (
            "this user may not do that there (permission denied): "
            "check MLFLOW_TRACKING_USERNAME, or ask the tracker's administrator"
        )
    return "it does not answer in time" if "timed out" in text else text[:300]


def connect(uri: str) -> Any:
    """Return an `mlflow.MlflowClient` of a store that answers and has its tables.

    Raises:
        TrackerError: it cannot be reached, within seconds.
    """
    set_defaults()
    with tracker_errors(uri):
        logging.getLogger("mlflow").setLevel(logging.ERROR)
        from mlflow import MlflowClient

        for noisy in ("mlflow", "alembic", "sqlalchemy"):
            logging.getLogger(noisy).setLevel(logging.ERROR)
        # Two processes that migrate one fresh store at once destroy each other's work.
        with _alone(uri):
            client = MlflowClient(tracking_uri=_patient(uri))
            client.search_experiments(max_results=1)
    return client


def experiment(client: Any, study: str) -> str:
    """Return the id of the study's experiment: found, restored if it was deleted, or made."""
    from mlflow.exceptions import MlflowException

    name = experiment_name(client.tracking_uri, study)
    found = client.get_experiment_by_name(name)
    if found is None:
        folder = _artifact_folder(client.tracking_uri, study)
        try:
            return str(client.create_experiment(name, artifact_location=folder))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            # Somebody else made it since we looked.
            found = client.get_experiment_by_name(name)
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return str(found.experiment_id)


def experiment_name(uri: str, study: str) -> str:
    """Return what MLflow calls the study: its name, and in Databricks a path in the workspace."""
    return f"/Shared/{study}" if kind_of(uri) == "databricks" else study


def _artifact_folder(uri: str, name: str) -> str | None:
    """A server knows where its artifacts go; a bare database does not."""
    return None if kind_of(uri) in SERVERS else (home() / "mlartifacts" / name).as_uri()


def _patient(uri: str) -> str:
    """SQLite gives up after five seconds of other writers unless the address says otherwise."""
    if kind_of(uri) != "sqlite" or "?" in uri:
        return uri
    return f"{uri}?timeout={_WRITER_TIMEOUT}"


@contextmanager
def _alone(uri: str) -> Iterator[None]:
    """Hold every other process off the migration, and fail now if the database cannot be used.

    MLflow itself tries such a database again for many minutes.
    """
    kind = kind_of(uri)
    if kind == "sqlite":
        file = sqlite_file(uri)
        with _locked(Path(f"{file}.lock")):
            _knock_file(file)
            yield
    elif kind in DATABASES:
        parts = urlsplit(uri)
        address = (parts.hostname, parts.port or DATABASES[kind])
        socket.create_connection(address, _TIMEOUT).close()
        with _locked(home() / "mlflow.lock"), _connected(uri, kind):
            yield
    else:
        yield


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _knock_file(file: Path) -> None:
    with sqlite3.connect(file, timeout=_TIMEOUT) as database:
        database.execute("PRAGMA schema_version")
        database.execute("BEGIN IMMEDIATE")
    database.close()


@contextmanager
def _connected(uri: str, kind: str) -> Iterator[None]:
    """Prove name and password at once, and lock out other machines where the database can."""
    from sqlalchemy import create_engine, text

    engine = create_engine(uri)
    try:
        with engine.connect() as connection:
            if kind == "postgresql":
                connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _MIGRATION})
            yield
    finally:
        engine.dispose()
