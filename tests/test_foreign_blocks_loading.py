"""Weights of blocks that have nothing of gMLP's: loaded, adapted, cast, built on the meta device."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from tiny import images, perturb, same, same_weights, tiny
from torch import nn
from toys import SMALL, BatchNormed, Fixed, OfARow, Shifted
from zoo import tiny_kwargs

from gmlp_vision import CheckpointError, load_checkpoint
from gmlp_vision.checkpoints import checkpoint_filter_fn
from gmlp_vision.layers.resample import resample_map
from gmlp_vision.trunks import Isotropic

KINDS: dict[str, tuple[type, dict[str, Any]]] = {
    "free": (Shifted, {}),
    "batch norm": (BatchNormed, {}),
    "positions": (Shifted, {"pos_embed": True}),
    "class token": (OfARow, {"class_token": True, "pos_embed": True, "global_pool": "token"}),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def make(kind: str, seed: int = 0, **kwargs: Any) -> nn.Module:
    """Perturbed, in eval mode, with running statistics of its own."""
    block, own = KINDS[kind]
    model = perturb(Isotropic(block, **{**SMALL, **own, **kwargs}), seed).train()
    size = model.img_size
    model(images(4, model.in_chans, *size, seed=seed).to(model.stem.proj.weight.dtype))
    return model.eval()


def saved(model: nn.Module, path: Path, **changes: torch.Tensor) -> Path:
    torch.save({**model.state_dict(), **changes}, path)
    return path


@every_kind
def test_equal_sizes_load_as_they_are(kind: str, tmp_path: Path) -> None:
    source, model = make(kind), make(kind, seed=1)
    report = load_checkpoint(model, saved(source, tmp_path / "x.pth"))
    assert same_weights(model, source)
    assert len(report.loaded) == len(source.state_dict())
    same(model(images(2, 3, 16, 16)), source(images(2, 3, 16, 16)))


@every_kind
def test_at_another_size_with_other_channels_and_classes(kind: str, tmp_path: Path) -> None:
    source, model = make(kind), make(kind, seed=1, img_size=(24, 8), in_chans=1, num_classes=7)
    report = load_checkpoint(model, saved(source, tmp_path / "x.pth"))
    expected = {**source.state_dict(), **{k: v for k, v in model.state_dict().items() if "head" in k}}
    expected["stem.proj.weight"] = expected["stem.proj.weight"].sum(1, keepdim=True)
    if "pos_embed.weight" in expected:
        expected["pos_embed.weight"] = resample_map(expected["pos_embed.weight"], (4, 4), (6, 2))
        assert report.adapted["pos_embed.weight"] == "grid 4 x 4 to 6 x 2"
    own = model.state_dict()
    assert own.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(own[name], tensor, rtol=0, atol=1e-7, msg=name)
    assert set(report.missing) == {"head.weight", "head.bias"}


@every_kind
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_what_counts_is_not_cast(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    source, model = make(kind), make(kind, seed=1).to(dtype)
    report = load_checkpoint(model, saved(source, tmp_path / "x.pth"))
    expected = {k: v.to(dtype) if v.is_floating_point() else v for k, v in source.state_dict().items()}
    assert same_weights(model, expected)
    counters = [name for name in expected if "num_batches" in name]
    assert len(counters) == (2 if kind == "batch norm" else 0)
    assert report.loaded == counters
    assert all(model.state_dict()[name] == 1 for name in counters)


@every_kind
def test_on_the_meta_device_the_names_and_shapes_are_the_same(kind: str) -> None:
    block, own = KINDS[kind]
    meta = Isotropic(block, **{**SMALL, **own}, device="meta")
    source = make(kind)
    assert {k: v.shape for k, v in meta.state_dict().items()} == {
        k: v.shape for k, v in source.state_dict().items()
    }
    adapted = checkpoint_filter_fn(source.state_dict(), meta)
    meta.load_state_dict(adapted, assign=True)
    same(meta.eval()(images(2, 3, 16, 16)), source(images(2, 3, 16, 16)))


@every_kind
def test_a_model_on_the_meta_device_becomes_the_one_that_was_saved(kind: str, tmp_path: Path) -> None:
    block, own = KINDS[kind]
    source = make(kind)
    meta = Isotropic(block, **{**SMALL, **own}, device="meta")
    report = load_checkpoint(meta, saved(source, tmp_path / "x.pth"))
    assert report.loaded == list(source.state_dict())
    assert same_weights(meta, source)
    same(meta.eval()(images(2, 3, 16, 16)), source(images(2, 3, 16, 16)))


def test_each_kind_of_numbers_stays_its_own(tmp_path: Path) -> None:
    counter, mean = "blocks.0.norm.num_batches_tracked", "blocks.0.norm.running_mean"
    for name, value, said in (
        (counter, torch.tensor(1.0), "not integers"),
        (mean, torch.zeros(8, dtype=torch.int64), "not floating point"),
        (mean, torch.zeros(8, dtype=torch.complex64), "not floating point"),
    ):
        path = saved(make("batch norm"), tmp_path / "x.pth", **{name: value})
        with pytest.raises(CheckpointError, match=rf"{said}: {name} \({value.dtype}\)"):
            load_checkpoint(make("batch norm"), path)


def test_a_spectrum_is_complex_on_both_sides(tmp_path: Path) -> None:
    def spectral() -> nn.Module:
        model = make("free")
        spectrum = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64))
        model.blocks[0].register_parameter("spectrum", spectrum)
        return model

    source, model = spectral(), spectral()
    assert not same_weights(source, model)
    load_checkpoint(model, saved(source, tmp_path / "x.pth"))
    assert same_weights(source, model)
    broken = torch.full((4, 3), torch.nan, dtype=torch.complex64)
    with pytest.raises(CheckpointError, match=r"NaN or infinity in blocks\.0\.spectrum"):
        load_checkpoint(model, saved(source, tmp_path / "x.pth", **{"blocks.0.spectrum": broken}))


def test_what_has_no_other_grid_says_why(tmp_path: Path) -> None:
    source = perturb(Isotropic(Fixed, **SMALL)).eval()
    path = saved(source, tmp_path / "x.pth")
    model = Isotropic(Fixed, **SMALL)
    load_checkpoint(model, path)
    assert same_weights(model, source)
    other = Isotropic(Fixed, **{**SMALL, "img_size": 24})
    before = {k: v.clone() for k, v in other.state_dict().items()}
    with pytest.raises(
        CheckpointError,
        match=r"is for another size, and blocks\.0\.scale\.scale has no other: its width is the number",
    ):
        load_checkpoint(other, path)
    assert same_weights(other, before)


def test_a_stem_that_overlaps_is_not_resized(tmp_path: Path) -> None:
    model = make("free")
    model.stem.proj = nn.Conv2d(3, 8, 7, stride=4, padding=3)
    with pytest.raises(CheckpointError, match=r"stem\.proj\.weight \(8, 3, 4, 4\) for \(8, 3, 7, 7\)"):
        load_checkpoint(model, saved(make("free"), tmp_path / "x.pth"))


def test_without_a_first_convolution_channels_must_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Isotropic, "first_conv", None)
    source = make("positions")
    path = saved(source, tmp_path / "x.pth")
    model = make("positions", seed=1, img_size=24)
    load_checkpoint(model, path)
    table = source.state_dict()["pos_embed.weight"]
    assert torch.equal(model.state_dict()["pos_embed.weight"], resample_map(table, (4, 4), (6, 6)))
    with pytest.raises(CheckpointError, match=r"stem\.proj\.weight \(8, 3, 4, 4\) for \(8, 1, 4, 4\)"):
        load_checkpoint(make("positions", in_chans=1), path)


def test_a_grid_of_positions_that_nothing_tells(tmp_path: Path) -> None:
    path = saved(make("positions", img_size=(8, 20)), tmp_path / "x.pth")
    with pytest.raises(
        CheckpointError, match=r"pos_embed\.weight is \(10, 8\): nothing tells .*grid=\(H, W\)"
    ):
        load_checkpoint(make("positions"), path)
    model = make("positions")
    report = load_checkpoint(model, path, grid=(2, 5))
    assert report.notes == ["the file's grid is 2 x 5 tokens, as given"]


def test_init_weights_draws_a_batch_norm_anew() -> None:
    model = make("batch norm")
    model.init_weights()
    norm = model.blocks[0].norm
    assert (norm.weight == 1).all()
    assert (norm.bias == 0).all()
    assert (norm.running_mean == 0).all()
    assert (norm.running_var == 1).all()


def test_positions_go_along_to_another_image_size() -> None:
    model = make("positions")
    old = model.pos_embed.weight.detach().clone()
    model.set_input_size((24, 8))
    assert torch.equal(model.pos_embed.weight, resample_map(old, (4, 4), (6, 2)))
    assert model(images(2, 3, 24, 8)).std() > 1e-3


@pytest.mark.parametrize("name", ["s2mlp_deep", "aft_simple_s16"])
def test_a_family_without_spatial_matrices_takes_pretrained_weights(name: str, tmp_path: Path) -> None:
    source = tiny(name)
    saved(source, tmp_path / "x.pth")
    overlay = {"file": str(tmp_path / "x.pth"), "num_classes": 5}
    kwargs = {**tiny_kwargs(name), "img_size": 48, "pretrained": True, "pretrained_cfg_overlay": overlay}
    model = timm.create_model(name, **kwargs).eval()
    assert same_weights(model, source)
    same(model(images(2, 3, 32, 32)), source(images(2, 3, 32, 32)))
