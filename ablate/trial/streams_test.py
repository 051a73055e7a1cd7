from __future__ import annotations

import torch

from ablate.trial.streams import generator, torch_generator


def test_a_stream_depends_on_seed_and_name_only() -> None:
    first = generator(0, "data").standard_normal(4)
    generator(0, "init/head").standard_normal(100)
    assert (generator(0, "data").standard_normal(4) == first).all()
    assert not (generator(1, "data").standard_normal(4) == first).any()
    assert not (generator(0, "datb").standard_normal(4) == first).any()


def test_seed_and_name_do_not_run_together() -> None:
    assert generator(1, "1/a").integers(2**62) != generator(11, "a").integers(2**62)


def test_torch_streams_repeat() -> None:
    first = torch.randn(3, generator=torch_generator(7, "init/w"))
    assert torch.equal(first, torch.randn(3, generator=torch_generator(7, "init/w")))
    assert not torch.equal(first, torch.randn(3, generator=torch_generator(7, "init/v")))
