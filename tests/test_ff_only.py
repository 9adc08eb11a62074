"""FF-only: the authors' files and names, its positions, what it refuses. tests/test_zoo.py has the rest."""

import argparse
from pathlib import Path

import pytest
import timm
import torch
from timm.models import save_for_hf
from tiny import TINY, images, perturb, same, same_weights, tiny
from torch.nn import functional

from gmlp_vision import CheckpointError, load_checkpoint
from gmlp_vision.checkpoints import build, convert_file
from gmlp_vision.errors import UserError
from gmlp_vision.filters import extract
from gmlp_vision.models.ff_only import BilinearPositions, FfOnly, PlacedClassToken

State = dict[str, torch.Tensor]

# Theirs is for 224 px whatever the patch: 17 tokens, so.
SIZE = {**TINY, "img_size": 224, "patch_size": 56}


def authors_state(dim: int = 16, depth: int = 2, patch: int = 56, classes: int = 5) -> State:
    """Random tensors in the authors' names and shapes."""
    n = 1 + (224 // patch) ** 2
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, dim),
        "patch_embed.proj.weight": (dim, 3, patch, patch),
        "patch_embed.proj.bias": (dim,),
        "pos_encoding.pos_embed": (1, dim, 14, 14),
        "pos_encoding.cls_pos_embed": (1, 1, dim),
        "norm.weight": (dim,),
        "norm.bias": (dim,),
        "head.weight": (classes, dim),
        "head.bias": (classes,),
    }
    for i in range(depth):
        for j, width in ((1, dim), (2, n)):
            shapes |= {
                f"blocks.{i}.norm{j}.weight": (width,),
                f"blocks.{i}.norm{j}.bias": (width,),
                f"blocks.{i}.mlp{j}.fc1.weight": (4 * width, width),
                f"blocks.{i}.mlp{j}.fc1.bias": (4 * width,),
                f"blocks.{i}.mlp{j}.fc2.weight": (width, 4 * width),
                f"blocks.{i}.mlp{j}.fc2.bias": (width,),
            }
    generator = torch.Generator().manual_seed(0)
    return {
        name: (0.2 if len(shape) > 1 else 0.5) * torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }


def authors_forward(state: State, x: torch.Tensor, depth: int = 2, eps: float = 1e-6) -> torch.Tensor:
    """What their model computes, from tensors in their names."""

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], eps=eps)

    def mlp(x: torch.Tensor, name: str) -> torch.Tensor:
        hidden = functional.linear(x, state[f"{name}.fc1.weight"], state[f"{name}.fc1.bias"])
        hidden = functional.gelu(hidden)
        return functional.linear(hidden, state[f"{name}.fc2.weight"], state[f"{name}.fc2.bias"])

    kernel = state["patch_embed.proj.weight"]
    x = functional.conv2d(x, kernel, state["patch_embed.proj.bias"], stride=kernel.shape[-1])
    table = functional.interpolate(state["pos_encoding.pos_embed"], x.shape[2:], mode="bilinear")
    first = state["cls_token"] + state["pos_encoding.cls_pos_embed"]
    x = torch.cat([first.expand(len(x), -1, -1), (x + table).flatten(2).mT], 1)
    for i in range(depth):
        x = x + mlp(norm(x, f"blocks.{i}.norm1"), f"blocks.{i}.mlp1")
        x = (x.mT + mlp(norm(x.mT, f"blocks.{i}.norm2"), f"blocks.{i}.mlp2")).mT
    return functional.linear(norm(x, "norm")[:, 0], state["head.weight"], state["head.bias"])


def file_of(state: State, path: Path) -> Path:
    """As DeiT's training leaves it."""
    torch.save({"model": state, "epoch": 299, "args": argparse.Namespace(model="linear_tiny")}, path)
    return path


