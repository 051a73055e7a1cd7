from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import ablate.trial.fingerprint as module
from ablate.trial.build_test import tiny
from ablate.trial.fingerprint import closure, fingerprint
from ablate.trial.space import apply, resolve

SOURCE = '''"""Two components that share a number."""
from math import pi

SHARED = 3.0


def double(x):
    return 2 * x


class Used:
    """Doc."""

    def forward(self, x: float) -> float:
        return double(x) + SHARED


class Other:
    def forward(self, x):
        return pi
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "fingerprinted"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "parts.py").write_text(SOURCE)
    (folder / "whole.py").write_text("from fingerprinted.parts import Used, Other\nX = Used\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("", ".parts", ".whole"):
        sys.modules.pop(f"fingerprinted{name}", None)
    importlib.invalidate_caches()
    module._path.cache_clear()
    return folder


def digest(folder: Path, source: str) -> str:
    file = folder / "parts.py"
    before = file.stat().st_mtime_ns
    file.write_text(source)
    os.utime(file, ns=(before + 10**9, before + 10**9))
    found = closure(["fingerprinted.whole:X"], ("fingerprinted",))
    return "\n".join(found[key] for key in sorted(found))


@pytest.mark.parametrize(
    ("old", "new", "stale"),
    [
        ("2 * x", "3 * x", True),
        ("SHARED = 3.0", "SHARED = 4.0", True),
        ("+ SHARED", "- SHARED", True),
        ("return pi", "return 2 * pi", False),
        ("return 2 * x", "# doubled\n    return 2 * x", False),
        ("Doc.", "Documented.", False),
        ("x: float) -> float", "x: int) -> int", False),
    ],
)
def test_an_edit_counts_where_it_is_used(package: Path, old: str, new: str, stale: bool) -> None:
    assert old in SOURCE
    assert (digest(package, SOURCE) != digest(package, SOURCE.replace(old, new))) is stale


def config(model: dict[str, Any] | None, task: str = "language") -> dict[str, Any]:
    return {"model": model, "task": {"name": task, "args": {}}, "train": {}}


def test_each_cell_has_the_code_that_it_runs() -> None:
    atlas = tiny("atlas")
    muon = fingerprint(config(resolve(atlas)))
    assert fingerprint(config(resolve(apply(atlas, "window", 2)))) == muon, "a number is no code"
    gd = fingerprint(config(resolve(apply(atlas, "inner_optimizer", "gd"))))
    attention = fingerprint(config(resolve(tiny("transformer"))))
    learner = fingerprint(config(None, "learnability"))
    assert len({muon, gd, attention, learner}) == 4


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("atlas", {"NeuralMemory", "MemoryAlone"}),
        ("dot", {"ExponentialMemory", "MemoryAlone"}),
        ("transformer", {"SoftmaxAttention", "MemoryAlone"}),
        ("atlas_mag", {"NeuralMemory", "SoftmaxAttention", "MemoryAsGate"}),
    ],
)
def test_only_the_layers_in_use_count(
    name: str, layers: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: set[str] = set()

    def spy(*args: Any, **kwargs: Any) -> dict[str, str]:
        found = closure(*args, **kwargs)
        reached.update(key.rpartition(":")[2] for key in found if ".components." in key)
        return found

    monkeypatch.setattr(module, "closure", spy)
    fingerprint(config(resolve(tiny(name))))
    rivals = {"NeuralMemory", "ExponentialMemory", "SoftmaxAttention", "MemoryAlone",
              "MemoryAsGate", "MemoryAsContextLayer", "run_kernel", "run_chunked"}  # fmt: skip
    used = {"NeuralMemory": {"run_chunked"}, "ExponentialMemory": {"run_kernel"}}
    expected = layers.union(*(used.get(layer, set()) for layer in layers))
    assert reached & rivals == expected


def test_an_inner_optimiser_reaches_its_gate_but_not_its_rivals() -> None:
    names = {key.rpartition(":")[2] for key in closure(["ablate.components.inner_optimizer:Muon"])}
    assert {"Muon", "InnerOptimizer", "HeadGate"} <= names
    assert not {"GradientDescent", "Momentum", "Polynomial"} & names
