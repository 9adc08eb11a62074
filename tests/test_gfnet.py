"""GFNet: its filter, its way to other grids, the released names. tests/test_zoo.py has the rest."""

from pathlib import Path

import pytest
import timm
import torch
from tiny import images, perturb, same, same_weights
from torch import nn
from torch.nn import functional
from zoo import tiny_kwargs

from gmlp_vision.checkpoints import build, convert_file, load_checkpoint
from gmlp_vision.errors import CheckpointError, UserError
from gmlp_vision.layers import fourier
from gmlp_vision.layers.fourier import filter_frequencies
from gmlp_vision.models.gfnet import (
    SIZES,
    GlobalFilter,
    ReleasedPositions,
    resize_filter,
    resize_positions,
)

every_grid = pytest.mark.parametrize("grid", [(1, 1), (1, 5), (4, 1), (3, 4), (4, 3), (5, 5), (2, 6)])


def make(**kwargs: object) -> nn.Module:
    return perturb(timm.create_model("gfnet_s", **{**tiny_kwargs("gfnet_s"), **kwargs})).eval()


def global_filter(grid: tuple[int, int]) -> GlobalFilter:
    return perturb(GlobalFilter(6, grid, dtype=torch.float64), std=1.0)


# -- the filter ---------------------------------------------------------------------------------------------


