"""Compile kernels ahead of time for GPUs that need not be here, and print what they take, as JSON.

`python tests/kernel_usage.py sm_90 gfx942`: the first launch of each size; with `--others` the rest
of those that may be tried, and products of float32. It runs in a process of its own: a process that
interprets kernels cannot compile them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from ablate.components.kernels import (
    fast_weight,
    polynomial,
    polynomial_kernels,
    read_kernels,
    scan_kernels,
)
from ablate.components.kernels.newton_schulz import TOKENS, launches
from ablate.components.kernels.newton_schulz_backward import backward_kernel
from ablate.components.kernels.newton_schulz_kernels import forward_kernel
from ablate.components.kernels.products import Products

SIZES = (32, 64, 128)
SHARED = 227 * 1024
LINEAR = (
    ("read", read_kernels.forward_kernel),
    ("read", read_kernels.backward_tokens_kernel),
    ("read", read_kernels.backward_sources_kernel),
    ("read", read_kernels.backward_state_kernel),
    ("scan", scan_kernels.forward_kernel),
    ("scan", scan_kernels.backward_kernel),
    ("scan", scan_kernels.backward_sources_kernel),
)
_SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True)
class Case:
    """One kernel as it is compiled.

    constants: by name. types: of arguments that are no pointer to float32, by name. shared: what
    the launch says that it takes at most.
    """

    name: str
    kernel: Any
    constants: dict[str, Any]
    types: dict[str, str]
    warps: int
    shared: int


def cases(*, others: bool, amd: bool) -> Iterator[Case]:
    """All that is compiled: the first launch of each size, or what else may run."""
    kind = Products("bfloat16", "ieee")
    exact = Products("float32", "ieee" if amd else "tf32x3")
    yield from newton_schulz(kind, SIZES, slice(1, None) if others else slice(1))
    # AMD at one size, and float32 at the size that presses most: each takes half a second.
    some = SIZES[2:] if others else SIZES[1:2] if amd else SIZES
    yield from linear(exact if others else kind, some)
    yield from lifted(exact if others else kind, some)
    if others:
        yield from lifted(exact, some, tokens=16)
        yield from newton_schulz(exact, SIZES[1:], slice(1))


def newton_schulz(kind: Products, sizes: tuple[int, ...], which: slice) -> Iterator[Case]:
    """The kernels of `components/kernels/newton_schulz.py` for square matrices."""
    types = dict.fromkeys(("steps", "sources", "writes", "group", "tokens"), "i32") | {
        "eps": "fp32",
        **dict.fromkeys(("narrow", "squares", "dual", "grams"), f"*{kind.triton}"),
    }
    for size in sizes:
        tried = launches(size, size, kind, shared=SHARED)
        for place, launch in list(enumerate(tried))[which]:
            constants = {
                "rows": size, "cols": size, "ROWS": launch.rows, "COLS": launch.cols,
                "SIDE": launch.side, "BLOCK": launch.block, "TOKENS": TOKENS, "FROM_RIGHT": True,
                "DOT": kind.triton, "PRECISION": kind.precision,
            }  # fmt: skip
            for kernel in (forward_kernel, backward_kernel):
                known = {name: v for name, v in constants.items() if name in kernel.arg_names}
                name = f"newton_schulz.{kernel.__name__}.{size}.{kind.kind}"
                name += f".{place}" if place else ""
                yield Case(name, kernel, known, types, launch.warps, launch.shared)


def linear(kind: Products, sizes: tuple[int, ...]) -> Iterator[Case]:
    """The kernels of `components/kernels/fast_weight.py`: momentum, and chunks of 64 tokens."""
    types = dict.fromkeys(("tokens", "sources", "stretches", "heads"), "i32")
    for size in sizes:
        launch = fast_weight.Launch.of(64, 127, size, kind)
        constants = {
            **dict.fromkeys(("rows", "cols", "inner", "width"), size), "STATES": 2, "PROBES": 1,
            "TOKENS": launch.tokens, "SOURCES": launch.sources, "ROWS": launch.rows,
            "BLOCK": launch.block, "DOT": kind.triton, "PRECISION": kind.precision,
        }  # fmt: skip
        for prefix, kernel in LINEAR:
            known = {k: v for k, v in constants.items() if k in kernel.arg_names}
            name = f"{prefix}.{kernel.__name__}.{size}.{kind.kind}"
            yield Case(name, kernel, known, types, fast_weight.WARPS, launch.shared)


def lifted(
    kind: Products, sizes: tuple[int, ...], tokens: int = polynomial.TOKENS
) -> Iterator[Case]:
    """The kernels of `components/kernels/polynomial.py`, for chunks of so many tokens or more."""
    for size in sizes:
        constants = {
            "rows": size, "WIDTH": size, "COLS": size * (size + 3) // 2 + 1, "SHIFT": 1,
            "TOKENS": tokens, "ROWS": polynomial.ROWS, "BLOCK": polynomial.BLOCK,
            "DOT": kind.triton, "PRECISION": kind.precision,
        }  # fmt: skip
        for name in ("read", "write", "slope"):
            kernel = getattr(polynomial_kernels, f"{name}_kernel")
            label = f"polynomial.{name}_kernel.{size}.{kind.kind}.{tokens}"
            said = polynomial.shared(kind)
            yield Case(label, kernel, constants, {"tokens": "i32"}, polynomial.WARPS, said)


def usage(case: Case, target: str) -> dict[str, int]:
    """Registers, spilled bytes and shared memory of one kernel on one target."""
    signature = {name: _type(name, case) for name in case.kernel.arg_names}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(case.kernel.arg_names)
        if signature[name].startswith("*")
    }
    source = ASTSource(
        fn=case.kernel, signature=signature, constexprs=case.constants, attrs=aligned
    )
    options = {"num_warps": case.warps, "num_stages": 1}
    amd = target.startswith("gfx")
    chip = GPUTarget("hip", target, 64) if amd else GPUTarget("cuda", int(target[3:]), 32)
    made = triton.compile(source, target=chip, options=options)
    found = _of_amd(made.asm["amdgcn"]) if amd else _of_nvidia(made.asm["ptx"], target)
    return found | {"shared": int(made.metadata.shared), "said": case.shared}


def _of_amd(assembly: str) -> dict[str, int]:
    found = {
        name: int(value)
        for name, value in re.findall(
            r"\.(\w+_count|private_segment_fixed_size):\s+(\d+)", assembly
        )
    }
    # This segment is memory of one thread: bytes that are spilled, as ptxas counts them.
    return {
        "registers": found["vgpr_count"] + found.get("agpr_count", 0),
        "spilled": found["private_segment_fixed_size"],
    }


def _of_nvidia(ptx: str, target: str) -> dict[str, int]:
    arch = int(target[3:])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.ptx")
        file.write_text(ptx)
        name = f"--gpu-name={target}{'a' if arch >= 90 else ''}"
        command = [get_ptxas(arch).path, "-v", name, str(file), "-o", f"{folder}/kernel.cubin"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spills = _SPILL.search(said)
    registers = re.search(r"Used (\d+) registers", said)
    if spills is None or registers is None:
        raise RuntimeError(f"ptxas did not say what a kernel takes: {said}")
    return {"registers": int(registers[1]), "spilled": int(spills[1]) + int(spills[2])}


def _type(name: str, case: Case) -> str:
    return "constexpr" if name in case.constants else case.types.get(name, "*fp32")


if __name__ == "__main__":
    targets = [one for one in sys.argv[1:] if one != "--others"]
    found = {
        f"{case.name}.{target}": usage(case, target)
        for target in targets
        for case in cases(others="--others" in sys.argv, amd=target.startswith("gfx"))
    }
    print(json.dumps(found))
