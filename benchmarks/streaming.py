"""What a model holds while it reads one BABILong sample of a million tokens, piece by piece.

The sample is qa1 among help texts, made while it is read; the model has its initial weights, since
what it holds does not depend on them. A line each at 1k, 10k, 100k tokens and so on.

    python -m benchmarks.streaming [MODEL] [--tokens N] [--segment N] [--json]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from torch import nn

from ablate.components.state_size import state_bytes
from ablate.experiments.babilong.stream import segments
from ablate.experiments.babilong.task import BABILongTask
from ablate.trial.build import build_model, compose_model
from ablate.trial.memory import peak_memory, reset_peak_memory
from benchmarks.interleaved import machine
from benchmarks.models import check_names

FIRST = 1_000


@dataclass(frozen=True)
class Mark:
    """Where a stream is.

    Args:
        tokens: read so far.
        state_bytes: of what the model carries on.
        peak_bytes: most memory of this process that was resident at once since the start.
        seconds: of CPU time since the start, the making of the text included.
    """

    tokens: int
    state_bytes: int
    peak_bytes: int
    seconds: float


def small_model(name: str, vocab: int) -> nn.Module:
    """A preset of one layer, width 32 and one head, with its initial weights."""
    config = compose_model(name)
    config["backbone"] = {**config["backbone"], "dim": 32, "layers": 1, "heads": 1}
    return build_model(config, vocab, seed=0).eval()


@torch.no_grad()
def read(model: nn.Module, task: BABILongTask, tokens: int, marks: set[int]) -> Iterator[Mark]:
    """Read one sample of `tokens` tokens, `task.segment` at a time, and look at each mark.

    Args:
        model: called as ``model(tokens, state)``.
        task: where the sample is from; its first scored one.
        tokens: length of the sample.
        marks: multiples of the segment, at which a `Mark` is given.
    """
    parts = task.pieces(task.test[0], length=tokens, seed=0, train=False)
    state, seen, began = None, 0, time.process_time()
    reset_peak_memory("cpu")
    for part in segments(parts, task.segment):
        _, state = model(torch.from_numpy(part)[None], state)
        seen += len(part)
        if seen in marks:
            spent = time.process_time() - began
            yield Mark(seen, state_bytes(state), peak_memory("cpu"), spent)


def powers(tokens: int) -> set[int]:
    """1,000, 10,000 and so on below `tokens`, and `tokens`."""
    found = {tokens}
    mark = FIRST
    while mark < tokens:
        found.add(mark)
        mark *= 10
    return found


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("model", nargs="?", default="deltanet")
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--segment", type=int, default=FIRST, help="must divide 1,000")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    check_names(parser, [given.model])
    if FIRST % given.segment or given.tokens % given.segment:
        parser.error(f"--segment {given.segment} must divide 1,000 and --tokens {given.tokens}")
    torch.set_num_threads(1)
    task = BABILongTask(segment=given.segment, test_rows=1)
    model = small_model(given.model, task.vocab)
    with torch.no_grad():
        model(torch.zeros(1, given.segment, dtype=torch.long))  # what PyTorch loads on first use
    found = []
    if not given.json:
        print(f"{given.model}: tokens, state in KiB, peak resident in MiB, CPU seconds")
    for mark in read(model, task, given.tokens, powers(given.tokens)):
        found.append(mark)
        if not given.json:
            sizes = f"{mark.state_bytes / 2**10:12,.1f} {mark.peak_bytes / 2**20:10,.1f}"
            print(f"{mark.tokens:12,} {sizes} {mark.seconds:10.1f}", flush=True)
    if given.json:
        marks = [asdict(mark) for mark in found]
        print(json.dumps({"model": given.model, **machine(), "marks": marks}))


if __name__ == "__main__":
    main()
