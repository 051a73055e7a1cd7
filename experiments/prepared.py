"""Tasks whose data are made ready once, for all trials: what they have beside a task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from ablate.experiments.task import Task


@runtime_checkable
class PreparedTask(Task, Protocol):
    """A task with data to make ready; whoever needs them first does it, ahead is better.

    Until then `data_identity` is not that of the data.
    """

    @property
    def folder(self) -> Path | None:
        """Where they are kept; None if these arguments need nothing made ready."""

    @property
    def is_prepared(self) -> bool:
        """Whether there is nothing to make ready."""

    def prepare(self, progress: Callable[[int, str], None]) -> None:
        """Make the data ready, unless they are; told bytes done so far, and what is being done."""

    def prepared_info(self) -> dict[str, float | str]:
        """Facts about them, as `ablate.experiments.language` gives them of a text."""

    def scored_tokens(self) -> int:
        """Tokens that a model reads each time it is scored; a guess before data are ready."""
