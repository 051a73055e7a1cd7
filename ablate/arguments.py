"""Check named values from YAML against a constructor's signature, and fill its defaults in."""

from __future__ import annotations

import functools
import inspect
import json
import math
from collections.abc import Mapping
from typing import Any, get_type_hints

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

from ablate.errors import UserError, refused, unknown


@functools.cache
def options(cls: type) -> dict[str, inspect.Parameter]:
    """The keyword-only parameters of a constructor, or all parameters of a dataclass.

    Positional parameters (`dims`, `feature_width`) are the builder's to give, not the user's.
    """
    given = inspect.signature(cls).parameters.values()
    named = {p.name: p for p in given if p.kind is p.KEYWORD_ONLY}
    if hasattr(cls, "__dataclass_fields__") and not named:
        named = {p.name: p for p in given}
    return named


def bind(
    cls: type,
    values: Mapping[str, Any],
    *,
    kind: str,
    prefix: str = "",
    where: str = "",
    typed: bool = False,
) -> dict[str, Any]:
    """All options of `cls`, in the order of its signature: `values` checked, defaults filled in.

    So a default that is spelt out and one that is left out give the same result, and a whole
    number for a float option becomes a float.

    Args:
        kind: what one option is called in a message, such as ``"key of memory"``.
        prefix: what goes before the option's name in a message, such as ``"memory."``.
        where: file and key, put first in every message.
        typed: give values as the annotations want them (tuples), not as JSON has them (lists).

    Raises:
        UserError: an unknown option, a value of the wrong type, or a missing one.
    """
    known = options(cls)
    for name in values:
        if name not in known:
            raise unknown(kind, name, known, where=where)
    hints = _hints(cls)
    place = f"{where}: " if where else ""
    bound = {}
    for name, parameter in known.items():
        if name in values:
            value = _convert(values[name], hints.get(name, Any), key=f"{place}{prefix}{name}")
            bound[name] = value if typed else plain(value)
        elif parameter.default is parameter.empty:
            raise UserError(f"{place}{prefix}{name} is missing; {cls.__name__} needs it.")
        else:
            bound[name] = parameter.default if typed else plain(parameter.default)
    return bound


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    declared: Any = cls
    return get_type_hints(cls if hasattr(cls, "__dataclass_fields__") else declared.__init__)


@functools.lru_cache(maxsize=512)
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation)


def _convert(value: Any, annotation: Any, *, key: str) -> Any:
    """`value` as `annotation` wants it, by JSON's rules; 4.0 is a whole number, "4" is none."""
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{key} is {value}: must be a finite number.")
    try:
        adapter = _adapter(annotation)
        text = json.dumps(value)
    except (PydanticSchemaGenerationError, TypeError):
        return value
    try:
        return adapter.validate_json(text, strict=True)
    except ValidationError as error:
        if isinstance(value, float) and value.is_integer():
            try:
                return adapter.validate_json(json.dumps(int(value)), strict=True)
            except ValidationError:
                pass
        raise refused(key, value, error.errors()[0]) from None


def plain(value: Any) -> Any:
    """`value` as JSON would give it back: tuples become lists."""
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return value
