"""Every benchmark has its RESULTS.md, and every command in a page is one that its script takes."""

import re
import shlex
from pathlib import Path

import pytest
from benchmark_scripts import BENCHMARKS, load

ROOT = BENCHMARKS.parent
RESULTS = sorted(BENCHMARKS.glob("*/RESULTS.md"))
PAGES = [ROOT / "README.md", *RESULTS]
PAGES += [page for place in ("docs/*.md", "train/*", "weights/*/README.md") for page in ROOT.glob(place)]
# up to the end of the line or of the code in Markdown, or to a comment
COMMAND = re.compile(r"python benchmarks/(\w+)/(\w+)\.py([^\n`#]*)")


def commands() -> list[tuple[str, str, str]]:
    found = {found for page in PAGES for found in COMMAND.findall(page.read_text())}
    return sorted({(folder, script, options.strip()) for folder, script, options in found})


def test_every_benchmark_has_its_results_and_its_command() -> None:
    folders = {path.parent.name for path in BENCHMARKS.glob("*/*.py")}
    assert {path.parent.name for path in RESULTS} == folders
    assert {folder for folder, _, _ in commands()} == folders


@pytest.mark.parametrize(("folder", "script", "options"), commands())
def test_every_command_is_one_the_script_takes(folder: str, script: str, options: str) -> None:
    getattr(load(folder), script).arguments(shlex.split(options))


@pytest.mark.parametrize("page", RESULTS, ids=lambda page: page.parent.name)
def test_links_of_the_results_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!http)([^)]*)\)", page.read_text()):
        name, _, section = link.partition("#")
        target = page.parent / name
        assert target.is_file(), link
        if section:
            titles = re.findall(r"^#+ (.+)$", target.read_text(), flags=re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
            assert section in slugs, link
