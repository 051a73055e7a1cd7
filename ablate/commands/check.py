"""`ablate check`: is a model, or a component of one's own, a sound sequence model?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ablate.commands.settings import parse_setting
from ablate.commands.terminal import FAILED, OK, console, print_json
from ablate.conformance.subject import Result, Subject
from ablate.conformance.suite import CHECKS, run_checks, shrink
from ablate.conformance.target import find_target
from ablate.trial.space import apply


def check_command(
    target: str,
    settings: Sequence[str] = (),
    *,
    axis: str | None = None,
    host: str | None = None,
    config_dirs: Sequence[Path] = (),
    allow: Sequence[str] = (),
    as_json: bool = False,
) -> int:
    """Run every check on the target, made tiny, and explain what fails."""
    found = find_target(target, axis=axis, host=host, config_dirs=config_dirs, allow=allow)
    model = found.model
    for setting in settings:
        key, value = parse_setting(setting)
        model = apply(model, key, value, config_dirs=config_dirs, allow=found.allow, where=setting)
    small = shrink(model, config_dirs=config_dirs, allow=found.allow, where=target)
    subject = Subject(small, found.allow, target)
    if as_json:
        results = list(run_checks(subject))
        passed = all(result.passed for result in results)
        print_json(
            {
                "target": target,
                "checked": found.says,
                "model": small,
                "passed": passed,
                "checks": [asdict(result) for result in results],
            }
        )
        return OK if passed else FAILED
    return _show(found.says, run_checks(subject), console())


def _show(says: str, results: Iterable[Result], out: Console) -> int:
    """Print a line for each check, then what every failure means."""
    out.print(says, style="bold", markup=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("check", "", "what must hold", "measured"):
        table.add_column(name)
    failed, count = [], 0
    for result in results:
        count += 1
        mark = "ok" if result.passed else "FAILED"
        table.add_row(*map(escape, (result.name, mark, result.promise, result.measured)))
        if not result.passed:
            failed.append(result)
    out.print(table)
    for result in failed:
        out.print(f"\n{result.name}: {result.measured}", style="bold", markup=False)
        out.print(f"  {result.causes}", markup=False)
    left = len(CHECKS) + 1 - count
    rest = f"; {left} need a model that builds" if left else ""
    out.print(f"\n{count - len(failed)} of {count} checks hold{rest}", markup=False)
    return FAILED if failed else OK
