from __future__ import annotations

import pytest

from ablate.components.dims import Dims


def test_dims_keep_what_they_are_given() -> None:
    dims = Dims(model=8, heads=2, key=4, value=3)
    assert (dims.model, dims.heads, dims.key, dims.value) == (8, 2, 4, 3)


@pytest.mark.parametrize("field", ["model", "heads", "key", "value"])
def test_a_width_below_one_is_refused_by_name(field: str) -> None:
    widths = {"model": 8, "heads": 2, "key": 4, "value": 4, field: 0}
    with pytest.raises(ValueError, match=rf"Dims\.{field}=0: must be a whole number >= 1"):
        Dims(**widths)
