"""The small language that names layers and tokens."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_vision.filters.choose import parse_layers, parse_tokens, spread


@pytest.mark.parametrize(
    ("text", "expected"), [("3", [3]), ("1,5,10-12", [1, 5, 10, 11, 12]), ("4-6, 5,0", [0, 4, 5, 6])]
)
def test_layers(text: str, expected: list[int]) -> None:
    assert parse_layers(text) == expected


@pytest.mark.parametrize("text", ["", "a", "1,,2", "5-3", "-1", "1.5", "1-"])
def test_layers_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="neither a number nor a range"):
        parse_layers(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("center", [(2, 3)]),
        ("corners", [(0, 0), (0, 5), (3, 0), (3, 5)]),
        ("grid:1", [(2, 3)]),
        ("grid:2", [(1, 1), (1, 4), (3, 1), (3, 4)]),
        ("3,5;0,2", [(0, 2), (3, 5)]),
        ("1,1;center,grid:1", [(1, 1), (2, 3)]),
    ],
)
def test_tokens_of_a_4_x_6_grid(text: str, expected: list[tuple[int, int]]) -> None:
    assert parse_tokens(text, (4, 6)) == expected


@pytest.mark.parametrize("text", ["", "middle", "grid", "grid:0", "1", "1,2,3", "1;2", "1,2;"])
def test_tokens_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"is none of center, corners, grid:K"):
        parse_tokens(text, (4, 6))


@pytest.mark.parametrize("text", ["4,0", "0,6", "0,0;9,9"])
def test_tokens_outside(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"outside the grid of 4 x 6 tokens; rows go from 0 to 3, columns from 0 to 5"
    ):
        parse_tokens(text, (4, 6))


@given(st.integers(1, 40), st.integers(1, 60))
def test_spread_stays_inside_and_is_even(size: int, count: int) -> None:
    cells = spread(size, count)
    assert cells == sorted(set(cells))
    assert 0 <= cells[0] <= cells[-1] < size
    assert len(cells) == min(size, count)
    steps = [b - a for a, b in pairwise(cells)]
    assert max(steps, default=0) - min(steps, default=0) <= 1
