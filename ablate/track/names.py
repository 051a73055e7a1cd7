"""Names and values that MLflow takes, mapped one to one from what the ledger holds.

MLflow refuses a whole batch for one bad name and cuts long values in silence; here a bad name gets
a readable twin with a digest of the original, and a cut value says that it was cut.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

NAME_LIMIT = 250
PARAM_LIMIT = 6000
TAG_LIMIT = 5000
DIGEST_LIMIT = 36

_LEGAL = re.compile(r"[/\w.\- :]+")
_CUT = " ... (cut; whole in config.json)"


def legal_name(name: str) -> str:
    """Return `name` if MLflow takes it, else a legal name that no other name maps to."""
    whole = _LEGAL.fullmatch(name) is not None and posixpath.normpath(name) == name
    if whole and len(name) <= NAME_LIMIT and not name.startswith(("/", "..")) and name != ".":
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:10]
    readable = re.sub(r"[^/\w.\- :]", "_", name)
    readable = posixpath.normpath(readable).lstrip("/.") or "_"
    return f"{readable[: NAME_LIMIT - 12]}--{digest}"


def renamed(names: Iterator[str] | set[str]) -> dict[str, str]:
    """Return ``{legal name: original}`` of the names that had to change."""
    return {legal_name(name): name for name in sorted(set(names)) if legal_name(name) != name}


def cut(value: object, limit: int) -> str:
    """Write a value as text of at most `limit` characters, with a mark if some are missing."""
    text = str(value)
    return text if len(text) <= limit else text[: limit - len(_CUT)] + _CUT


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a configuration by dotted key.

    A component's class stands under the key of its axis, without the module.
    """
    for key, value in config.items():
        name = f"{prefix}{key}"
        if key == "_target_":
            yield prefix.rstrip("."), str(value).rpartition(".")[2]
        elif isinstance(value, Mapping) and value:
            yield from flat(value, f"{name}.")
        else:
            yield name, value
