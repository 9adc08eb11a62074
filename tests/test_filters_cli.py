"""`gmlp-vision filters`: what it prints, what it writes, and what it says when it cannot."""

import csv
import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.models import save_for_hf
from tiny import perturb, projections, tiny

from gmlp_vision.cli import main
from gmlp_vision.filters import extract, format_stats


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "wide.pth"
    torch.save(tiny(img_size=(32, 48)).state_dict(), path)  # 4 x 6 tokens, and nothing tells so
    return path


def run(*args: object) -> int:
    return main(["filters", *map(str, args)])


def test_it_prints_what_was_read_and_the_table(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(checkpoint, "--grid", 4, 6) == 0
    head, _, table = capsys.readouterr().out.partition("\n")
    assert head == f"{checkpoint}: 2 layers on a grid of 4 x 6 tokens, as given"
    assert table == format_stats(extract(checkpoint, (4, 6)).stats()) + "\n"


def test_a_guessed_grid_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(tiny().state_dict(), tmp_path / "square.pth")
    assert run(tmp_path / "square.pth") == 0
    head = capsys.readouterr().out.splitlines()[0]
    assert head.endswith("on a grid of 4 x 4 tokens, guessed to be square, since nothing states it")


def test_raw_weights_on_request_and_the_choice_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, ema = tiny(), perturb(tiny(), seed=1)
    both = tmp_path / "both.pth"
    torch.save({"state_dict": raw.state_dict(), "state_dict_ema": ema.state_dict()}, both)
    for args, taken, model in (([], "ema", ema), (["--weights", "raw"], "raw", raw)):
        assert run(both, *args) == 0
        head, _, table = capsys.readouterr().out.partition("\n")
        assert head.startswith(f"{both} ({taken} weights): 2 layers")
        assert table == format_stats(extract(model).stats()) + "\n"


def test_a_folder_in_timms_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_for_hf(tiny(img_size=(32, 48)), str(tmp_path / "wide"), safe_serialization=True)
    for what in (tmp_path / "wide", f"local-dir:{tmp_path / 'wide'}"):
        assert run(what, "--stats", tmp_path / "s.json") == 0
        out = capsys.readouterr().out.splitlines()
        assert out[0] == f"{what}: 2 layers on a grid of 4 x 6 tokens, by the img_size in its config"
        assert out[-1] == f"wrote {tmp_path / 's.json'}"
        rows = json.loads((tmp_path / "s.json").read_text())
        assert rows == [asdict(row) for row in extract(what).stats()]


@pytest.mark.parametrize(
    "config", [{"model_args": {"img_size": "64"}}, {"model_args": 3}, {"pretrained_cfg": {"input_size": [3]}}]
)
def test_a_config_with_nonsense_in_it_is_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: dict[str, object]
) -> None:
    save_file(tiny(img_size=(32, 48)).state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert run(tmp_path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "nothing tells the grid of the file's tokens" in line
    assert run(tmp_path, "--grid", 4, 6) == 0


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("hf-hub:OWNER/NAME/MORE", "hf-hub:OWNER/NAME/MORE was not fetched: Repo id must be"),
        ("gmlp_nano", "gmlp_nano is neither a file, nor a folder, nor the name of a model timm knows"),
        ("gmlp_b16_224", "gmlp_b16_224 has no released weights; give a file or a folder"),
        ("gmlp_s16_224.none", "Invalid pretrained tag (none) for gmlp_s16_224"),
    ],
)
def test_a_name_without_weights(capsys: pytest.CaptureFixture[str], what: str, message: str) -> None:
    assert run(what) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_page_with_an_image(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photo, page = tmp_path / "photo.png", tmp_path / "e.html"
    Image.new("RGB", (60, 40), "red").save(photo)
    assert run(checkpoint, "--grid", 4, 6, "--html", page, "--image", photo) == 0
    assert "data:image/jpeg;base64," in page.read_text()
    error = extract(checkpoint, (4, 6)).layers[0].weight.abs().max() / 254
    said = re.fullmatch(r"wrote .*: 0\.\d MB, weights within (.*)", capsys.readouterr().out.splitlines()[-1])
    assert 0 < float(said[1]) < 2 * error


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
    for layer in projections(model):
        layer.reset_parameters()
    torch.save(model.state_dict(), tmp_path / "fresh.pth")
    assert run(tmp_path / "fresh.pth") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("looks untrained: layer 0, 1.")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "nothing tells the grid of the file's tokens"),
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
        (["--grid", "-4", "-6"], "grid is -4 x -6; expected height and width of 1 to 16384 tokens"),
        (["--weights", "ema"], "holds no EMA weights"),
        (["--model", "resmlp_12_224"], "does not hold the weights of resmlp_12_224"),
        (["--tokens", "center"], "name it with -o FILE.png"),
        (["--draw", "kernels"], "--draw, --tokens and --scale are of the figure: name it with -o"),
        (["--layers", "1"], "--layers are of the figure and the page: name one with -o FILE.png or --html"),
        (["--grid", "4", "6", "-o", "f.png", "--layers", "0-999999999"], "no layer 2 in"),
        (["--image", "photo.png"], "name it with --html FILE.html"),
        (["--grid", "4", "6", "--html", "e.html", "--image", "photo.png"], "photo.png"),
        (["--grid", "4", "6", "--html", "e.png"], "the page is written as one of .html"),
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


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-o", "f.png", "--layers", "0-99999999999"], "'0-99999999999' is neither a number nor a range"),
        (["-o", "f.png", "--tokens", "middle"], "'middle' is none of center, corners, grid:K"),
        (["-o", "f.png", "--scale", "row"], "scale is 'row'; expected one of figure, layer, picture"),
        (
            ["-o", "f.png", "--draw", "stats", "--scale", "layer"],
            "the figure of stats has no scale to choose",
        ),
        (["-o", "f.gif"], "a figure is written as one of .pdf, .png, .svg"),
        (["--stats", "s.xls"], "statistics are written as one of .csv, .json"),
        (["--html", "e.png"], "the page is written as one of .html, .htm"),
        (["--stats", "no/s.csv"], "there is no folder no"),
        (
            ["--html", "e.html", "--image", "photo.png"],
            "the image photo.png cannot be read: there is no such file",
        ),
    ],
)
def test_options_are_checked_before_anything_is_read(
    capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    assert run("no-such-file.pth", *args) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_layers_choose_those_of_the_page(checkpoint: Path, tmp_path: Path) -> None:
    assert run(checkpoint, "--grid", 4, 6, "--html", tmp_path / "e.html", "--layers", "1") == 0
    page = (tmp_path / "e.html").read_text()
    assert "blocks.1.mlp_channels" in page
    assert "blocks.0.mlp_channels" not in page
