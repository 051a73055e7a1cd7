"""Common sense asked with a few rows of ours: shows that all works, and nothing about a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ablate.experiments.commonsense.task import CommonsenseTask
from ablate.experiments.hub import SAMPLE


@dataclass(frozen=True, kw_only=True)
class CommonsenseSampleTask(CommonsenseTask):
    """`CommonsenseTask` on the rows that come with Ablate; see there for the arguments."""

    data: str = SAMPLE

    name: ClassVar[str] = "commonsense_sample"


TASK = CommonsenseSampleTask
