"""What counts as text: UTF-8 without zero bytes. Anything else would train without a word said."""

from __future__ import annotations

import codecs

from ablate.errors import UserError

_PART = 2**20
"""Bytes that are looked at together, as decoded text may take four times their place."""


def check_text(content: bytes, where: str) -> bytes:
    """Give back a file's content if it is text.

    Args:
        content: all of it.
        where: key and file, for the message.

    Raises:
        UserError: names the first byte, counted from 0, that is in no text.
    """
    bad = _first_bad(content)
    if bad is not None:
        raise UserError(
            f"{where} is no text: its byte {bad} (counted from 0) is 0x{content[bad]:02x}; text is "
            "UTF-8 without zero bytes. Convert the file, or leave it out."
        )
    return content


def _first_bad(content: bytes) -> int | None:
    """Place of the first zero byte, or of the first one that breaks UTF-8."""
    zero = content.find(b"\x00")
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(content), _PART):
        waiting = len(decoder.getstate()[0])
        if -1 < zero < start:
            break
        try:
            decoder.decode(content[start : start + _PART], start + _PART >= len(content))
        except UnicodeDecodeError as error:
            broken = start - waiting + error.start
            return broken if zero < 0 else min(zero, broken)
    return None if zero < 0 else zero
