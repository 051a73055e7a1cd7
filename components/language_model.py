"""A stack of blocks between an embedding and a head: tokens in, next-token logits out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.components.backbone import Backbone, Block
from ablate.components.documents import RowStates, run_documents
from ablate.components.state_size import tensors

State = tuple[Any, ...]  # one for each block, as its layer makes it


class LanguageModel(nn.Module):
    """Embedding, `backbone.layers` blocks, final norm and head.

    Embedding and head are two matrices, as in Llama: a byte vocabulary is small beside the blocks,
    and the logits at the start then do not depend on the scale of the embedding.

    Args:
        vocab: number of tokens.
        backbone: widths and depth.
        mixers: one mixer (or whole `Layer`) for each block, made from `backbone.dims`.

    Raises:
        ValueError: no vocabulary, or another number of mixers than layers.
    """

    def __init__(self, vocab: int, backbone: Backbone, mixers: Sequence[nn.Module]) -> None:
        super().__init__()
        if vocab < 1:
            raise ValueError(f"vocab={vocab!r}: must be a whole number >= 1")
        if len(mixers) != backbone.layers:
            raise ValueError(
                f"{len(mixers)} mixers for backbone.layers={backbone.layers}: give one per layer"
            )
        self.vocab = vocab
        self.backbone = backbone
        self.embedding = nn.Embedding(vocab, backbone.dim)
        self.blocks = nn.ModuleList(Block(backbone, mixer) for mixer in mixers)
        self.reconstructs = backbone.reconstructs
        self.norm, self.head = backbone.ends(vocab)

    def init_weights(self, stream: Callable[[str], torch.Generator]) -> None:
        """Draw the embeddings again where the backbone says how large they are."""
        std = self.backbone.embedding_std
        if std is not None:
            nn.init.normal_(self.embedding.weight, std=std, generator=stream("embedding.weight"))

    def forward(
        self,
        tokens: Tensor,
        state: State | RowStates | None = None,
        *,
        positions: Tensor | None = None,
    ) -> tuple[Float[Tensor, "b t vocab"], Any]:
        """Predict, at each token, the next one.

        Training, prefill and decode are this one function: feeding a sequence in pieces of any
        length and carrying the state gives the logits of one call on the whole.

        Args:
            tokens: int64, shape ``[b t]``, t >= 1, each in [0, vocab).
            state: from the call on the tokens before; None starts a fresh sequence.
            positions: int64, shape ``[b t]``, where rows hold several documents or padding: the
                place of each token in its document, negative at padding. Each document then reads
                as if it were alone; `ablate.components.documents` has the rules and the cost.

        Returns:
            Logits, and the state: a tuple of one for each block, or `RowStates` with positions.

        Raises:
            ValueError: tokens of another shape or type, a state of another model or batch, or
                positions that are none.
        """
        check_tokens(tokens)
        if positions is not None or isinstance(state, RowStates):
            return run_documents(self._run, tokens, positions, state)
        return self._run(tokens, state)

    def _run(self, tokens: Tensor, state: State | None) -> tuple[Tensor, State]:
        """One sequence in each row, all equally far."""
        if state is not None:
            self._check_state(tokens, state)
        x = self.embedding(tokens)
        carried: list[Any] = []
        for index, block in enumerate(self.blocks):
            x, block_state = block(x, None if state is None else state[index])
            carried.append(block_state)
        return self.head(self.norm(x)), tuple(carried)

    def _check_state(self, tokens: Tensor, state: State) -> None:
        if len(state) != len(self.blocks):
            raise ValueError(f"state has {len(state)} layers, but the model has {len(self.blocks)}")
        rows = next(tensors(state)).shape[0]
        if rows != tokens.shape[0]:
            raise ValueError(f"state has {rows} batch rows, but tokens has {tokens.shape[0]}")


def check_tokens(tokens: Tensor) -> None:
    """Refuse tokens that are not int64 of shape ``[b t]`` with t >= 1.

    Raises:
        ValueError: says the shape or type given, and the rule.
    """
    if tokens.ndim != 2 or tokens.shape[1] < 1:
        raise ValueError(f"tokens has shape {list(tokens.shape)}: must be [b t] with t >= 1")
    if tokens.dtype != torch.int64:
        raise ValueError(f"tokens has type {tokens.dtype}: must be torch.int64")
