from __future__ import annotations

import itertools
import math

import pytest
import torch

from ablate.components.dims import Dims
from ablate.components.feature_map import Constant, EluPlusOne, Identity, Polynomial

DIMS = Dims(model=4, heads=1, key=4, value=4)
CASES = list(itertools.product(["monomial", "kronecker"], [1, 2, 3, 4], [True, False]))


def _polynomial(seed: int = 0, **options: object) -> Polynomial:
    phi = Polynomial(DIMS, **options).double()  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        phi.raw.normal_(generator=generator)
    return phi


def _rows(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("construction", "degree", "constant"), CASES)
def test_the_kernel_is_the_polynomial_of_the_dot_product(
    construction: str, degree: int, constant: bool
) -> None:
    phi = _polynomial(degree=degree, construction=construction, constant=constant)
    q, k = _rows(6, 4), _rows(5, 4, seed=2)
    degrees = range(0 if constant else 1, degree + 1)
    dot = q @ k.T
    want = sum(a * dot**i for a, i in zip(phi.coefficients(), degrees, strict=True))
    torch.testing.assert_close(phi(q) @ phi(k).T, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("degree", "constant"), [(1, True), (3, True), (4, False)])
def test_the_elementwise_kernel_is_a_sum_over_coordinates(degree: int, constant: bool) -> None:
    phi = _polynomial(degree=degree, construction="elementwise", constant=constant)
    q, k = _rows(6, 4), _rows(5, 4, seed=2)
    degrees = range(0 if constant else 1, degree + 1)
    products = q.unsqueeze(1) * k
    want = sum(
        a * ((products**i).sum(-1) if i else 1.0)
        for a, i in zip(phi.coefficients(), degrees, strict=True)
    )
    torch.testing.assert_close(phi(q) @ phi(k).T, want, rtol=1e-12, atol=1e-12)
    assert phi.width == 4 * degree + constant
    assert torch.linalg.matrix_rank(phi(_rows(40, 4))) == phi.width


@pytest.mark.parametrize("construction", ["monomial", "kronecker", "elementwise"])
def test_a_projection_goes_before_the_lift(construction: str) -> None:
    phi = Polynomial(DIMS, degree=2, construction=construction, rank=2).double()
    phi.init_weights(lambda _: torch.Generator().manual_seed(0))
    assert phi.down is not None
    narrow = Polynomial(Dims(model=4, heads=1, key=2, value=2), degree=2, construction=construction)
    x = _rows(3, 5, 4).requires_grad_()
    torch.testing.assert_close(phi(x), narrow.double()(x @ phi.down.T))
    assert phi.width == narrow.width
    phi(x).sum().backward()
    assert phi.down.grad is not None
    assert phi.down.grad.abs().min() > 0


def test_a_projection_keeps_lengths_on_average() -> None:
    wide = Dims(model=4, heads=1, key=64, value=4)
    phi = Polynomial(wide, degree=1, constant=False, rank=16).double()
    phi.init_weights(lambda _: torch.Generator().manual_seed(0))
    x = torch.nn.functional.normalize(_rows(200, 64), dim=-1)
    assert phi(x).square().sum(-1).mean().item() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(("construction", "degree", "constant"), CASES)
def test_the_width_is_the_number_of_features(
    construction: str, degree: int, constant: bool
) -> None:
    phi = _polynomial(degree=degree, construction=construction, constant=constant)
    full = {
        "monomial": math.comb(4 + degree, degree),
        "kronecker": sum(4**i for i in range(degree + 1)),
    }[construction]
    assert phi.width == full - (not constant)
    assert phi(_rows(2, 3, 4)).shape == (2, 3, phi.width)


@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_lifted_random_keys_have_the_rank_of_all_monomials(degree: int) -> None:
    rank = math.comb(4 + degree, degree)
    for construction in ("monomial", "kronecker"):
        lifted = _polynomial(degree=degree, construction=construction)(_rows(rank + 20, 4))
        assert torch.linalg.matrix_rank(lifted) == rank


