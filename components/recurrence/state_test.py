from __future__ import annotations

import pytest

from ablate.components.recurrence.state import Piece, cut


@pytest.mark.parametrize("chunk", [1, 3, 4])
@pytest.mark.parametrize("tokens", [1, 2, 5, 12])
def test_pieces_cover_the_call_in_order_and_never_cross_a_border(tokens: int, chunk: int) -> None:
    for position in range(chunk):
        covered = []
        for piece in cut(tokens, chunk, position):
            for g in range(piece.count):
                start = piece.start + g * piece.length
                assert (position + start) % chunk == piece.position
                assert piece.position + piece.length <= chunk
                covered += range(start, start + piece.length)
        assert covered == list(range(tokens))


def test_whole_chunks_are_one_piece() -> None:
    assert cut(13, 4, 1) == [Piece(0, 1, 3, 1), Piece(3, 2, 4, 0), Piece(11, 1, 2, 0)]
