"""The errors that a user sees: what was given, the rule, the nearest valid name, the place."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

_TYPES = {
    "bool": "true or false",
    "dict": "a mapping of KEY: value",
    "float": "a number",
    "int": "a whole number",
    "list": "a list",
    "model": "a mapping of KEY: value",
    "string": "text",
    "tuple": "a list",
}


class UserError(ValueError):
    """A mistake in what the user gave; the command line prints it, no traceback, and exits 2."""


class Failure(RuntimeError):
    """What failed outside of this program, a tracker or a file; printed in a line, exit code 1."""


def unknown(kind: str, given: object, valid: Iterable[object], *, where: str = "") -> UserError:
    """Say that `given` is no `kind`, with the nearest valid name and all of them.

    Args:
        kind: what was looked up, such as ``"task"`` or ``"key of design"``.
        given: the name as the user wrote it.
        valid: every name that would have been accepted.
        where: file and key, such as ``"quickstart.yaml: design.kind"``.
    """
    names = sorted(str(name) for name in valid)
    near = difflib.get_close_matches(str(given), names, n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    place = f"{where}: " if where else ""
    return UserError(f"{place}'{given}' is no {kind}.{hint} Valid: {', '.join(names) or 'none'}.")


def refused(key: str, given: object, problem: Mapping[str, Any]) -> UserError:
    """Say in the words of YAML what pydantic has against a value.

    Args:
        key: file and key, such as ``"quickstart.yaml: seeds"``.
        given: the value.
        problem: the first of pydantic's `ValidationError.errors()`.
    """
    shown = {None: "null", True: "true", False: "false"}
    value = shown[given] if given is None or isinstance(given, bool) else repr(given)
    return UserError(f"{key} is {value}: {rule_of(problem)}.")


def rule_of(problem: Mapping[str, Any]) -> str:
    """What pydantic wants in place of a value: ``must be a whole number``."""
    kind = str(problem["type"])
    expected = _TYPES.get(kind.partition("_")[0])
    if expected and kind.partition("_")[2] in ("type", "from_float", "parsing"):
        return f"must be {expected}"
    text = str(problem["msg"]).removeprefix("Value error, ").replace("Input should", "must")
    return text[0].lower() + text[1:]
