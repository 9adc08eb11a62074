"""What the commands do with files of pyramids: their sizes, stages and names.

test_pyramid_files.py has the names of others.
"""

from pathlib import Path

import pytest
import timm
import torch
from tiny import PYRAMID_NAMES, images, perturb, same, tiny

from gmlp_vision.checkpoints import build, convert_file, families
from gmlp_vision.checkpoints.describe import describe
from gmlp_vision.checkpoints.names import from_ours
from gmlp_vision.checkpoints.save import save_file, save_folder
from gmlp_vision.errors import CheckpointError
from gmlp_vision.filters import extract
from gmlp_vision.filters.explorer import layers_shown


@pytest.mark.parametrize("name", PYRAMID_NAMES)
def test_a_registered_size_is_called_by_its_name(name: str) -> None:
    told = describe(name)
    sizes = families.sizes_of_name(name)
    assert told["architecture"] == name
    assert told["depth"] == ", ".join(map(str, sizes["depths"]))
    assert told["dtype"] == "float32"  # whatever a batch norm counts in


@pytest.mark.parametrize("name", PYRAMID_NAMES)
def test_a_folder_of_other_stages(name: str, tmp_path: Path) -> None:
    """Two stages where the name has four, at an image size of its own."""
    model = tiny(name)
    save_folder(model, tmp_path / "two")
    told = describe(tmp_path / "two")
    assert told["architecture"].endswith(", of a size without a name")
    assert told["depth"] == "1, 2"
    built = build(tmp_path / "two")
    same(built.model(images()), model(images()))
    convert_file(tmp_path / "two", tmp_path / "half", dtype="bf16", num_classes=3)
    there = build(tmp_path / "half").model.float()
    same(there.forward_features(images()), model.bfloat16().float().forward_features(images()))


def test_what_info_says_of_sizes(tmp_path: Path) -> None:
    save_folder(tiny("smlp_t", img_size=(32, 48)), tmp_path / "smlp")
    told = describe(tmp_path / "smlp")
    assert told["grid"] == "8 x 12, 4 x 6 tokens, by the img_size in its config"
    assert told["width"] == "16, 24, hidden 3 times that"
    assert describe("cycle_b3")["width"] == "64, 128, 320, 512, hidden 8, 8, 4, 4 times that"
    assert describe("swin_mlp_t_c24")["image"] == "3 channels, of any multiple of 256 x 256 pixels"
    assert describe("cycle_b1")["image"] == "3 channels, of any size"


def test_names_that_depend_on_sizes_nobody_told(tmp_path: Path) -> None:
    model = tiny("cycle_b1")
    layout = families.layouts_of(families.family_of_model(model))["shoufachen"]
    torch.save(from_ours(model.state_dict(), layout.rows_for(model)), tmp_path / "theirs.pth")
    with pytest.raises(CheckpointError, match="has the names of shoufachen's CycleMLP, of none of its reg"):
        build(tmp_path / "theirs.pth")


def test_a_raft_tells_its_image_size(tmp_path: Path) -> None:
    model = perturb(timm.create_model("raft_s", img_size=64, depths=(1,) * 4, embed_dims=(8,) * 4)).eval()
    save_file(model.state_dict(), tmp_path / "raft.safetensors")
    assert "64 x 64 pixels" in describe(tmp_path / "raft.safetensors")["image"]
    x = images(1, 3, 64, 64)
    same(build(tmp_path / "raft.safetensors").model(x), model(x))


def test_the_page_names_a_block_once() -> None:
    with pytest.raises(ValueError, match=r"8 x 8 \(layers 0\); 4 x 4 \(layers 1,2\)"):
        layers_shown(extract(tiny("smlp_t")))
