"""What each retention means: the minimiser of its objective, its limits, and what it refuses."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ablate.components.dims import Dims
from ablate.components.inner_optimizer import GradientDescent, ImplicitGradientDescent
from ablate.components.neural_memory import NeuralMemory
from ablate.components.nonlinear_retention import (
    BregmanSigmoid,
    ElasticNet,
    LqRetention,
    SimplexRetention,
    SoftThreshold,
)
from ablate.components.retention import (
    ChannelRetention,
    ConstantRetention,
    ResetRetention,
    Retention,
    TiedRetention,
)

DIMS = Dims(model=5, heads=2, key=4, value=3)
MakeLayer = Callable[..., NeuralMemory]
BOTH = functools.partial(ChannelRetention, side="both")


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _drawn(retention: Retention) -> Retention:
    for module in retention.modules():
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.normal_(module.weight, generator=torch.Generator().manual_seed(1))
        if hasattr(module, "init_weights"):
            module.init_weights(lambda _: torch.Generator())
    return retention


def _is_minimal(objective: Callable[[Tensor], Tensor], at: Tensor) -> bool:
    best = objective(at)
    return all(objective(at + 1e-4 * _normal(*at.shape, seed=s)) >= best for s in range(300))


def test_the_simplex_in_logits_is_memoras_update() -> None:
    retention = _drawn(SimplexRetention(DIMS)).double()
    logits = _normal(2, 3, 4)
    weights = retention.weights(logits)
    torch.testing.assert_close(weights.sum(-1), torch.full((2, 3), 2.0, dtype=torch.float64))
    assert (weights > 0).all()
    for step in range(4):
        gradient = _normal(2, 3, 4, seed=step + 1)
        weights = 2 * torch.softmax(0.9 * torch.log(weights / 2) - 0.3 * gradient, dim=-1)
        logits = 0.9 * logits - 0.3 * gradient
    torch.testing.assert_close(retention.weights(logits), weights)


def test_the_simplex_update_minimises_its_objective() -> None:
    old, gradient = torch.softmax(_normal(4), dim=-1), _normal(4, seed=1)

    def objective(logits: Tensor) -> Tensor:
        w = torch.softmax(logits, dim=-1)
        # lr <w, g> + KL(w, old) + entropy that pulls to the middle: alpha = 1 / (1 + 0.25)
        return (0.3 * w * gradient + w * (w / old).log() + 0.25 * w * w.log()).sum()

    logits = (old.log() - 0.3 * gradient) / 1.25
    assert _is_minimal(objective, logits)


def test_a_centred_simplex_has_rows_that_sum_to_zero() -> None:
    retention = _drawn(SimplexRetention(DIMS, centred=True)).double()
    rows = retention.weights(_normal(2, 3, 4)).sum(-1)
    torch.testing.assert_close(rows, torch.zeros_like(rows))


def test_the_corrected_lq_map_is_a_minimiser_and_the_printed_one_is_not() -> None:
    q = 4.0
    p = q / (q - 1)
    a = _normal(1, 2, 4)

    def objective(w: Tensor) -> Tensor:
        return -(w * a).sum() + 0.5 * (w.abs() ** p).sum() ** (2 / p)

    corrected = LqRetention(DIMS, q=q, eps=1e-14).weights(a)
    printed = LqRetention(DIMS, q=q, form="printed", eps=1e-14).weights(a)
    assert _is_minimal(objective, corrected)
    assert not _is_minimal(objective, printed)
    assert objective(printed) > objective(corrected) + 0.01
    torch.testing.assert_close(LqRetention(DIMS, q=q, eps=1e-14).weights(3 * a), 3 * corrected)


def test_lq_starts_from_norm_one() -> None:
    start = LqRetention(DIMS, q=3.0).accumulator(_normal(2, 3, 4))
    norms = (start.abs() ** 3).sum((-2, -1)) ** (1 / 3)
    torch.testing.assert_close(norms, torch.ones(2, dtype=torch.float64), atol=1e-5, rtol=0)


def test_the_elastic_net_is_a_minimiser() -> None:
    old, gradient = _normal(8), _normal(8, seed=1)
    eta, c1, c2 = 0.3, 0.7, 2.0
    keep = c2 / (c2 + eta)
    retention = ElasticNet(DIMS, sparsity=1 / c1)

    def objective(w: Tensor) -> Tensor:
        return (
            (w * gradient).sum()
            + ((w - old) ** 2).sum() / (2 * eta)
            + (w**2).sum() / (2 * c2)
            + w.abs().sum() / c1
        )

    lr = torch.tensor(eta * keep, dtype=torch.float64).reshape(1, 1, 1)
    made = retention.shrink((keep * old - lr * gradient).view(1, 1, 8), lr).view(8)
    assert (made == 0).any()
    assert _is_minimal(objective, made)


def test_soft_thresholds_of_zero_have_no_effect_and_smooth_ones_come_close() -> None:
    a, lr = _normal(2, 3, 4), torch.full((2, 1, 1), 0.2, dtype=torch.float64)
    assert torch.equal(SoftThreshold(DIMS, threshold=0.0).weights(a), a)
    assert torch.equal(ElasticNet(DIMS, sparsity=0.0).shrink(a, lr), a)
    hard = SoftThreshold(DIMS, threshold=0.3).weights(a)
    assert (hard == 0).any()
    torch.testing.assert_close(hard.abs(), (a.abs() - 0.3).clamp_min(0))
    smooth = SoftThreshold(DIMS, threshold=1e-4, smooth=True).weights(a)
    torch.testing.assert_close(smooth, a, atol=1e-3, rtol=0)


def test_q_of_two_is_the_accumulator_itself() -> None:
    a = _normal(2, 3, 4)
    for form in ("corrected", "printed"):
        retention = LqRetention(DIMS, q=2.0, form=form)
        assert torch.equal(retention.weights(a), a)
        assert torch.equal(retention.accumulator(a), a)


def test_bregman_weights_are_its_mirror_step_in_the_unit_interval() -> None:
    old, gradient = torch.sigmoid(_normal(1, 2, 4)), _normal(1, 2, 4, seed=1)
    made = BregmanSigmoid(DIMS).weights(torch.logit(old) - 0.3 * gradient)

    def objective(logits: Tensor) -> Tensor:
        w = torch.sigmoid(logits)
        divergence = w * (w / old).log() + (1 - w) * ((1 - w) / (1 - old)).log()
        return (0.3 * w * gradient + divergence).sum()

    assert ((made > 0) & (made < 1)).all()
    assert _is_minimal(objective, torch.logit(made))


def test_retention_that_does_not_decay_has_no_gate() -> None:
    x = torch.randn(2, 7, 5)
    for retention in (SoftThreshold(DIMS), BregmanSigmoid(DIMS)):
        assert (retention(x) == 1).all()
        assert not list(retention.parameters())
    assert (_drawn(SoftThreshold(DIMS, decays=True))(x) < 1).all()


def test_constant_retention_follows_its_schedule() -> None:
    x = torch.randn(2, 7, 5)
    kept = ConstantRetention(DIMS)(x)
    assert kept.shape == (2, 7, 2)
    torch.testing.assert_close(kept[0, 0], torch.tensor([1 - 1 / 32, 1 - 1 / 64]))
    alibi = ConstantRetention(DIMS, schedule="alibi")(x)
    torch.testing.assert_close(alibi[0, 0], torch.exp(-torch.tensor([1 / 16, 1 / 256])))
    learned = _drawn(ConstantRetention(DIMS, schedule="learned"))
    torch.testing.assert_close(learned(x), kept)
    assert [name for name, _ in learned.named_parameters()] == ["logit"]


def test_channel_retention_is_a_tempered_low_rank_gate() -> None:
    retention = _drawn(ChannelRetention(DIMS, rank=2, init=1.0, temperature=16.0))
    assert isinstance(retention, ChannelRetention)
    x = torch.randn(2, 7, 5)
    logits = x @ retention.down.weight.T @ retention.up.weight.T + 1.0
    want = torch.sigmoid(logits).pow(1 / 16).unflatten(-1, (2, 4))
    torch.testing.assert_close(retention(x), want)
    assert ChannelRetention(DIMS, side="value").channels == DIMS.value
    start = _drawn(ChannelRetention(DIMS, rank=2))
    torch.testing.assert_close(start(0 * x), torch.full((2, 7, 2, 4), 0.9820138))


def test_tied_retention_keeps_at_least_its_floor() -> None:
    x = _normal(2, 7, 5).float()
    free, bounded = (_drawn(TiedRetention(DIMS, floor=floor, init=0.0)) for floor in (0.0, 0.75))
    torch.testing.assert_close(bounded(x), 0.75 + 0.25 * free(x))
    assert (bounded(-1e6 * x) >= 0.75 - 1e-6).all()
    assert (bounded(1e6 * x).amax((0, 1)) == 1.0).any()


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: TiedRetention(DIMS, floor=1.0), r"TiedRetention\.floor=1\.0: must be in \[0, 1\)"),
        (lambda: LqRetention(DIMS, q=1.5), r"LqRetention\.q=1\.5: must be >= 2"),
        (lambda: LqRetention(DIMS, form="both"), "must be one of corrected, printed"),
        (lambda: LqRetention(DIMS, applied="end"), "applied='end': must be one of token, chunk"),
        (lambda: SoftThreshold(DIMS, threshold=-1.0), "threshold=-1.0: must be >= 0"),
        (lambda: ElasticNet(DIMS, sparsity=-1.0), "sparsity=-1.0: must be >= 0"),
        (lambda: ConstantRetention(DIMS, schedule="slow"), "must be one of retnet, alibi, learned"),
        (lambda: ChannelRetention(DIMS, side="left"), "must be one of key, value, both"),
        (lambda: ChannelRetention(DIMS, rank=0), "rank=0: must be a whole number >= 1"),
        (lambda: ResetRetention(DIMS, what="all"), "must be one of momentum, memory, both"),
        (lambda: GradientDescent(DIMS, prediction="new"), "must be one of undecayed, decayed"),
        (lambda: ImplicitGradientDescent(DIMS, lr_max=0.0), "lr_max=0.0: must be > 0"),
    ],
)
def test_bad_options_are_refused(make: Callable[[], object], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        make()


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"optimizer": "decayed"}, "needs memory matrix and window.length 1"),
        ({"memory": "matrix", "optimizer": "implicit"}, "needs memory matrix and window.length 1"),
        (
            {"memory": "matrix", "optimizer": "implicit", "window": 1, "bias": "dot"},
            "with bias Dot: the implicit step is known for l2",
        ),
        (
            {"memory": "matrix norm", "optimizer": "implicit", "window": 1},
            "a matrix without norm or residual",
        ),
        (
            {"memory": "matrix", "optimizer": "decayed", "window": 1, "retention": LqRetention},
            "choose a retention that decays",
        ),
        ({"retention": ChannelRetention, "degree": 1}, "no fold of orthogonalised writes"),
        (
            {"optimizer": "gd", "retention": ChannelRetention},
            "has 3 key channels, but the memory's first map reads 10",
        ),
        (
            {"optimizer": "gd", "retention": lambda d: ChannelRetention(d, side="value")},
            "it has side key only",
        ),
        (
            {"memory": "mlp of 3", "optimizer": "gd", "retention": ChannelRetention, "degree": 1},
            "each later map must have as many rows",
        ),
        ({"granularity": 2, "retention": ElasticNet}, "it shrinks at every token"),
        ({"optimizer": "gd", "retention": BOTH, "degree": 1}, "side=both needs one matrix"),
        (
            {"memory": "matrix", "optimizer": "multi step", "window": 1, "chunk": 2},
            "inner_optimizer.steps=2 with chunk=2: each step takes its gradient at",
        ),
        (
            {
                "memory": "matrix",
                "optimizer": "multi step",
                "window": 1,
                "chunk": 1,
                "retention": ResetRetention,
            },
            "it acts on a token, not on a step",
        ),
        (
            {"memory": "mlp", "optimizer": "three steps", "window": 2, "chunk": 1},
            "set window.length 1",
        ),
    ],
)
def test_clashes_are_refused(make_layer: MakeLayer, options: dict[str, object], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        make_layer(**options)
