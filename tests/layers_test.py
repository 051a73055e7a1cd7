"""Imports point one way, and no file outgrows its purpose."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "components": "ablate.components",
    "experiments": "ablate.experiments",
    "dashboards": "ablate.dashboards",
    "ablate": "ablate",
}

# Every layer may import itself and what its set names; `*` stands for the command line.
ALLOWED = {
    "ablate.components": {"ablate.components"},
    "ablate.experiments": {
        "ablate.experiments",
        "ablate.components",
        "ablate.arguments",
        "ablate.errors",
        "ablate.home",
    },
    "ablate.trial": {
        "ablate.trial",
        "ablate.experiments",
        "ablate.components",
        "ablate.search_spaces",
        "ablate.arguments",
        "ablate.errors",
        "ablate.home",
    },
    "ablate.conformance": {
        "ablate.conformance",
        "ablate.trial",
        "ablate.components",
        "ablate.errors",
    },
    # A plan looks at the ledger of earlier runs, and refuses claims that the analysis cannot read.
    "ablate.study": {
        "ablate.study",
        "ablate.analysis",
        "ablate.sweep",
        "ablate.trial",
        "ablate.experiments",
        "ablate.components",
        "ablate.search_spaces",
        "ablate.arguments",
        "ablate.errors",
        "ablate.home",
    },
    "ablate.sweep": {
        "ablate.sweep",
        "ablate.trial",
        "ablate.errors",
        "ablate.home",
        "ablate.telemetry",
    },
    "ablate.track": {
        "ablate.track",
        "ablate.sweep",
        "ablate.analysis",
        "ablate.errors",
        "ablate.home",
        "ablate.telemetry",
    },
    # Published tables are data files beside their tasks.
    "ablate.analysis": {
        "ablate.analysis",
        "ablate.experiments",
        "ablate.sweep",
        "ablate.errors",
    },
    # The live page looks again at a ledger that is being written.
    "ablate.dashboards": {
        "ablate.dashboards",
        "ablate.analysis",
        "ablate.sweep",
        "ablate.errors",
    },
}
# A heavy library is imported by the layers that own it and by the command line, which has no entry
# in ALLOWED.
OWNERS = {
    "hydra": {"ablate.trial", "ablate.study", "cli"},
    "omegaconf": {"ablate.trial", "ablate.study", "cli"},
    "ray": {"ablate.sweep", "cli"},
    "mlflow": {"ablate.track", "cli"},
    "plotly": {"ablate.dashboards", "cli"},
    "matplotlib": {"ablate.dashboards", "cli"},
    "typer": {"cli"},
}


def modules() -> list[tuple[str, Path]]:
    """Every module of the product as (dotted name, file), tests left out."""
    found = []
    for folder, package in FOLDERS.items():
        for file in sorted((ROOT / folder).rglob("*.py")):
            if file.name.endswith("_test.py") or file.name == "conftest.py":
                continue
            parts = file.relative_to(ROOT / folder).with_suffix("").parts
            found.append((".".join([package, *parts]).removesuffix(".__init__"), file))
    return found


def imported(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def layer(name: str) -> str:
    return ".".join(name.split(".")[:2])


@pytest.mark.parametrize(("name", "file"), modules(), ids=lambda value: str(value))
def test_imports_point_one_way(name: str, file: Path) -> None:
    allowed = ALLOWED.get(layer(name))
    for target in imported(file):
        if target.startswith("ablate.") and allowed is not None:
            assert layer(target) in allowed, f"{name} imports {target}"
        owner = layer(name) if layer(name) in ALLOWED else "cli"
        owners = OWNERS.get(target.split(".")[0], {owner})
        assert owner in owners, f"{name} imports {target}, which {sorted(owners)} own"


def test_components_know_only_torch() -> None:
    for name, file in modules():
        if name.startswith("ablate.components"):
            foreign = {
                target.split(".")[0]
                for target in imported(file)
                if target.split(".")[0] in {"hydra", "omegaconf", "ray", "mlflow", "pydantic"}
            }
            assert not foreign, f"{name} imports {foreign}"


def test_no_file_outgrows_its_purpose() -> None:
    long = {
        str(file.relative_to(ROOT)): lines
        for folder in [*FOLDERS, "tests", "benchmarks"]
        for file in (ROOT / folder).rglob("*.py")
        if (lines := len(file.read_text().splitlines())) > 400
    }
    assert not long
