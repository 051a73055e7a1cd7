"""The exact online rule of a matrix without a loop over tokens.

With squared errors the error of token n is linear in those of earlier tokens: what the memory
before it says of k_n is carry W k_n - m S k_n - sum_{i<n} read[n-1, i] e_i (k_i . k_n), so all
errors of a block solve one unit lower triangular system (the WY form of DeltaNet, with decay and
momentum). The system itself depends on no state, so it is solved for all blocks at once, with keys
and values on its right; retention by column has a state there for each column, and so is solved in
turns.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ablate.components.recurrence.channels import by_token, key_kernel
from ablate.components.recurrence.coefficients import Folded, LinearWeights
from ablate.components.recurrence.writes import Carried

BLOCK = 32


def online_errors(
    w: LinearWeights,
    keys: Float[Tensor, "p n f"],
    values: Float[Tensor, "p n e"],
    carried: Carried,
    *,
    keep: Float[Tensor, "p n f"] | None,
) -> Float[Tensor, "p n e"]:
    """M_{n-1} k_n - v_n of every token, kept by column; with `keep` of the kept memory.

    `w` are the coefficients of the tokens' own writes (window 1), by column.
    """
    carry, read = _before(w.carry, 1.0), _before(w.read, 0.0)
    momentum = None if w.momentum is None else _before(w.momentum, 0.0)
    if keep is not None:
        share = keep.mT.unsqueeze(-1)
        carry, read = share * carry, share * read
        momentum = None if momentum is None else share * momentum
    found = torch.bmm(by_token(carry) * keys, carried.weights[0].mT)
    if momentum is not None:
        found = found - torch.bmm(by_token(momentum) * keys, carried.momenta[0].mT)
    among = key_kernel(read, keys, keys)
    errors: Tensor = torch.linalg.solve_triangular(
        among, found - values, upper=False, unitriangular=True
    )
    return errors


def online_probes(
    w: Folded,
    keys: Float[Tensor, "g p n f"],
    values: Float[Tensor, "g p n e"],
    *,
    keep: Float[Tensor, "g p n"] | None,
) -> tuple[Float[Tensor, "g p m n f"], Float[Tensor, "g p n e"]]:
    """What the system makes of keys and values, so that errors are sum_m X_m probes - values."""
    weight, momentum = _before(w.share[..., :1], 1.0), _before(w.share[..., 1:], 0.0)
    share, read = torch.cat([weight, momentum], dim=-1), _before(w.read, 0.0)
    if keep is not None:
        share, read = keep.unsqueeze(-1) * share, keep.unsqueeze(-1) * read
    among = read * torch.matmul(keys, keys.mT)
    asked = [part * keys for part in share.split(1, dim=-1)]
    solved = torch.linalg.solve_triangular(
        among, torch.cat([*asked, values], dim=-1), upper=False, unitriangular=True
    )
    *probes, targets = solved.split([*[keys.shape[-1]] * len(asked), values.shape[-1]], dim=-1)
    return torch.stack(probes, dim=2), targets


def _before(part: Tensor, first: float) -> Tensor:
    """Row n of what token n finds: row n-1 of what it leaves."""
    return F.pad(part[..., :-1, :], (0, 0, 1, 0), value=first)
