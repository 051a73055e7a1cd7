"""`ablate train`: one trial in this process, without a study, a ledger or a tracker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ablate.analysis.formatting import count, duration, size
from ablate.commands.settings import one_trial
from ablate.commands.terminal import FAILED, OK, console
from ablate.sweep.execution import Message, RunTrial, run_safely


def train_command(
    model: str,
    settings: Sequence[str],
    *,
    config_dirs: Sequence[Path] = (),
    allow: Sequence[str] = (),
    quiet: bool = False,
    trial: RunTrial | None = None,
) -> int:
    """Train one model, one line per evaluation, and print the summary; exit 1 unless it is done."""
    from ablate.trial.run import run_trial

    out = console()
    spec = make_spec(model, settings, config_dirs=config_dirs, allow=allow)
    ends: list[Message] = []

    def report(message: Message) -> None:
        if message["kind"] == "end":
            ends.append(message)
        elif not quiet:
            _tell(message, out)

    run_safely(trial or run_trial, spec, report)
    end = ends[-1]
    for warning in end.get("warnings") or []:
        out.print(f"note: {warning}", style="yellow", markup=False)
    if end.get("traceback"):
        out.print(end["traceback"].rstrip(), style="dim", markup=False, soft_wrap=True)
    if end.get("error"):
        out.print(f"{end['state']}: {end['error']}", style="red", markup=False, soft_wrap=True)
    summary = end.get("summary") or {}
    width = max(map(len, summary), default=0) + 2
    for name, value in summary.items():
        out.print(f"{name:<{width}}{_value(name, value)}", markup=False)
    return OK if end["state"] == "done" else FAILED


def make_spec(
    model: str, settings: Sequence[str], *, config_dirs: Sequence[Path], allow: Sequence[str]
) -> dict[str, Any]:
    """Return the spec of the one trial, checked as a study's cell is.

    Raises:
        UserError: anything wrong with the model or a setting.
    """
    from ablate.study.cells import make_cells
    from ablate.study.configure import Workshop
    from ablate.study.schema import validate

    content, seed = one_trial(model, settings)
    place = Path("train")
    study = validate(content, place)
    only = make_cells(Workshop(study, place.name, config_dirs, tuple(allow))).cells[0]
    return {
        "id": f"{only.id}-s{seed}",
        "cell": only.id,
        "seed": seed,
        "config": only.config,
        "resources": content["resources"],
        "allow": list(allow),
    }


def _tell(message: Message, out: Console) -> None:
    if message["kind"] == "start":
        info = message.get("info") or {}
        parts = [f"on {message.get('device')}"]
        if info.get("parameters"):
            parts.append(f"{info['parameters']:,} parameters")
        out.print(", ".join(parts), style="dim", markup=False)
        return
    metrics = "  ".join(f"{name} {value:.4f}" for name, value in message["metrics"].items())
    place = f"step {message['step']:>6}  {count(message['tokens'])} tokens"
    out.print(f"{place}  {duration(message['seconds'])}  {metrics}", markup=False, soft_wrap=True)


def _value(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return size(value)
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4f}"
