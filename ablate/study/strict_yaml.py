"""YAML as a study may use it: one reading for files and for the command line.

Duplicate keys, tabs, and plain scalars that YAML 1.1 reads in a surprising way (``off`` as false,
``010`` as eight, ``12:30`` as 750) are refused with the spelling to use instead. Anchors may be
used, but not to make a small file stand for a huge one.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from ablate.errors import UserError

_SURPRISES = (
    (re.compile(r"(?i:y|yes|on)"), "true or '{0}'"),
    (re.compile(r"(?i:n|no|off)"), "false or '{0}'"),
    (re.compile(r"[-+]?0[0-9_]+"), "'{0}', or the number without its leading zero"),
    (re.compile(r"[-+]?0[bx][0-9a-fA-F_]+"), "'{0}', or the number in decimal"),
    (re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?"), "'{0}'"),
)
# 1e-3 is a number to Hydra, and text to plain YAML 1.1.
_FLOAT = re.compile(
    r"""^(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+
    |\.[0-9_]+(?:[eE][-+]?[0-9]+)?
    |[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)

MOST_VALUES = 100_000  # that a file may stand for, all its aliases written out


class _Loader(yaml.SafeLoader):
    """Safe YAML with the rules of this module."""

    def get_single_node(self) -> yaml.Node | None:
        """The document, if it is not much larger than its text."""
        node = super().get_single_node()
        if node is not None and _size(node, {}) > MOST_VALUES:
            raise _Refused(
                problem=f"its aliases stand for more than {MOST_VALUES:,} values; write out what "
                "is meant",
                problem_mark=node.start_mark,
            )
        return node


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in rules
        if tag not in ("tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
    ]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


class _Refused(yaml.MarkedYAMLError):
    """What this module refuses, with its place."""


def _size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Values below a node with every alias written out; each node is looked at once."""
    if id(node) not in sizes:
        sizes[id(node)] = 1  # for an anchor inside itself, which YAML refuses later
        parts: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            parts = node.value
        sizes[id(node)] = 1 + sum(_size(part, sizes) for part in parts)
    return sizes[id(node)]


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[str, Any]:
    loader.flatten_mapping(node)
    seen: dict[Hashable, Any] = {}
    for key_node, value_node in node.value:
        key = "on" if _is_on(key_node) else loader.construct_object(key_node, deep=True)
        mark = key_node.start_mark
        if not isinstance(key, str):
            raise _Refused(problem=f"key {key_node.value!r} must be text", problem_mark=mark)
        if key in seen:
            raise _Refused(problem=f"key '{key}' appears twice", problem_mark=mark)
        seen[key] = loader.construct_object(value_node, deep=True)
    return seen  # type: ignore[return-value]


def _is_on(node: yaml.Node) -> bool:
    """Whether a key is the bare word ``on``: as a key it has one meaning."""
    return isinstance(node, yaml.ScalarNode) and node.style is None and node.value == "on"


def _checked_scalar(loader: _Loader, node: yaml.ScalarNode) -> Any:
    for pattern, advice in _SURPRISES:
        if node.style is None and pattern.fullmatch(node.value):
            raise _Refused(
                problem=f"{node.value} has two readings; write {advice.format(node.value)}",
                problem_mark=node.start_mark,
            )
    kind = node.tag.rpartition(":")[2]
    return getattr(yaml.SafeLoader, f"construct_yaml_{kind}")(loader, node)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
for _kind in ("bool", "int", "str"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _checked_scalar)


def parse(text: str, *, where: str) -> Any:
    """Parse YAML text.

    Raises:
        UserError: what YAML or this module refuses, with `where`, line and column.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{where}, line {mark.line + 1}, column {mark.column + 1}" if mark else where
        problem = error.problem or str(error)
        if "'\\t'" in problem:
            problem = "a tab; YAML indents with spaces only"
        raise UserError(f"{place}: {problem}.") from None
    except yaml.YAMLError as error:
        raise UserError(f"{where}: {error}.") from None
    except RecursionError:
        raise UserError(f"{where}: nested too deeply.") from None


def read(path: Path, *, where: str | None = None) -> dict[str, Any]:
    """Read a YAML file that holds a mapping; an empty file is an empty one.

    Raises:
        UserError: the file is missing, unreadable, wrong YAML, or no mapping.
    """
    where = where or str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{where}: no such file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{where}: cannot be read ({error}).") from None
    content = parse(text, where=where)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{where}: holds a {type(content).__name__}; it must be a mapping.")
    return content
