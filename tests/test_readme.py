"""The README does what it says: its Python runs, commands and links exist; so do other pages' commands."""

import re
import shlex
from pathlib import Path

import pytest

from gmlp_vision.cli import make_parser
from gmlp_vision.shipped import find_recipe

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
# The other pages have tests of their own, which run their commands.
OTHERS = ("train/README.md", "docs/training.md", "docs/speed.md")
LINKING = [
    *OTHERS, "CONTRIBUTING.md", "docs/adding-a-mixer.md", "docs/api.md", "docs/filters.md",
    "docs/resampling.md", "docs/weights.md", "docs/with.md", "docs/zoo.md", "examples/text/README.md",
]  # fmt: skip
PAGES = README + "".join((ROOT / page).read_text() for page in OTHERS)


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Each `gmlp-vision` call of the shell blocks, and at the head of a table's row."""
    shell = [*blocks("sh", PAGES), *re.findall(r"^\| `(gmlp-vision [^`\n]+)`", PAGES, flags=re.MULTILINE)]
    return re.findall(r"(?<![\w\"/-])gmlp-vision ([^\n&|)#\"]+)", "\n".join(shell))


def test_python_blocks_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(blocks("python")) >= 2
    names: dict[str, object] = {}
    for block in blocks("python"):
        exec(block, names)
    assert names["features"].shape == (1, 64, 128)


@pytest.mark.parametrize("command", commands())
def test_every_command_is_one_the_parser_takes(command: str) -> None:
    args = make_parser().parse_args(shlex.split(command))
    if command.startswith("recipe") and args.name:
        find_recipe(args.name)


def test_no_placeholder_is_left() -> None:
    assert re.findall(r"@[A-Z]+@", README) == []


def test_there_are_commands() -> None:
    assert {c.split()[0] for c in commands()} >= {"demo", "export", "filters", "recipe", "run"}


def test_files_that_the_readme_names_exist() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", README) + re.findall(r"`([\w./]+/)`", README)
    missing = [link for link in links if not link.startswith("runs/") and not (ROOT / link).exists()]
    assert len(links) > 8
    assert not missing


@pytest.mark.parametrize("page", LINKING)
def test_links_of_the_other_pages_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\((?!http)([^)]*)\)", (ROOT / page).read_text())
    for link in links:
        name, _, section = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        assert target.exists(), link
        titles = re.findall(r"^#+ (.+)$", target.read_text(), flags=re.MULTILINE) if section else []
        assert not section or section in [title.lower().replace(" ", "-") for title in titles], link
