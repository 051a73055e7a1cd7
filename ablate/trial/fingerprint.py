"""A short hash of the code that a trial really runs, so that an edit makes exactly its users stale.

From the classes of the resolved configuration on, names are followed definition by definition
through Ablate's own modules: editing one optimiser leaves the cells of another one alone.
Comments, docstrings and annotations of arguments do not count.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ablate.trial.space import is_kernel

ENGINE = ("ablate.trial.train:train", "ablate.trial.build:build_model")
ONLINE = ("ablate.trial.online:draws_of",)
COMPOSED = (
    "ablate.components.neural_memory:NeuralMemory",
    "ablate.components.exponential:ExponentialMemory",
)


@dataclass(frozen=True)
class _Piece:
    """One top-level statement: its text, the names it uses and what it imports."""

    source: str
    names: frozenset[str]
    imports: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Module:
    definitions: dict[str, tuple[_Piece, ...]]  # what binds each top-level name
    always: tuple[_Piece, ...]  # statements that run on import for their effect


def fingerprint(config: dict[str, Any], *, allow: Iterable[str] = ()) -> str:
    """Hash the sources that the trial of `config` (model, task, train) runs.

    Code below ``ablate`` and the `allow` packages counts; libraries do not.
    """
    packages = ("ablate", *allow)
    model = config.get("model") or {}
    roots = [":".join(target.rsplit(".", 1)) for target in _targets(model)]
    roots.append(f"ablate.experiments.{config['task']['name']}.task:TASK")
    skip: tuple[str, ...] = ()
    if model:
        roots += ONLINE if config.get("train", {}) is None else ENGINE
        # The builder can make every mixer; only those in use count.
        others = (model.get("hybrid") or {}).get("memories") or []
        mixers = [
            one for one in (model, *others) if isinstance(one, dict) and one.get("feature_map")
        ]
        used = [COMPOSED[is_kernel(one, allow)] for one in mixers]
        skip = tuple(layer for layer in COMPOSED if layer not in used)
    found = closure(roots, packages, skip=skip)
    text = "\n".join(f"{key}\n{found[key]}" for key in sorted(found))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _targets(part: Any) -> Iterator[str]:
    """Every class that a configuration names, however nested."""
    if isinstance(part, dict):
        if "_target_" in part:
            yield part["_target_"]
        part = list(part.values())
    if isinstance(part, list):
        for one in part:
            yield from _targets(one)


def closure(
    roots: Iterable[str], packages: tuple[str, ...] = ("ablate",), *, skip: tuple[str, ...] = ()
) -> dict[str, str]:
    """``{"module:name": source}`` of everything that `roots` reach without `skip`."""
    found: dict[str, str] = {}
    waiting = list(roots)
    while waiting:
        key = waiting.pop()
        name, _, wanted = key.partition(":")
        if key in found or key in skip or name.partition(".")[0] not in packages:
            continue
        module = _module(name)
        if module is None:
            continue
        pieces = (*module.definitions.get(wanted, ()), *module.always)
        found[key] = "\n".join(piece.source for piece in pieces)
        if wanted == "*":
            waiting += [f"{name}:{other}" for other in module.definitions]
        for piece in pieces:
            waiting += [f"{name}:{used}" for used in piece.names if used in module.definitions]
            waiting += [_import(*one) for one in piece.imports if one[0].startswith(packages)]
    return found


def _import(module: str, name: str) -> str:
    """What ``from module import name`` reaches: all of a module, or one name in it."""
    inner = f"{module}.{name}"
    return f"{inner}:*" if name != "*" and _path(inner) else f"{module}:{name}"


@functools.lru_cache(maxsize=4096)
def _path(name: str) -> str | None:
    """The source file of a module, without importing it; None if there is none."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, ValueError):
        return None
    return spec.origin if spec and spec.origin and spec.origin.endswith(".py") else None


def _module(name: str) -> _Module | None:
    path = _path(name)
    return _read(path, os.stat(path).st_mtime_ns) if path else None


@functools.lru_cache(maxsize=512)
def _read(path: str, stamp: int) -> _Module:
    """The top level of a source file; `stamp` makes an edited file a new one."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read(), filename=path)
    definitions: dict[str, list[_Piece]] = {}
    always = []
    for statement in (part for whole in tree.body for part in _split(whole)):
        names = list(_bound(statement))
        if not names and _is_text(statement):
            continue
        piece = _piece(statement)
        for name in names:
            definitions.setdefault(name, []).append(piece)
        if not names:
            always.append(piece)
    return _Module({name: tuple(pieces) for name, pieces in definitions.items()}, tuple(always))


def _split(statement: ast.stmt) -> list[ast.stmt]:
    """An import of many names as one import for each, so that each is followed alone."""
    if isinstance(statement, ast.ImportFrom):
        return [
            ast.ImportFrom(statement.module, [alias], statement.level) for alias in statement.names
        ]
    if isinstance(statement, ast.Import):
        return [ast.Import([alias]) for alias in statement.names]
    return [statement]


def _piece(statement: ast.stmt) -> _Piece:
    bare = _Bare().visit(statement)
    names, imports = set(), []
    for node in ast.walk(bare):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imports += [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            imports += [(alias.name, "*") for alias in node.names]
    # unparse leaves comments and layout out.
    return _Piece(ast.unparse(bare), frozenset(names), tuple(imports))


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The names that a top-level statement binds, in nested blocks too."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0]
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name


class _Bare(ast.NodeTransformer):
    """Drop docstrings and annotations of arguments and results."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        self._drop_text(node)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self._drop_text(node)
        return node

    def _drop_text(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        self.generic_visit(node)
        if node.body and _is_text(node.body[0]):
            node.body = node.body[1:] or [ast.Pass()]


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
