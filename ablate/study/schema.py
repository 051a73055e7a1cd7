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

from ablate.errors import UserError, refused, rule_of, unknown
from ablate.study.upkeep import CheckpointSection, LimitsSection

KIND_NAMES = (
    *("one_factor", "leave_one_out", "add_one_in", "full"),
    *("fractional", "path", "search"),
)
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
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


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
                raise ValueError(f"sets {name} twice, nested and with a dot: keep one spelling")
            flat[name] = leaf
    return flat


def _plain(given: Any) -> Any:
    """A level is one value."""
    if given is not None and not isinstance(given, (bool, int, float, str)):
        raise ValueError("a level must be text, a number, true, false or null")
    return given


AnyLevel: TypeAlias = Annotated[Any, BeforeValidator(_plain, json_schema_input_type=Scalar)]


class FactorSpec(_Section):
    """One factor: its levels, the baseline's first, and where it applies; or a range to search."""

    levels: list[AnyLevel] = Field(default=[], min_length=1)
    """The first is the baseline's."""
    when: dict[str, Any] = {}
    """Levels of other factors under which this one applies: {inner_optimizer: muon}."""
    low: int | float | None = None
    """Least value of a range, kind: search only; whole numbers are drawn if both ends are."""
    high: int | float | None = None
    """Largest value of a range."""
    log: bool = False
    """Whether the range is searched by its logarithm."""

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


AnyFactor: TypeAlias = Annotated[
    FactorSpec,
    BeforeValidator(_spelt_out, json_schema_input_type=FactorSpec | list[Scalar] | Scalar),
]


class Design(_Section):
    """Which combinations of levels become cells."""

    kind: str = Field(default="one_factor", json_schema_extra={"enum": list(KIND_NAMES)})
    """How levels are combined."""
    factors: dict[str, AnyFactor] = {}
    """What varies: an axis, axis.option, chunk, task_args.NAME, train.NAME or model; levels."""
    exclude: list[dict[str, Any]] = []
    """Combinations that are left out: [{memory: matrix, window: [1, 4]}]."""
    constraints: list[str] = []
    """Conditions that every cell meets: ["window <= chunk"]."""
    zip: list[list[str]] = []
    """Factors that move together: [[backbone.dim, backbone.heads]]."""
    blocks: dict[str, AnyFactor] = {}
    """The whole design is repeated in each of these levels, and compared within them."""
    cap: int | None = Field(default=None, ge=1)
    """kind: full: draw so many cells at random."""
    resolution: int | None = Field(default=None, ge=3, le=5)
    """kind: fractional: 3 tells main effects apart, 4 also from pairs, 5 also pairs."""
    runs: int | None = Field(default=None, ge=2)
    """kind: fractional: at most so many cells."""
    start: str | None = Field(default=None, alias="from")
    """kind: path: the preset that it begins at."""
    to: str | None = None
    """kind: path: the preset that it ends at."""
    orders: Literal["one", "all"] = "one"
    """kind: path: one order of the changes, or all."""
    trials: int | None = Field(default=None, ge=1)
    """kind: search: how many configurations the optimiser tries."""

    @model_validator(mode="after")
    def _belongs(self) -> Design:
        for name, (key, kinds) in KIND_KEYS.items():
            if getattr(self, name) not in (None, "one") and self.kind not in kinds:
                raise ValueError(f"{key} belongs to kind: {' or '.join(kinds)}")
        return self


class Match(_Section):
    """What every cell is made to have as much of as the baseline, and what may move for it."""

    on: Literal["parameters", "state", "flops", "none"] = "none"
    """What is made equal."""
    by: str = "width"
    """What moves: width, heads, layers, or any whole number of a component."""
    tolerance: float = Field(default=0.02, gt=0, lt=1)
    """The largest mismatch, as a share."""


class Measure(_Section):
    """The metric that the study is about, and which way is better."""

    primary: str = "val/loss"
    """A metric of the task."""
    goal: Literal["min", "max"] = "min"
    """Whether less of it is better, or more."""


class Pruning(_Section):
    """Trials that do badly are stopped early; their cells are then not compared."""

    kind: Literal["asha", "median"] = "asha"
    """asha keeps the best 1/reduction at each checkpoint, median what is no worse than that."""
    grace: int | None = Field(default=None, ge=1)
    """Tokens that every trial may read; by default 1/reduction^2 of all."""
    reduction: float = Field(default=4.0, gt=1)
    """kind: asha: how many times apart checkpoints are."""


