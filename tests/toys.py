"""A family for the tests, with nothing of gMLP in it, and blocks of kinds that other families have."""

import sys
from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import Any

import torch
from timm.models import generate_default_cfgs, register_model
from torch import nn

from gmlp_vision.checkpoints.names import Layout, Row
from gmlp_vision.layers import GridTied, SpatialProjection
from gmlp_vision.layers.rules import fixed
from gmlp_vision.trunks import Isotropic, cfg, create

SMALL = {"embed_dim": 8, "depth": 2, "img_size": 16, "patch_size": 4, "num_classes": 5}


class Shifted(nn.Module):
    """No parameter belongs to a grid, and the linear layer has no bias."""

    def __init__(self, dim: int, grid_size: object, drop_path: float, norm_eps: float, **dd: Any) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=norm_eps, **dd)
        self.fc = nn.Linear(dim, dim, bias=False, **dd)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc(self.norm(x).roll(1, dims=-2))


class BatchNormed(nn.Module):
    """Running statistics, and an integer that counts batches."""

    def __init__(self, dim: int, grid_size: object, drop_path: float, norm_eps: float, **dd: Any) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(dim, **dd)
        self.fc = nn.Linear(dim, dim, **dd)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc(self.norm(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))


class OfARow(Shifted):
    """Takes (B, 1 + N, D), as behind a class token."""

    CLASS_TOKEN = True


class Signed(nn.Module):
    """Its sign is seen in no tensor."""

    def __init__(
        self,
        dim: int,
        grid_size: tuple[int, int],
        drop_path: float,
        norm_eps: float,
        sign: float = 1.0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.sign = sign
        self.norm = nn.LayerNorm(dim, eps=norm_eps, device=device, dtype=dtype)
        self.mix = SpatialProjection(grid_size, device=device, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.sign * self.mix(self.norm(x))


class Unmovable(GridTied):
    """A layer that has no meaning on another grid."""

    RULES = {"scale": fixed("its width is the number of tokens", lambda grid: (grid[0] * grid[1],))}  # noqa: RUF012

    def __init__(self, grid_size: tuple[int, int], **dd: Any) -> None:
        super().__init__(grid_size)
        self.scale = nn.Parameter(torch.empty(grid_size[0] * grid_size[1], **dd))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale.view(*self.grid_size, 1)


class Fixed(Shifted):
    def __init__(
        self, dim: int, grid_size: tuple[int, int], drop_path: float, norm_eps: float, **dd: Any
    ) -> None:
        super().__init__(dim, grid_size, drop_path, norm_eps, **dd)
        self.scale = Unmovable(grid_size, **dd)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale(super().forward(x))


# -- a family, as its module would have it -------------------------------------------------------------------


def flat_rows(model: Any) -> Iterator[Row]:
    """Numbered through the whole network, so that only the depth tells which the norm is."""
    yield Row("stem.proj", "network.0")
    for i in range(len(model.blocks)):
        yield Row(f"blocks.{i}.norm", f"network.{i + 1}.ln")
        yield Row(f"blocks.{i}.mix", f"network.{i + 1}.sgu")
    yield Row("norm", f"network.{len(model.blocks) + 1}")
    yield Row("head", "fc")


SIZES = {
    "toy_plus": {**SMALL, "sign": 1.0},
    "toy_minus": {**SMALL, "sign": -1.0},
    "toy_deep": {**SMALL, "depth": 3},
}
default_cfgs = generate_default_cfgs(
    {f"{name}.x": cfg(input_size=(3, 16, 16), num_classes=5) for name in SIZES}
)


@register_model
def toy_plus(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    return create("toy_plus", partial(Isotropic, Signed), SIZES, pretrained, **kwargs)


@register_model
def toy_minus(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    return create("toy_minus", partial(Isotropic, Signed), SIZES, pretrained, **kwargs)


@register_model
def toy_deep(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    return create("toy_deep", partial(Isotropic, Signed), SIZES, pretrained, **kwargs)


FAMILY = ModuleType("gmlp_vision.models.toy", "Toy: a family for the tests.")
FAMILY.NAMES = tuple(SIZES)
FAMILY.SIZES = SIZES
FAMILY.LAYOUTS = {
    "flat": Layout(
        flat_rows,
        marks=("network.0.weight", "network.1.sgu.weight"),
        drop={"*.total_ops": "left there by a tool, and no weight"},
    )
}
Signed.__module__ = FAMILY.__name__


def move_in(monkeypatch: Any) -> None:
    """Makes it a family of the package for one test."""
    monkeypatch.setitem(sys.modules, FAMILY.__name__, FAMILY)
