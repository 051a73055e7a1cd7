"""Compile kernels ahead of time for GPUs that need not be here, and print what they take, as JSON.

`python tests/kernel_usage.py 80 90 100`. It runs in a process of its own: a process that interprets
kernels cannot compile them.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from ablate.components.kernels.newton_schulz import Launch
from ablate.components.kernels.newton_schulz_kernels import backward_kernel, forward_kernel

_WHOLE = ("steps", "sources", "writes", "tokens")
_NARROW = ("narrow", "dual", "grams")
_SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
SIZES = (32, 64, 128)
TOKENS = 16


def kernels() -> Iterator[tuple[str, Any, dict[str, Any], int]]:
    """Name, kernel, constants and warps of all that is compiled."""
    for fn, size in itertools.product((forward_kernel, backward_kernel), SIZES):
        launch = Launch.of(size, size, tl.bfloat16)
        constants = {
            "rows": size, "cols": size, "ROWS": launch.rows, "COLS": launch.cols,
            "BLOCK": launch.block, "SOURCES": 2 * TOKENS, "TOKENS": TOKENS,
            "FROM_RIGHT": True, "DOT": launch.dot, "PRECISION": "ieee",
        }  # fmt: skip
        known = {name: value for name, value in constants.items() if name in fn.arg_names}
        yield f"newton_schulz.{fn.__name__}.{size}", fn, known, launch.warps


def usage(fn: Any, constants: dict[str, Any], warps: int, arch: int) -> dict[str, int]:
    """Registers, spilled bytes and shared memory of one kernel on one target."""
    signature = {name: _type(name, constants) for name in fn.arg_names}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(fn.arg_names)
        if signature[name].startswith("*")
    }
    source = ASTSource(fn=fn, signature=signature, constexprs=constants, attrs=aligned)
    options = {"num_warps": warps, "num_stages": 1}
    made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    with tempfile.TemporaryDirectory() as folder:
        ptx = Path(folder, "kernel.ptx")
        ptx.write_text(made.asm["ptx"])
        name = f"--gpu-name=sm_{arch}{'a' if arch >= 90 else ''}"
        command = [get_ptxas(arch).path, "-v", name, str(ptx), "-o", f"{folder}/kernel.cubin"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spills = _SPILL.search(said)
    registers = re.search(r"Used (\d+) registers", said)
    if spills is None or registers is None:
        raise RuntimeError(f"ptxas did not say what {fn.__name__} takes: {said}")
    return {
        "registers": int(registers[1]),
        "spilled": int(spills[1]) + int(spills[2]),
        "shared": int(made.metadata.shared),
    }


def _type(name: str, constants: dict[str, Any]) -> str:
    if name in constants:
        return "constexpr"
    if name in _WHOLE:
        return "i32"
    if name == "eps":
        return "fp32"
    return "*bf16" if name in _NARROW else "*fp32"


if __name__ == "__main__":
    found = {
        f"{name}.sm_{arch}": usage(fn, constants, warps, arch)
        for name, fn, constants, warps in kernels()
        for arch in map(int, sys.argv[1:])
    }
    print(json.dumps(found))
