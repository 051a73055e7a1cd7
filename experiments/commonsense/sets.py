"""The sets of Atlas Table 2, loaded for lm-eval from wherever their rows are."""

from __future__ import annotations

import io
import json
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jinja2 import TemplateError

from ablate.errors import Failure, UserError, unknown
from ablate.experiments.hub import (
    SAMPLE,
    Dataset,
    Rows,
    how_to_get,
    keep_rows,
    open_rows,
    part_of,
)

FOLDER = Path(__file__).parent / "sample"
"""Rows that we have made up, in the columns of the sets that they stand in for."""
OURS = "rows made up for Ablate, NOT the published sets"
PREFIX = "sample_"
"""Put before the name of a set whose rows are ours."""
INSTALL = "pip install 'ablate[eval]'"
SPLIT = "validation"


@dataclass(frozen=True)
class QuestionSet:
    """One set as lm-eval asks it.

    Args:
        data: where its rows are from.
        file: lm-eval's own description, below its folder of tasks: prompts, choices and metrics.
        metrics: what lm-eval gives, under its names.
        averaged: the metric that the papers print and average; None for a set without accuracy.
    """

    data: Dataset
    file: str
    metrics: tuple[str, ...]
    averaged: str | None


SETS: Mapping[str, QuestionSet] = {
    "wikitext": QuestionSet(
        Dataset("EleutherAI/wikitext_document_level", "wikitext-2-raw-v1", "test"),
        "wikitext/wikitext.yaml",
        ("word_perplexity", "byte_perplexity", "bits_per_byte"),
        None,
    ),
    "lambada_openai": QuestionSet(
        Dataset("EleutherAI/lambada_openai", "default", "test"),
        "lambada/lambada_openai.yaml",
        ("perplexity", "acc"),
        "acc",
    ),
    "piqa": QuestionSet(
        Dataset("baber/piqa", None, "validation"), "piqa/piqa.yaml", ("acc", "acc_norm"), "acc"
    ),
    "hellaswag": QuestionSet(
        Dataset("Rowan/hellaswag", None, "validation"),
        "hellaswag/hellaswag.yaml",
        ("acc", "acc_norm"),
        "acc_norm",
    ),
    "winogrande": QuestionSet(
        Dataset("allenai/winogrande", "winogrande_xl", "validation"),
        "winogrande/default.yaml",
        ("acc",),
        "acc",
    ),
    "arc_easy": QuestionSet(
        Dataset("allenai/ai2_arc", "ARC-Easy", "test"),
        "arc/arc_easy.yaml",
        ("acc", "acc_norm"),
        "acc",
    ),
    "arc_challenge": QuestionSet(
        Dataset("allenai/ai2_arc", "ARC-Challenge", "test"),
        "arc/arc_challenge.yaml",
        ("acc", "acc_norm"),
        "acc_norm",
    ),
    "social_iqa": QuestionSet(
        Dataset("lighteval/siqa", None, "validation"), "siqa/siqa.yaml", ("acc",), "acc"
    ),
    "boolq": QuestionSet(
        Dataset("aps/super_glue", "boolq", "validation"),
        "super_glue/boolq/default.yaml",
        ("acc",),
        "acc",
    ),
}
"""In the order of the papers' columns."""


def open_set(name: str, where: str) -> Rows:
    """Find the rows of a set.

    Args:
        name: key of `SETS`.
        where: as `ablate.experiments.hub.open_rows` takes it; ``auto`` never falls back to rows
            of ours. A folder holds one folder or file for each set, under its name.

    Raises:
        UserError: it is nowhere; says what can be asked without it.
        Failure: the hub did not answer.
    """
    known = SETS[name]
    if where == SAMPLE:
        return open_rows(known.data, where=SAMPLE, sample=FOLDER / f"{name}.jsonl")
    instead = how_to_get(known.data, "--tasks commonsense_sample, or task_args.data=sample,")
    try:
        return keep_rows(open_rows(known.data, where=part_of(where, name), instead=instead))
    except (UserError, Failure) as error:
        raise type(error)(f"{name}: {error}") from error


