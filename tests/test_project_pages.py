"""CONTRIBUTING.md and CITATION.cff: what they say of the project is so."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())


@pytest.mark.parametrize("command", ["pip install", "ruff format", "ruff check", "mypy", "pytest"])
def test_it_has_the_commands_that_ci_runs(command: str) -> None:
    shell = "".join(re.findall(r"^```sh\n(.*?)^```", PAGE, flags=re.M | re.S))
    for text in (shell, (ROOT / ".ci/run").read_text()):
        assert re.search(rf"(^|&& ){command}\b", text, flags=re.M)


def test_the_paths_exist() -> None:
    paths = re.findall(r"`([\w./]*[/.][\w./]+)`", PAGE)
    assert len(paths) > 8
    for path in paths:
        assert (ROOT / path.replace("NAME", "gmlp_smoke")).exists(), path


@pytest.mark.parametrize("name", ["cff-version", "message", "title", "authors"])
def test_the_citation_has_what_its_format_requires(name: str) -> None:
    assert CITATION[name]


def test_the_citation_names_the_authors_together_and_the_paper() -> None:
    assert CITATION["authors"] == [{"name": "The gmlp-vision authors"}]
    (paper,) = CITATION["references"]
    assert paper["type"] == "conference-paper"
    assert paper["title"] in (ROOT / "gmlp_vision/models/gmlp.py").read_text()
    for author in paper["authors"]:
        assert author["family-names"] in (ROOT / "gmlp_vision/models/gmlp.py").read_text()
    assert paper["url"] in (ROOT / "gmlp_vision/models/gmlp.py").read_text()


def test_the_citation_invents_no_address() -> None:
    text = (ROOT / "CITATION.cff").read_text()
    assert set(re.findall(r"https?://[^/\s]+", text)) == {"https://arxiv.org"}
    assert not re.findall(r"doi|orcid|email", text, flags=re.I)
