"""Small models for the tests, and weights at which faults show."""

from collections.abc import Mapping

import timm
import torch
from torch import nn
from zoo import ISOTROPIC_NAMES as ISOTROPIC_NAMES
from zoo import PYRAMID_NAMES as PYRAMID_NAMES
from zoo import TINY as TINY
from zoo import tiny_kwargs

import gmlp_vision  # noqa: F401  registers the names
from gmlp_vision.layers import SpatialProjection


def tiny(name: str = "gmlp_ti16", **kwargs: object) -> nn.Module:
    """A registered name through its entrypoint, at 32 px, perturbed, in eval mode: see TINY and the rows."""
    return perturb(timm.create_model(name, **{**tiny_kwargs(name), **kwargs})).eval()


def perturb(model: nn.Module, seed: int = 0, std: float = 0.1) -> nn.Module:
    """Adds noise to every parameter: at init the head is 0 and the gate 1, and any comparison passes.

    And to the statistics of batch norms.
    """
    generator = torch.Generator().manual_seed(seed)

    def noise(like: torch.Tensor) -> torch.Tensor:
        return torch.randn(like.shape, generator=generator).to(like) * std

    with torch.no_grad():
        for p in model.parameters():
            p.add_(noise(p))
        for name, b in model.named_buffers():
            if name.endswith("running_mean"):
                b.add_(noise(b))
            elif name.endswith("running_var"):
                b.mul_(noise(b).exp())
    return model


def learned(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that ask for a gradient, by their names: fixed positions do not."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def images(*size: int, seed: int = 1) -> torch.Tensor:
    """A (B, C, height, width) batch of noise; (2, 3, 32, 32) unless told otherwise."""
    return torch.randn(*(size or (2, 3, 32, 32)), generator=torch.Generator().manual_seed(seed))


def first_block(model: nn.Module) -> nn.Module:
    """Of an isotropic model, or of the first stage of a pyramid."""
    return model.blocks[0] if hasattr(model, "blocks") else model.stages[0].blocks[0]


def projections(model: nn.Module) -> list[SpatialProjection]:
    return [m for m in model.modules() if isinstance(m, SpatialProjection)]


def same(a: torch.Tensor, b: torch.Tensor) -> None:
    """Asserts that two outputs agree, up to rounding."""
    assert a.std() > 1e-3  # a comparison of constants proves nothing
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


Weights = nn.Module | Mapping[str, torch.Tensor]


def same_weights(a: Weights, b: Weights, but: set[str] = frozenset()) -> bool:
    """Whether two models or state dicts have equal tensors under equal names."""
    a, b = (x.state_dict() if isinstance(x, nn.Module) else x for x in (a, b))
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a.keys() - but)
