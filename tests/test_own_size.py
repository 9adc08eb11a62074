"""A model tells its own size; its record of the source, pretrained_cfg, stays one of the source."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.data import create_transform, resolve_data_config, resolve_input_data_config
from timm.models import get_model_input_config, load_pretrained, save_for_hf
from tiny import TINY, tiny
from torch import nn

from gmlp_vision import load_checkpoint
from gmlp_vision.checkpoints import checkpoint_filter_fn

GATE = "blocks.0.mlp_channels.gate.proj.weight"


def tells(model: nn.Module, channels: int, height: int, width: int) -> None:
    size = (channels, height, width)
    assert get_model_input_config(model)["input_size"] == size
    config = resolve_input_data_config(model)
    assert config["input_size"] == size
    assert len(config["mean"]) in (1, channels)
    if channels == 3:
        transform = create_transform(**config)
        from PIL import Image

        assert model(transform(Image.new("RGB", (50, 60)))[None]).shape == (1, model.num_classes)


def test_after_construction_resizing_and_loading(tmp_path: Path) -> None:
    made = timm.create_model("gmlp_ti16", **{**TINY, "img_size": (48, 24), "in_chans": 1})
    tells(made, 1, 48, 24)
    made.set_input_size((16, 32))
    tells(made, 1, 16, 32)
    torch.save(tiny().state_dict(), tmp_path / "x.pth")
    overlay = {"file": str(tmp_path / "x.pth")}
    args: dict[str, Any] = {**TINY, "img_size": 64}
    tells(timm.create_model("gmlp_ti16", pretrained=True, pretrained_cfg_overlay=overlay, **args), 3, 64, 64)
    loaded = timm.create_model("gmlp_ti16", **args)
    load_checkpoint(loaded, tmp_path / "x.pth")
    tells(loaded, 3, 64, 64)
    save_for_hf(loaded, str(tmp_path / "folder"), safe_serialization=True)
    tells(timm.create_model(f"local-dir:{tmp_path / 'folder'}", pretrained=True), 3, 64, 64)


# -- what would be wrong if pretrained_cfg had the model's own size ------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that says nothing of its size: 8 x 8 tokens, that of the cfg of gmlp_pico4."""
    torch.save(timm.create_model("gmlp_pico4", depth=1).state_dict(), tmp_path / "x.pth")
    return tmp_path / "x.pth"


def test_the_older_helper_reads_the_record() -> None:
    model = timm.create_model("gmlp_pico4", depth=1, img_size=48)
    model.set_input_size((16, 64))
    assert resolve_data_config({}, model=model)["input_size"] == (3, 32, 32)
    assert resolve_input_data_config(model)["input_size"] == (3, 16, 64)


@pytest.mark.parametrize("size", [(16, 64), (48, 48)])
def test_the_grid_of_a_file_without_a_word(size: tuple[int, int], path: Path) -> None:
    """load_pretrained on a live model: by the record the file is 8 x 8, by the model's own size 4 x 16."""
    model = timm.create_model("gmlp_pico4", depth=1, img_size=size)
    cfg = {**model.pretrained_cfg, "file": str(path)}
    model.pretrained_cfg.update(file=str(path))
    load_pretrained(model, cfg, num_classes=10, in_chans=3, filter_fn=checkpoint_filter_fn)
    expected = timm.create_model("gmlp_pico4", depth=1)
    expected.load_state_dict(torch.load(path, weights_only=True))
    expected.set_input_size(size)
    assert torch.equal(model.state_dict()[GATE], expected.state_dict()[GATE])


def test_a_file_whose_size_only_the_record_tells(path: Path) -> None:
    model = timm.create_model("gmlp_pico4", depth=1, img_size=48)
    report = load_checkpoint(model, path)
    assert "8 x 8 tokens, by the input_size of the model's pretrained cfg" in str(report)
    assert not report.doubtful


def test_another_model_from_the_record() -> None:
    model = timm.create_model("gmlp_pico4", depth=1, img_size=48)
    assert timm.create_model("gmlp_pico4", depth=1, pretrained_cfg=model.pretrained_cfg).img_size == (32, 32)
