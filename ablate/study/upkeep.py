"""Sections of a study file that say what a run may take; they change no result."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ablate.study.quantities import bytes_of, seconds_of

Duration: TypeAlias = Annotated[float, BeforeValidator(seconds_of, json_schema_input_type=str)]
Size: TypeAlias = Annotated[float, BeforeValidator(bytes_of, json_schema_input_type=str)]


class _Upkeep(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class CheckpointSection(_Upkeep):
    """From where a trial goes on that was killed."""

    every: Duration | None = 300.0
    """Time between two checkpoints of a trial, 5min by default; shorter trials write none."""
    keep: Size = 2e9
    """What all checkpoints of the study may take, 2GB by default; the oldest idle one goes."""


class LimitsSection(_Upkeep):
    """When a run stops by itself; the command line's options of the same names come first."""

    max_trials: int | None = Field(default=None, ge=0)
    """Run at most so many trials at a time."""
    max_hours: float | None = Field(default=None, ge=0)
    """Stop a run after so much time."""
    max_failures: int | None = Field(default=None, ge=1)
    """Stop a run in which so many trials have failed."""
    max_disk: Size | None = None
    """Stop a run when the study's folder is larger: 20GB."""
    trial_timeout: Duration | None = None
    """Time that one attempt of a trial may take: 30min."""
