"""`gmlp-vision filters`: what it prints, what it writes, and what it says when it cannot."""

import csv
from pathlib import Path

import pytest
import torch
from PIL import Image
from tiny import tiny

from gmlp_vision.cli import main
from gmlp_vision.filters import extract, format_stats


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "wide.pth"
    torch.save(tiny(img_size=(32, 48)).state_dict(), path)  # 4 x 6 tokens, and nothing tells so
    return path


def run(*args: object) -> int:
    return main(["filters", *map(str, args)])


def test_it_prints_the_table(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(checkpoint, "--grid", 4, 6) == 0
    assert capsys.readouterr().out == format_stats(extract(checkpoint, (4, 6)).stats()) + "\n"


def test_it_writes_figure_numbers_and_page(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figure, numbers, page = (tmp_path / name for name in ("f.png", "s.csv", "e.html"))
    args = ["--tokens", "corners;1,2", "--layers", "1", "--scale", "picture"]
    assert run(checkpoint, "--grid", 4, 6, "-o", figure, *args, "--stats", numbers, "--html", page) == 0
    with Image.open(figure) as image:
        assert image.format == "PNG"
    with open(numbers, newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == [
            f"blocks.{i}.mlp_channels.gate.proj" for i in range(2)
        ]
    assert page.read_text().startswith("<!DOCTYPE html>")
    out = capsys.readouterr().out.splitlines()[-3:]
    assert [line.split()[1].rstrip(":") for line in out] == [str(figure), str(numbers), str(page)]


@pytest.mark.parametrize("what", ["kernels", "stats"])
def test_the_other_figures(checkpoint: Path, tmp_path: Path, what: str) -> None:
    assert run(checkpoint, "--grid", 4, 6, "--draw", what, "-o", tmp_path / "f.svg") == 0
    assert "<svg" in (tmp_path / "f.svg").read_text()


def test_untrained_weights_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny()
    for block in model.blocks:
        block.mlp_channels.gate.proj.init_weights()
    torch.save(model.state_dict(), tmp_path / "fresh.pth")
    assert run(tmp_path / "fresh.pth") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("looks untrained: layer 0, 1.")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "24 tokens, which is no square number"),
        (["--grid", "4", "6", "-o", "f.gif"], "ends in '.gif'"),
        (["--grid", "4", "6", "-o", "no/f.png"], "there is no folder no"),
        (["--grid", "4", "6", "-o", "f.png", "--layers", "2"], "it has 0 to 1"),
        (["--grid", "4", "6", "-o", "f.png", "--tokens", "4,0"], "outside the grid of 4 x 6"),
        (["--grid", "4", "6", "-o", "f.png", "--scale", "row"], "expected one of figure, layer, picture"),
        (
            ["--grid", "4", "6", "-o", "f.png", "--draw", "stats", "--tokens", "center"],
            "(--tokens); leave it out",
        ),
        (["--grid", "4", "6", "-o", "f.png", "--draw", "units"], "no layers of kind 'hidden'"),
        (["--tokens", "center"], "name it with -o FILE.png"),
        (["--image", "photo.png"], "name it with --html FILE.html"),
        (["--grid", "4", "6", "--html", "e.html", "--image", "photo.png"], "photo.png"),
        (["--grid", "4", "6", "--html", "e.png"], "the page is written as .html"),
    ],
)
def test_what_the_user_can_mend_is_one_line(
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(checkpoint, *args) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert list(tmp_path.iterdir()) == []
