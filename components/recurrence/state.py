"""Everything a sequence carries from one call to the next, and where calls are cut into pieces."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class MemoryState:
    """State of one memory layer; enough to go on anywhere inside a chunk.

    weights: the memory now. base: the memory at the open chunk's start, where all of the chunk's
    gradients are taken (empty when every chunk is one token). momentum: empty without momentum;
    of least squares, the sums of squared keys.
    keys, values: the last c-1 tokens, oldest first, of which the last `filled` are real; beside a
    value lies what the bias makes for its token. step: the decayed steps since the last
    orthogonalised write, None when every token writes. position: tokens already in the open chunk.
    said: what the last c-1 tokens left for the window's gates, if anything. tail: of the
    convolution on further keys and values, where a token has some. kept: share of the base that is
    left inside an open chunk, for retentions that act at chunk ends. Tensors are float32 at least.
    """

    weights: tuple[Float[Tensor, "b h _o _i"], ...]
    base: tuple[Float[Tensor, "b h _o _i"], ...]
    momentum: tuple[Float[Tensor, "b h _o _i"], ...]
    keys: Float[Tensor, "b c h d"]
    values: Float[Tensor, "b c h e"]
    step: Float[Tensor, "b h"] | None
    filled: int
    position: int
    said: Float[Tensor, "b c h r"] | None = None
    tail: Float[Tensor, "b w c1"] | None = None
    kept: Float[Tensor, "b h"] | None = None


@dataclass(frozen=True)
class Piece:
    """`count` stretches of `length` tokens from `start` on, each from `position` in its chunk."""

    start: int
    count: int
    length: int
    position: int


def cut(tokens: int, chunk: int, position: int) -> list[Piece]:
    """Cut a call at chunk borders: rest of the open chunk, whole chunks, start of the next one."""
    pieces, start = [], 0
    if position:
        start = min(chunk - position, tokens)
        pieces.append(Piece(0, 1, start, position))
    whole, rest = divmod(tokens - start, chunk)
    if whole:
        pieces.append(Piece(start, whole, chunk, 0))
    if rest:
        pieces.append(Piece(tokens - rest, 1, rest, 0))
    return pieces
