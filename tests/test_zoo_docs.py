"""docs/zoo.md and the README's table of families are what docs/zoo.py writes from the code."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from gmlp_vision.errors import UserError

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def zoo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("zoo_docs", ROOT / "docs/zoo.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_both_are_up_to_date(zoo: ModuleType) -> None:
    readme = (ROOT / "README.md").read_text()
    assert (ROOT / "docs/zoo.md").read_text() == zoo.page(), "run python docs/zoo.py"
    assert readme == zoo.readme(readme), "run python docs/zoo.py"


def test_every_family_says_where_it_comes_from(zoo: ModuleType) -> None:
    for family in zoo.families():
        first = family.__doc__.splitlines()[0]
        assert ": " in first, family
        assert family.SOURCE.endswith("."), family


def test_what_is_counted(zoo: ModuleType) -> None:
    row = zoo.describe("gmlp_pico4")
    assert row.parameters == 1_236_106
    assert row.any_size == "resampled"
    assert row.filters == ("token",)
    assert zoo.describe("s2mlp_deep").any_size == "free"
    assert zoo.describe("s2mlp_deep").filters == ()
    assert "shift" in zoo.describe("s2mlp_deep").no_filters[0]
    assert zoo.describe("resmlp_12_224").any_size == "fixed"
    assert zoo.describe("ff_ti16").weights.startswith("[linear-tiny-checkpoint.pth](https://github.com/")


def test_a_readme_without_its_marks_is_refused(zoo: ModuleType) -> None:
    with pytest.raises(UserError, match="has lost the lines"):
        zoo.readme("# gmlp-vision\n")
