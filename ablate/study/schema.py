"""What a study file may say: every key, its type and its default."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from ablate.errors import UserError, refused, unknown

PART_KINDS = ("leave_one_out", "add_one_in")
KIND_KEYS = {
    "cap": ("cap", ("full",)),
    "resolution": ("resolution", ("fractional",)),
    "runs": ("runs", ("fractional",)),
    "start": ("from", ("path",)),
    "to": ("to", ("path",)),
    "orders": ("orders", ("path",)),
    "trials": ("trials", ("search",)),
}
"""Keys of a design that only some kinds have, by field."""
MOST_SEEDS = 10_000
LARGEST_SEED = (1 << 63) - 1  # the ledger keeps seeds as SQLite's integers

Scalar: TypeAlias = bool | int | float | str | None
Seed: TypeAlias = Annotated[int, Field(ge=0, le=LARGEST_SEED)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def _seed_list(given: Any) -> Any:
    """A whole number n means 0 ... n-1."""
    if isinstance(given, int) and not isinstance(given, bool):
        if given < 1:
            raise ValueError("must be a whole number >= 1, or a list of seeds")
        if given > MOST_SEEDS:
            raise ValueError(f"must be at most {MOST_SEEDS:,}")
        return list(range(given))
    if not isinstance(given, list) or not given:
        raise ValueError("must be a whole number >= 1, or a list of seeds")
    if len(set(map(str, given))) < len(given):
        raise ValueError("must not repeat a seed")
    return given


def _spelt_out(given: Any) -> Any:
    """A bare list of levels is short for ``{levels: [...]}``."""
    if isinstance(given, list):
        return {"levels": given}
    if not isinstance(given, dict):
        raise ValueError("must be a list of levels, {levels: [...], when: {...}}, or {low, high}")
    return given


def _part(given: Any) -> Any:
    """In a design that takes parts out, one level is what stands for "without"."""
    return given if isinstance(given, (dict, list)) else {"levels": [given]}


def _parts(given: Any) -> Any:
    """Let `leave_one_out` and `add_one_in` name only the level without the part."""
    if isinstance(given, dict) and given.get("kind") in PART_KINDS:
        factors = given.get("factors")
        if isinstance(factors, dict):
            return {**given, "factors": {key: _part(value) for key, value in factors.items()}}
    return given


def _flat(given: Any) -> Any:
    """``{backbone: {dim: 64}}`` and ``{backbone.dim: 64}`` are the same."""
    if not isinstance(given, dict):
        return given
    flat: dict[str, Any] = {}
    for key, value in given.items():
        nested = _flat(value) if isinstance(value, dict) else {"": value}
        for inner, leaf in nested.items():
            name = f"{key}.{inner}" if inner else str(key)
            if name in flat:
                raise ValueError(f"sets {name} twice")
            flat[name] = leaf
    return flat


def _plain(given: Any) -> Any:
    """A level is one value."""
    if given is not None and not isinstance(given, (bool, int, float, str)):
        raise ValueError("a level must be text, a number, true, false or null")
    return given


class FactorSpec(_Section):
    """One factor: its levels, the baseline's first, and where it applies; or a range to search."""

    levels: list[Annotated[Any, BeforeValidator(_plain)]] = Field(default=[], min_length=1)
    when: dict[str, Any] = {}
    low: float | None = None
    high: float | None = None
    log: bool = False

    @model_validator(mode="after")
    def _levels_or_range(self) -> FactorSpec:
        if (self.low is None) != (self.high is None):
            raise ValueError("a range needs low and high")
        if self.low is not None and self.high is not None:
            if self.levels:
                raise ValueError("give levels or a range, not both")
            if not self.low < self.high or (self.log and self.low <= 0):
                raise ValueError("a range needs low < high, and low > 0 with log: true")
        elif not self.levels:
            raise ValueError("levels are missing")
        return self


class Design(_Section):
    """Which combinations of levels become cells."""

    kind: str = "one_factor"
    factors: dict[str, Annotated[FactorSpec, BeforeValidator(_spelt_out)]] = {}
    exclude: list[dict[str, Any]] = []
    constraints: list[str] = []
    zip: list[list[str]] = []
    blocks: dict[str, Annotated[FactorSpec, BeforeValidator(_spelt_out)]] = {}
    cap: int | None = Field(default=None, ge=1)
    resolution: int | None = Field(default=None, ge=3, le=5)
    runs: int | None = Field(default=None, ge=2)
    start: str | None = Field(default=None, alias="from")
    to: str | None = None
    orders: Literal["one", "all"] = "one"
    trials: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _belongs(self) -> Design:
        for name, (key, kinds) in KIND_KEYS.items():
            if getattr(self, name) not in (None, "one") and self.kind not in kinds:
                raise ValueError(f"{key} belongs to kind: {' or '.join(kinds)}")
        return self


