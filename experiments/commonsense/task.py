"""Zero-shot questions of Atlas Table 2 to a model that was trained on text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ablate.errors import UserError
from ablate.experiments.answers import Predictor
from ablate.experiments.commonsense.sets import (
    INSTALL,
    PREFIX,
    SETS,
    check_names,
    content,
    facts,
    load_task,
    open_set,
    quiet,
    sources,
)
from ablate.experiments.commonsense.standard_errors import RULES, of_average
from ablate.experiments.hub import AUTO, HUB, SAMPLE, Rows
from ablate.experiments.language.task import BYTES_PER_TOKEN, LanguageTask
from ablate.experiments.language.tokenizer import BYTES, Tokenizer
from ablate.experiments.rows import fingerprint
from ablate.experiments.task import Batch, at_least, check_limits

AVERAGED = tuple(name for name, one in SETS.items() if one.averaged)
"""The eight sets whose accuracies the papers average."""
FEWEST = 2
_MANY, _READ = 3_000, 1_000  # items of a published set; bytes that are read for one, all answers


@dataclass(frozen=True, kw_only=True)
class CommonsenseTask:
    """Train on text as the task ``language`` does, then be asked through lm-eval, without examples.

    Args:
        data: where the rows of the sets are from: ``auto`` (caches, then the hub), ``cache``,
            ``hub``, the path of a folder that holds a folder or file for each set, or ``sample``
            (a few rows that we have made up; every name in the results says so).
        sets: which of them.
        limit: so many first items of each set; 0 is all.
        max_length: tokens that are read before one that is predicted, at most.
        pass_tokens: tokens of one pass when scoring.
        corpus: text to train on, as ``language`` has it.
        tokenizer: as ``language`` has it.
        corpus_bytes: as ``language`` has it.
        context: tokens that a training row predicts.
        batch: rows of a training batch.
        tokens: training budget in tokens.

    Raises:
        UserError: lm-eval is not installed, or an argument is outside its range.
    """

    data: str = "auto"
    sets: tuple[str, ...] = tuple(SETS)
    limit: int = 0
    max_length: int = 2048
    pass_tokens: int = 8192
    corpus: str = "stdlib"
    tokenizer: str = BYTES
    corpus_bytes: int | None = None
    context: int = 256
    batch: int = 8
    tokens: int = 500_000

    name: ClassVar[str] = "commonsense"

    def __post_init__(self) -> None:
        check_names(self.sets)
        check_limits(self, at_least(1, "max_length", "pass_tokens"))
        check_limits(self, at_least(0, "limit"))
        if 0 < self.limit < FEWEST:
            raise UserError(
                f"task_args.limit={self.limit}: a standard error needs {FEWEST} items (0 is all)."
            )
        if find_spec("lm_eval") is None:
            raise UserError(f"task {self.name} asks through lm-eval, which is not here: {INSTALL}")
        self._text.data_identity()  # what it refuses is refused now

    @cached_property
    def _text(self) -> LanguageTask:
        return LanguageTask(
            corpus=self.corpus,
            tokenizer=self.tokenizer,
            corpus_bytes=self.corpus_bytes,
            context=self.context,
            batch=self.batch,
            tokens=self.tokens,
            validation_bytes=max(self.context, LanguageTask.validation_bytes),
        )

    def text_tokenizer(self) -> Tokenizer:
        """What turns text into the model's tokens."""
        return self._text.text_tokenizer()

    @cached_property
    def _rows(self) -> dict[str, Rows]:
        return {name: open_set(name, self.data) for name in self.sets}

    @cached_property
    def _questions(self) -> dict[str, Any]:
        """Each set as lm-eval has it."""
        with quiet():
            return {name: load_task(name, rows) for name, rows in self._rows.items()}

    @property
    def vocab(self) -> int:
        """Number of tokens."""
        return self._text.vocab

    @property
    def folder(self) -> Path | None:
        """Where the text to train on is kept ready; None if it is read as it is."""
        return self._text.folder

    @property
    def is_prepared(self) -> bool:
        """Whether the text to train on is ready."""
        return self._text.is_prepared

    def prepare(self, progress: Callable[[int, str], None] = lambda done, what: None) -> None:
        """Make the text to train on ready, as ``language`` does."""
        self._text.prepare(progress)

    def prepared_info(self) -> dict[str, float | str]:
        """What the text to train on is."""
        return self._text.info()

    def scored_tokens(self) -> int:
        """Tokens that a model reads each time it is scored.

        A guess where counting them would ask a hub for the sets, or has no text ready yet.
        """
        if self._is_published or not self.is_prepared:
            items = sum(map(self._items, self.sets))
            return items * _READ // (1 if self.tokenizer == BYTES else BYTES_PER_TOKEN)
        read = 0

        def counting(tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
            nonlocal read
            read += tokens.numel()
            return torch.zeros(1, 1, 1).expand(*tokens.shape, self.vocab), state

        self.score(counting)
        return read

    def _items(self, name: str) -> int:
        if self._is_published:
            return self.limit or _MANY
        return sum(1 for _ in islice(self._rows[name], self.limit or None))

    @property
    def _is_published(self) -> bool:
        """Whether the sets are what the hub has, which is not asked for a plan."""
        return self.data in (AUTO, HUB)

    @property
    def _prefix(self) -> str:
        return PREFIX if self.data == SAMPLE else ""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of what `score` gives: lm-eval's, each with its standard error."""
        names: list[str] = []
        for name in self.sets:
            for metric in SETS[name].metrics:
                names += self._named(name, metric)
        return (*names, *(self._average if set(AVERAGED) <= set(self.sets) else ()))

    def _named(self, name: str, metric: str) -> tuple[str, str]:
        place = f"@{self._prefix}{name}"
        return f"val/{metric}{place}", f"val/{metric}_stderr{place}"

    @property
    def _average(self) -> tuple[str, str]:
        name = f"val/{self._prefix}average_accuracy"
        return name, f"{name}_stderr"

    def data_identity(self) -> str:
        """Of the text, of where the sets' rows are from, and of lm-eval, which has the prompts."""
        args = {"sets": self.sets, "limit": self.limit, "max_length": self.max_length}
        rows = (
            "published" if self._is_published else [content(name, self.data) for name in self.sets]
        )
        known = {"text": self._text.data_identity(), "lm_eval": version("lm_eval"), "rows": rows}
        return fingerprint({**args, **known})

    def info(self) -> dict[str, float | str]:
        """The text, and for each set how many items, from where, and what guessing scores.

        Reads all sets: one that is missing is found before training.
        """
        text = self.prepared_info() if self.is_prepared else {}
        with quiet():
            found = sources(self._rows) | {"lm_eval": version("lm_eval")}
            for task in self._questions.values():
                found |= facts(task)
        return found | {f"text_{name}": fact for name, fact in text.items()}

    def batches(self, generator: np.random.Generator) -> Iterator[Batch]:
        """Rows of text."""
        return self._text.batches(generator)

    def score(self, model: Predictor) -> dict[str, float]:
        """Ask every set; accuracies are shares, perplexities lm-eval's.

        The average is that of the papers: over eight accuracies, of which two (HellaSwag and
        ARC-challenge) are normalised by the length of the answers.
        """
        from lm_eval.evaluator import evaluate

        from ablate.experiments.commonsense.harness import HarnessModel

        asked = HarnessModel(
            model, self.text_tokenizer(), max_length=self.max_length, pass_tokens=self.pass_tokens
        )
        tasks = {task.config.task: task for task in self._questions.values()}
        with quiet():
            found = evaluate(asked, {"tasks": tasks}, limit=self.limit or None, bootstrap_iters=0)
        metrics = {}
        for name in self.sets:
            shown = f"{self._prefix}{name}"
            for metric in SETS[name].metrics:
                value, error = self._named(name, metric)
                items = [item[metric] for item in found["samples"][shown]]
                metrics[value] = float(found["results"][shown][f"{metric},none"])
                metrics[error] = RULES[metric](items)
        return metrics | self._averaged(metrics)

    def _averaged(self, metrics: dict[str, float]) -> dict[str, float]:
        if not set(AVERAGED) <= set(self.sets):
            return {}
        pairs = [self._named(name, SETS[name].averaged or "") for name in AVERAGED]
        mean = sum(metrics[value] for value, _ in pairs) / len(pairs)
        value, error = self._average
        return {value: mean, error: of_average([metrics[one] for _, one in pairs])}


TASK = CommonsenseTask