class Resources(_Section):
    """What one trial holds while it runs."""

    cpus: float = Field(default=1.0, gt=0)
    """Cores."""
    gpus: float = Field(default=0.0, ge=0)
    """GPUs, or a share of one."""
    packing: Literal["auto", "off"] | Annotated[int, Field(ge=1)] = "auto"
    """Trials of one shape that share a worker as one program: as many as bring something, none, or
    so many."""
    backend: Literal["auto", "torch", "triton"] = "auto"
    """What computes operations that have Triton kernels: kernels on GPUs, torch, or kernels only
    where they can run; an error where they cannot."""


class Study(_Section):
    """A whole study file."""

    name: str
    """The file's name; may be left out."""
    task: str | None = None
    """What every model is trained and scored on."""
    tasks: dict[str, dict[str, Any]] = {}
    """Several tasks, each with its arguments, in place of task and task_args."""
    question: str = ""
    """What the study is to find out."""
    model: str | None = None
    """The preset that everything is changed from."""
    model_args: Annotated[dict[str, Any], BeforeValidator(_flat)] = {}
    """Settings of the model that hold in every cell."""
    task_args: dict[str, Any] = {}
    """Arguments of the task that hold in every cell."""
    train: dict[str, Any] = {}
    """How the outer loop learns: lr, warmup, evaluations, ..."""
    seeds: Annotated[
        list[Seed], BeforeValidator(_seed_list, json_schema_input_type=int | list[int])
    ] = [0, 1, 2]
    """How many seeds, or which; the same in every cell."""
    design: Annotated[Design, BeforeValidator(_parts)] = Design()
    """Which cells there are."""
    designs: dict[str, Annotated[Design, BeforeValidator(_parts)]] = {}
    """Several designs that share a baseline, in place of design."""
    tune: dict[str, Annotated[list[AnyLevel], Field(min_length=2)]] = {}
    """What each cell is tuned over: it is run in every one of these settings, and the report
    judges the setting that is best on the other seeds. {train.lr: [0.001, 0.003, 0.01]}"""
    match: Match = Match()
    """What is made equal between a cell and the one that it is compared with."""
    measure: Measure = Measure()
    """What the study is judged by."""
    claims: list[str] = []
    """What is expected, written before the study is run."""
    resources: Resources = Resources()
    """What one trial holds."""
    checkpoint: CheckpointSection = CheckpointSection()
    """From where a killed trial goes on."""
    limits: LimitsSection = LimitsSection()
    """When a run stops by itself."""
    pruning: Pruning | None = None
    """Whether trials that do badly are stopped early; not by default."""

    @model_validator(mode="after")
    def _one_source(self) -> Study:
        if not self.task_names:
            raise ValueError("task is missing")
        if self.tasks and (self.task is not None or self.task_args):
            raise ValueError("give task and task_args, or tasks: {NAME: {ARGUMENT: value}}")
        if self.designs and self.design != Design():
            raise ValueError("give design, or designs: {NAME: {kind: ..., factors: ...}}")
        if self.tune and any(one.kind == "search" for one in self.all_designs.values()):
            raise ValueError("tune is for cells that are laid out; kind: search tunes by itself")
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
        raise _explain(_alternatives(problems), file.name) from None


def _alternatives(problems: list[ErrorDetails]) -> ErrorDetails:
    """The first problem; of a value that may be of several kinds, what each would have taken."""
    first = problems[0]
    if len(first["loc"]) < 2 or not _KIND.fullmatch(str(first["loc"][-1])):
        return first
    place = first["loc"][:-1]
    rules = [rule_of(one) for one in problems if one["loc"][:-1] == place]
    rest = [rule.removeprefix("must be ") for rule in rules[1:]]
    return first | {"loc": place, "type": "value_error", "msg": " or ".join([rules[0], *rest])}


_KIND = re.compile(r"int|float|bool|str|literal\[.*\]|(constrained|list|dict|function).*")
"""How pydantic names the kind that it tried, as the last part of a place."""


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
        least = problem["ctx"]["min_length"]
        if least == 1:
            return UserError(f"{file}: {key} is empty; give at least one.")
        return UserError(f"{file}: {key} needs at least {least} entries.")
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
        "pruning": Pruning,
        "checkpoint": CheckpointSection,
        "limits": LimitsSection,
    }
    if {"factors", "blocks"} & set(path):
        return FactorSpec
    return sections.get(path[0], Study) if path else Study