# -- the authors' files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("small_tokens", [False, True])
def test_a_file_of_theirs_computes_what_it_did(small_tokens: bool, tmp_path: Path) -> None:
    state = authors_state()
    if small_tokens:  # so small that LayerNorm's eps decides
        stem = ("patch_embed", "pos_encoding", "cls_token")
        state = {k: v * 1e-3 if k.startswith(stem) else v for k, v in state.items()}
    model = tiny("ff_ti16", **SIZE, dtype=torch.float64)
    report = load_checkpoint(model, file_of(state, tmp_path / "theirs.pth"))
    assert report.layout == "lukemelas"
    assert not report.dropped
    x = images(2, 3, 224, 224).double()
    expected = authors_forward(state, x)
    assert expected.std(dim=0).max() > (1e-4 if small_tokens else 1e-2)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-10 * expected.abs().max().item())
    if small_tokens:  # so the comparison above does see the eps
        assert (authors_forward(state, x, eps=1e-5) - expected).abs().max() > 1e-3


def test_such_a_file_is_known_by_its_tensors_and_goes_back_to_the_same(tmp_path: Path) -> None:
    state = authors_state(depth=3)
    source = file_of(state, tmp_path / "theirs.pth")
    built = build(source)
    assert isinstance(built.model, FfOnly)
    x = images(2, 3, 224, 224).double()
    torch.testing.assert_close(built.model(x), authors_forward(state, x, depth=3), rtol=0, atol=1e-10)
    convert_file(source, tmp_path / "ours.safetensors")
    convert_file(tmp_path / "ours.safetensors", tmp_path / "again.pth", to="lukemelas")
    assert same_weights(torch.load(tmp_path / "again.pth", weights_only=True), state)


