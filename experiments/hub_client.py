"""How the hub is asked: first once and briefly, so that a dead network is not tried for long.

Its own clients try five times, which without a network takes half a minute. What it then says is
sorted as all errors are: that there is no such thing is the user's mistake, and a hub that does not
answer is a failure outside of this program.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from ablate.errors import Failure, UserError

INSTALL = "pip install 'ablate[data]'"
"""What brings `datasets` and `tokenizers`."""


def is_offline() -> bool:
    """Whether the environment forbids the hub, in Hugging Face's own words."""
    said = (os.environ.get(name, "") for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"))
    return any(value.upper() in ("1", "ON", "YES", "TRUE") for value in said)


def why_not() -> str:
    """Why the hub cannot be asked for rows; empty if it can."""
    if is_offline():
        return "HF_HUB_OFFLINE or HF_DATASETS_OFFLINE is set"
    try:
        import datasets  # noqa: F401 - only whether it is there
        import huggingface_hub  # noqa: F401 - as above
    except ImportError:
        return f"that needs the package datasets ({INSTALL})"
    return ""


def ask_revision(
    kind: Literal["dataset", "model"], name: str, revision: str | None, *, label: str, instead: str
) -> str:
    """The commit of a repository as it is now; every way to the hub begins with this question.

    It is asked once. The answer may take as long as ``HF_HUB_ETAG_TIMEOUT`` says, by default 10
    seconds, for the connection and for the answer.

    Args:
        kind: of the repository.
        name: ``owner/name``.
        revision: a branch, tag or commit; None is the newest.
        label: what an error begins with.
        instead: what an error ends with: other ways to the same.

    Raises:
        UserError: the hub has no such repository, or not for everyone.
        Failure: the hub did not answer.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.constants import HF_HUB_ETAG_TIMEOUT
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    api = HfApi()
    ask = api.dataset_info if kind == "dataset" else api.model_info
    try:
        return str(ask(name, revision=revision, timeout=HF_HUB_ETAG_TIMEOUT).sha)
    except (HfHubHTTPError, HFValidationError) as error:
        raise hub_error(error, label=label, instead=instead) from error
    except Exception as error:  # of the network or of its client
        failed = "the hub cannot be reached"
        raise hub_error(error, label=label, instead=instead, failed=failed) from error


def stream_rows(
    name: str,
    config: str | None,
    split: str,
    revision: str,
    columns: tuple[str, ...],
    *,
    label: str,
    instead: str,
) -> Iterator[dict[str, Any]]:
    """Rows of a data set of the hub, from the first one; nothing is kept.

    Raises:
        UserError: the data set has no such configuration or split.
        Failure: the hub did not answer, or no longer.
    """
    from datasets import load_dataset

    try:
        rows = load_dataset(name, config, split=split, revision=revision, streaming=True)
    except ValueError as error:  # its word for an unknown configuration or split
        raise UserError(f"{label}: the hub has no such part: {_first(error)}. {instead}") from error
    except Exception as error:  # as above
        raise hub_error(error, label=label, instead=instead) from error
    read = 0
    try:
        if columns:
            rows = rows.select_columns(list(columns))
        for row in rows:
            read += 1
            yield dict(row)
    except Exception as error:  # as above
        failed = f"the hub failed after {read} rows"
        raise hub_error(error, label=label, instead=instead, failed=failed) from error


def download(name: str, file: str, *, label: str, instead: str) -> Path:
    """A file of a model of the hub: as it is now, or where the hub is away from the cache.

    Raises:
        UserError: the hub has no such file, or it is not in the cache and the environment
            forbids the hub.
        Failure: it is not in the cache, and the hub did not answer.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    away: UserError | Failure | None = None
    if is_offline():
        reason = "HF_HUB_OFFLINE or HF_DATASETS_OFFLINE is set"
        away = UserError(f"{label}: not in Hugging Face's cache, and {reason}. {instead}")
    else:
        try:
            ask_revision("model", name, None, label=label, instead=instead)
        except Failure as error:
            away = error
    try:
        return Path(hf_hub_download(name, file, local_files_only=away is not None))
    except LocalEntryNotFoundError as error:
        raise (away or hub_error(error, label=label, instead=instead)) from error
    except Exception as error:  # as above
        raise hub_error(error, label=label, instead=instead) from error


def hub_error(
    error: Exception, *, label: str, instead: str, failed: str = "the hub failed"
) -> UserError | Failure:
    """What the hub or its client said, as an error of ours in one line.

    Args:
        error: of `huggingface_hub`, `datasets` or the network.
        label: what was wanted.
        instead: other ways to it, as a sentence.
        failed: what a failure is called.
    """
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    first = _first(error)
    if isinstance(error, GatedRepoError):
        return UserError(
            f"{label}: the hub gives it only to who has accepted its terms: do that on its page, "
            f"then `hf auth login`. {instead}"
        )
    if isinstance(error, RepositoryNotFoundError):
        return UserError(f"{label}: the hub has none of that name that you may read. {instead}")
    if isinstance(error, (RevisionNotFoundError, RemoteEntryNotFoundError, HFValidationError)):
        return UserError(f"{label}: not on the hub: {first}. {instead}")
    return Failure(f"{label}: {failed}: {first} (HF_HUB_OFFLINE=1 keeps off it). {instead}")


def _first(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0] or type(error).__name__
    return first.rstrip(".")
