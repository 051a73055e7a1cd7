"""In Triton's interpreter against the features themselves in float64: outputs and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ablate.components.dims import Dims
from ablate.components.feature_map import Polynomial, read_monomials
from ablate.components.kernels import polynomial
from ablate.components.kernels.exactness import with_gradients, worst
from ablate.components.kernels.polynomial import read_polynomial

pytestmark = pytest.mark.usefixtures("poisoned")


def drawn(p: int, n: int, d: int, o: int, *, constant: bool) -> list[Tensor]:
    """Tokens, matrices, and roots of both signs that differ by row."""
    stream = torch.Generator().manual_seed(0)
    shapes = ((p, n, d), (p, o, d * (d + 3) // 2 + constant), (p, 2 + constant))
    return [torch.randn(shape, generator=stream) * 0.5 for shape in shapes]


@pytest.mark.parametrize("constant", [True, False])
def test_torch_reads_at_the_features_of_the_map(constant: bool) -> None:
    lift = Polynomial(Dims(model=3, heads=1, key=3, value=3), constant=constant).double()
    x, matrix, _ = (y.double() for y in drawn(2, 5, 3, 4, constant=constant))
    read = read_monomials(x, matrix, lift.roots(torch.float64).expand(2, -1))
    torch.testing.assert_close(read, lift(x) @ matrix.mT)


@pytest.mark.parametrize(
    ("p", "n", "d", "o", "constant"),
    [
        pytest.param(2, 5, 3, 2, True, id="constant"),
        pytest.param(2, 3, 4, 5, False, id="no constant"),
        pytest.param(1, 17, 18, 17, True, id="several blocks of everything"),
    ],
)
def test_a_read_and_every_gradient_are_those_of_the_features(
    monkeypatch: pytest.MonkeyPatch, p: int, n: int, d: int, o: int, constant: bool
) -> None:
    for tile in ("TOKENS", "ROWS", "BLOCK"):
        monkeypatch.setattr(polynomial, tile, 16)
    given = drawn(p, n, d, o, constant=constant)
    true = with_gradients(read_monomials, [x.double() for x in given])
    for found, right in zip(with_gradients(read_polynomial, given), true, strict=True):
        assert worst([found], [right]) < 5e-6


def test_lanes_are_more_rows() -> None:
    """Each with coefficients of its own."""
    lanes = [torch.stack([x, 2 * x]) for x in drawn(1, 3, 2, 2, constant=True)]

    def total(*given: Tensor) -> Tensor:
        return read_polynomial(*given).square().sum()

    slopes = torch.func.grad(total, (0, 1, 2))
    mapped = torch.func.vmap(slopes)(*lanes)
    for lane in range(2):
        for one, many in zip(slopes(*(x[lane] for x in lanes)), mapped, strict=True):
            torch.testing.assert_close(many[lane], one)


def test_matrices_and_roots_of_other_widths_are_refused() -> None:
    with pytest.raises(ValueError, match="11 features of 3 numbers; there are 9 .* or 10 with"):
        read_polynomial(torch.zeros(1, 2, 3), torch.zeros(1, 2, 11), torch.ones(1, 3))
    with pytest.raises(ValueError, match="3 roots, but the 9 columns of the matrix are of 2 deg"):
        read_polynomial(torch.zeros(1, 2, 3), torch.zeros(1, 2, 9), torch.ones(1, 3))


def test_the_self_check_passes_here_and_finds_a_wrong_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = (1, 2, 2, 3)
    error, allowed = polynomial.self_check(torch.device("cpu"), sizes)
    assert error < 2e-5 < allowed
    monkeypatch.setattr(polynomial, "read_polynomial", lambda *x: 1.01 * read_polynomial(*x))
    assert polynomial.self_check(torch.device("cpu"), sizes)[0] > allowed
