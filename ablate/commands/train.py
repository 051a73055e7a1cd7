"""`ablate train`: one trial in this process, without a study, a ledger or a tracker."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ablate.analysis.formatting import count, duration, size
from ablate.commands.prepare import prepare_tasks, tasks_of
from ablate.commands.settings import one_trial
from ablate.commands.terminal import FAILED, OK, console
from ablate.errors import UserError
from ablate.sweep.execution import Message, RunTrial, run_safely

if TYPE_CHECKING:  # it brings PyTorch, which takes seconds
    from ablate.components.language_model import LanguageModel


def train_command(
    model: str,
    settings: Sequence[str],
    *,
    config_dirs: Sequence[Path] = (),
    allow: Sequence[str] = (),
    quiet: bool = False,
    save: Path | None = None,
    force: bool = False,
    trial: RunTrial | None = None,
) -> int:
    """Train one model, one line per evaluation, and print the summary; exit 1 unless it is done.

    Raises:
        UserError: anything wrong with the model, a setting, or the folder to save to.
        Failure: the trained model could not be written.
    """
    from ablate.trial.run import run_trial

    out = console()
    spec = make_spec(model, settings, config_dirs=config_dirs, allow=allow)
    if prepare_tasks(tasks_of([spec["config"]]), out):
        spec = make_spec(model, settings, config_dirs=config_dirs, allow=allow)
    _check_save(spec, save, force)
    messages: dict[str, Message] = {}
    trained: list[LanguageModel] = []

    def report(message: Message) -> None:
        messages[message["kind"]] = message
        if message["kind"] != "end" and not quiet:
            _tell(message, out)

    run_safely(trial or partial(run_trial, keep=trained.append), spec, report)
    _refuse(messages["end"])
    _sum_up(messages["end"], out)
    if messages["end"]["state"] != "done":
        return FAILED
    if save is not None:
        _save(save, trained[0], spec, messages, force)
        out.print(f"saved: {save}", markup=False, soft_wrap=True)
    return OK


def _check_save(spec: dict[str, Any], save: Path | None, force: bool) -> None:
    """Find out before the training what would keep its result from being saved."""
    from ablate.trial.export import check_folder

    if save is None:
        if force:
            raise UserError("--force is for --save DIR, which is not given.")
        return
    if spec["config"].get("train") is None:
        name = spec["config"]["task"]["name"]
        raise UserError(f"--save {save}: task {name} trains no model.")
    check_folder(save, force=force)


def _save(
    folder: Path,
    model: LanguageModel,
    spec: dict[str, Any],
    messages: dict[str, Message],
    force: bool,
) -> None:
    from ablate.trial.export import save_model

    start, last = messages["start"], messages["row"]
    save_model(
        folder,
        model,
        spec,
        code=start["fingerprint"],
        data=start["info"]["data"],
        metrics=last["metrics"],
        force=force,
    )


def _refuse(end: Message) -> None:
    """Say what the trial said of the user's input as everything else of the kind is said."""
    kind, _, text = (end.get("error") or "").partition(": ")
    if kind == UserError.__name__:
        raise UserError(text)


def _sum_up(end: Message, out: Console) -> None:
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


def make_spec(
    model: str, settings: Sequence[str], *, config_dirs: Sequence[Path], allow: Sequence[str]
) -> dict[str, Any]:
    """Return the spec of the one trial, checked as a study's cell is.

    Raises:
        UserError: anything wrong with the model or a setting.
    """
    from ablate.experiments.catalogue import make_task
    from ablate.study.backend import check_backend
    from ablate.study.cells import make_cells
    from ablate.study.configure import Workshop
    from ablate.study.schema import Measure, validate

    content, seed = one_trial(model, settings)
    # A task need not have the metric that a study has by default.
    metrics = make_task(content["task"], content["task_args"]).metrics
    if Measure().primary not in metrics:
        content["measure"] = {"primary": metrics[0]}
    place = Path("train")
    study = validate(content, place)
    only = make_cells(Workshop(study, place.name, config_dirs, tuple(allow))).cells[0]
    check_backend([only], study.resources, place.name, allow=allow)
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
        parts += [
            f"{name[8:]} {said}" for name, said in info.items() if name.startswith("backend_")
        ]
        out.print(", ".join(parts), style="dim", markup=False)
        return
    metrics = "  ".join(f"{name} {value:.4f}" for name, value in message["metrics"].items())
    place = f"step {message['step']:>6}  {count(message['tokens'])} tokens"
    out.print(f"{place}  {duration(message['seconds'])}  {metrics}", markup=False, soft_wrap=True)


def _value(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return size(value)
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4f}"
