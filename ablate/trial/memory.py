"""Memory of this process: the most that a trial took, and whether it was too much."""

from __future__ import annotations

import platform
import resource

import torch


def is_out_of_memory(error: Exception) -> bool:
    """Tell whether an error means that memory, of the GPU or the machine, was full."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def reset_peak_memory(device: str) -> None:
    """Forget the peak of earlier trials in this process, where the system lets us."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass


def peak_memory(device: str) -> int:
    """Most bytes in use at once: allocated on the GPU, or resident in this process on the CPU."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    try:
        with open("/proc/self/status") as file:
            peak = next(line for line in file if line.startswith("VmHWM:"))
        return int(peak.split()[1]) * 1024
    except (OSError, StopIteration):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if platform.system() == "Darwin" else most * 1024
