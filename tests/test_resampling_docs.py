"""docs/resampling.md: its Python runs in order, with a small stand-in for the weights it would download."""

import re
from pathlib import Path

import pytest
import timm
import torch
from tiny import perturb

PAGE = (Path(__file__).parents[1] / "docs/resampling.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.M | re.S)
SMALL = {"depth": 2, "embed_dim": 16}


@pytest.fixture
def released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """The weights that every pretrained=True loads, from a file; they have the released ones' 14 x 14 tokens."""
    create = timm.create_model
    state = perturb(create("gmlp_s16", **SMALL)).state_dict()
    torch.save(state, tmp_path / "released.pth")

    def create_small(name: str, pretrained: bool, **kwargs: object) -> torch.nn.Module:
        overlay = {"file": str(tmp_path / "released.pth")}
        return create(name, pretrained=pretrained, pretrained_cfg_overlay=overlay, **SMALL, **kwargs)

    monkeypatch.setattr(timm, "create_model", create_small)
    return state


def test_every_python_block_runs(released: dict[str, torch.Tensor]) -> None:
    names: dict[str, object] = {}
    calls: list[tuple[int, ...]] = []
    loaded, resized, dynamic = BLOCKS
    w, fc1 = "blocks.1.mlp_channels.gate.proj.weight", "blocks.1.mlp_channels.fc1.weight"

    exec(compile(loaded, "resampling.md", "exec"), names)
    assert names["model"].state_dict()[w].shape == (280, 280)  # 320 x 224 pixels, patch 16
    exec(compile(resized, "resampling.md", "exec"), names)
    assert names["model"].state_dict()[w].shape == (64, 64)  # 256 x 256 pixels, patch 32
    assert torch.equal(names["model"].state_dict()[fc1], released[fc1])

    torch.nn.modules.module.register_module_forward_pre_hook  # noqa: B018
    exec(compile(dynamic, "resampling.md", "exec"), names)
    assert torch.equal(names["model"].state_dict()[w], released[w])
    assert calls == []
