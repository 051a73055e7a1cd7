"""Constraints: conditions on the levels of a cell, such as ``window <= chunk``."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ablate.errors import UserError, unknown
from ablate.study.schema import Scalar

Holds = Callable[[Mapping[str, Scalar]], bool]

_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}


class _NotApplicable(Exception):
    """The condition speaks of a factor that this cell does not have."""


def parse_constraint(text: str, keys: Iterable[str], *, where: str) -> Holds:
    """A function that says whether a cell's levels meet the condition.

    Names are factors, ``and``, ``or``, ``not``, ``in``, comparisons and + - * / % may join them;
    true, false and null are as in YAML. A cell without one of the factors meets the condition.

    Raises:
        UserError: text that is no such condition, or an unknown factor.
    """
    known = tuple(keys)
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise UserError(f"{where} is {text!r}: {error.msg}.") from None
    _check(tree, known, text, where)

    def holds(levels: Mapping[str, Scalar]) -> bool:
        try:
            return bool(_value(tree, levels))
        except _NotApplicable:
            return True
        except (TypeError, ZeroDivisionError) as error:
            raise UserError(f"{where} is {text!r}: {error}.") from None

    return holds


def _check(node: ast.expr, known: tuple[str, ...], text: str, where: str) -> None:
    name = _name(node)
    if name is not None:
        if name not in (*known, "true", "false", "null"):
            raise unknown("factor", name, known, where=where)
        return
    parts: list[ast.expr]
    match node:
        case ast.Constant(value=bool() | int() | float() | str()):
            parts = []
        case ast.BoolOp(values=parts) | ast.List(elts=parts) | ast.Tuple(elts=parts):
            pass
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=inner):
            parts = [inner]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            parts = [left, right]
        case ast.Compare(left=left, ops=ops, comparators=others) if {*map(type, ops)} <= {
            *_COMPARE
        }:
            parts = [left, *others]
        case _:
            raise UserError(
                f"{where} is {text!r}: '{ast.unparse(node)}' is no condition on levels; "
                "compare factors and values with == != < <= > >= in, and, or, not."
            )
    for part in parts:
        _check(part, known, text, where)


def _name(node: ast.expr) -> str | None:
    """A factor's key, dots included."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _name(node.value)):
        return f"{before}.{node.attr}"
    return None


def _value(node: ast.expr, levels: Mapping[str, Scalar]) -> Any:
    name = _name(node)
    if name is not None:
        if name in levels:
            return levels[name]
        if name in ("true", "false", "null"):
            return {"true": True, "false": False, "null": None}[name]
        raise _NotApplicable
    match node:
        case ast.Constant(value=value):
            return value
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_value(part, levels) for part in parts]
        case ast.BoolOp(op=op, values=parts):
            join = all if isinstance(op, ast.And) else any
            return join(_value(part, levels) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return not _value(inner, levels)
        case ast.UnaryOp(operand=inner):
            return -_value(inner, levels)
        case ast.BinOp(left=left, op=op, right=right):
            return _ARITHMETIC[type(op)](_value(left, levels), _value(right, levels))
        case ast.Compare(left=left, ops=ops, comparators=others):
            values = [_value(part, levels) for part in (left, *others)]
            steps = zip(ops, values[:-1], values[1:], strict=True)
            return all(_COMPARE[type(op)](one, other) for op, one, other in steps)
    raise AssertionError(ast.dump(node))
