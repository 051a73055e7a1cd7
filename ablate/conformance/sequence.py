"""Checks of a model as a function of a sequence: causal, alone in its row, and cut anywhere."""

from __future__ import annotations

import copy
from typing import Any

import torch

from ablate.components.state_size import state_bytes, tensors
from ablate.conformance.subject import (
    LENGTH,
    ROWS,
    VOCAB,
    Subject,
    check,
    gap,
    in_pieces,
    one_line,
)

TOLERANCE = 1e-9  # on logits of order 1 in float64


@check(
    "a token's logits do not change when later tokens do",
    "The future leaks: the score of such a model on text means nothing. Usual causes: a mean, norm "
    "or softmax over all tokens, a missing causal mask, a convolution padded on both sides, a read "
    "of the memory after the whole chunk was written.",
)
def check_future(subject: Subject) -> tuple[bool, str]:
    """Change all tokens from a place on."""
    worst, at = 0.0, 0
    for place in sorted({1, 2, subject.chunk, subject.chunk + 1, LENGTH - 1}):
        if place < LENGTH:
            changed = subject.tokens.clone()
            changed[:, place:] = (changed[:, place:] + 1 + place) % VOCAB
            with torch.no_grad():
                logits = subject.model(changed)[0]
            found = gap(logits[:, :place], subject.logits[:, :place])
            if not found <= worst:
                worst, at = found, place
    where = f" (later tokens: from token {at} on)" if at else ""
    return worst <= TOLERANCE, f"largest change of an earlier token's logits {worst:.2g}{where}"


@check(
    "a row of a batch gives the same logits alone and beside any other rows",
    "Rows share something: a result then depends on what it was batched with. Usual causes: a mean "
    "or norm over the batch, one state for all rows, a reshape that mixes rows and heads, batch "
    "norm.",
)
def check_batch_rows(subject: Subject) -> tuple[bool, str]:
    """Run each row alone, and change its neighbour."""
    with torch.no_grad():
        alone = torch.cat([subject.model(row[None])[0] for row in subject.tokens])
        changed = subject.tokens.clone()
        changed[0] = (changed[0] + 1) % VOCAB
        beside = subject.model(changed)[0][1:]
    by_itself, by_change = gap(alone, subject.logits), gap(beside, subject.logits[1:])
    return max(by_itself, by_change) <= TOLERANCE, (
        f"alone or together {by_itself:.2g}, with another neighbour {by_change:.2g}"
    )


@check(
    "a sequence cut anywhere, its state carried, gives the logits and gradients of one call",
    "The state is not all that the next token needs: pieces of a sequence would be read as "
    "strangers. Usual causes: the state is dropped or detached, a position or the place in the "
    "open chunk is not carried, a convolution or window forgets the tokens before the piece.",
)
def check_split(subject: Subject) -> tuple[bool, str]:
    """Cut once at and beside chunk borders, and several times."""
    chunk = subject.chunk
    places = sorted({1, chunk - 1, chunk, chunk + 1, LENGTH - 1} & set(range(1, LENGTH)))
    cuts = [[place, LENGTH - place] for place in places] + [[2, 1, 5, 3]]
    worst, at = 0.0, cuts[0]
    with torch.no_grad():
        for pieces in cuts:
            found = gap(in_pieces(subject.model, subject.tokens, pieces), subject.logits)
            if not found <= worst:
                worst, at = found, pieces
    gradient = gap(_gradient(subject, [LENGTH]), _gradient(subject, cuts[-1]))
    measured = f"largest difference of logits {worst:.2g}, of gradients {gradient:.2g}"
    where = f" (pieces of {' + '.join(map(str, at))})" if worst > TOLERANCE else ""
    return worst <= TOLERANCE and gradient <= 1e3 * TOLERANCE, measured + where


def _gradient(subject: Subject, pieces: list[int]) -> torch.Tensor:
    """Of the last tokens' logits with respect to the embeddings."""
    logits = in_pieces(subject.model, subject.tokens, pieces)[:, -1]
    return torch.autograd.grad(logits.sin().sum(), subject.model.embedding.weight)[0]


@check(
    "a prompt of any length and then one token at a time gives the logits of one call",
    "Generating text would not follow what was trained. Usual causes: those of 'split', and a "
    "shortcut for calls of one token.",
)
def check_decode(subject: Subject) -> tuple[bool, str]:
    """Prefill, then decode to the end."""
    worst, at = 0.0, 0
    for prompt in sorted({1, min(subject.chunk + 1, LENGTH - 1), LENGTH - 1}):
        with torch.no_grad():
            pieces = [prompt] + [1] * (LENGTH - prompt)
            found = gap(in_pieces(subject.model, subject.tokens, pieces), subject.logits)
        if not found <= worst:
            worst, at = found, prompt
    where = f" (prompt of {at})" if worst > TOLERANCE else ""
    return worst <= TOLERANCE, f"largest difference {worst:.2g}{where}"


