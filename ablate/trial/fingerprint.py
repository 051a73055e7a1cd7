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

ENGINE = ("ablate.trial.train:train", "ablate.trial.build:build_model")
COMPOSED = "ablate.components.neural_memory:NeuralMemory"


@dataclass(frozen=True)
class _Module:
    name: str
    definitions: dict[str, tuple[ast.stmt, ...]]  # what binds each top-level name
    always: tuple[ast.stmt, ...]  # statements that run on import for their effect


def fingerprint(config: dict[str, Any], *, allow: Iterable[str] = ()) -> str:
    """Hash the sources that the trial of `config` (model, task, train) runs.

    Code below ``ablate`` and the `allow` packages counts; libraries do not.
    """
    packages = ("ablate", *allow)
    model = config.get("model") or {}
    targets = [part["_target_"] for part in model.values() if isinstance(part, dict)]
    roots = [":".join(target.rsplit(".", 1)) for target in targets]
    roots.append(f"ablate.experiments.{config['task']['name']}.task:TASK")
    skip: tuple[str, ...] = ()
    if model:
        roots += ENGINE
        # The builder can make every mixer; only the one in use counts.
        skip = () if model.get("feature_map") else (COMPOSED,)
    found = closure(roots, packages, skip=skip)
    text = "\n".join(f"{key}\n{found[key]}" for key in sorted(found))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def closure(
    roots: Iterable[str], packages: tuple[str, ...] = ("ablate",), *, skip: tuple[str, ...] = ()
) -> dict[str, str]:
    """``{"module:name": source}`` of everything that `roots` reach without `skip`."""
    found: dict[str, str] = {}
    waiting = list(roots)
    while waiting:
        key = waiting.pop()
        module_name, _, name = key.partition(":")
        if key in found or key in skip or module_name.partition(".")[0] not in packages:
            continue
        module = _parse(module_name)
        if module is None:
            continue
        if name == "*":
            found[key] = ""
            waiting += [f"{module_name}:{other}" for other in module.definitions]
            continue
        statements = (*module.definitions.get(name, ()), *module.always)
        found[key] = "\n".join(_source(statement) for statement in statements)
        for statement in statements:
            waiting += _references(statement, module)
    return found


@functools.lru_cache(maxsize=512)
def _read(path: str, stamp: int) -> ast.Module:
    with open(path, encoding="utf-8") as file:
        return ast.parse(file.read(), filename=path)


def _parse(name: str) -> _Module | None:
    """The top level of a module, without importing it; None if there is no such module."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, ValueError):
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    tree = _read(spec.origin, os.stat(spec.origin).st_mtime_ns)
    definitions: dict[str, list[ast.stmt]] = {}
    always = []
    for statement in tree.body:
        names = list(_bound(statement))
        for bound in names:
            definitions.setdefault(bound, []).append(statement)
        if not names and not _is_text(statement):
            always.append(statement)
    return _Module(name, {key: tuple(value) for key, value in definitions.items()}, tuple(always))


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


def _references(statement: ast.stmt, module: _Module) -> list[str]:
    """What a definition uses: other names of its module, and what it imports."""
    bare = _Bare().visit(ast.parse(ast.unparse(statement)))
    found: list[str] = []
    for node in ast.walk(bare):
        if isinstance(node, ast.Name) and node.id in module.definitions:
            found.append(f"{module.name}:{node.id}")
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                is_module = _parse(inner) is not None
                found.append(f"{inner}:*" if is_module else f"{node.module}:{alias.name}")
        elif isinstance(node, ast.Import):
            found += [f"{alias.name}:*" for alias in node.names]
    return found


class _Bare(ast.NodeTransformer):
    """Drop docstrings and annotations of arguments and results."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        return self._without_text(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        return self._without_text(node)

    def _without_text(self, node: Any) -> Any:
        self.generic_visit(node)
        if node.body and _is_text(node.body[0]):
            node.body = node.body[1:] or [ast.Pass()]
        return node


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _source(statement: ast.stmt) -> str:
    # ast.unparse loses comments and layout, and re-parsing keeps the cached tree untouched.
    return ast.unparse(_Bare().visit(ast.parse(ast.unparse(statement))))
