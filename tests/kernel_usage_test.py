"""The kernels compile for GPUs that are not here, and their hot loops keep to the registers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SHARED = {
    "sm_80": 163 * 1024,
    "sm_90": 227 * 1024,
    "sm_100": 227 * 1024,
    "gfx942": 64 * 1024,
}
# Bytes of one thread at 128 rows; that may fall, never grow.
SPILLED = {
    "newton_schulz.backward_kernel.128.bfloat16.sm_80": 8,
    "newton_schulz.backward_kernel.128.bfloat16.gfx942": 360,
}
Found = dict[str, dict[str, int]]


def compiled(*arguments: str) -> Found:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_DEFAULT_FP_FUSION"] = "1"
    script = Path(__file__).with_name("kernel_usage.py")
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def found() -> Found:
    return compiled(*SHARED)


@pytest.fixture(scope="module")
def others() -> Found:
    """The other launches that tuning may try, and the products of float32, on one target."""
    return compiled("sm_90", "--others")


def test_every_kernel_compiles_for_every_target(found: Found) -> None:
    names = {name.rpartition(".")[0] for name in found}
    everywhere = {f"{name}.{target}" for name in names for target in SHARED}
    assert {name for name in everywhere - set(found) if "gfx" not in name} == set()
    # Newton-Schulz 2, linear writes 7, features 3, of three sizes; on AMD the last ten of one.
    assert len(found) == 3 * 3 * (2 + 7 + 3) + (3 * 2 + 7 + 3)
    assert {name.split(".")[0] for name in found if "gfx" in name} == {
        "newton_schulz", "polynomial", "read", "scan",
    }  # fmt: skip
    sizes = {f"newton_schulz.{one}_kernel.{size}.bfloat16" for one in ("forward", "backward")
             for size in (32, 64, 128)}  # fmt: skip
    assert sizes <= names
    for name, used in found.items():
        assert used["registers"] <= (512 if "gfx" in name else 255), name
        assert used["shared"] <= used["said"] <= SHARED[name.rpartition(".")[2]], name


def test_no_registers_are_spilled(found: Found) -> None:
    for name, used in found.items():
        assert used["spilled"] <= SPILLED.get(name, 0), name


def test_every_launch_that_is_tried_compiles_and_takes_what_it_says(others: Found) -> None:
    """Pruning goes by what a launch says."""
    assert {name.split(".")[3] for name in others if name.startswith("newton")} == {
        "bfloat16", "float32",
    }  # fmt: skip
    for name, used in others.items():
        assert used["shared"] <= used["said"], name
        assert used["spilled"] == 0, name
