"""Peak memory of one case: a process of its own that runs it once, forward and backward.

The peak is the most of the process's resident memory (VmHWM of /proc, set back before the run),
less what was resident before it: libraries, weights and inputs. A short run of the same layer
comes first, so that what PyTorch loads on first use is not counted; what that run freed is given
back to the system.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.cases import Case, make

ROOT = Path(__file__).resolve().parent.parent
SHORT = 128


def peak_bytes(case: Case) -> int:
    """Bytes that forward and backward take at most, measured in a new process."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peak", json.dumps(asdict(case))],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    return int(done.stdout)


def _measure(case: Case) -> int:
    import torch

    from ablate.trial.memory import peak_memory, reset_peak_memory

    torch.set_num_threads(1)
    make(replace(case, tokens=min(SHORT, case.tokens))).both()
    run = make(case)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
    if trim is not None:
        trim(0)
    reset_peak_memory("cpu")
    before = peak_memory("cpu")
    kept = run.both()
    del kept
    return peak_memory("cpu") - before


if __name__ == "__main__":
    print(_measure(Case(**json.loads(sys.argv[1]))))
