"""A file into a model on the meta device, which has no numbers of its own: as into one that has."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from tiny import TINY, images, same, same_weights, tiny
from torch import nn
from zoo import tiny_kwargs

from gmlp_vision import CheckpointError, load_checkpoint


def on_meta(**kwargs: Any) -> nn.Module:
    return timm.create_model("gmlp_ti16", device="meta", **{**TINY, **kwargs}).eval()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    torch.save(tiny(num_classes=5).state_dict(), tmp_path / "x.pth")
    return tmp_path / "x.pth"


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"img_size": (16, 48), "in_chans": 1, "patch_size": 4},  # all that is adapted
        {"num_classes": 3},  # a head of its own
        {"num_classes": 0},
        {"dtype": torch.float64},
        {"dynamic_img_size": True},
    ],
)
def test_the_same_as_into_a_model_with_numbers(args: dict[str, Any], path: Path) -> None:
    args = {"num_classes": 5, **args}
    meta, usual = on_meta(**args), tiny(**args)
    usual.reset_classifier(args["num_classes"])  # undoes the noise in a head that is to stay its own
    assert str(load_checkpoint(meta, path)) == str(load_checkpoint(usual, path))
    assert same_weights(meta, usual)
    assert all(p.device.type == "cpu" and type(p) is nn.Parameter for p in meta.parameters())
    size = (2, meta.in_chans, *meta.img_size)
    x = images(*size).to(args.get("dtype", torch.float32))
    same(meta.forward_features(x), usual.forward_features(x))
    assert torch.equal(meta(x), usual(x))
    if meta.dynamic_img_size:
        same(meta(images(2, 3, 40, 24)), usual(images(2, 3, 40, 24)))
    meta.set_input_size((32, 32))
    meta.train()(images(2, meta.in_chans, 32, 32).to(x.dtype)).square().sum().backward()
    assert all(p.grad is not None for p in meta.parameters())


def test_what_no_file_has_comes_too() -> None:
    """A mixture counts in a buffer that is not saved."""
    model = timm.create_model("sparse_mlp_b", device="meta", **tiny_kwargs("sparse_mlp_b"))
    load_checkpoint(model, tiny("sparse_mlp_b").state_dict())
    assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    model.train()(images()).square().sum().backward()
    assert model.auxiliary_loss() > 0


def test_what_is_frozen_stays_frozen(path: Path) -> None:
    model = on_meta(num_classes=3).requires_grad_(False)
    model.norm.requires_grad_(True)
    load_checkpoint(model, path)
    assert [n for n, p in model.named_parameters() if p.requires_grad] == ["norm.weight", "norm.bias"]


def test_two_tensors_of_a_file_that_are_one_become_two_parameters(tmp_path: Path) -> None:
    state = tiny().state_dict()
    state["blocks.1.norm.weight"] = state["blocks.0.norm.weight"]
    torch.save(state, tmp_path / "x.pth")
    model = on_meta()
    load_checkpoint(model, tmp_path / "x.pth")
    with torch.no_grad():
        model.blocks[0].norm.weight.add_(1)
    assert torch.equal(model.blocks[1].norm.weight, state["blocks.1.norm.weight"])


def test_where_everything_is_made_on_meta_or_without_gradients(path: Path) -> None:
    with torch.device("meta"):
        model = timm.create_model("gmlp_ti16", **{**TINY, "num_classes": 3})
        load_checkpoint(model, path)
    other = on_meta(num_classes=3)
    with torch.inference_mode():
        load_checkpoint(other, path)
    for loaded in (model, other):
        assert not any(p.is_meta or p.is_inference() for p in loaded.parameters())
        loaded.train()(images()).sum().backward()


def test_an_error_leaves_it_on_meta(path: Path) -> None:
    model = on_meta(depth=3)
    with pytest.raises(CheckpointError, match="does not hold this model's weights"):
        load_checkpoint(model, path)
    assert all(p.is_meta for p in model.parameters())


def test_timm_loads_nothing_there_so_it_is_refused(path: Path) -> None:
    args: dict[str, Any] = {"pretrained": True, "pretrained_cfg_overlay": {"file": str(path)}, **TINY}
    with pytest.raises(CheckpointError, match=r"without pretrained=True, then `gmlp_vision\.load_checkpoint"):
        timm.create_model("gmlp_ti16", device="meta", **args)
    with torch.device("meta"), pytest.raises(CheckpointError, match="on the meta device"):
        timm.create_model("gmlp_ti16", **args)
