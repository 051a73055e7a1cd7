"""What a study file may say: every key, its type and its default."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from ablate.errors import UserError, unknown

Scalar: TypeAlias = bool | int | float | str | None


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _seed_list(given: Any) -> Any:
    """A whole number n means 0 ... n-1."""
    if isinstance(given, int) and not isinstance(given, bool):
        if given < 1:
            raise ValueError("must be a whole number >= 1, or a list of seeds")
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
        raise ValueError("must be a list of levels, or {levels: [...], when: {...}}")
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
    """One factor: its levels, the baseline's first, and where it applies."""

    levels: list[Annotated[Any, BeforeValidator(_plain)]] = Field(min_length=1)
    when: dict[str, Any] = {}


class Design(_Section):
    """Which combinations of levels become cells."""

    kind: str = "one_factor"
    factors: dict[str, Annotated[FactorSpec, BeforeValidator(_spelt_out)]] = {}
    exclude: list[dict[str, Any]] = []


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
    task: str
    question: str = ""
    model: str | None = None
    model_args: Annotated[dict[str, Any], BeforeValidator(_flat)] = {}
    task_args: dict[str, Any] = {}
    train: dict[str, Any] = {}
    seeds: Annotated[list[int], BeforeValidator(_seed_list)] = [0, 1, 2]
    design: Design = Design()
    measure: Measure = Measure()
    claims: list[str] = []
    resources: Resources = Resources()


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
        return unknown(kind, path[-1], parent.model_fields, where=f"{file}: {key}")
    if problem["type"] == "missing":
        return UserError(f"{file}: {key} is missing.")
    if problem["type"] == "too_short":
        return UserError(f"{file}: {key} is empty; give at least one.")
    reason = problem["msg"].removeprefix("Value error, ")
    return UserError(f"{file}: {key} is {problem['input']!r}: {reason[0].lower()}{reason[1:]}.")


def _section(path: list[str]) -> type[BaseModel]:
    sections: dict[str, type[BaseModel]] = {
        "design": Design,
        "measure": Measure,
        "resources": Resources,
    }
    if path[:2] == ["design", "factors"]:
        return FactorSpec
    return sections.get(path[0], Study) if path else Study
