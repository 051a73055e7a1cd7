from __future__ import annotations

from zlib import crc32

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d

from ablate.components.attention import SoftmaxAttention
from ablate.components.backbone import (
    Backbone,
    Block,
    MixerLayer,
    RMSNorm,
    SwiGLU,
    causal_conv,
    unit,
)


def initialise(module: nn.Module, seed: int = 0) -> nn.Module:
    """Give every parameter a value, in double precision; a parent has the last word."""
    module = module.double()
    for path, part in reversed(list(module.named_modules())):

        def stream(name: str, path: str = path) -> torch.Generator:
            return torch.Generator().manual_seed(crc32(f"{seed}/{path}/{name}".encode()))

        if hasattr(part, "init_weights"):
            part.init_weights(stream)
        elif isinstance(part, nn.Linear | nn.Conv1d | nn.Embedding):
            nn.init.normal_(part.weight, std=0.5, generator=stream("weight"))
    return module


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"dim": 0}, "dim"),
        ({"layers": -1}, "layers"),
        ({"conv_width": 0}, "conv_width"),
        ({"head_dim": 0}, "head_dim"),
        ({"heads": True}, "heads"),
        ({"mlp_ratio": 0.0}, "mlp_ratio"),
        ({"dim": 10, "heads": 4}, "does not divide backbone.dim=10"),
    ],
)
def test_a_wrong_width_is_refused_by_name(given: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Backbone(**given)  # type: ignore[arg-type]


def test_head_dim_frees_the_heads_from_the_model_width() -> None:
    assert Backbone(dim=10, heads=4, head_dim=6).dims.key == 6
    assert Backbone(dim=64, heads=4).dims.value == 16
    assert Backbone(dim=64).hidden == 168


@pytest.mark.parametrize("width", [1, 2, 4])
def test_convolution_is_torchs_depthwise_one(width: int) -> None:
    x, weight = draw(2, 9, 6), draw(6, width, seed=1)
    padded = torch.nn.functional.pad(x.transpose(1, 2), (width - 1, 0))
    expected = conv1d(padded, weight[:, None], groups=6).transpose(1, 2)
    y, tail = causal_conv(x, weight)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)
    assert tail.shape == (2, width - 1, 6)


def test_convolution_in_single_tokens_equals_the_whole() -> None:
    x, weight = draw(2, 7, 3), draw(3, 4, seed=1)
    whole, whole_tail = causal_conv(x, weight)
    tail, pieces = None, []
    for token in torch.split(x, 1, dim=1):
        y, tail = causal_conv(token, weight, tail)
        pieces.append(y)
    assert torch.equal(torch.cat(pieces, dim=1), whole)
    assert tail is not None
    assert torch.equal(tail, whole_tail)


def test_unit_has_length_one_and_a_finite_gradient_at_zero() -> None:
    x = draw(5, 8)
    torch.testing.assert_close(unit(x).norm(dim=-1), torch.ones(5).double(), rtol=0, atol=1e-5)
    zero = torch.zeros(1, 8, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(unit(zero).sum(), zero)
    assert torch.equal(unit(zero), torch.zeros(1, 8).double())
    assert gradient.isfinite().all()


def test_rms_norm_by_hand_and_in_half_precision() -> None:
    norm = RMSNorm(4)
    norm.init_weights(lambda name: torch.Generator())
    y = norm(torch.tensor([[3.0, -3.0, 3.0, 3.0], [0.0, 0.0, 0.0, 0.0]]))
    torch.testing.assert_close(y, torch.tensor([[1.0, -1.0, 1.0, 1.0], [0.0] * 4]))
    assert norm(torch.full((1, 4), 300.0).half()).tolist() == [[1.0] * 4]  # 300^2 overflows fp16


def test_swiglu_by_hand() -> None:
    mlp = SwiGLU(1, 1)
    for part, value in ((mlp.gate, 1.0), (mlp.up, 3.0), (mlp.down, 0.5)):
        nn.init.constant_(part.weight, value)
    y = mlp(torch.tensor([[[2.0]]]))
    assert y.item() == pytest.approx(0.5 * 2 / (1 + 2.718281828459045**-2) * 6, rel=1e-5)


def test_the_mixer_gets_unit_queries_and_keys_and_the_block_input() -> None:
    seen: dict[str, Tensor] = {}

    class Spy(nn.Module):
        def forward(
            self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: None = None
        ) -> tuple[Tensor, None]:
            seen.update(q=q, k=k, v=v, x=x)
            return v, state

    layer = initialise(MixerLayer(Backbone(dim=6, heads=2, head_dim=5), Spy()))
    x = draw(2, 7, 6)
    y, _ = layer(x)
    assert y.shape == (2, 7, 6)
    assert seen["x"] is x
    for name in ("q", "k"):
        assert seen[name].shape == (2, 7, 2, 5)
        torch.testing.assert_close(
            seen[name].norm(dim=-1), torch.ones(2, 7, 2).double(), rtol=0, atol=1e-3
        )


def test_the_output_does_not_feel_the_scale_of_the_mixer() -> None:
    class Scaled(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor

        def forward(
            self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: None = None
        ) -> tuple[Tensor, None]:
            return self.factor * v, state

    x = draw(1, 5, 8)
    small, large = (
        initialise(MixerLayer(Backbone(dim=8, heads=2), Scaled(factor)))(x)[0]
        for factor in (1.0, 1000.0)
    )
    torch.testing.assert_close(small, large, rtol=1e-3, atol=1e-4)


def test_gradients_of_a_block_agree_with_finite_differences() -> None:
    backbone = Backbone(dim=4, heads=2, conv_width=3)
    block = initialise(Block(backbone, SoftmaxAttention(backbone.dims)))
    x = draw(1, 4, 4).requires_grad_()
    weights = list(block.parameters())

    def output(x: Tensor, *_: Tensor) -> Tensor:
        y: Tensor = block(x)[0]
        return y

    assert torch.autograd.gradcheck(output, (x, *weights), fast_mode=True)