@cache
def content(name: str, where: str) -> str:
    """Hash of the rows of a set that lies on this machine; read once per process."""
    return open_set(name, where).digest()


def load_task(name: str, rows: Rows) -> Any:
    """The set as a task of lm-eval: its own prompts, choices and metrics, over these rows.

    Rows of ours are named so. Only rows to be scored are there, and no example is shown before a
    question.

    Raises:
        UserError: no rows, or not the columns that lm-eval's description reads.
    """
    from lm_eval import tasks

    table = list(rows)
    if not table:
        raise UserError(f"{name}: no rows in {rows.source}.")
    rows.refuse_ours(table[0])
    shown = f"{PREFIX if rows.is_sample else ''}{name}"
    with tempfile.TemporaryDirectory() as place:
        kept, described = Path(place, "rows.jsonl"), Path(place, f"{shown}.yaml")
        kept.write_text("".join(json.dumps(row, default=str) + "\n" for row in table))
        own = Path(tasks.__file__).parent / SETS[name].file
        described.write_text(_description(shown, own, kept))
        try:
            loaded = tasks.TaskManager(include_defaults=False).load(str(described))
        except (KeyError, ValueError, TypeError, AttributeError, TemplateError) as error:
            raise UserError(
                f"{name}: {rows.source} has not the columns of {SETS[name].data.label}: {error!r}"
            ) from error
    return loaded["tasks"][shown]


def _description(shown: str, own: Path, rows: Path) -> str:
    """lm-eval's description of a set, with its data exchanged."""
    changed = {
        "include": str(own),
        "task": shown,
        "training_split": None,
        "validation_split": SPLIT,
        "test_split": None,
        "dataset_kwargs": {"path": str(rows)},
    }
    # A tag of lm-eval's loader, which plain YAML does not write.
    return f"{yaml.safe_dump(changed)}custom_dataset: !function {__name__}.read_split\n"


def read_split(path: str, **metadata: Any) -> dict[str, Any]:
    """What lm-eval takes for a data set; it passes its metadata too."""
    from datasets import Dataset as Table

    lines = Path(path).read_text().splitlines()
    return {SPLIT: Table.from_list([json.loads(line) for line in lines])}


def sources(rows: Mapping[str, Rows]) -> dict[str, float | str]:
    """Where the rows of each set are from; ours are said to be so."""
    found = {rows.source for rows in rows.values()}
    if all(one.is_sample for one in rows.values()):
        return {"questions": OURS}
    if len(found) == 1:
        return {"questions": found.pop()}
    return {f"questions@{name}": one.source for name, one in rows.items()}


def facts(task: Any) -> dict[str, float | str]:
    """How many items there are, and what guessing would score.

    ``chance`` is one choice at random, ``majority`` always the place that is right most often.
    """
    shown = task.config.task
    documents = list(task.eval_docs)
    found: dict[str, float | str] = {f"items@{shown}": float(len(documents))}
    if task.OUTPUT_TYPE == "multiple_choice":
        shares = [1 / len(task.doc_to_choice(one)) for one in documents]
        right = [_right(task, one) for one in documents]
        found[f"chance@{shown}"] = sum(shares) / len(shares)
        found[f"majority@{shown}"] = max(map(right.count, set(right))) / len(right)
    return found


def _right(task: Any, document: Any) -> int:
    """Place of the right choice; a set whose choices are contexts has it in place of the text."""
    target = task.doc_to_target(document)
    return int(target if isinstance(target, int) else task.doc_to_text(document))


@contextmanager
def quiet() -> Iterator[None]:
    """Without lm-eval's progress bars and remarks, which cannot be switched off one by one."""
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)


def check_names(names: Sequence[str]) -> None:
    """Refuse sets that are not known, given twice, or none at all."""
    if not names or len(set(names)) < len(names):
        raise UserError(f"task_args.sets={list(names)}: names of sets, each once.")
    for name in names:
        if name not in SETS:
            raise unknown("set", name, SETS, where="task_args.sets")