@check(
    "a sequence may have any length from 1 on; its tokens say what they say in a longer one",
    "Short or odd lengths go another way. Usual causes: a length that must be a multiple of the "
    "chunk, padding that is read, a statistic over the length.",
)
def check_lengths(subject: Subject) -> tuple[bool, str]:
    """Every length."""
    worst = 0.0
    for length in range(1, LENGTH):
        try:
            with torch.no_grad():
                logits = subject.model(subject.tokens[:, :length])[0]
        except Exception as error:
            return False, f"length {length}: {one_line(error)}"
        found = gap(logits, subject.logits[:, :length])
        if not found <= TOLERANCE:
            return False, f"length {length}: differs by {found:.2g}"
        worst = max(worst, found)
    return True, f"lengths 1 to {LENGTH - 1}: largest difference {worst:.2g}"


@check(
    "train, eval, no_grad and inference_mode give the same logits",
    "What is scored is not what was trained. Usual causes: dropout, batch norm, a branch on "
    "self.training or on torch.is_grad_enabled().",
)
def check_modes(subject: Subject) -> tuple[bool, str]:
    """The same tokens in each mode."""
    model, tokens = copy.deepcopy(subject.model), subject.tokens
    found = {
        "train": model.train()(tokens)[0].detach(),
        "eval": model.eval()(tokens)[0].detach(),
    }
    with torch.no_grad():
        found["no_grad"] = model(tokens)[0]
    with torch.inference_mode():
        found["inference_mode"] = model(tokens)[0].clone()
    differ = {mode: gap(logits, found["train"]) for mode, logits in found.items()}
    worst = max(differ, key=lambda mode: differ[mode])
    passed = all(value <= TOLERANCE for value in differ.values())
    return passed, f"largest difference from train {differ[worst]:.2g}" + (
        "" if passed else f" ({worst})"
    )


@check(
    "the state is a value: it holds all that was read, and using it does not change it",
    "Something lies outside the state, or is written into it: two sequences, or two tries from one "
    "prompt, would disturb each other. Usual causes: a cache on self, an operation in place on a "
    "tensor of the state.",
)
def check_state(subject: Subject) -> tuple[bool, str]:
    """Go on from one state three times: here, after another sequence, and in a fresh model."""
    head, rest = subject.tokens[:, :6], subject.tokens[:, 6:]
    model = subject.copy()
    with torch.no_grad():
        _, state = model(head)
        before = [part.clone() for part in tensors(state)]
        first = model(rest, state)[0]
        model((head + 1) % VOCAB)
        again = model(rest, state)[0]
        elsewhere = subject.copy()(rest, copy.deepcopy(state))[0]
    written = sum(
        not torch.equal(old, new) for old, new in zip(before, tensors(state), strict=True)
    )
    found = (gap(first, again), gap(first, elsewhere))
    return max(found) <= TOLERANCE and not written, (
        f"{state_bytes(state):,} bytes; used again {found[0]:.2g}, in another model "
        f"{found[1]:.2g}; tensors written in place: {written}"
    )


@check(
    "on the meta device the model has the same shapes, so that it can be counted without running",
    "Plans cannot tell parameters, state and FLOPs. Usual causes: .item() or a branch on a "
    "tensor's value, a tensor made on the CPU inside forward, numpy.",
)
def check_meta(subject: Subject) -> tuple[bool, str]:
    """Build, run and go on there."""
    model = subject.build(device="meta")
    tokens = subject.tokens.to("meta")
    logits, state = model(tokens[:, :6])
    _, state = model(tokens[:, 6:7], state)
    real = _state_after(subject, 7)
    shapes = [tuple(part.shape) for part in tensors(state)]
    same = shapes == [tuple(part.shape) for part in tensors(real)]
    right = tuple(logits.shape) == (ROWS, 6, VOCAB) and logits.is_meta
    return same and right, (
        f"logits {list(logits.shape)}, {len(shapes)} tensors of state"
        + ("" if same else ", of other shapes than on the CPU")
    )


def _state_after(subject: Subject, length: int) -> Any:
    with torch.no_grad():
        return subject.model(subject.tokens[:, :length])[1]
