"""A trained model as files: its weights (safetensors), and all that says what they are (JSON).

The JSON holds hashes of the weights and of the tokenizer, a third file where tokens are neither
bytes nor a task's own. All are written and flushed under other names before either
takes its place, and a reader finishes a change of names that was cut short: what is at a folder is
one checkpoint or the other, whenever the writer is killed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, get_origin, get_type_hints

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from ablate.components.language_model import LanguageModel
from ablate.errors import Failure, UserError
from ablate.experiments.catalogue import make_task
from ablate.experiments.language.tokenizer import (
    BYTES,
    HUB,
    ByteTokenizer,
    Tokenizer,
    load_published,
    open_tokenizer,
)
from ablate.experiments.language.tokenizer import FILE as TOKENIZER
from ablate.trial.backend import choose
from ablate.trial.build import build_model
from ablate.trial.fingerprint import fingerprint

WEIGHTS, CONFIG = "model.safetensors", "config.json"
FORMAT = 1
TEXT = "text:"
"""What comes before the digest of a tokenizer that is saved with the model."""
BYTE_TASKS = ("niah",)
"""Tasks of bytes that have no argument `tokenizer` to say so; others' tokens mean what they say."""
_SHOWN = 3


@dataclass(frozen=True)
class Facts:
    """What ``config.json`` says.

    Args:
        format: version of this file's form.
        model: the resolved model.
        task: ``name`` and ``args``.
        train: as `ablate.trial.train.TrainConfig` takes it.
        seed: of data and initial weights.
        vocab: number of tokens.
        tokenizer: ``bytes``, ``text:DIGEST`` of the tokenizer that is saved with the model, or the
            task whose own tokens they are.
        fingerprint: of the code that trained it.
        data: identity of the task's data.
        metrics: of the last evaluation.
        resources: ``cpus`` and ``gpus`` of the training.
        versions: of Ablate, Python and PyTorch.
        sha256: of the weights' file.
    """

    format: int
    model: dict[str, Any]
    task: dict[str, Any]
    train: dict[str, Any]
    seed: int
    vocab: int
    tokenizer: str
    fingerprint: str
    data: str
    metrics: dict[str, float]
    resources: dict[str, float]
    versions: dict[str, str]
    sha256: str

    @property
    def config(self) -> dict[str, Any]:
        """Model, task and train, as a trial has them."""
        return {"model": self.model, "task": self.task, "train": self.train}


@dataclass(frozen=True)
class Exported:
    """A model that was read back, ready to use, and what is to be said about it.

    Its tokenizer is None where tokens are no text.
    """

    folder: Path
    facts: Facts
    model: LanguageModel
    notes: tuple[str, ...]
    tokenizer: Tokenizer | None = None


def tokenizer_of(name: str, task: object) -> str:
    """What the tokens of a task are: two tasks with equal answers can read each other's."""
    return _identity(name, _text_tokenizer_of(name, task))


def _identity(name: str, tokenizer: Tokenizer | None) -> str:
    """As `Facts.tokenizer` names the tokenizer of a task, None for tokens of its own."""
    if tokenizer is None:
        return name
    return BYTES if tokenizer.to_json() is None else f"{TEXT}{tokenizer.digest}"


def _text_tokenizer_of(name: str, task: object) -> Tokenizer | None:
    """The tokenizer of a task that reads text; None for one whose tokens are its own."""
    spec = getattr(task, "tokenizer", BYTES if name in BYTE_TASKS else "")
    if spec == BYTES:
        return ByteTokenizer()
    if spec.startswith(f"{HUB}:"):
        return load_published(spec)
    found: Tokenizer | None = getattr(task, "text_tokenizer", lambda: None)()
    return found


