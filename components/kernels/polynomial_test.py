"""In Triton's interpreter against the features themselves in float64: outputs and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ablate.components.dims import Dims
from ablate.components.feature_map import Polynomial
from ablate.components.kernels import polynomial
from ablate.components.kernels.exactness import worst
from ablate.components.kernels.polynomial import read_polynomial, write_polynomial

pytestmark = pytest.mark.usefixtures("poisoned")


def features(x: Tensor, roots: Tensor, *, constant: bool) -> Tensor:
    """The torch form's monomials, with roots that have gradients."""
    d = x.shape[-1]
    lift = Polynomial(Dims(model=d, heads=1, key=d, value=d), constant=constant).to(x.dtype)
    own = lift.coefficients().sqrt()
    sizes = torch.tensor(lift.sizes)
    used = roots if constant else roots[1:]
    return lift(x) * torch.repeat_interleave(used / own, sizes)


@pytest.mark.parametrize(
    ("p", "n", "d", "o", "constant"),
    [
        pytest.param(2, 5, 3, 2, True, id="constant"),
        pytest.param(1, 3, 4, 5, False, id="no constant"),
        pytest.param(1, 17, 18, 17, True, id="several blocks of everything"),
    ],
)
def test_products_and_every_gradient_are_those_of_the_features(
    monkeypatch: pytest.MonkeyPatch, p: int, n: int, d: int, o: int, constant: bool
) -> None:
    for tile in ("TOKENS", "ROWS", "BLOCK"):
        monkeypatch.setattr(polynomial, tile, 16)
    stream = torch.Generator().manual_seed(0)
    f = d * (d + 3) // 2 + constant
    x, u, matrix = (
        torch.randn(shape, generator=stream) * 0.5 for shape in ((p, n, d), (p, n, o), (p, o, f))
    )
    roots = torch.tensor([0.7, 1.3, -0.6])
    found, true = [], []
    for made, kind in ((found, torch.float32), (true, torch.float64)):
        gx, gu, gm, gr = (t.to(kind).requires_grad_() for t in (x, u, matrix, roots))
        if made is found:
            y = read_polynomial(gx, gm, gr)
            written = write_polynomial(gu, gx, gr, constant=constant)
        else:
            phi = features(gx, gr, constant=constant)
            y, written = phi @ gm.mT, gu.mT @ phi
        total = (y * gu).square().sum() + (written * gm).sum()
        made += [y, written, *torch.autograd.grad(total, (gx, gu, gm, gr))]
    assert worst(found, true) < 5e-6


def test_a_matrix_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="11 features of 3 numbers; there are 9 .* or 10 with"):
        read_polynomial(torch.zeros(1, 2, 3), torch.zeros(1, 2, 11), torch.ones(3))
