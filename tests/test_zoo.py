"""Every family against what tests/zoo.py knows of it; test_contract.py has the rest."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import timm
import torch
from tiny import first_block, images, learned, perturb, same
from torch import nn
from torch.nn import functional
from zoo import ROWS, Row, tiny_kwargs

import gmlp_vision  # noqa: F401  registers the names
from gmlp_vision.export import export_model
from gmlp_vision.layers.ask import operators
from gmlp_vision.layers.windows import Windows

every_row = pytest.mark.parametrize("row", ROWS, ids=str)
every_name = pytest.mark.parametrize("name", [name for row in ROWS for name in row.names])


def build(row: Row, **kwargs: object) -> nn.Module:
    """A small model of the row's first name, perturbed, in eval mode, at the first of its image sizes."""
    shallow = {} if "depths" in row.tiny else {"depth": 1}
    kwargs = {**tiny_kwargs(str(row)), **shallow, "img_size": row.sizes[0], **kwargs}
    return perturb(timm.create_model(str(row), **kwargs)).eval()


def batch(size: tuple[int, int]) -> torch.Tensor:
    return images(2, 3, *size)


def tokens(model: nn.Module, size: tuple[int, int]) -> torch.Tensor:
    """Noise in the place of what the first block takes, for one image."""
    with torch.no_grad():
        like = next(model.parameters())
        return images(*model.embed(batch(size).to(like))[0].shape)


def with_grids(model: nn.Module, size: tuple[int, int]) -> Iterator[tuple[nn.Module, tuple[int, int]]]:
    """The layers of a model's blocks, each with the grid of its tokens: in windows that of a window."""
    if hasattr(model, "blocks"):
        yield from ((module, model.stem.grid_size) for module in model.blocks.modules())
        return
    for stage, embed in zip(model.stages, model.embeds(), strict=True):
        size = size if isinstance(embed, nn.Identity) else embed.out_size(size)
        inside = {m: (w.window,) * 2 for w in stage.modules() if isinstance(w, Windows) for m in w.modules()}
        yield from ((module, inside.get(module, size)) for module in stage.modules())


# -- names ------------------------------------------------------------------------------------------------


def test_every_registered_name_has_one_row() -> None:
    ours = [n for n in timm.list_models() if timm.model_entrypoint(n).__module__.startswith("gmlp_vision.")]
    assert sorted(ours) == sorted(name for row in ROWS for name in row.names)


@every_name
def test_parameters_and_what_the_cfg_says(name: str) -> None:
    model = timm.create_model(name, device="meta")
    (row,) = (row for row in ROWS if name in row.names)
    assert sum(p.numel() for p in model.parameters()) == row.names[name]
    cfg = timm.get_pretrained_cfg(name)
    assert cfg.fixed_input_size is model.fixed_input_size is (row.resize != "free")
    assert (cfg.first_conv, cfg.classifier) == (model.first_conv, model.classifier)
    assert cfg.paper_ids.startswith("arXiv:")
    assert cfg.paper_name
    assert not (cfg.url and cfg.tag == "untrained")


# -- the paper --------------------------------------------------------------------------------------------


@every_row
def test_block_is_its_equation(row: Row) -> None:
    model = build(row)
    x, block = tokens(model, row.sizes[0]).double(), first_block(model.double())
    with torch.no_grad():
        y = block(x.unsqueeze(0))[0]
        expected = row.equation(block.state_dict(), x)
    mixed = y - x
    assert mixed.std() > 0.01
    torch.testing.assert_close(y, expected, atol=1e-10 * mixed.abs().max().item(), rtol=0)


@every_row
def test_operators(row: Row) -> None:
    model, found = build(row), []
    for module, (rows, columns) in with_grids(model, row.sizes[0]):
        for operator in operators(module, (rows, columns)):
            found.append(operator)
            assert operator.weight.std() > 1e-3
            assert operator.kind == "kernel" or operator.weight.shape[1] == rows * columns
    assert {operator.kind for operator in found} == row.filters
    sentences = [m.NO_OPERATOR for m in model.modules() if hasattr(m, "NO_OPERATOR")]
    assert sentences or found


# -- image sizes ------------------------------------------------------------------------------------------


def resize_between(old: tuple[int, int], new: tuple[int, int]) -> Callable[[torch.Tensor], torch.Tensor]:
    """From (n, ...) on an old grid to (n', ...) on a larger one."""

    def resize(values: torch.Tensor) -> torch.Tensor:
        maps = values.reshape(1, *old, -1).permute(0, 3, 1, 2)
        grown = functional.interpolate(maps, new, mode="bicubic", align_corners=False)
        return grown.permute(0, 2, 3, 1).reshape(new[0] * new[1], *values.shape[1:])

    return resize


@every_row
def test_another_image_size(row: Row) -> None:
    small, large = row.sizes
    model, x = build(row).double(), batch(large).double()
    if row.resize == "fixed":
        with pytest.raises(ValueError, match=r"\w+ \w+"):
            model.set_input_size(large)
        with pytest.raises(ValueError, match="dynamic_img_size is True"):
            build(row, dynamic_img_size=True)
        return
    dynamic = build(row, dynamic_img_size=True).double()
    dynamic.load_state_dict(model.state_dict())
    before = dict(first_block(model).named_parameters())
    if row.resize == "resampled":
        with pytest.raises(ValueError, match=f"{large[0]} x {large[1]}"):
            model(x)
    else:
        same(model(x), dynamic(x))
    y = dynamic(x)
    old = tokens(model, small).shape[:2]
    model.set_input_size(large)
    same(model(x), y)
    after = dict(first_block(model).named_parameters())
    if row.law is None:
        assert all(p is before[name] for name, p in after.items())
    else:
        row.law(before, after, resize_between(old, tokens(model, large).shape[:2]))
    model.set_input_size(small)
    assert model(batch(small).double()).shape == (2, 5)


# -- numbers ----------------------------------------------------------------------------------------------


@every_row
def test_every_parameter_learns_and_a_step_lowers_the_loss(row: Row) -> None:
    model, x, classes = build(row).train(), batch(row.sizes[0]), torch.tensor([1, 3])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(0)  # of what is drawn in training
    loss = functional.cross_entropy(model(x), classes)
    loss.backward()
    for name, p in learned(model).items():
        assert p.grad.abs().max() > 0, name
    optimizer.step()
    torch.manual_seed(0)
    assert functional.cross_entropy(model(x), classes) < loss - 1e-4


@pytest.mark.long
@every_row
def test_onnx(row: Row, tmp_path: Path) -> None:
    parity = export_model(build(row), tmp_path / "model.onnx", "onnx", dynamic_batch=True)
    assert parity.difference < 1e-4
