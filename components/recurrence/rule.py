"""What a recurrence needs to know that does not depend on the token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ablate.components.memory import Memory
from ablate.components.newton_schulz import NewtonSchulz
from ablate.components.recurrence.unlifted import Lift
from ablate.components.recurrence.writes import Carried


@dataclass(frozen=True)
class Rule:
    """What does not depend on the token.

    memory, features, error: how a memory is wired, phi, and the gradient of the loss at its output.
    chunk: tokens whose gradients share one memory. window: c. momentum: whether there is one.
    step_inside: lr multiplies the gradient (else the write). orthogonalise: map of each write, None
    to write the momentum itself; then `group` is the number of tokens between two writes.
    nesterov: the momentum is written as it will be one token later. implicit: the step is
    lr / (1 + lr |phi(k)|^2). decayed: the error is that of the memory after this token's decay.
    online: solve for the errors of chunks of one token (see `online`). side: of a matrix that
    retention by channel acts on. mapped: weights from what is written; `linear_inside`: at chunk
    ends only. shrink: what each token does to the weights, given its step. reset: what a chunk
    starts from. ridge: of a memory that is the minimum of squared errors itself. truncated: windows
    end at their chunk's start. read_before: a token reads the memory before its own write. plain:
    of a plain matrix with squared errors ("l2") or none ("dot"), whose chunks are scanned.
    span: chunks between the states that are kept for the backward pass, which makes the others
    again; None by their size (see `segments`).
    lift: phi, where it need not be applied to queries (see `unlifted`).
    backend: see `ablate.components.kernels.backend`.
    """

    memory: Memory
    features: Callable[[Tensor], Tensor]
    error: Callable[[Tensor, Tensor], Tensor]
    chunk: int
    window: int
    momentum: bool
    step_inside: bool
    orthogonalise: NewtonSchulz | None = None
    group: int = 1
    nesterov: bool = False
    implicit: bool = False
    decayed: bool = False
    online: bool = False
    side: str = "key"
    mapped: Callable[[Tensor], Tensor] | None = None
    shrink: Callable[[Tensor, Tensor], Tensor] | None = None
    reset: Callable[[Carried], Carried] | None = None
    ridge: float | None = None
    truncated: bool = False
    read_before: bool = False
    linear_inside: bool = False
    plain: str | None = None
    span: int | None = None
    lift: Lift | None = None
    backend: str = "torch"

    @property
    def linear(self) -> bool:
        """Whether what is written is the memory itself, as it is read."""
        return self.mapped is None and self.shrink is None and self.ridge is None

    @property
    def scanned(self) -> bool:
        """Whether the errors of whole chunks are linear in the states that those start from."""
        return self.plain is not None and self.reset is None
