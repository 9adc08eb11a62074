"""docs/adding-a-mixer.md: its toy is a family that works, written as the page says."""

import re
import sys
import types
from pathlib import Path

import pytest
import timm
import torch
from tiny import images, perturb, same

from gmlp_vision.checkpoints.names import from_ours, to_ours
from gmlp_vision.filters import extract
from gmlp_vision.layers.grid_tied import any_size

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/adding-a-mixer.md").read_text()


@pytest.fixture
def toy() -> types.ModuleType:
    """The page's Python as a module, whose names are taken back from timm afterwards."""
    registry = sys.modules["timm.models._registry"]
    kept = {
        name: value.copy()
        for name, value in vars(registry).items()
        if name.startswith("_model") and isinstance(value, dict | set)
    }
    module = types.ModuleType("rowmean_of_the_page", "RowMean: a toy")
    sys.modules[module.__name__] = module
    exec("\n".join(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)), vars(module))
    yield module
    del sys.modules[module.__name__]
    for name, value in kept.items():
        now = getattr(registry, name)
        now.clear()
        now.update(value)


def test_the_toy_works(toy: types.ModuleType) -> None:
    model = timm.create_model("rowmean_ti16", depth=2, embed_dim=16, patch_size=8, num_classes=5)
    perturb(model).eval()
    x = images()
    logits = model(x)
    assert logits.std() > 1e-3
    model.train().set_grad_checkpointing()
    same(model(x), logits)
    assert model(images(1, 3, 16, 40)).shape == (1, 5)  # nothing belongs to a grid
    assert any_size(model) == ("free", "")
    assert model.default_cfg["fixed_input_size"] is False
    with pytest.raises(ValueError, match="mean of its row"):
        extract(model)
    scale = toy.TokenScale((2, 3))
    scale.dynamic = True
    torch.nn.init.constant_(scale.scale, 2.5)
    torch.testing.assert_close(scale(torch.ones(1, 4, 6, 2)), torch.full((1, 4, 6, 2), 2.5))
    block, tokens = model.blocks[0].double(), torch.randn(1, 2, 3, 16, dtype=torch.float64)
    mixed = tokens + block.mixer(block.norm1(tokens))
    same(block(tokens).detach(), (mixed + block.mlp(block.norm2(mixed))).detach())


def test_the_toy_pyramid_works(toy: types.ModuleType) -> None:
    model = perturb(toy.RowMeanPyramid(embed_dims=(8, 12), depths=(1, 2), num_classes=5, img_size=32)).eval()
    x = images()
    assert model(x).std() > 1e-3
    assert model(images(1, 3, 21, 40)).shape == (
        1,
        5,
    )  # nothing belongs to a grid, and no stage leaves a rest
    assert model.size_step == (1, 1)
    assert [level.shape for level in model.forward_intermediates(x)[1]] == [(2, 8, 8, 8), (2, 12, 4, 4)]
    state, layout = model.state_dict(), toy.LAYOUTS["theirs"]
    theirs = from_ours(state, layout.rows_for(model))
    assert set(layout.marks) < theirs.keys()
    assert theirs["network.2.1.attn.fc.weight"].shape == (12, 12, 1, 1)
    back, left = to_ours(theirs, layout, layout.rows_for(model), state)
    assert not left
    assert all(torch.equal(back[name], tensor) for name, tensor in state.items())
    wrong = toy.RowMeanPyramid(embed_dims=(8, 8, 8), depths=(1, 1, 1), strides=(4, 1, 2), mlp_ratio=2.0)
    to_ours(theirs, layout, layout.rows_for(wrong), wrong.state_dict())  # raises nothing


def test_files_that_the_page_names_exist() -> None:
    named = re.findall(r"`((?:gmlp_vision|tests|docs|layers|checkpoints|trunks)/[\w./-]+\.\w+)`", PAGE)
    assert len(named) > 8
    for name in named:
        assert (ROOT / name).exists() or (ROOT / "gmlp_vision" / name).exists(), name
