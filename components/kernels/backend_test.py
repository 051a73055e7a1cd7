"""What runs where, why not, and what is said of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from ablate.components.kernels import backend, newton_schulz
from ablate.components.kernels.backend import (
    Use,
    facts,
    kernel,
    nothing_served,
    refusals,
    serve,
    served,
    set_backend,
)

if TYPE_CHECKING:
    from ablate.components.conftest import MakeLayer

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)
FITS, LARGE = Use("newton_schulz", 64, 300), Use("newton_schulz", 160, 200)
BLOCKED = Use("newton_schulz", 8, 8, "there are no steps")


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's first run of a kernel that finds nothing wrong; there is none here."""
    monkeypatch.setattr(backend, "_wrong", lambda *_: None)


@pytest.mark.usefixtures("works")
@pytest.mark.parametrize(
    ("use", "choice", "device", "dtype", "runs", "reason"),
    [
        (FITS, "auto", GPU, torch.float32, "triton", ""),
        (FITS, "triton", CPU, torch.float32, "triton", ""),
        (FITS, "torch", GPU, torch.float32, "torch", "asked for"),
        (FITS, "auto", CPU, torch.float32, "torch", "interpreter, which is for tests"),
        (FITS, "triton", torch.device("meta"), torch.float32, "torch", "kernels need a GPU"),
        (FITS, "auto", GPU, torch.float64, "torch", "compute in float32, not in float64"),
        (LARGE, "auto", GPU, torch.float32, "torch", "160 by 200; the smaller side must be at"),
        (BLOCKED, "triton", CPU, torch.float32, "torch", "there are no steps"),
    ],
)
def test_a_use_is_served_or_refused_with_its_reason(
    use: Use, choice: str, device: torch.device, dtype: torch.dtype, runs: str, reason: str
) -> None:
    found = serve(use, choice, device, dtype)
    assert found.backend == runs
    assert reason in found.reason
    assert bool(found.reason) == (runs == "torch")


def test_without_an_interpreter_or_triton_there_is_no_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    assert serve(FITS, "triton", CPU, torch.float32).reason == "kernels need a GPU"
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda _: None)
    found = serve(FITS, "auto", GPU, torch.float32)
    assert (found.backend, found.reason, found.fault) == ("torch", "Triton is not installed", True)


def test_a_kernel_that_is_wrong_on_a_device_is_not_used_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors = iter([(0.5, 1e-3), (float("nan"), 1e-3), (1e-6, 1e-3)])
    monkeypatch.setattr(newton_schulz, "self_check", lambda _: next(errors))
    said = [backend._wrong.__wrapped__("newton_schulz", "cuda:0", "highest") for _ in range(4)]
    assert said[0] == "on cuda:0 it is off by 5.0e-01, 1e-03 is allowed"
    assert said[1] == "on cuda:0 it is off by nan, 1e-03 is allowed"
    assert said[2] is None
    assert said[3] == "it does not run on cuda:0: StopIteration: "


def test_the_self_check_passes_here_and_finds_a_wrong_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = (1, 4, 5, 3, 2, 2)
    error, allowed = newton_schulz.self_check(CPU, sizes)
    assert error < 2e-5 < allowed
    given = newton_schulz.sums
    monkeypatch.setattr(newton_schulz, "gradients", lambda given, *_: given)
    monkeypatch.setattr(newton_schulz, "sums", lambda *a: tuple(1.01 * y for y in given(*a)))
    assert newton_schulz.self_check(CPU, sizes)[0] > allowed


def test_a_layer_says_what_runs_and_asks_for_just_that(make_layer: MakeLayer) -> None:
    layer = make_layer("mlp", "muon", dtype=torch.float32)
    assert [one.backend for one in served(layer, CPU)] == ["torch", "torch"]
    found = set_backend(layer, "triton", CPU)
    assert [str(one) for one in found] == [
        "newton_schulz 6x10: triton", "newton_schulz 3x6: triton",
    ]  # fmt: skip
    assert facts(found) == {"backend": "triton", "backend_newton_schulz": "triton: 6x10, 3x6"}
    like = torch.zeros(1, 6, 10)
    assert kernel("newton_schulz", layer.backend, like) is newton_schulz.orthogonal_sums
    assert kernel("newton_schulz", "auto", like) is None
    assert kernel("newton_schulz", "triton", like.double()) is None


def test_a_layer_without_kernels_says_why(make_layer: MakeLayer) -> None:
    plain = set_backend(make_layer("matrix", "least squares"), "triton", CPU)
    assert plain == ()
    assert facts(plain) == {"backend": "torch"}
    assert refusals(plain, "triton") == [
        "backend=triton: nothing of this model has a kernel: torch runs it"
    ]
    names = "newton_schulz, read_weight, write_weight, scan_weight, read_polynomial"
    assert f"none of its operations has one (there are: {names})" in str(nothing_served(plain))
    still = make_layer("matrix", "muon", steps=0, dtype=torch.float32)
    found = set_backend(still, "triton", CPU)
    assert facts(found)["backend_newton_schulz"] == "torch: 2x10 (there are no steps)"
    assert refusals(found, "triton") == [
        "backend=triton: newton_schulz 2x10: torch (there are no steps)"
    ]
    assert refusals(found, "auto") == []


def test_a_read_that_is_not_served_lifts_queries_and_is_another(
    make_layer: MakeLayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = make_layer("mlp", "gd", dtype=torch.float32)
    layer.backend = "auto"
    for wrong in (None, "off"):
        monkeypatch.setattr(
            backend, "_wrong", lambda name, *_, w=wrong: w if name == "read_polynomial" else None
        )
        told = facts(served(layer, GPU))
        assert told["backend_write_weight"] == "triton: 6x10, 3x6"
        first = "triton: 6x10" if wrong is None else "torch: 6x10 (off)"
        assert told["backend_read_polynomial"] == first
        assert told["backend_read_weight"] == (
            "triton: 3x6" if wrong is None else "triton: 6x10, 3x6"
        )


def test_kernels_that_cannot_be_had_are_an_error_and_an_unknown_choice_too(
    make_layer: MakeLayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = make_layer("matrix", "muon", dtype=torch.float32)
    with pytest.raises(ValueError, match="backend='cuda': must be one of auto, torch, triton"):
        set_backend(layer, "cuda", CPU)
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(ValueError, match="backend=triton cannot be had here: kernels need a GPU"):
        set_backend(layer, "triton", CPU)
    assert set_backend(layer, "auto", CPU)[0].reason == "kernels need a GPU"
