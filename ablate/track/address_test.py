from __future__ import annotations

from pathlib import Path

import pytest

from ablate.errors import UserError
from ablate.track.address import check_uri, public_uri, tracking_uri


@pytest.mark.parametrize(
    ("uri", "part"),
    [
        ("htp://localhost:5000", "Did you mean 'http'?"),
        ("http://", "names no host"),
        ("http://host:many", "is no address"),
        ("./mlruns", "is a folder"),
        ("file:///tmp/mlruns", "is a folder"),
        ("sqlite:////no/such/folder/mlflow.db", "needs an existing folder"),
        ("postgresql:///db", "names no host"),
        ("databricks://", "names no profile"),
        ("databricks-uc", "is a registry of models"),
        ("databricks-uc://profile", "is a registry of models"),
        ("uc:http://localhost:8080", "is a registry of models"),
    ],
)
def test_an_address_that_mlflow_cannot_use_is_refused_with_the_reason(uri: str, part: str) -> None:
    with pytest.raises(UserError, match=part.replace("?", r"\?")):
        check_uri(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "http://host:5000",
        "https://user:key@host/path",
        "postgresql+psycopg2://u:p@host/db",
        "databricks",
        "databricks://profile",
        "databricks://scope:prefix",
    ],
)
def test_an_address_of_a_known_kind_is_taken_without_contact(uri: str) -> None:
    assert check_uri(uri) == uri


def test_the_store_is_in_ablate_home_unless_the_user_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ABLATE_HOME", str(tmp_path / "new"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking_uri() == f"sqlite:///{tmp_path}/new/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mine.db")
    assert tracking_uri() == f"sqlite:///{tmp_path}/mine.db"


def test_passwords_are_not_shown() -> None:
    assert public_uri("http://ann:secret@host:5000/x") == "http://host:5000/x"
    assert public_uri("sqlite:////tmp/mlflow.db") == "sqlite:////tmp/mlflow.db"
