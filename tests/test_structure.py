"""The study of what is left as W is replaced: numbers against a slow way, going on, refusals, the picture."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from tiny import perturb, tiny
from torch import nn

from gmlp_vision import structure
from gmlp_vision.accuracy import accuracy
from gmlp_vision.checkpoints import build
from gmlp_vision.cli import main
from gmlp_vision.errors import UserError
from gmlp_vision.filters.structures import Structure, format_structures, plot_structures
from gmlp_vision.structure import FILES, study, usual_kinds
from gmlp_vision.structure_measure import Some, fine_tune, one_by_one

# timm's reader leaves it to Python to close its files
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

SMALL: dict[str, Any] = {
    "layer_images": 10,
    "test_images": 15,
    "train_images": 10,
    "batch_size": 4,
    "workers": 0,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and 15 images for training and for test, of 5 classes."""
    root = tmp_path_factory.mktemp("study")
    torch.manual_seed(0)
    timm.models.save_for_hf(tiny(), str(root / "model"))
    generator = torch.Generator().manual_seed(0)
    for split in ("train", "test"):
        for c in "abcde":
            (root / "data" / split / c).mkdir(parents=True)
            for i in range(3):
                pixels = torch.randint(0, 256, (32, 32, 3), generator=generator, dtype=torch.uint8)
                Image.fromarray(pixels.numpy()).save(root / "data" / split / c / f"{i}.png")
    return root