class Match(_Section):
    """What every cell is made to have as much of as the baseline, and what may move for it."""

    on: Literal["parameters", "state", "flops", "none"] = "none"
    by: str = "width"
    tolerance: float = Field(default=0.02, gt=0, lt=1)


class Measure(_Section):
    """The metric that the study is about, and which way is better."""

    primary: str = "val/loss"
    goal: Literal["min", "max"] = "min"


class Resources(_Section):
    """What one trial holds while it runs."""

    cpus: float = Field(default=1.0, gt=0)
    gpus: float = Field(default=0.0, ge=0)


class Study(_Section):
    """A whole study file."""

    name: str
    task: str | None = None
    tasks: dict[str, dict[str, Any]] = {}
    question: str = ""
    model: str | None = None
    model_args: Annotated[dict[str, Any], BeforeValidator(_flat)] = {}
    task_args: dict[str, Any] = {}
    train: dict[str, Any] = {}
    seeds: Annotated[list[Seed], BeforeValidator(_seed_list)] = [0, 1, 2]
    design: Annotated[Design, BeforeValidator(_parts)] = Design()
    designs: dict[str, Annotated[Design, BeforeValidator(_parts)]] = {}
    match: Match = Match()
    measure: Measure = Measure()
    claims: list[str] = []
    resources: Resources = Resources()

    @model_validator(mode="after")
    def _one_source(self) -> Study:
        if not self.task_names:
            raise ValueError("task is missing")
        if self.tasks and (self.task is not None or self.task_args):
            raise ValueError("give task and task_args, or tasks: {NAME: {ARGUMENT: value}}")
        if self.designs and self.design != Design():
            raise ValueError("give design, or designs: {NAME: {kind: ..., factors: ...}}")
        return self

    @property
    def task_names(self) -> tuple[str, ...]:
        """The tasks of the study."""
        return tuple(self.tasks) or ((self.task,) if self.task else ())

    @property
    def all_designs(self) -> dict[str, Design]:
        """Every design by its place in the file, such as ``design`` or ``designs.main``."""
        if not self.designs:
            return {"design": self.design}
        return {f"designs.{name}": design for name, design in self.designs.items()}


def validate(content: dict[str, Any], file: Path) -> Study:
    """The study that `content` declares; its name is the file's.

    Raises:
        UserError: an unknown key, a wrong type, a missing key, or a name that is not the file's.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", file.stem):
        raise UserError(
            f"{file.name}: a study is named after its file, so the file's name may hold only "
            "letters, digits, '_', '-' and '.'."
        )
    named = {"name": file.stem, **content}
    if named["name"] != file.stem:
        raise UserError(
            f"{file.name}: name is {named['name']!r}; a study is named after its file: "
            f"'{file.stem}', or rename the file."
        )
    try:
        return Study.model_validate(named)
    except ValidationError as error:
        # A misspelt key is the cause of the missing one, so it goes first.
        problems = sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        raise _explain(problems[0], file.name) from None


def _explain(problem: ErrorDetails, file: str) -> UserError:
    """One of pydantic's findings, as our own kind of message."""
    path = [str(part) for part in problem["loc"]]
    key = ".".join(path)
    if problem["type"] == "extra_forbidden":
        parent = _section(path[:-1])
        place = ".".join(path[:-1])
        kind = f"key of {place}" if place else "key of a study"
        return unknown(kind, path[-1], keys_of(parent), where=f"{file}: {key}")
    if problem["type"] == "missing":
        return UserError(f"{file}: {key} is missing.")
    if problem["type"] == "too_short":
        return UserError(f"{file}: {key} is empty; give at least one.")
    if isinstance(problem["input"], dict) and problem["type"] == "value_error":
        reason = problem["msg"].removeprefix("Value error, ")
        return UserError(f"{file}: {f'{key}: ' if key else ''}{reason}.")
    return refused(f"{file}: {key}", problem["input"], problem)


def keys_of(section: type[BaseModel]) -> list[str]:
    """The keys of a section as a file spells them."""
    return [field.alias or name for name, field in section.model_fields.items()]


def _section(path: list[str]) -> type[BaseModel]:
    sections: dict[str, type[BaseModel]] = {
        "design": Design,
        "designs": Design,
        "match": Match,
        "measure": Measure,
        "resources": Resources,
    }
    if {"factors", "blocks"} & set(path):
        return FactorSpec
    return sections.get(path[0], Study) if path else Study
