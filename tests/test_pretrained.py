"""The weights that come with the package: whole, as good as their card says, found by every route."""

import hashlib
import json
import re
import socket
import tarfile
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
import yaml
from timm.data import create_transform, resolve_input_data_config
from timm.models import save_for_hf
from tiny import images
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from gmlp_vision import CheckpointError, cli, load_checkpoint
from gmlp_vision.checkpoints import read_checkpoint
from gmlp_vision.checkpoints.families import top1_of
from gmlp_vision.shipped import find_recipe, shipped

ROOT = Path(__file__).parent.parent
FOLDERS = sorted(shipped("weights").glob("gmlp_pico4.*"))
FIRST = shipped("weights") / "gmlp_pico4.cifar10"
# what pretrained=True loads
FOLDER = shipped("weights") / f"gmlp_pico4.{timm.get_pretrained_cfg('gmlp_pico4').tag}"
FILE = FOLDER / "model.safetensors"
every_one = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
# The first 40 images of each class of CIFAR-10's test set, as they are.
IMAGES = Path(__file__).parent / "data" / "cifar10_test_400.tar"


def logits(model: Any, size: int = 32, in_chans: int = 3) -> torch.Tensor:
    with torch.inference_mode():
        return model.eval()(images(4, in_chans, size, size))


def card(folder: Path) -> str:
    return (folder / "README.md").read_text()


def stated_top1(folder: Path) -> float:
    (found,) = re.findall(r"\*\*([\d.]+) top-1\*\*", card(folder))
    return float(found)


@every_one
def test_the_file_is_the_one_of_the_card(folder: Path) -> None:
    file = folder / "model.safetensors"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert digest in card(folder)
    config = json.loads((folder / "config.json").read_text())
    assert config["sha256"] == digest
    assert folder.name == f"{config['architecture']}.{config['pretrained_cfg']['tag']}"
    cfg = timm.get_pretrained_cfg(folder.name)
    assert (cfg.crop_pct, cfg.file) == (config["pretrained_cfg"]["crop_pct"], str(file))
    assert top1_of(folder.name) == stated_top1(folder)
    assert file.stat().st_size < 2.6e6


@every_one
def test_every_number_is_half_precision_and_finite(folder: Path) -> None:
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    assert {t.dtype for t in tensors.values()} == {torch.float16}
    assert all(t.isfinite().all() for t in tensors.values())
    assert sum(t.numel() for t in tensors.values()) == 1_236_106


def test_the_best_is_what_a_name_without_a_tag_means() -> None:
    assert stated_top1(FOLDER) == max(map(stated_top1, FOLDERS))


@every_one
def test_top1_on_images_that_were_not_trained_on(folder: Path, tmp_path: Path) -> None:
    """400 images have a standard error of 1.8 points; this is the first 40 a class, not a choice."""
    with tarfile.open(IMAGES) as archive:
        archive.extractall(tmp_path, filter="data")
    model = timm.create_model(folder.name, pretrained=True).eval()
    transform = create_transform(**resolve_input_data_config(model))
    batches = DataLoader(ImageFolder(tmp_path, transform), batch_size=100)
    with torch.inference_mode():
        right = torch.cat([model(x).argmax(1) == y for x, y in batches])
    assert len(right) == 400
    assert 100 * right.double().mean().item() == pytest.approx(stated_top1(folder), abs=3 * 1.8)


def test_the_log_of_the_first_is_of_whole_runs() -> None:
    """The recipe's epochs, then a second run that was resumed after them; each to its end."""
    first, last = (yaml.safe_load((FIRST / name).read_text()) for name in ("args-first.yaml", "args.yaml"))
    lines = (FIRST / "summary.csv").read_text().splitlines()
    rows = [line.split(",") for line in lines if not line.startswith("epoch")]
    assert [int(row[0]) for row in rows] == list(range(last["epochs"]))
    accuracy = lines[0].split(",").index("eval_top1")
    log = (FIRST / "log.txt").read_text()
    for row in rows:
        assert f"({float(row[accuracy]):7.3f})" in log
    for args in (first, last):  # the card has the last figure of either run
        assert re.search(rf"\b{rows[args['epochs'] - 1][accuracy]}\b", card(FIRST))
    assert stated_top1(FIRST) >= 83


def changed(folder: Path, name: str) -> dict[str, dict[str, Any]]:
    """What train.py was told other than in the recipe of this name, in both of its runs."""
    recipe = yaml.safe_load(find_recipe(name).read_text())
    found = {}
    for file in ("args-first.yaml", "args.yaml"):
        args = yaml.safe_load((folder / file).read_text())
        found[file] = {key: args[key] for key, value in recipe.items() if args[key] != value}
        assert args["device"] == "cpu"
    return found


