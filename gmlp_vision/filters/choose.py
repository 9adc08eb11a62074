"""Choosing layers and tokens: the small language of the command line, read into numbers.

Shapes: (H, W) the token grid; a token is (row, column), both from 0.
"""

import re


def parse_layers(text: str) -> list[int]:
    """'1,5,10-20' to block numbers, ascending, each once; counted from 0, as in 'blocks.0'.

    Raises:
        ValueError: Anything else.
    """
    chosen: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"layers are {text!r}; {part!r} is neither a number nor a range like 10-20")
        chosen.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(chosen)


def parse_tokens(text: str, grid: tuple[int, int]) -> list[tuple[int, int]]:
    """'center,corners' or 'grid:3' or '4,7;0,2' to tokens, in row-major order, each once.

    'center' is the middle token (the lower right one of the middle four), 'corners' the four corners, and
    'grid:K' K x K tokens evenly spread over the inside of the grid. The names may be joined by commas; tokens
    by their numbers are 'row,column', joined by semicolons.

    Args:
        text: As above.
        grid: (H, W), in tokens.

    Raises:
        ValueError: Anything else, or a token outside the grid.
    """
    chosen: set[tuple[int, int]] = set()
    for part in text.split(";"):
        numbers = re.fullmatch(r"\s*(\d+)\s*,\s*(\d+)\s*", part)
        if numbers:
            chosen.add((int(numbers[1]), int(numbers[2])))
            continue
        for name in part.split(","):
            chosen.update(_named(name.strip(), text, grid))
    outside = sorted(t for t in chosen if t[0] >= grid[0] or t[1] >= grid[1])
    if outside:
        raise ValueError(
            f"token {outside[0]} lies outside the grid of {grid[0]} x {grid[1]} tokens; rows go from 0 to "
            f"{grid[0] - 1}, columns from 0 to {grid[1] - 1}"
        )
    return sorted(chosen)


def _named(name: str, text: str, grid: tuple[int, int]) -> set[tuple[int, int]]:
    h, w = grid
    if name == "center":
        return {(h // 2, w // 2)}
    if name == "corners":
        return {(r, c) for r in (0, h - 1) for c in (0, w - 1)}
    match = re.fullmatch(r"grid:([1-9]\d*)", name)
    if match:
        rows, columns = spread(h, int(match[1])), spread(w, int(match[1]))
        return {(r, c) for r in rows for c in columns}
    raise ValueError(
        f"tokens are {text!r}; {name!r} is none of center, corners, grid:K (such as grid:4), nor a token as "
        "'row,column', several joined by ';'"
    )


def spread(size: int, count: int) -> list[int]:
    """The cells of range(size) that hold the middles of `count` equal parts of it; each once."""
    return sorted({(2 * k + 1) * size // (2 * count) for k in range(count)})
