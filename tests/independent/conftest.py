"""The token loops of flash-linear-attention, without the kernels that its packages import."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

PACKAGES = (
    "fla",
    "fla.ops",
    "fla.ops.generalized_delta_rule",
    "fla.ops.generalized_delta_rule.dplr",
)


def _bare(name: str, root: Path) -> None:
    """A package whose modules can be imported and whose `__init__`, full of kernels, is not run."""
    package = ModuleType(name)
    package.__path__ = [str(root.joinpath(*name.split(".")))]
    sys.modules[name] = package


@pytest.fixture(scope="session")
def fla() -> Callable[[str], ModuleType]:
    """Give the module of references of an operation: ``fla("gla")``."""
    spec = importlib.util.find_spec("fla")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    root = Path(next(iter(spec.submodule_search_locations))).parent

    def load(operation: str) -> ModuleType:
        for package in (*PACKAGES, f"fla.ops.{operation}"):
            if package not in sys.modules:
                _bare(package, root)
        return importlib.import_module(f"fla.ops.{operation}.naive")

    return load
