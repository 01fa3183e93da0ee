"""A slow model of packing: all of a lane at once, in lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Piece = tuple[int, int, int]  # document of the lane, first token, end


def pieces_of_rows(lengths: Iterator[int], size: int, method: str, window: int, first: int) -> Iterator[list[Piece]]:
    """The sequences of a lane, for ever, from the lengths of its documents."""
    documents = enumerate(lengths)
    left: list[Piece] = []
    is_first = True
    while True:
        pieces, old = list(left), list(left)
        wanted = (first if is_first else window) if method == 'best_fit' else 1
        while sum(end - begin for _, begin, end in pieces) < wanted * size:
            number, length = next(documents)
            step = size if method == 'best_fit' else length
            pieces += [(number, begin, min(begin + step, length)) for begin in range(0, length, step or 1)]
        if method == 'concatenate':
            row: list[Piece] = []
            room = size
            while room:
                number, begin, end = pieces.pop(0)
                used = min(end - begin, room)
                row.append((number, begin, begin + used))
                room -= used
                if used < end - begin:
                    pieces.insert(0, (number, begin + used, end))
            left = pieces
            yield row
        else:
            rows = best_fit(pieces, size)
            left = []
            new = [row for row in rows if not any(piece in old for piece in row)]
            if len(rows) > 1 and new:
                left = min(new, key=tokens)
                rows.remove(left)
            yield from rows
        is_first = False


def best_fit(pieces: Sequence[Piece], size: int) -> list[list[Piece]]:
    rows: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda piece: piece[1] - piece[2]):
        fitting = [row for row in rows if tokens(row) + tokens([piece]) <= size]
        if fitting:
            max(fitting, key=tokens).append(piece)
        else:
            rows.append([piece])
    place = {piece: place for place, piece in enumerate(pieces)}
    return sorted((sorted(row, key=place.__getitem__) for row in rows), key=lambda row: place[row[0]])


def tokens(row: Sequence[Piece]) -> int:
    return sum(end - begin for _, begin, end in row)


def documents_of_lane(lane: int, lanes: int, passes: Iterator[list[int]]) -> Iterator[int]:
    """Sample ids of a lane's documents, from each pass' order."""
    for order in passes:
        yield from order[lane::lanes]
