"""Settings of the environment that must stand before Ray, MLflow or torch are imported.

Each is a default: a variable that the user has set is left alone.
"""

from __future__ import annotations

import os

_DEFAULTS = {
    # Nothing is sent to anybody.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's workers run niced by default and starve beside any other load.
    "RAY_worker_niceness": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_MAX_PENDING_TRIALS_PG": "8",
    # A tracker that does not answer must be noticed in seconds, not minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}


def set_defaults() -> None:
    """Set every default that the user has not set."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
