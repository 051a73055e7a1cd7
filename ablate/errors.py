"""The one error that a user sees: what was given, the rule, the nearest valid name, the place."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake in what the user gave; the command line prints it and exits 2, without traceback."""


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
