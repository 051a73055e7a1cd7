"""Parameters of many models that share components: each part and each skeleton is built once."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ablate.components.hybrid import Hybrid
from ablate.trial.build import build_model, make_mixer, make_part, shapes_only
from ablate.trial.cost import shortest
from ablate.trial.space import ALONE, AXES, Model

WIDE = 512


@dataclass
class ShapeBench:
    """Builds a thousand models in a second.

    A model's layer is put together anew, which finds what does not go together; its components and
    what is around the layer are taken from models built before. Wide models are built on the meta
    device; small ones are not, since some of its kernels take seconds to load.
    """

    allow: tuple[str, ...] = ()
    _parts: dict[tuple[object, ...], Any] = field(default_factory=dict)
    _skeletons: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def parameters(self, model: Model, vocab: int, *, where: str = "") -> int:
        """Parameters of a resolved model.

        Raises:
            UserError: a value or combination that a constructor refuses.
        """
        short, times = shortest(model)
        with _device(short):
            backbone = self._part("backbone", short["backbone"], allow=self.allow, where=where)
            mixer = make_mixer(short, backbone, self.allow, where, self._part)
        size = size_of(mixer)
        # A hybrid may refuse a memory for any of its parts; without one, layers are all there is.
        alone = short["hybrid"]["_target_"] == ALONE["_target_"]
        kinds = [short[axis] and short[axis]["_target_"] for axis in (AXES[:2] if alone else AXES)]
        key = json.dumps([short["backbone"], short["hybrid"], vocab, kinds], sort_keys=True)
        if key not in self._skeletons:
            self._skeletons[key] = self._skeleton(short, vocab, mixer, where)
        around, rest, mixers = self._skeletons[key]
        return around + times * (rest + mixers * size)

    def _skeleton(
        self, short: Model, vocab: int, mixer: nn.Module, where: str
    ) -> tuple[int, int, int]:
        """Parameters around the blocks, those of the blocks but for mixers, and their number."""
        device = "meta" if _is_wide(short) else "cpu"
        built = build_model(short, vocab, seed=0, device=device, allow=self.allow, where=where)
        made: list[nn.Module] = []

        def make() -> nn.Module:
            made.append(make_mixer(short, backbone, self.allow, where))
            return made[-1]

        with _device(short):
            backbone = self._part("backbone", short["backbone"], allow=self.allow, where=where)
            hybrid: Hybrid = make_part("hybrid", short["hybrid"], allow=self.allow, where=where)
            hybrid.layers(backbone, make)
        blocks = size_of(built.blocks)
        return size_of(built) - blocks, blocks - len(made) * size_of(mixer), len(made)

    def _part(
        self, axis: str, component: Model, *given: Any, allow: Iterable[str], where: str
    ) -> Any:
        key = (axis, json.dumps(component, sort_keys=True), *given)
        if key not in self._parts:
            self._parts[key] = make_part(axis, component, *given, allow=tuple(allow), where=where)
        return self._parts[key]


def _is_wide(model: Model) -> bool:
    return bool(model["backbone"]["dim"] > WIDE)


def _device(model: Model) -> AbstractContextManager[None]:
    return shapes_only() if _is_wide(model) else nullcontext()


def size_of(module: nn.Module) -> int:
    """How many parameters a module has, each counted once."""
    return sum(parameter.numel() for parameter in module.parameters())
