"""How many bytes a sequence model carries from one token to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass

from torch import Tensor


def state_bytes(state: object) -> int:
    """Sum the bytes of all tensors in a state.

    Looks into tuples, lists, mappings and dataclasses, however nested; numbers and None count 0.
    A tensor counts its logical size, so a broadcast view counts as if it were stored in full.
    The state of attention grows with the sequence, that of a neural memory does not.

    Raises:
        TypeError: something else is found, whose size would silently be missed.
    """
    if isinstance(state, Tensor):
        return state.numel() * state.element_size()
    if state is None or isinstance(state, int | float | str):
        return 0
    if isinstance(state, Mapping):
        return sum(state_bytes(part) for part in state.values())
    if isinstance(state, tuple | list):
        return sum(state_bytes(part) for part in state)
    if is_dataclass(state) and not isinstance(state, type):
        return sum(state_bytes(getattr(state, field.name)) for field in fields(state))
    raise TypeError(
        f"cannot count the bytes of {type(state).__name__}: a state is made of tensors, numbers, "
        "None, tuples, lists, mappings and dataclasses"
    )