@pytest.fixture
def _undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure takes longer than all that is drawn in it."""
    monkeypatch.setattr(structure, "save_figure", lambda figure, path: path.touch())


def run(folder: Path, output: Path, *kinds: str, **kwargs: Any) -> list[Structure]:
    return study(str(folder / "model"), folder / "data", output, kinds, **{**SMALL, **kwargs})


# -- numbers ------------------------------------------------------------------------------------------------


def test_a_block_in_turn_is_that_of_the_other_model(folder: Path) -> None:
    dense, axial = (build(folder / "model", spatial=kind).model for kind in ("dense", "axial"))
    labels = torch.arange(40) % 5
    batches = [(torch.randn(20, 3, 32, 32), labels[:20]), (torch.randn(20, 3, 32, 32), labels[20:])]
    found = one_by_one(dense, axial, batches)
    for i, share in enumerate(found):
        mixed = build(folder / "model").model
        mixed.blocks[i] = axial.blocks[i]
        assert share == pytest.approx(100 * accuracy(mixed, batches))
    assert one_by_one(dense, dense, batches) == pytest.approx([100 * accuracy(dense, batches)] * 2)


def test_a_step_of_learning_keeps_the_kind() -> None:
    model = tiny(spatial="rank:2")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(0)
    fine_tune(model, [(torch.randn(4, 3, 32, 32), torch.arange(4))] * 3, 3)
    assert all((before[name] - tensor).abs().max() > 1e-5 for name, tensor in model.state_dict().items())
    assert torch.linalg.matrix_rank(model.blocks[0].mlp_channels.gate.proj.matrix()[0]) == 2


def test_a_single_batch_is_learned_from() -> None:
    model = tiny()
    before = model.head.weight.clone()
    fine_tune(model, [(torch.randn(4, 3, 32, 32), torch.arange(4))], 1)
    assert (before - model.head.weight).abs().max() > 1e-5


def test_images_are_spread_over_all_classes() -> None:
    whole = [k // 10 for k in range(50)]
    some: Any = Some(whole, 10)
    assert [some[k] for k in range(len(some))] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert len(Some(whole, 99)) == 50


def test_what_is_measured_is_written(folder: Path, tmp_path: Path) -> None:
    rows = run(folder, tmp_path / "out", "axial", "rank:2")
    assert [row.kind for row in rows] == ["dense", "axial", "rank:2"]
    assert [row.numbers for row in rows] == [256, 32, 64]
    assert rows[0].shares == [1, 1]
    for row in rows:
        built = build(folder / "model", spatial=row.kind)
        assert row.shares == pytest.approx(list(built.report.explained.values()) or [1, 1])
        assert len(row.alone) == 2
        assert 0 <= row.before <= 100
        assert row.after is not None
    assert [json.loads((tmp_path / "out" / FILES[0]).read_text())["kinds"][k]["kind"] for k in range(3)] == [
        row.kind for row in rows
    ]
    assert (tmp_path / "out" / FILES[1]).read_text() == format_structures(rows)
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(FILES)


# -- going on -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_undrawn")
def test_a_stopped_run_goes_on(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(folder, tmp_path / "whole", "axial")
    tuned: list[nn.Module] = []

    def stop(model: nn.Module, *args: Any) -> None:
        tuned.append(model)
        if len(tuned) == 2:
            raise KeyboardInterrupt
        fine_tune(model, *args)

    monkeypatch.setattr(structure, "fine_tune", stop)
    with pytest.raises(KeyboardInterrupt):
        run(folder, tmp_path / "out", "axial")
    monkeypatch.setattr(structure, "one_by_one", None)  # that is known
    assert run(folder, tmp_path / "out", "axial") == expected
    assert len(tuned) == 3
    monkeypatch.setattr(structure, "fine_tune", None)
    assert run(folder, tmp_path / "out", "axial") == expected


@pytest.mark.usefixtures("_undrawn")
def test_more_kinds_come_to_those_there_are(folder: Path, tmp_path: Path) -> None:
    run(folder, tmp_path / "out", "axial")
    rows = run(folder, tmp_path / "out", "toeplitz")
    assert [row.kind for row in rows] == ["dense", "axial", "toeplitz"]


# -- refusals -----------------------------------------------------------------------------------------------


def test_what_is_refused_at_once(folder: Path, tmp_path: Path) -> None:
    for kinds, kwargs, said in (
        (["hexagonal"], {}, "spatial is 'hexagonal'; expected one of"),
        (["gqpe"], {}, "gqpe has no nearest W: W is a softmax"),
        (["block:3"], {}, "cells of 3 x 3 do not divide"),
        (["axial"], {"test_images": 0}, "test_images is 0; expected at least 1"),
        (["axial"], {"batch_size": 16}, "fewer training images than the 16 of a batch"),
        (["axial"], {"split": "train/a"}, "does not hold a folder of images for each class"),
        (["axial"], {"split": "other"}, "data has no folder other; expected one for training and one"),
        (["axial"], {"train_split": "other"}, "data has no folder other"),
        (["axial"], {"device": "abacus"}, "nothing can be computed on the device 'abacus'"),
    ):
        with pytest.raises((UserError, ValueError), match=said):
            run(folder, tmp_path / "out", *kinds, **kwargs)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("_undrawn")
def test_another_studys_folder_is_left_alone(folder: Path, tmp_path: Path) -> None:
    run(folder, tmp_path / "out", "axial")
    before = (tmp_path / "out" / FILES[0]).read_text()
    with pytest.raises(UserError, match=r"of another study, where seed was 0: give another folder"):
        run(folder, tmp_path / "out", "axial", seed=1)
    shutil.copytree(folder / "data", tmp_path / "copy")
    with pytest.raises(UserError, match=r"of another study, where data was '.*': give another folder"):
        study(str(folder / "model"), tmp_path / "copy", tmp_path / "out", ["axial"], **SMALL)
    assert (tmp_path / "out" / FILES[0]).read_text() == before
    again = tmp_path / "again"
    timm.models.save_for_hf(perturb(build(folder / "model").model), str(tmp_path / "model"))
    study(str(tmp_path / "model"), folder / "data", again, ["axial"], **SMALL)
    shutil.rmtree(tmp_path / "model")
    shutil.copytree(folder / "model", tmp_path / "model")
    with pytest.raises(UserError, match=r"of another study, where weights' sha256 was"):
        study(str(tmp_path / "model"), folder / "data", again, ["axial"], **SMALL)
    (tmp_path / "out" / FILES[0]).write_text("[]")
    with pytest.raises(UserError, match="is no result of this command"):
        run(folder, tmp_path / "out", "axial")


@pytest.mark.usefixtures("_undrawn")
def test_a_file_that_leaves_a_choice_is_read_as_asked(folder: Path, tmp_path: Path) -> None:
    """By the options that the refusal names; another choice is another study."""
    raw, ema = tiny(unit="linear").state_dict(), perturb(tiny(unit="linear"), 1).state_dict()
    file, name = tmp_path / "x.pth", "gmlp_s16_linear"
    torch.save({"state_dict": raw, "state_dict_ema": ema}, file)

    def of_file(*options: str) -> int:
        few = [f"--{key.replace('_', '-')}={value}" for key, value in SMALL.items()]
        few += ["--data-dir", str(folder / "data"), "--output", str(tmp_path / "out"), "--kinds", "axial"]
        return main(["structure", str(file), *few, *options])

    assert of_file() == 2
    assert of_file("--model", name) == 0
    shares = json.loads((tmp_path / "out" / FILES[0]).read_text())["kinds"][1]["shares"]
    assert shares == pytest.approx([*build(file, model=name, spatial="axial").report.explained.values()])
    assert of_file("--model", name, "--weights", "raw") == 2


def test_models_without_dense_w_are_refused(folder: Path, tmp_path: Path) -> None:
    for name, kwargs in (("s2mlp_deep", {}), ("gmlp_ti16", {"spatial": "axial"})):
        timm.models.save_for_hf(tiny(name, **kwargs), str(tmp_path / name))
        with pytest.raises(UserError, match="has no dense W's that could be replaced"):
            study(str(tmp_path / name), folder / "data", tmp_path / "out", ["axial"], **SMALL)


@pytest.mark.usefixtures("_undrawn")
def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = [
        "--layer-images",
        "5",
        "--test-images",
        "5",
        "--train-images",
        "5",
        "--workers",
        "0",
        "--batch-size",
        "4",
    ]
    args = ["structure", str(folder / "model"), "--data-dir", str(folder / "data"), *few]
    assert main([*args, "--output", str(tmp_path / "out"), "--kinds", "axial"]) == 0
    assert "| axial | 32 |" in capsys.readouterr().out
    assert main([*args, "--output", str(tmp_path / "out"), "--kinds", "gqpe"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# -- what is shown ------------------------------------------------------------------------------------------


def test_the_usual_kinds_fit_the_grid() -> None:
    assert usual_kinds((8, 8))[-2:] == ["block:4", "grid:4"]
    assert usual_kinds((14, 14))[-2:] == ["block:7", "grid:7"]
    assert usual_kinds((7, 7))[-1] == "rank:8"


def test_the_figure_and_the_table_show_the_numbers() -> None:
    rows = [
        Structure("dense", 256, [1, 1], [80], 81, 82),
        Structure("axial", 32, [0.5, 0.7], [60, 70], 30, None),
    ]
    table = format_structures(rows).splitlines()
    assert table[2] == "| dense | 256 | 100.0 | 80.0 | 81.00 | 82.00 |"
    assert table[3] == "| axial | 32 | 60.0 (50.0) | 65.0 (60.0) | 30.00 | - |"
    left, right = plot_structures(rows).axes
    curve, line = left.lines
    assert list(curve.get_ydata()) == [60, 70]
    assert set(line.get_ydata()) == {80}
    assert [patch.get_height() for patch in right.patches] == [30]
    assert [line.get_ydata()[0] for line in right.lines] == [81, 82]
