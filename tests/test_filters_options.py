"""The words of the command line: layers, tokens, endings of files."""

from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_vision.filters.options import check_ending, parse_layers, parse_tokens, spread, tokens_on


@pytest.mark.parametrize(
    ("text", "expected"), [("3", [3]), ("1,5,10-12", [1, 5, 10, 11, 12]), ("4-6, 5,0", [4, 5, 6, 5, 0])]
)
def test_layers(text: str, expected: list[int]) -> None:
    assert list(chain.from_iterable(parse_layers(text))) == expected


def test_a_range_takes_no_memory() -> None:
    assert parse_layers("0-999999999") == [range(1_000_000_000)]


@pytest.mark.parametrize("text", ["", "a", "1,,2", "5-3", "-1", "1.5", "1-", "0-99999999999"])
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
    assert tokens_on((4, 6), parse_tokens(text)) == expected


def test_the_same_words_are_other_tokens_on_another_grid() -> None:
    words = parse_tokens("center,corners")
    assert tokens_on((2, 3), words) == [(0, 0), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert tokens_on((1, 1), words) == [(0, 0)]


@pytest.mark.parametrize(
    "text", ["", "middle", "grid", "grid:0", "1", "1,2,3", "1;2", "1,2;", "grid:9999999999"]
)
def test_tokens_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"is none of center, corners, grid:K"):
        parse_tokens(text)


def test_more_tokens_than_there_are_is_all_of_them() -> None:
    assert spread(5, 10**12) == [0, 1, 2, 3, 4]


def test_an_ending_is_one_of_those_said() -> None:
    assert check_ending("a.b/f.PNG", (".pdf", ".png"), "a figure is") == ".png"
    with pytest.raises(
        ValueError, match=r"'f\.gif' ends in '\.gif'; a figure is written as one of \.pdf, \.png"
    ):
        check_ending("f.gif", (".pdf", ".png"), "a figure is")


@given(st.integers(1, 40), st.integers(1, 60))
def test_spread_stays_inside_and_is_even(size: int, count: int) -> None:
    cells = spread(size, count)
    assert cells == sorted(set(cells))
    assert 0 <= cells[0] <= cells[-1] < size
    assert len(cells) == min(size, count)
    steps = [b - a for a, b in pairwise(cells)]
    assert max(steps, default=0) - min(steps, default=0) <= 1
