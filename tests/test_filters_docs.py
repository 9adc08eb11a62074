"""docs/filters.md: every block of it, in order, in a folder with the files it speaks of."""

import argparse
import ast
import re
import shlex
from dataclasses import asdict
from pathlib import Path
from statistics import mean

import pytest
import torch
from PIL import Image
from tiny import perturb, tiny

from gmlp_vision.cli import main
from gmlp_vision.filters import extract

PAGE = (Path(__file__).parents[1] / "docs/filters.md").read_text()
FIRST_LINES = {
    "model_best.pth.tar": "model_best.pth.tar (ema weights): 2 layers",
    "gmlp_pico4": "gmlp_pico4: 8 layers on a grid of 8 x 8 tokens, by the img_size in its config\n",
}
ROW = (
    "{toeplitz_share:.2f} | {locality:.2f} | {diagonal_share:.3f} | {anisotropy:.2f} | {symmetry:.2f} | "
    "{effective_rank:.1f} | {moved:,.0f}"
)
MEANS_ROW = ROW.replace("{moved:,.0f}", "{rms:.3f}")
MEANS = set(re.findall(r"{(\w+):", MEANS_ROW))
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, flags=re.M | re.S)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    raw, ema = tiny().state_dict(), perturb(tiny(), seed=1).state_dict()
    args = argparse.Namespace(model="gmlp_ti16", img_size=32)
    torch.save({"args": args, "state_dict": raw, "state_dict_ema": ema}, "model_best.pth.tar")
    Image.new("RGB", (60, 40), "red").save("photo.jpg")
    return tmp_path


@pytest.mark.slow
def test_every_block_of_the_page_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    for kind, text in BLOCKS:
        if kind == "python":
            exec(compile(text, "filters.md", "exec"), names)
            # beside an expression stands its value, or the shape of a tensor
            for expression, value in re.findall(r"^([^=\n]+)  # ([^:\n]+)", text, flags=re.M):
                found = eval(expression, names)
                found = tuple(found.shape) if isinstance(found, torch.Tensor) else found
                assert found == ast.literal_eval(value), expression
        else:
            assert kind == "sh"
            for line in text.splitlines():
                command, *args = shlex.split(line, comments=True)
                assert command == "gmlp-vision"
                assert main(args) == 0, line
                assert capsys.readouterr().out.startswith(FIRST_LINES[args[1]]), line
    written = {path.name for path in folder.iterdir()} - {"model_best.pth.tar", "photo.jpg"}
    assert written == {
        *("filters.pdf", "filters.png", "filters_pico4.png", "kernels_pico4.png", "stats_pico4.svg"),
        *("explorer.html", "stats.csv"),
    }


def test_the_table_of_the_page_is_that_of_the_shipped_weights() -> None:
    rows = re.findall(r"^\| (\d) \| (.*) \|$", PAGE, flags=re.M)
    for (block, cells), layer in zip(rows, extract("gmlp_pico4").stats(), strict=True):
        assert int(block) == layer.block
        assert cells == ROW.format(**asdict(layer))


def test_the_means_of_the_page_are_those_of_the_weights_that_are_here() -> None:
    rows = re.findall(r"^\| `([\w./]+)`: [^|]*\| (.*) \|$", PAGE, flags=re.M)
    assert len(rows) == 3
    for source, cells in rows:
        path = Path(__file__).parents[1] / source
        stats = [asdict(layer) for layer in extract(path if path.exists() else source).stats()]
        means = {key: mean(each[key] for each in stats) for key in stats[0] if key in MEANS}
        assert cells == MEANS_ROW.format(**means)


def test_the_options_of_the_page_are_those_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["filters", "--help"])
    options = set(re.findall(r"--[a-z]+", capsys.readouterr().out)) - {"--help", "--out"}
    assert options == set(re.findall(r"(?<!-)--[a-z]+", PAGE))
