"""docs/resampling.md: its Python runs in order, with a small stand-in for the weights it would download."""

import re
from pathlib import Path

import pytest
import timm
import torch
import yaml
from tiny import perturb
from torch import nn

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/resampling.md").read_text()
SMALL = {"depth": 2, "embed_dim": 16}
W = "blocks.1.mlp_channels.gate.proj.weight"
FC1 = "blocks.1.mlp_channels.fc1.weight"


@pytest.fixture
def released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """What pretrained=True loads: over 14 x 14 tokens, as the real ones, in a network that is small."""
    create = timm.create_model
    state = perturb(create("gmlp_s16", **SMALL)).state_dict()
    torch.save(state, tmp_path / "released.pth")

    def create_small(name: str, pretrained: bool, **kwargs: object) -> nn.Module:
        if name.startswith("resmlp"):  # one of timm's own
            return create(name, **kwargs)
        overlay = {"file": str(tmp_path / "released.pth")}
        return create(name, pretrained=pretrained, pretrained_cfg_overlay=overlay, **SMALL, **kwargs)

    monkeypatch.setattr(timm, "create_model", create_small)
    return state


def test_every_python_block_runs(released: dict[str, torch.Tensor]) -> None:
    load, resize, dynamic, timms = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.M | re.S)
    names: dict[str, nn.Module] = {}

    exec(load, names)
    assert names["model"].state_dict()[W].shape == (280, 280)  # 320 x 224 pixels, patch 16
    assert torch.equal(names["model"].state_dict()[FC1], released[FC1])

    exec(resize, names)
    assert names["model"].state_dict()[W].shape == (64, 64)  # 256 x 256 pixels, patch 32
    assert torch.equal(names["model"].state_dict()[FC1], released[FC1])

    exec(dynamic, names)  # three sizes, of which a model of one size would refuse two
    assert torch.equal(names["model"].state_dict()[W], released[W])

    exec(timms, names)
    assert names["model"].blocks[0].linear_tokens.weight.shape == (240, 240)


def test_the_training_command_has_options_of_train_py() -> None:
    (command,) = re.findall(r"^```\n(python train\.py .*?)^```", PAGE, flags=re.M | re.S)
    known = yaml.safe_load((ROOT / "tests/data/train_options.yaml").read_text())
    options = re.findall(r"--([\w-]+)", command)
    assert len(options) == 5
    assert not [option for option in options if option.replace("-", "_") not in known]