def check_folder(folder: Path, *, force: bool) -> None:
    """Refuse a place that a checkpoint may not be written to.

    Raises:
        UserError: it is a file, cannot be written to, or holds a checkpoint and `force` is not
            given.
    """
    # Not Path.exists, which raises where a name is too long.
    places = (folder, *folder.absolute().parents)
    missing = list(itertools.takewhile(lambda path: not os.path.exists(path), places))
    nearest = places[len(missing)]
    if not nearest.is_dir():
        raise UserError(f"--save {folder}: {nearest} is a file; give a folder, new or old.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(f"--save {folder}: {nearest} is closed to writing.")
    _try(folder, missing)
    there = [name for name in (WEIGHTS, CONFIG) if (folder / name).exists()]
    if there and not force:
        raise UserError(
            f"--save {folder}: it has {' and '.join(there)} already; --force overwrites them."
        )


def _try(folder: Path, missing: Sequence[Path]) -> None:
    """Write there and leave no trace: some file systems refuse though the modes allow it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"--save {folder}: nothing can be written there: {error}.") from error
    finally:
        for path in missing:
            with suppress(OSError):
                path.rmdir()


def save_model(
    folder: Path,
    model: LanguageModel,
    spec: Mapping[str, Any],
    *,
    code: str,
    data: str,
    metrics: Mapping[str, float],
    force: bool = False,
) -> None:
    """Write `model`, trained as `spec` says, into `folder`.

    Args:
        folder: made if it is not there; other files in it stay.
        model: with its trained weights.
        spec: of the trial: ``config``, ``seed``, ``resources``.
        code: fingerprint of the code that trained it.
        data: identity of the data.
        metrics: of the last evaluation.
        force: overwrite a checkpoint.

    Raises:
        UserError: see `check_folder`.
        Failure: it could not be written; an old checkpoint is as it was.
    """
    check_folder(folder, force=force)
    # safetensors takes neither views nor two names for one memory.
    weights = save({key: part.cpu().clone() for key, part in model.state_dict().items()})
    config = spec["config"]
    name = config["task"]["name"]
    tokenizer = _text_tokenizer_of(name, make_task(name, config["task"]["args"]))
    facts = Facts(
        format=FORMAT,
        **{key: config[key] for key in ("model", "task")},
        train=config.get("train") or {},
        seed=int(spec["seed"]),
        vocab=model.vocab,
        tokenizer=_identity(name, tokenizer),
        fingerprint=code,
        data=data,
        metrics=dict(metrics),
        resources=dict(spec.get("resources") or {}),
        versions=_versions(),
        sha256=hashlib.sha256(weights).hexdigest(),
    )
    text = json.dumps(asdict(facts), indent=2) + "\n"
    table = tokenizer.to_json() if tokenizer else None
    files = {} if table is None else {TOKENIZER: table.encode()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder, {WEIGHTS: weights, **files, CONFIG: text.encode()})
        if table is None:
            (folder / TOKENIZER).unlink(missing_ok=True)
    except OSError as error:
        raise Failure(f"--save {folder}: {error}") from error


def load_model(folder: Path, *, allow: Iterable[str] = (), backend: str = "auto") -> Exported:
    """Rebuild a model and load its weights: every tensor, each of the right shape and type.

    It goes to the GPU if it was trained on one and there is one here, and PyTorch gets as many
    threads as it had then: sums come out the same. `backend` says what runs the operations that
    have kernels; a note of the model says what does.

    Raises:
        UserError: no checkpoint there, this code builds another model from its configuration, or no
            kernel can serve the model though ``triton`` is asked for.
        Failure: a file is damaged, or of another version.
    """
    allow = tuple(allow)
    facts, content = _read(folder)
    try:
        tensors = load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise Failure(f"{folder / WEIGHTS} is damaged: {error}") from error
    place = str(folder / CONFIG)
    try:
        model = build_model(facts.model, facts.vocab, seed=facts.seed, allow=allow, where=place)
    except (KeyError, TypeError, AttributeError) as error:
        raise Failure(f"{place} is damaged: its model cannot be read ({error!r}).") from error
    _check_tensors(folder, model, tensors)
    model.load_state_dict(tensors)
    tokenizer = _tokenizer(folder, facts)
    notes = _notes(facts, allow)
    resources = facts.resources
    device = "cuda" if resources.get("gpus") and torch.cuda.is_available() else "cpu"
    if resources.get("gpus") and device == "cpu":
        notes.append("trained on a GPU, torch sees none here: on the CPU, last digits may differ")
    torch.set_num_threads(max(1, int(resources.get("cpus") or 1)))
    model = model.to(device).eval()
    notes += choose(model, backend, device)
    return Exported(folder, facts, model, tuple(notes), tokenizer)


def _versions() -> dict[str, str]:
    return {
        "ablate": version("ablate"),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _replace(folder: Path, files: Mapping[str, bytes]) -> None:
    """Put all files into place, in their order, once every one is on the disk."""
    try:
        for name, content in files.items():
            with open(_new(folder / name), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
    except OSError:
        for name in files:
            _new(folder / name).unlink(missing_ok=True)
        raise
    for name in files:
        os.replace(_new(folder / name), folder / name)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _new(path: Path) -> Path:
    return path.with_name(path.name + ".new")


def _read(folder: Path) -> tuple[Facts, bytes]:
    """The facts, and the bytes of the weights that belong to them."""
    if not folder.is_dir():
        raise UserError(
            f"no folder {folder}: give one that `ablate train MODEL task=NAME --save DIR` wrote."
        )
    weights, config = folder / WEIGHTS, folder / CONFIG
    missing = [path.name for path in (weights, config) if not path.is_file()]
    if WEIGHTS in missing or (missing and not _new(config).is_file()):
        raise UserError(f"{folder} is no checkpoint: {' and '.join(missing)} missing.")
    try:
        content = weights.read_bytes()
        found = hashlib.sha256(content).hexdigest()
        for path in (config, _new(config)):
            if path.is_file() and (facts := _facts(path)).sha256 == found:
                return facts, content
    except OSError as error:
        raise Failure(f"{folder} cannot be read: {error}") from error
    raise Failure(
        f"{weights} is damaged, or not the file that {CONFIG} was written with: "
        "its sha256 is another one."
    )


def _tokenizer(folder: Path, facts: Facts) -> Tokenizer | None:
    """The tokenizer that belongs to the facts."""
    if facts.tokenizer == BYTES:
        return ByteTokenizer()
    if not facts.tokenizer.startswith(TEXT):
        return None
    file = folder / TOKENIZER
    spec = str(facts.task["args"].get("tokenizer", file))
    for path in (file, _new(file)):
        if path.is_file():
            found = open_tokenizer(path, spec)
            if f"{TEXT}{found.digest}" == facts.tokenizer:
                return found
    raise Failure(f"{file} is missing, damaged, or not the one that {CONFIG} was written with.")


def _facts(path: Path) -> Facts:
    try:
        plain = json.loads(path.read_bytes())
    except ValueError as error:
        raise Failure(f"{path} is damaged: it is no JSON ({error}).") from error
    if not isinstance(plain, dict) or "format" not in plain:
        raise Failure(f"{path} is damaged: it has no format.")
    known = plain["format"]
    if known != FORMAT:
        raise Failure(f"{path} has format {known!r}; this Ablate reads {FORMAT}.")
    try:
        facts = Facts(**plain)
    except TypeError as error:
        raise Failure(f"{path} is damaged: {str(error).partition('() ')[2]}.") from error
    kinds = {key: get_origin(kind) or kind for key, kind in get_type_hints(Facts).items()}
    for key, kind in kinds.items():
        if not isinstance(found := getattr(facts, key), kind) or (key == "vocab" and found < 1):
            raise Failure(f"{path} is damaged: {key} is {found!r}.")
    if not isinstance(facts.task.get("name"), str) or not isinstance(facts.task.get("args"), dict):
        raise Failure(f"{path} is damaged: task is {facts.task!r}, it needs name and args.")
    return facts


def _notes(facts: Facts, allow: tuple[str, ...]) -> list[str]:
    notes = []
    now = fingerprint(facts.config, allow=allow)
    if now != facts.fingerprint:
        notes.append(
            f"other code trained this model (fingerprint {facts.fingerprint}, now {now}): "
            "results may differ from those of its training"
        )
    trained = facts.versions.get("torch")
    if trained != torch.__version__:
        notes.append(f"trained with torch {trained}, this is {torch.__version__}")
    return notes


def _check_tensors(folder: Path, model: nn.Module, given: Mapping[str, Tensor]) -> None:
    wanted = model.state_dict()
    problems = [f"{key} is missing" for key in wanted if key not in given]
    problems += [f"{key} is no part of the model" for key in given if key not in wanted]
    for key, part in wanted.items():
        if key in given and _form(given[key]) != _form(part):
            problems.append(f"{key} is {_form(given[key])}, the model's is {_form(part)}")
    if problems:
        more = f"; {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise UserError(
            f"{folder / WEIGHTS} does not fit the model that this code builds from {CONFIG}: "
            f"{'; '.join(problems[:_SHOWN])}{more}."
        )


def _form(part: Tensor) -> str:
    return f"{str(part.dtype).removeprefix('torch.')} {list(part.shape)}"