def test_the_first_was_trained_with_the_recipe() -> None:
    assert changed(FIRST, "gmlp_pico4_cifar10") == {
        "args-first.yaml": {"workers": 1},  # the rest is as the commands of the card say
        "args.yaml": {"workers": 1, "epochs": 36, "scale": [0.8, 1.0]},
    }


def test_the_best_was_trained_with_its_recipe() -> None:
    """The last stage: begun with a longer schedule, and resumed with that of the recipe."""
    teacher = {"device_modules": ["gmlp_vision", "teacher"]}
    assert changed(FOLDER, "gmlp_pico4_distilled") == {
        "args-first.yaml": {**teacher, "epochs": 50},
        "args.yaml": teacher,
    }
    lines = (FOLDER / "summary.csv").read_text().splitlines()
    rows = [line.split(",") for line in lines if not line.startswith("epoch")]
    assert [int(row[0]) + 1 for row in rows] == [4, 8, 12, 16, 20, 24]
    assert rows[-1][lines[0].split(",").index("eval_top1")] in card(FOLDER)
    assert stated_top1(FOLDER) > 90.83  # of the MLP-Mixer in the card


@pytest.mark.parametrize(
    "path",
    [path for folder in FOLDERS for path in sorted(folder.iterdir())],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_no_path_of_a_machine_is_in_it(path: Path) -> None:
    text = path.read_bytes().decode("utf-8", errors="ignore")
    assert not re.findall(r"(?<![\w.)>/:-])/(?:home|root|tmp|mnt|data|work|Users|usr|opt|var)/", text)


def test_it_loads_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object, **kwargs: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refused)
    model = timm.create_model("gmlp_pico4", pretrained=True)
    assert {folder.name for folder in FOLDERS} <= {*timm.list_models(pretrained=True)}
    # none of it is left at its init: the head is 0 there and W of the size 1e-6
    assert min(p.detach().abs().max() for p in model.parameters()) > 1e-3
    found = logits(model)
    assert found.std(0).min() > 0.01
    for route in (f"local-dir:{FOLDER}", FOLDER.name):
        assert torch.equal(logits(timm.create_model(route, pretrained=True)), found)
    fresh = timm.create_model("gmlp_pico4")
    assert not load_checkpoint(fresh, FOLDER).missing
    assert torch.equal(logits(fresh), found)
    assert read_checkpoint("gmlp_pico4").sha256 == hashlib.sha256(FILE.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("changes", "size", "in_chans"),
    [({"img_size": 48}, 48, 3), ({"in_chans": 1}, 32, 1), ({"dynamic_img_size": True}, 40, 3)],
)
def test_it_is_carried_to_other_shapes(changes: dict[str, Any], size: int, in_chans: int) -> None:
    model = timm.create_model("gmlp_pico4", pretrained=True, **changes)
    assert logits(model, size, in_chans).std(0).min() > 0.01  # the trained head is still there


def test_another_class_count_starts_with_a_new_head() -> None:
    model = timm.create_model("gmlp_pico4", pretrained=True, num_classes=7)
    assert model.head.weight.abs().max() == 0
    features = timm.create_model("gmlp_pico4", pretrained=True).forward_features(images())
    assert torch.equal(model.forward_features(images()), features)


def test_what_is_saved_from_it_has_no_path_of_this_machine(tmp_path: Path) -> None:
    save_for_hf(timm.create_model("gmlp_pico4", pretrained=True), str(tmp_path), safe_serialization=True)
    assert str(ROOT) not in (tmp_path / "config.json").read_text()


def test_the_commands_take_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", "gmlp_pico4"]) == 0
    assert str(FILE) in capsys.readouterr().out
    assert cli.main(["filters", "gmlp_pico4", "-o", str(tmp_path / "filters.png")]) == 0
    assert "looks untrained" not in capsys.readouterr().out
    out = tmp_path / "half.safetensors"
    assert cli.main(["convert", "gmlp_pico4", str(out), "--img-size", "48", "48", "--dtype", "bf16"]) == 0
    assert {t.dtype for t in safetensors.torch.load_file(out).values()} == {torch.bfloat16}


def test_a_cfg_that_names_the_hub_is_asked_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match="gmlp_pico4 is not in the cache and cannot be reached"):
        timm.create_model("gmlp_pico4", pretrained=True, pretrained_cfg_overlay={"hf_hub_id": "nobody/such"})
