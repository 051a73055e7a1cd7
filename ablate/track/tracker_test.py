from __future__ import annotations

from pathlib import Path

import pytest

from ablate.track.tracker import TrackerError, connect, experiment_name, tracker_errors

SERVER = "http://ann:secret@host:5000"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            "error code 401 != 200. Body: 'no'",
            "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACK",
        ),
        ("401 Client Error: UNAUTHORIZED for url", "set MLFLOW_TRACKING_USERNAME and"),
        ("PERMISSION_DENIED: Permission denied", "may not do that there .permission denied"),
        ("[Errno 111] Connection refused", "not usable: connection refused$"),
        ("Read timed out. (read timeout=5)", "does not answer in time$"),
        (f"cannot read {SERVER}/x", "cannot read http://host:5000/x$"),
    ],
)
def test_an_error_is_one_line_without_credentials(error: str, reason: str) -> None:
    with pytest.raises(TrackerError, match=reason) as caught, tracker_errors(SERVER):
        raise RuntimeError(f"API request to {SERVER}\n {error}" if "40" in error else error)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("the tracker http://host:5000 is not usable: ")


def test_a_study_has_a_path_in_databricks() -> None:
    assert experiment_name("databricks://profile", "fake") == "/Shared/fake"
    assert experiment_name("databricks", "fake") == "/Shared/fake"
    assert experiment_name("sqlite:///mlflow.db", "fake") == "fake"


def test_databricks_without_a_login_is_no_folder_and_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("DATABRICKS_HOST", "DATABRICKS_TOKEN", "DATABRICKS_CONFIG_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(TrackerError, match="tracker databricks is not usable: Reading Databricks"):
        connect("databricks")
