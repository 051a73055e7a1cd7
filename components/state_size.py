"""How many bytes a sequence model carries from one token to the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

from torch import Tensor


def state_bytes(state: object) -> int:
    """Sum the bytes of all tensors in a state.

    A tensor counts its logical size, so a broadcast view counts as if it were stored in full.
    The state of attention grows with the sequence, that of a neural memory does not.

    Raises:
        TypeError: something is found whose size would silently be missed.
    """
    return sum(part.numel() * part.element_size() for part in tensors(state))


def tensors(state: object) -> Iterator[Tensor]:
    """All tensors of a state: in tuples, lists, mappings and dataclasses, however nested.

    Raises:
        TypeError: something else is found than these, numbers, strings and None.
    """
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, Mapping):
        yield from tensors(tuple(state.values()))
    elif isinstance(state, tuple | list):
        for part in state:
            yield from tensors(part)
    elif is_dataclass(state) and not isinstance(state, type):
        yield from tensors(tuple(getattr(state, field.name) for field in fields(state)))
    elif state is not None and not isinstance(state, int | float | str):
        raise TypeError(
            f"cannot count the bytes of {type(state).__name__}: a state is made of tensors, "
            "numbers, None, tuples, lists, mappings and dataclasses"
        )