def test_coefficients_start_at_the_taylor_series_of_exp() -> None:
    want = torch.tensor([1 / math.factorial(i) for i in range(5)])
    phi = Polynomial(DIMS, degree=4)
    torch.testing.assert_close(phi.coefficients(), want, rtol=2e-7, atol=0)
    with torch.no_grad():
        phi.raw.zero_()
    phi.init_weights(lambda _: torch.Generator())
    torch.testing.assert_close(phi.coefficients(), want, rtol=2e-7, atol=0)


def test_a_single_linear_coefficient_gives_the_identity_map() -> None:
    phi = Polynomial(DIMS, degree=1).double()
    with torch.no_grad():
        phi.raw.copy_(torch.tensor([-1e4, math.log(math.e - 1)]))
    x = _rows(3, 4)
    torch.testing.assert_close(phi(x), torch.cat([torch.zeros(3, 1), x], dim=-1))


@pytest.mark.parametrize("raw", [-1e4, -200.0, -80.0, -5.0])
def test_a_vanishing_coefficient_gives_finite_gradients(raw: float) -> None:
    phi = Polynomial(DIMS, degree=3)
    with torch.no_grad():
        phi.raw[2] = raw
    x = _rows(3, 4).float().requires_grad_()
    phi(x).sum().backward()
    assert x.grad is not None
    assert phi.raw.grad is not None
    assert x.grad.isfinite().all()
    assert phi.raw.grad.isfinite().all()


@pytest.mark.parametrize("construction", ["monomial", "kronecker", "elementwise"])
def test_gradients_equal_finite_differences(construction: str) -> None:
    phi = _polynomial(degree=3, construction=construction)
    x = _rows(2, 2, 4).requires_grad_()

    def lift(x: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
        lifted: torch.Tensor = torch.func.functional_call(phi, {"raw": raw}, (x,))
        return lifted

    assert torch.autograd.gradcheck(lift, (x, phi.raw.detach().requires_grad_()))


def test_every_shape_of_input_is_lifted_row_by_row() -> None:
    phi = _polynomial(degree=2)
    x = _rows(2, 3, 5, 4)
    lifted = phi(x)
    torch.testing.assert_close(lifted[1, 2], phi(x[1, 2]))
    torch.testing.assert_close(lifted[1, 2, 3], phi(x[1, 2, 3]))
    torch.testing.assert_close(phi(x.transpose(0, 2)), lifted.transpose(0, 2))


def test_coefficients_can_be_fixed() -> None:
    assert not Polynomial(DIMS, learnable=False).raw.requires_grad
    assert Polynomial(DIMS).raw.requires_grad


@pytest.mark.parametrize("degree", [0, -1])
def test_a_degree_below_one_is_refused(degree: int) -> None:
    with pytest.raises(ValueError, match=rf"degree={degree}: must be >= 1"):
        Polynomial(DIMS, degree=degree)


def test_a_rank_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="rank=0: must be None or a whole number >= 1"):
        Polynomial(DIMS, rank=0)


def test_an_unknown_construction_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="construction='sketch': must be one of monomial, kron"):
        Polynomial(DIMS, construction="sketch")


def test_identity_returns_its_input() -> None:
    phi, x = Identity(DIMS), _rows(2, 4)
    assert phi(x) is x
    assert phi.width == 4


def test_a_constant_map_is_one_feature() -> None:
    phi, x = Constant(DIMS), _rows(2, 3, 4)
    assert phi.width == 1
    torch.testing.assert_close(phi(x), torch.ones(2, 3, 1, dtype=torch.float64))


def test_elu_plus_one_is_positive_and_smooth_at_zero() -> None:
    phi, x = EluPlusOne(DIMS), torch.tensor([-3.0, -1e-7, 0.0, 1e-7, 2.0])
    want = torch.tensor([torch.e**-3, 1.0, 1.0, 1.0, 3.0])
    torch.testing.assert_close(phi(x), want)
    assert phi.width == 4
