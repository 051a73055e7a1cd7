"""`ablate eval`: score a saved model on its own task and on others that speak its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from ablate import arguments
from ablate.commands.settings import parse_setting
from ablate.commands.terminal import OK, console, print_json, to_json
from ablate.errors import UserError, unknown
from ablate.experiments.catalogue import make_task, task_class
from ablate.experiments.language.tokenizer import HUB
from ablate.experiments.task import SequenceTask
from ablate.trial.export import TEXT, Exported, Facts, load_model, tokenizer_of

_ALL = "task_args"
EVALUATIONS = "evaluations.jsonl"
"""In the folder of a model: one line for each time it was scored, as ``--json`` prints it."""
_ERROR = "_stderr"
_TRAINED_ON = "text_"
"""Facts about what a task would train on, which says nothing of a saved model, are not shown."""


@dataclass(frozen=True)
class EvaluateOptions:
    """What `ablate eval` is told beside the folder and the settings.

    Args:
        tasks: names with commas between; None is the model's own task.
        newton_schulz: steps of every layer that orthogonalises; None leaves them.
        allow: packages that may hold components.
        as_json: print JSON, with all digits.
        backend: what runs operations that have kernels.
    """

    tasks: str | None = None
    newton_schulz: int | None = None
    allow: Sequence[str] = ()
    as_json: bool = False
    backend: str = "auto"


def evaluate_command(folder: Path, settings: Sequence[str], options: EvaluateOptions) -> int:
    """Print the metrics of each task, as the end of training would give them.

    Raises:
        UserError: anything wrong with the folder, a task or a setting; nothing is scored then.
        Failure: a damaged file.
    """
    exported = load_model(folder, allow=options.allow, backend=options.backend)
    facts = exported.facts
    args = _arguments(folder, facts, _names(options.tasks, facts), settings)
    tasks = {name: _checked(name, given, facts) for name, given in args.items()}
    notes = list(exported.notes)
    if options.newton_schulz is not None:
        _set_steps(exported, options.newton_schulz)
    found: dict[str, Any] = {}
    # Of all before any is scored: data that are not to be had must cost no score of another task.
    infos = {name: task.info() for name, task in tasks.items()}
    for name, task in tasks.items():
        data = task.data_identity()
        own = name == facts.task["name"] and args[name] == facts.task["args"]
        if own and data != facts.data:
            notes.append(f"{name}: the data are not those of the training ({facts.data}): {data}")
        metrics, gaps = _score(exported, task)
        notes += [f"{name}: metric '{gap}' was None" for gap in gaps]
        trained = {key: facts.metrics[key] for key in metrics if key in facts.metrics}
        found[name] = {"args": args[name], "data": data, "info": infos[name], "metrics": metrics}
        found[name] |= {"at_end_of_training": trained} if own else {}
    result = {
        "checkpoint": str(folder),
        "model": facts.model.get("name"),
        "newton_schulz": options.newton_schulz,
        "tasks": found,
        "notes": notes,
    }
    notes += _keep(
        folder, {**result, "sha256": facts.sha256, "time": datetime.now(UTC).isoformat()}
    )
    if options.as_json:
        print_json(result)
    else:
        _show(found, notes, console())
    return OK


def _keep(folder: Path, result: dict[str, Any]) -> list[str]:
    """Add a line to the evaluations beside the model; a note if the folder is closed to writing."""
    line = to_json(result) + "\n"
    try:
        with open(folder / EVALUATIONS, "a", encoding="utf-8") as file:
            file.write(line)
    except OSError as error:
        return [f"{EVALUATIONS} could not be written: {error.strerror}"]
    return []


def _names(given: str | None, facts: Facts) -> list[str]:
    if given is None:
        return [facts.task["name"]]
    names = [name.strip() for name in given.split(",")]
    if "" in names or len(set(names)) < len(names):
        raise UserError(f"--tasks {given}: names of tasks with commas between, each once.")
    return names


def _arguments(
    folder: Path, facts: Facts, names: Sequence[str], settings: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """The arguments of each task: those of training for the model's own, then the settings.

    Other tasks that read text get the tokenizer that is saved with the model.
    """
    own = facts.task
    args = {name: dict(own["args"]) if name == own["name"] else {} for name in names}
    if facts.tokenizer.startswith(TEXT):
        for name in names:
            if name != own["name"] and "tokenizer" in arguments.options(task_class(name)):
                args[name]["tokenizer"] = f"{HUB}:{folder}"
    seen = set()
    for setting in settings:
        key, value = parse_setting(setting)
        place, _, argument = key.partition(".")
        if not argument or place not in (_ALL, *names):
            valid = [f"{one}.NAME" for one in (_ALL, *names)]
            raise unknown("setting of an evaluation", key, valid)
        if key in seen:
            raise UserError(f"{key} is given twice.")
        seen.add(key)
        for name in names if place == _ALL else [place]:
            args[name][argument] = value
    return args


def _checked(name: str, args: dict[str, Any], facts: Facts) -> SequenceTask:
    """Make a task that this model can be asked.

    Raises:
        UserError: it brings its own learner, or its tokens are not the model's.
    """
    task = make_task(name, args)
    if not hasattr(task, "score"):
        raise UserError(f"task {name} brings its own learner: no saved model can be scored on it.")
    asked = cast(SequenceTask, task)
    tokens = tokenizer_of(name, task)
    if tokens != facts.tokenizer:
        raise UserError(
            f"task {name} has {_spelt(tokens)}, the model was trained on {_spelt(facts.tokenizer)} "
            f"(task {facts.task['name']}): it cannot read them."
        )
    if asked.vocab != facts.vocab:
        raise UserError(
            f"task {name} has {asked.vocab} tokens with these arguments, the model {facts.vocab}: "
            "both must be equal."
        )
    return asked


def _spelt(tokenizer: str) -> str:
    if tokenizer.startswith(TEXT):
        return f"the tokens of tokenizer {tokenizer.removeprefix(TEXT)}"
    return "bytes" if tokenizer == "bytes" else f"tokens of its own kind ('{tokenizer}')"


def _set_steps(exported: Exported, steps: int) -> None:
    from ablate.components.newton_schulz import set_steps

    if not set_steps(exported.model, steps):
        raise UserError(
            f"--newton-schulz {steps}: no layer of {exported.facts.model.get('name')} "
            "orthogonalises its momentum; models with inner_optimizer=muon do."
        )


def _score(exported: Exported, task: SequenceTask) -> tuple[dict[str, float], list[str]]:
    import torch

    from ablate.trial.metrics import to_floats

    with torch.no_grad():
        return to_floats(task.score(exported.model))


def _show(found: dict[str, Any], notes: Sequence[str], out: Console) -> None:
    for name, one in found.items():
        out.print(f"{name}, data {one['data']}", style="bold", markup=False)
        for fact, text in one["info"].items():
            if isinstance(text, str) and not fact.startswith(_TRAINED_ON):
                out.print(f"  {fact}: {text}", markup=False, soft_wrap=True)
        metrics = one["metrics"]
        errors = {key: error for key in metrics if (error := _error_of(key)) in metrics}
        shown = [key for key in metrics if key not in errors.values()]
        width = max(map(len, shown), default=0) + 2
        before = one.get("at_end_of_training", {})
        for key in shown:
            spread = f" ± {_number(metrics[errors[key]])}" if key in errors else ""
            then = f"   at the end of training {_number(before[key])}" if key in before else ""
            value = f"{_number(metrics[key])}{spread}"
            beside = then or _guesses(key, one["info"])
            out.print(f"  {key:<{width}}{value}{beside}", markup=False, soft_wrap=True)
        if errors:
            out.print("  ±: standard error over the items", markup=False)
    for note in notes:
        out.print(f"note: {note}", style="yellow", markup=False, soft_wrap=True)


def _number(value: float) -> str:
    """Four decimals, which nobody reads of a perplexity of millions."""
    return f"{value:,.4f}" if abs(value) < 1e6 else f"{value:.4g}"


def _guesses(metric: str, info: Mapping[str, Any]) -> str:
    """What guessers score where the metric is an accuracy and the task's facts say it."""
    leaf, _, place = metric.partition("@")
    kinds = ("chance", "majority") if leaf.startswith("val/acc") else ()
    found = [f"{kind} {info[f'{kind}@{place}']:.4f}" for kind in kinds if f"{kind}@{place}" in info]
    return f"   {', '.join(found)}" if found else ""


def _error_of(metric: str) -> str:
    """The name of a metric's standard error, where a task gives one: ``acc_stderr@piqa``."""
    leaf, at, place = metric.partition("@")
    return f"{leaf}{_ERROR}{at}{place}"
