"""The options of figures and files, in the words of the command line: read and checked before any work.

Shapes: (H, W) the token grid; a token is (row, column), both from 0.
"""

import re
from collections.abc import Sequence
from pathlib import Path

Token = tuple[int, int]


def parse_layers(text: str) -> list[range]:
    """'1,5,10-20' to ranges of block numbers, counted from 0, as in 'blocks.0'.

    Raises:
        ValueError: Anything else.
    """
    chosen = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"layers are {text!r}; {part!r} is neither a number nor a range like 10-20")
        chosen.append(range(int(match[1]), int(match[2] or match[1]) + 1))
    return chosen


def parse_tokens(text: str) -> list[Token | str]:
    """'center,corners' or 'grid:3' or '4,7;0,2' to tokens and names, which `tokens_on` finds on a grid.

    'center' is the middle token (the lower right one of the middle four), 'corners' the four corners, and
    'grid:K' K x K tokens evenly spread over the inside of the grid. The names may be joined by commas; tokens
    by their numbers are 'row,column', joined by semicolons.

    Raises:
        ValueError: Anything else.
    """
    chosen: list[Token | str] = []
    for part in text.split(";"):
        numbers = re.fullmatch(r"\s*(\d{1,9})\s*,\s*(\d{1,9})\s*", part)
        if numbers:
            chosen.append((int(numbers[1]), int(numbers[2])))
            continue
        for name in part.split(","):
            if not re.fullmatch(r"center|corners|grid:[1-9]\d{0,8}", name.strip()):
                raise ValueError(
                    f"tokens are {text!r}; {name.strip()!r} is none of center, corners, grid:K (such as "
                    "grid:4), nor a token as 'row,column', several joined by ';'"
                )
            chosen.append(name.strip())
    return chosen


def tokens_on(grid: tuple[int, int], chosen: Sequence[Token | str]) -> list[Token]:
    """What `parse_tokens` gave, on a grid of (H, W) tokens: in row-major order, each once."""
    h, w = grid
    found: set[Token] = set()
    for token in chosen:
        if not isinstance(token, str):
            found.add(token)
        elif token == "center":
            found.add((h // 2, w // 2))
        elif token == "corners":
            found.update((r, c) for r in (0, h - 1) for c in (0, w - 1))
        else:
            count = int(token.removeprefix("grid:"))
            found.update((r, c) for r in spread(h, count) for c in spread(w, count))
    return sorted(found)


def spread(size: int, count: int) -> list[int]:
    """The cells of range(size) that hold the middles of `count` equal parts of it; each once."""
    if count >= size:
        return list(range(size))
    return sorted({(2 * k + 1) * size // (2 * count) for k in range(count)})


def check_ending(path: str | Path, endings: Sequence[str], what: str) -> str:
    """The ending of a file to write, in lower case, such as '.png'.

    Raises:
        ValueError: It is none of `endings`; `what` is what would be written.
    """
    ending = Path(path).suffix
    if ending.lower() not in endings:
        raise ValueError(f"{str(path)!r} ends in {ending!r}; {what} written as one of {', '.join(endings)}")
    return ending.lower()
