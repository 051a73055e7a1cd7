"""The exact online rule of a matrix without a loop over tokens.

With squared errors the error of token n is linear in those of earlier tokens: what the memory
before it says of k_n is carry W k_n - m S k_n - sum_{i<n} read[n-1, i] e_i (k_i . k_n), so all
errors of a block solve one unit lower triangular system (the WY form of DeltaNet, with decay and
momentum).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ablate.components.recurrence.channels import by_token, key_kernel
from ablate.components.recurrence.coefficients import LinearWeights
from ablate.components.recurrence.writes import Carried

BLOCK = 32


def online_errors(
    w: LinearWeights,
    keys: Float[Tensor, "p n f"],
    values: Float[Tensor, "p n e"],
    carried: Carried,
    *,
    keep: Tensor | None,
) -> Float[Tensor, "p n e"]:
    """M_{n-1} k_n - v_n of every token; with `keep` (p n, or p n f by column) of the kept memory.

    `w` are the coefficients of the tokens' own writes (window 1), scalar or by column.
    """
    by_column = w.read.ndim == 4
    carry, read = _before(w.carry, 1.0), _before(w.read, 0.0)
    momentum = None if w.momentum is None else _before(w.momentum, 0.0)
    if keep is not None:
        share = keep.mT.unsqueeze(-1) if by_column else keep.unsqueeze(-1)
        carry, read = share * carry, share * read
        momentum = None if momentum is None else share * momentum
    if by_column:
        plain = torch.bmm(by_token(carry) * keys, carried.weights[0].mT)
        if momentum is not None:
            plain = plain - torch.bmm(by_token(momentum) * keys, carried.momenta[0].mT)
        among = key_kernel(read, keys, keys)
    else:
        plain = carry * torch.bmm(keys, carried.weights[0].mT)
        if momentum is not None:
            plain = plain - momentum * torch.bmm(keys, carried.momenta[0].mT)
        among = read * torch.bmm(keys, keys.mT)
    errors: Tensor = torch.linalg.solve_triangular(
        among, plain - values, upper=False, unitriangular=True
    )
    return errors


def _before(part: Tensor, first: float) -> Tensor:
    """Row n of what token n finds: row n-1 of what it leaves."""
    return F.pad(part[..., :-1, :], (0, 0, 1, 0), value=first)