@every_grid
def test_the_filter_is_a_circular_convolution_with_the_kernels_that_it_shows(grid: tuple[int, int]) -> None:
    layer, x = global_filter(grid), images(2, *grid, 6).double()
    (operator,) = layer.operators(grid)
    assert operator.weight.shape == (6, *grid)
    (height, width), y = grid, torch.zeros_like(x)
    for i in range(height):
        for j in range(width):
            # what stands at this offset from each token, around the edges
            neighbour = x.roll((height // 2 - i, width // 2 - j), (1, 2))
            y += operator.weight[:, i, j] * neighbour
    torch.testing.assert_close(layer(x), y, atol=1e-12, rtol=1e-10)
    assert y.std() > 0.1


@every_grid
def test_products_are_the_transform(grid: tuple[int, int]) -> None:
    layer, x = global_filter(grid), images(2, *grid, 6).double()
    y = layer(x)
    assert y.shape == x.shape  # an odd width too
    products = fourier._filter_by_products(x, layer.complex_weight)
    torch.testing.assert_close(products, y, atol=1e-12, rtol=1e-10)


def test_an_exported_model_has_products_and_no_complex_numbers() -> None:
    model, x = make(img_size=(24, 40)), images(2, 3, 24, 40)
    program = torch.export.export(model, (x,))
    operations = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert any("matmul" in name for name in operations)
    assert not any("fft" in name or "complex" in name for name in operations)
    same(program.module()(x), model(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_float32_inside_and_the_dtype_of_x_outside(dtype: torch.dtype) -> None:
    layer, x = global_filter((3, 4)).to(dtype), images(2, 3, 4, 6).to(dtype)
    exact = filter_frequencies(x.double(), layer.complex_weight.double())
    for autocast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            inside, outside = filter_frequencies(x, layer.complex_weight), layer(x)
        assert inside.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert outside.dtype == dtype
        torch.testing.assert_close(inside.double(), exact, atol=1e-5, rtol=1e-5)
    assert exact.std() > 0.1


def test_a_model_of_bfloat16() -> None:
    model, half = make(), make()
    half.load_state_dict(model.state_dict())
    logits, expected = half.bfloat16()(images().bfloat16()), model(images())
    assert logits.dtype == torch.bfloat16
    assert (logits - expected).norm() < 0.05 * (expected - expected.mean(0)).norm()


def test_channels_last_leaves_the_filter_readable() -> None:
    """Its parameter has four axes, so it is brought to that order with the rest."""
    model, x = make(), images()
    expected = model(x)
    moved = model.to(memory_format=torch.channels_last)
    assert not moved.blocks[0].mixer.complex_weight.is_contiguous()
    same(moved(x.to(memory_format=torch.channels_last)), expected)


def test_one_branch_a_block() -> None:
    block, x = make().blocks[0], images(2, 4, 4, 16)
    with torch.no_grad():
        block.mlp.fc2.weight.zero_()
        block.mlp.fc2.bias.zero_()
        assert torch.equal(block(x), x)


@every_grid
def test_the_start_is_as_said(grid: tuple[int, int]) -> None:
    torch.manual_seed(0)
    layer = GlobalFilter(4000, grid)
    assert layer.complex_weight.std().item() == pytest.approx(0.02, rel=0.02)
    (operator,) = layer.operators(grid)
    assert operator.weight.std().item() == pytest.approx(operator.init_std, rel=0.05)


# -- other grids --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new"), [(14, 24), (14, 15), (14, 12), (5, 7), (3, 1)])
def test_both_tables_go_as_in_the_released_fine_tuning(old: int, new: int) -> None:
    weight, table = images(old, old // 2 + 1, 6, 2), images(old * old, 6)
    maps = weight.reshape(1, old, old // 2 + 1, 12).permute(0, 3, 1, 2)
    maps = functional.interpolate(maps, (new, new // 2 + 1), mode="bicubic", align_corners=True)
    expected = maps.permute(0, 2, 3, 1).reshape(new, new // 2 + 1, 6, 2)
    assert torch.equal(resize_filter(weight, (old, old), (new, new)), expected)
    maps = table.reshape(1, old, old, 6).permute(0, 3, 1, 2)
    maps = functional.interpolate(maps, (new, new), mode="bicubic", align_corners=False)
    expected = maps.permute(0, 2, 3, 1).flatten(0, 2)
    assert torch.equal(resize_positions(table, (old, old), (new, new)), expected)


def test_the_table_of_a_model_goes_so() -> None:
    model = make(img_size=64)
    assert type(model.pos_embed) is ReleasedPositions
    before = model.pos_embed.weight
    model.set_input_size(32)  # where the rule of other families smooths before
    assert torch.equal(model.pos_embed.weight, resize_positions(before, (8, 8), (4, 4)))
    with pytest.raises(ValueError, match="at least 1 x 1"):
        resize_filter(model.blocks[0].mixer.complex_weight, (4, 4), (4, 0))


def test_half_precision_goes_too() -> None:
    weight = images(4, 3, 6, 2).half()
    grown = resize_filter(weight, (4, 4), (6, 5))
    assert grown.dtype == torch.float16
    assert torch.equal(grown, resize_filter(weight.float(), (4, 4), (6, 5)).half())


# -- the released names -------------------------------------------------------------------------------------


def released_state(dim: int = 16, depth: int = 2, side: int = 4) -> dict[str, torch.Tensor]:
    """Names and shapes of the released files, at a small size."""
    shapes: dict[str, tuple[int, ...]] = {
        "pos_embed": (1, side * side, dim),
        "patch_embed.proj.weight": (dim, 3, 8, 8),
        "patch_embed.proj.bias": (dim,),
        "norm.weight": (dim,),
        "norm.bias": (dim,),
        "head.weight": (5, dim),
        "head.bias": (5,),
    }
    for i in range(depth):
        shapes |= {
            f"blocks.{i}.norm1.weight": (dim,),
            f"blocks.{i}.norm1.bias": (dim,),
            f"blocks.{i}.filter.complex_weight": (side, side // 2 + 1, dim, 2),
            f"blocks.{i}.norm2.weight": (dim,),
            f"blocks.{i}.norm2.bias": (dim,),
            f"blocks.{i}.mlp.fc1.weight": (4 * dim, dim),
            f"blocks.{i}.mlp.fc1.bias": (4 * dim,),
            f"blocks.{i}.mlp.fc2.weight": (dim, 4 * dim),
            f"blocks.{i}.mlp.fc2.bias": (dim,),
        }
    return {name: images(*shape, seed=i) * 0.2 for i, (name, shape) in enumerate(shapes.items())}


def released_forward(p: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The logits, by the paper's equations, from tensors under the released names."""
    side, dim = p["blocks.0.filter.complex_weight"].shape[0], p["norm.weight"].shape[0]
    x = functional.conv2d(x, p["patch_embed.proj.weight"], p["patch_embed.proj.bias"], stride=8)
    x = x.flatten(2).transpose(1, 2) + p["pos_embed"]
    for i in range(2):
        q = {name.removeprefix(f"blocks.{i}."): t for name, t in p.items() if name.startswith(f"blocks.{i}.")}
        z = functional.layer_norm(x, (dim,), q["norm1.weight"], q["norm1.bias"], eps=1e-6)
        z = torch.fft.rfft2(z.unflatten(1, (side, side)), dim=(1, 2))
        z = torch.fft.irfft2(
            z * torch.view_as_complex(q["filter.complex_weight"]), s=(side, side), dim=(1, 2)
        )
        z = functional.layer_norm(z.flatten(1, 2), (dim,), q["norm2.weight"], q["norm2.bias"], eps=1e-6)
        z = functional.gelu(functional.linear(z, q["mlp.fc1.weight"], q["mlp.fc1.bias"]))
        x = x + functional.linear(z, q["mlp.fc2.weight"], q["mlp.fc2.bias"])
    x = functional.layer_norm(x, (dim,), p["norm.weight"], p["norm.bias"], eps=1e-6).mean(1)
    return functional.linear(x, p["head.weight"], p["head.bias"])


@pytest.mark.parametrize("side", [4, 5])
def test_a_file_in_the_released_names(side: int, tmp_path: Path) -> None:
    state = {name: tensor.double() for name, tensor in released_state(side=side).items()}
    torch.save({"model": state, "epoch": 299}, tmp_path / "gfnet.pth")
    built = build(tmp_path / "gfnet.pth")
    assert built.report.layout == "raoyongming"
    assert built.grid == (side, side)
    x = images(2, 3, 8 * side, 8 * side).double()
    logits, expected = built.model(x), released_forward(state, x)
    assert expected.std() > 0.01
    torch.testing.assert_close(logits, expected, atol=1e-10, rtol=0)
    live = make(img_size=8 * side, dtype=torch.float64)
    assert load_checkpoint(live, tmp_path / "gfnet.pth").layout == "raoyongming"
    torch.testing.assert_close(live(x), expected, atol=1e-10, rtol=0)


def test_there_and_back(tmp_path: Path) -> None:
    state = released_state()
    torch.save({"model": state}, tmp_path / "theirs.pth")
    convert_file(tmp_path / "theirs.pth", tmp_path / "ours")
    convert_file(tmp_path / "ours", tmp_path / "again.pth", to="raoyongming")
    assert same_weights(torch.load(tmp_path / "again.pth"), state)


def test_a_file_for_another_size(tmp_path: Path) -> None:
    torch.save({"model": released_state()}, tmp_path / "gfnet.pth")
    at_its_size = build(tmp_path / "gfnet.pth").model
    larger = build(tmp_path / "gfnet.pth", img_size=(48, 56)).model
    at_its_size.set_input_size((48, 56))
    assert same_weights(at_its_size, larger)
    x = images(2, 3, 48, 56)
    same(larger(x), at_its_size(x))


def test_what_the_released_code_cannot_express(tmp_path: Path) -> None:
    timm.models.save_for_hf(make(img_size=(32, 24)), str(tmp_path / "ours"), safe_serialization=True)
    with pytest.raises(UserError, match="image and patch are square there"):
        convert_file(tmp_path / "ours", tmp_path / "out.pth", to="raoyongming")


def test_a_bare_file_that_is_not_square_is_told_its_grid(tmp_path: Path) -> None:
    model = make(img_size=(24, 40))
    torch.save(model.state_dict(), tmp_path / "some.pth")
    assert same_weights(build(tmp_path / "some.pth", grid=(3, 5)).model, model)


@pytest.mark.parametrize("name", ["gfnet_ti", "gfnet_ti.raoyongming_in1k"])
def test_files_behind_a_page_are_fetched_by_hand(name: str, tmp_path: Path) -> None:
    told = (
        rf"the weights of {name} are behind a page, https://drive\.google\.com/\S+: .*'gfnet_ti', .*file=FILE"
    )
    with pytest.raises(CheckpointError, match=told):
        timm.create_model(name, pretrained=True, depth=1)
    with pytest.raises(CheckpointError, match=told):
        load_checkpoint(make(), name)
    model = make()
    torch.save({"model": released_state()}, tmp_path / "by_hand.pth")
    overlay = {"file": str(tmp_path / "by_hand.pth")}
    kwargs = {**tiny_kwargs("gfnet_ti"), "pretrained_cfg_overlay": overlay}
    loaded = timm.create_model(name, pretrained=True, **kwargs)
    load_checkpoint(model, tmp_path / "by_hand.pth")
    assert same_weights(loaded, model)


def test_all_names_have_the_authors_preprocessing_and_licence() -> None:
    for name in SIZES:
        cfg = timm.get_pretrained_cfg(name)
        assert (cfg.mean, cfg.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        assert (cfg.crop_pct, cfg.interpolation, cfg.license) == (0.875, "bicubic", "mit")