@pytest.mark.parametrize("key", ["file", "url"])
def test_timms_way_takes_their_file(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    path = file_of(authors_state(), tmp_path / "theirs.pth")
    overlay = {key: str(path) if key == "file" else path.as_uri(), "num_classes": 5}
    model = timm.create_model("ff_ti16", pretrained=True, pretrained_cfg_overlay=overlay, **SIZE)
    x = images(2, 3, 224, 224)
    expected = authors_forward(authors_state(), x.double()).float()
    torch.testing.assert_close(model.eval()(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "tokens"), [("ff_ti16", 197), ("ff_b16", 197), ("ff_l32", 50)])
def test_the_authors_shapes(name: str, tokens: int) -> None:
    model = timm.create_model(name, device="meta")
    dim = model.embed_dim
    shapes = {key: tuple(p.shape) for key, p in model.state_dict().items()}
    assert shapes["blocks.0.mlp1.fc1.weight"] == (4 * dim, dim)
    assert shapes["blocks.0.mlp2.fc1.weight"] == (4 * tokens, tokens)
    assert shapes["blocks.0.norm2.weight"] == (tokens,)
    assert shapes["pos_embed.weight"] == (dim, 14, 14)
    assert len(shapes) == 8 + 1 + 12 * len(model.blocks)


def test_what_their_names_cannot_say(tmp_path: Path) -> None:
    for kwargs, grid, why in (
        ({}, (4, 4), "784 tokens there, those of 224 px, and 16 here"),
        ({"patch_size": (8, 4)}, (4, 8), "patches are square there"),
    ):
        torch.save(tiny("ff_ti16", **kwargs).state_dict(), tmp_path / "ours.pth")
        with pytest.raises(UserError, match=why):
            convert_file(tmp_path / "ours.pth", tmp_path / "theirs.pth", to="lukemelas", grid=grid)


# -- tokens -------------------------------------------------------------------------------------------------


def test_a_table_of_the_tokens_grid_is_added_as_it_is() -> None:
    positions = perturb(BilinearPositions(8))
    x = images(2, 14, 14, 8)
    assert torch.equal(positions(x), x + positions.weight.permute(1, 2, 0))
    # to half of both sides: the mean of each 2 x 2
    small = positions(torch.zeros(1, 7, 7, 8))[0].permute(2, 0, 1)
    torch.testing.assert_close(small, functional.avg_pool2d(positions.weight, 2))


def test_the_class_token_comes_first_with_its_own_position() -> None:
    token = perturb(PlacedClassToken(8))
    x = images(2, 3, 4, 8)
    y = token(x)
    assert torch.equal(y[:, 0], (token.weight + token.cls_pos).expand(2, 8))
    assert torch.equal(y[:, 1:], x.flatten(1, 2))


def test_the_head_reads_the_class_token_unless_told_otherwise() -> None:
    model, x = tiny("ff_ti16"), images()
    features = model.forward_features(x)
    same(model(x), model.head(features[:, 0]))
    model.reset_classifier(5, "avg")
    perturb(model.head)
    same(model(x), model.head(features[:, 1:].mean(1)))


def test_the_operators_are_of_the_images_tokens() -> None:
    model = tiny("ff_ti16", img_size=(16, 32))  # 2 x 4 tokens
    reads, writes, product = list(extract(model))[:3]
    mlp = model.blocks[0].mlp2
    assert torch.equal(reads.weight, mlp.fc1.weight[:, 1:].reshape(36, 2, 4))
    assert torch.equal(writes.weight, mlp.fc2.weight[1:].T.reshape(36, 2, 4))
    # without the non-linearity, an image's tokens through both
    x, zero = images(1, 8, 1)[0], torch.zeros(1, 1)
    through = mlp.fc2(mlp.fc1(torch.cat([zero, x]).T))[0, 1:]
    shown = product.weight.flatten(1) @ x[:, 0] + product.bias
    torch.testing.assert_close(shown, through.detach(), atol=1e-5, rtol=1e-5)


def test_init_std_is_that_at_the_start() -> None:
    for layer in extract(timm.create_model("ff_ti16", depth=1)):
        assert layer.weight.std().item() == pytest.approx(layer.init_std, rel=0.05)


# -- refusals -----------------------------------------------------------------------------------------------


def test_it_is_not_made_for_images_of_any_size() -> None:
    with pytest.raises(ValueError, match=r"dynamic_img_size is True.*one count of tokens"):
        timm.create_model("ff_ti16", dynamic_img_size=True)


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    torch.save(tiny("ff_ti16", img_size=48).state_dict(), tmp_path / "larger.pth")
    with pytest.raises(CheckpointError, match=r"another size.*one count of tokens"):
        load_checkpoint(tiny("ff_ti16"), tmp_path / "larger.pth")


def test_a_file_of_a_size_of_its_own_is_known(tmp_path: Path) -> None:
    model = tiny("ff_ti16", img_size=(16, 40))
    torch.save(model.state_dict(), tmp_path / "wide.pth")
    built = build(tmp_path / "wide.pth", grid=(2, 5))
    same(built.model(images(2, 3, 16, 40)), model(images(2, 3, 16, 40)))
    with pytest.raises(CheckpointError, match="nothing tells the grid"):
        build(tmp_path / "wide.pth")  # ten tokens are no square, and the class token is none of them


@pytest.mark.parametrize("name", ["pos_embed", "class_token"])
def test_it_is_never_without_positions_or_a_class_token(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} is fixed"):
        timm.create_model("ff_ti16", **TINY, **{name: False})


def test_a_wrong_rate_is_refused() -> None:
    with pytest.raises(ValueError, match=r"proj_drop_rate is 1\.0"):
        timm.create_model("ff_ti16", **TINY, proj_drop_rate=1.0)


def test_what_it_pools_is_held_against_the_model(tmp_path: Path) -> None:
    save_for_hf(tiny("ff_ti16"), tmp_path, safe_serialization=True)
    load_checkpoint(tiny("ff_ti16"), tmp_path)
    load_checkpoint(tiny("ff_ti16", global_pool=""), tmp_path)
    with pytest.raises(CheckpointError, match=r"global_pool=token.*global_pool=avg"):
        load_checkpoint(tiny("ff_ti16", global_pool="avg"), tmp_path)
