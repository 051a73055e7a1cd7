"""`ablate generate`: text from a saved model, token by token."""

from __future__ import annotations

import codecs
import sys
import time
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.analysis.formatting import size
from ablate.commands.terminal import OK, print_json
from ablate.errors import UserError
from ablate.experiments.language.tokenizer import BYTES, Tokenizer
from ablate.trial.export import load_model
from ablate.trial.generate import Sampling, Step, generate

_UNKNOWN = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class GenerateOptions:
    """What `ablate generate` is told beside the folder.

    Args:
        prompt: text to go on from.
        tokens: how many to generate.
        sampling: how each is chosen.
        allow: packages that may hold components.
        verbose: say on standard error how large the state is and how fast it goes.
        as_json: print JSON at the end instead of text on the way.
        backend: what runs operations that have kernels.
    """

    prompt: str
    tokens: int
    sampling: Sampling
    allow: Sequence[str] = ()
    verbose: bool = False
    as_json: bool = False
    backend: str = "auto"


class Decoder:
    """Bytes, as they come, to text that a terminal can be given.

    What is no UTF-8, and every control character but newline and tab, is the replacement
    character: a model may say anything, escape sequences too.
    """

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def __call__(self, given: bytes, *, last: bool = False) -> str:
        """Return what is complete of the text so far and was not returned yet."""
        return "".join(map(_printable, self._utf8.decode(given, last)))


def generate_command(folder: Path, options: GenerateOptions) -> int:
    """Print the prompt and what the model makes of it, as it comes.

    Raises:
        UserError: anything wrong with the folder or an option, or a model of other tokens.
        Failure: a damaged file, or logits that are not finite.
    """
    exported = load_model(folder, allow=options.allow, backend=options.backend)
    tokenizer = exported.tokenizer
    if tokenizer is None:
        raise UserError(
            f"{folder}: this model's tokens are those of task {exported.facts.tokenizer}, not "
            "text. Models trained on language or niah generate text."
        )
    for note in exported.notes:
        print(f"note: {note}", file=sys.stderr)
    # What the shell gave and is no UTF-8 comes back as the bytes that it was.
    prompt = options.prompt.encode("utf-8", "surrogateescape")
    read = _tokens(prompt, tokenizer)
    spell = tokenizer.decoder()
    began = time.perf_counter()
    steps: list[Step] = []
    decoder = Decoder()
    for step in generate(exported.model, read, options.tokens, options.sampling):
        if not steps and not options.as_json:
            _write(decoder(prompt))
        steps.append(step)
        if not options.as_json:
            _write(decoder(spell(step.token)))
    seconds = time.perf_counter() - began
    if options.as_json:
        print_json(_as_json(options, prompt, steps, exported.notes, tokenizer))
    else:
        _write(decoder(b"", last=True) + "\n")
    if options.verbose:
        unit = "bytes" if exported.facts.tokenizer == BYTES else "tokens"
        print(
            f"state: {size(steps[0].state_bytes)} after the prompt of {len(read)} {unit}, "
            f"{size(steps[-1].state_bytes)} at the end; "
            f"{len(steps) / seconds:,.1f} tokens per second",
            file=sys.stderr,
        )
    return OK


def _tokens(prompt: bytes, tokenizer: Tokenizer) -> list[int]:
    """Tokens of the prompt; bytes are their own, also those that are no UTF-8."""
    if tokenizer.to_json() is None:
        return list(prompt)
    return list(map(int, tokenizer.encode([prompt.decode("utf-8", "replace")])[0]))


def _as_json(
    options: GenerateOptions,
    prompt: bytes,
    steps: Sequence[Step],
    notes: Sequence[str],
    tokenizer: Tokenizer,
) -> dict[str, Any]:
    tokens = [step.token for step in steps]
    text = b"".join(map(tokenizer.decoder(), tokens))
    return {
        "prompt": Decoder()(prompt, last=True),
        "text": Decoder()(text, last=True),
        "tokens": tokens,
        "temperature": options.sampling.temperature,
        "top_k": options.sampling.top_k,
        "seed": options.sampling.seed,
        "state_bytes": {"prompt": steps[0].state_bytes, "end": steps[-1].state_bytes},
        "notes": list(notes),
    }


def _printable(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) != "Cc":
        return character
    return _UNKNOWN


def _write(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()
