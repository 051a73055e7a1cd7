"""Addresses of MLflow stores: which one is meant, whether MLflow can use it, how it is shown."""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import urlsplit

from ablate.errors import UserError, unknown
from ablate.home import home

DATABASES = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
"""Kinds of database server with the port that each listens on by default."""

SERVERS = ("http", "https", "databricks")
"""Kinds of address behind which a server keeps the artifacts, too."""

_WHERE = "MLFLOW_TRACKING_URI"


def tracking_uri() -> str:
    """Return MLFLOW_TRACKING_URI, or the store in ABLATE_HOME.

    Raises:
        UserError: MLflow cannot use such an address.
    """
    given = os.environ.get(_WHERE)
    return check_uri(given) if given else f"sqlite:///{home() / 'mlflow.db'}"


def kind_of(uri: str) -> str:
    """Return the kind of an address: ``sqlite``, ``postgresql``, ``http``, ``databricks`` ..."""
    # MLflow's own word for the workspace of the default profile is no URL.
    return uri if uri == "databricks" else urlsplit(uri).scheme.partition("+")[0]


def check_uri(uri: str) -> str:
    """Return `uri` if its form is one that MLflow can use; nothing is contacted.

    Raises:
        UserError: the scheme is unknown, a part is missing, or the folder does not exist.
    """
    try:
        kind, parts = kind_of(uri), urlsplit(uri)
        # What follows a colon is a port, except in Databricks.
        host, _ = parts.hostname, kind == "databricks" or parts.port
    except ValueError as error:
        raise UserError(f"{_WHERE}: '{uri}' is no address: {error}.") from error
    if kind in {"uc", "databricks-uc"} or uri == "databricks-uc":
        raise UserError(
            f"{_WHERE}: '{uri}' is a registry of models, which keeps no runs: "
            "use databricks or databricks://PROFILE."
        )
    if kind in {"", "file"}:
        raise UserError(
            f"{_WHERE}: '{uri}' is a folder, which MLflow no longer writes to: "
            "use sqlite:////absolute/path/mlflow.db or http://host:port."
        )
    plugins = {plugin.name for plugin in entry_points(group="mlflow.tracking_store")}
    known = {*DATABASES, *SERVERS, "sqlite", *plugins}
    if kind not in known:
        raise unknown("kind of tracking address", kind, known, where=_WHERE)
    if kind == "databricks" and uri != "databricks" and not host:
        raise UserError(f"{_WHERE}: '{uri}' names no profile; write databricks://PROFILE.")
    if kind in {"http", "https", *DATABASES} and not host:
        raise UserError(f"{_WHERE}: '{uri}' names no host; write it as {kind}://host:port.")
    if kind == "sqlite":
        folder = sqlite_file(uri).parent
        if not uri.startswith("sqlite:///") or not folder.is_dir():
            raise UserError(
                f"{_WHERE}: '{uri}' needs an existing folder ({folder}); "
                "write it as sqlite:////absolute/path/mlflow.db."
            )
    return uri


def sqlite_file(uri: str) -> Path:
    """Return the file of a ``sqlite:///`` address."""
    return Path(uri.partition(":///")[2].partition("?")[0])


def public_uri(uri: str) -> str:
    """Return the address without user and password, to be shown."""
    return without_credentials(uri, uri)


def without_credentials(text: str, uri: str) -> str:
    """Return `text` without the user and password that `uri` holds."""
    who, at, _ = urlsplit(uri).netloc.rpartition("@")
    return text.replace(who + at, "") if at else text
