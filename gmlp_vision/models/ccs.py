"""CCS: "Rethinking Token-Mixing MLP for MLP-based Vision Backbone", Yu et al., https://arxiv.org/abs/2106.14882

Circulant channel-specific token mixing. Shapes: B batch, H, W the token grid, N = H * W tokens in row-major
order, D width, G groups.

    mixer    U = X + circ(LN(X))                    X = U + MLP(LN(U))
    resmlp   U = X + s * circ(A(X))                 X = U + t * MLP(B(U))         s, t: one number a channel;
                                                    A, B: a factor and a term a channel, as is the last norm

    circ(X)[i] = sum_j w[j] X[(i + j) mod N]        w: N numbers a group; channel c is of group c mod G

One such product stands where Mixer has an MLP over tokens and ResMLP a matrix; nothing is between, and there
is no bias. It is done by fast Fourier transforms in float32 at least, under any autocast and in a model of
bfloat16. The two models of the paper are Mixer-B/16 and ResMLP-36 so changed; the third one here has the
trunk of DeiT-S. Read where the paper leaves a choice:

- The tokens are one sequence, so a step beyond the end of a row leads to the next one, and from the last
  token to the first. Algorithm 1 reshapes the channels so that neighbours are of different groups.
- Another image size, of which the paper has none: w is what the first token takes from all tokens, so it is
  a map over the grid. It is resized as one and multiplied by N / N', so that the sum stays about what it was.
- w starts normal with variance 1 / N, which keeps the variance of what it mixes.
- s and t start at 1e-6, as in ResMLP-36.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import DropPath, LayerScale, Mlp
from timm.models import generate_default_cfgs, register_model
from torch import nn

from gmlp_vision.checkpoints.families import isotropic_sizes
from gmlp_vision.layers.ask import Operator
from gmlp_vision.layers.fourier import correlate_in_groups
from gmlp_vision.layers.grid_tied import GridTied
from gmlp_vision.layers.hidden_width import hidden_width
from gmlp_vision.layers.mix_mlp_block import MixMlpBlock
from gmlp_vision.layers.resample import Grid, resample_map
from gmlp_vision.layers.rules import Rule
from gmlp_vision.trunks import Isotropic, cfg, create

torch.fx.wrap("correlate_in_groups")

SOURCE = "A reading of the paper; no weights and no code were published."
VERIFIED = ("count", "equation")


def resample_offsets(weight: torch.Tensor, old_grid: Grid, new_grid: Grid) -> torch.Tensor:
    """w (N, G) on another grid, as what the first token takes from all others."""
    new = resample_map(weight, old_grid, new_grid)
    return new * (weight.shape[0] / new.shape[0])


OFFSETS = Rule(resample_offsets, lambda grid: (grid[0] * grid[1],))


class CirculantMixing(GridTied):
    """``circ(X)``, in the dtype of X.

    Args:
        dim: D.
        grid_size: (H, W) of the token grid that w belongs to, in tokens.
        groups: G; it divides D.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).

    Raises:
        ValueError: `groups` does not divide D.
    """

    RULES = {"weight": OFFSETS}  # noqa: RUF012  a ClassVar in the base

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        groups: int = 8,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(grid_size)
        if groups < 1 or dim % groups:
            raise ValueError(f"groups is {groups}; expected a divisor of embed_dim, which is {dim}")
        tokens = grid_size[0] * grid_size[1]
        self.weight = nn.Parameter(torch.empty(tokens, groups, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal, so that what is mixed keeps its variance."""
        nn.init.normal_(self.weight, std=self.weight.shape[0] ** -0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight: torch.Tensor = self.weight
        if self.dynamic:
            (weight,) = self.parameters_on((x.shape[1], x.shape[2]))
        return correlate_in_groups(x, weight).to(x.dtype)

    def operators(self, grid_size: Grid) -> list[Operator]:
        """What the token in the middle takes, by group, as `gmlp_vision.layers.ask.operators` tells it."""
        (height, width), tokens = self.grid_size, self.weight.shape[0]
        middle = height // 2 * width + width // 2
        kernels = self.weight.detach().roll(middle, 0).T.reshape(-1, height, width)
        note = "offsets count along the sequence of tokens, and wrap around its end"
        return [Operator("", "kernel", kernels, None, tokens**-0.5, note)]


class Affine(nn.Module):
    """A factor and a term for each channel, where other models have a norm.

    Args:
        dim: D.
        device, dtype: of the parameters.

    Shape: (..., D) -> (..., D).
    """

    def __init__(self, dim: int, device: Any = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Leaves what comes as it is."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addcmul(self.bias, self.weight, x)


class ResMlpBlock(nn.Module):
    """``X = X + s * mix(A(X))``, then ``X = X + t * MLP(B(X))``, as in ResMLP.

    Args:
        dim: D.
        grid_size: (H, W) of the token grid, in tokens.
        mlp_ratio: The hidden width of the MLP, as a multiple of D.
        groups: Of the mixing; it divides D.
        init_values: What s and t start at.
        proj_drop_rate: Dropout in the MLP, after GELU and at its end, in [0, 1].
        drop_path: Probability that a sample skips a branch, in [0, 1).
        norm_eps: Not used: nothing is normalised.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).

    Raises:
        ValueError: `groups` does not divide D, or a value that a dropout refuses.
    """

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        *,
        mlp_ratio: float = 4.0,
        groups: int = 8,
        init_values: float = 1e-6,
        proj_drop_rate: float = 0.0,
        drop_path: float = 0.0,
        norm_eps: float = 1e-6,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.norm1 = Affine(dim, **dd)
        self.mixer = CirculantMixing(dim, grid_size, groups, **dd)
        self.ls1 = LayerScale(dim, init_values, **dd)
        self.norm2 = Affine(dim, **dd)
        self.mlp = Mlp(dim, hidden_width(dim, mlp_ratio), drop=proj_drop_rate, **dd)
        self.ls2 = LayerScale(dim, init_values, **dd)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()  # each call draws anew

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.drop_path(self.ls1(self.mixer(self.norm1(x))))
        return x + self.drop_path(self.ls2(self.mlp(self.norm2(x))))


FORMS: dict[str, Any] = {"mixer": partial(MixMlpBlock, mixer=CirculantMixing), "resmlp": ResMlpBlock}


def ccs_block(dim: int, grid_size: Grid, *, form: str, **kwargs: Any) -> nn.Module:
    """A block of the form that is said by its key in FORMS, so that a config.json can hold it.

    Raises:
        ValueError: No such key.
    """
    if form not in FORMS:
        raise ValueError(f"form is {form!r}; expected one of {', '.join(map(repr, FORMS))}")
    return FORMS[form](dim, grid_size, **kwargs)


class Ccs(Isotropic):
    """Patches, `depth` blocks that mix tokens by circulant matrices, final norm, mean pool, linear head.

    Args:
        form: A key of FORMS: 'mixer', or 'resmlp', which has an Affine for the final norm too.
        kwargs: Those of Isotropic, `mlp_ratio`, `proj_drop_rate` and `groups`, and with 'resmlp'
            `init_values`; the trunk of the small model by default.

    Raises:
        ValueError: An unknown `form`, or what the trunk and the blocks refuse.
        TypeError: An argument that none of them has.
    """

    def __init__(self, form: str = "mixer", **kwargs: Any) -> None:
        super().__init__(ccs_block, **{**SIZES["ccs_s16"], "form": form, **kwargs})
        if form == "resmlp" and isinstance(self.norm, nn.LayerNorm):
            like = self.norm.weight
            self.norm = Affine(self.embed_dim, device=like.device, dtype=like.dtype)


# Table 2 of the paper, which changes Mixer-B/16 and ResMLP-36; and DeiT-S
SIZES: dict[str, dict[str, Any]] = {
    "ccs_s16": {"patch_size": 16, "depth": 12, "embed_dim": 384, "mlp_ratio": 4.0, "form": "mixer"},
    "ccs_mixer_b16": {"patch_size": 16, "depth": 12, "embed_dim": 768, "mlp_ratio": 4.0, "form": "mixer"},
    "ccs_resmlp_36": {"patch_size": 16, "depth": 36, "embed_dim": 384, "mlp_ratio": 4.0, "form": "resmlp"},
}


def sizes_of(state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """The arguments of the CCS model that has these tensors; None if they are not those of one."""
    w = state_dict.get("blocks.0.mixer.weight")
    parts = {name.removeprefix("blocks.0.") for name in state_dict if name.startswith("blocks.0.mixer.")}
    sizes = isotropic_sizes(state_dict, "mlp.fc1.weight")
    if sizes is None or w is None or parts != {"mixer.weight"} or w.ndim != 2:
        return None
    form = "resmlp" if "blocks.0.ls1.gamma" in state_dict else "mixer"
    return {**sizes, "form": form, "groups": w.shape[1]}


default_cfgs = generate_default_cfgs(
    {
        f"{name}.untrained": cfg(
            paper_ids="arXiv:2106.14882",
            paper_name="Rethinking Token-Mixing MLP for MLP-based Vision Backbone",
            mean=IMAGENET_DEFAULT_MEAN,  # DeiT's training, and so its preprocessing
            std=IMAGENET_DEFAULT_STD,
        )
        for name in SIZES
    }
)


@register_model
def ccs_s16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """CCS at DeiT-S's size, which the paper does not have: 14.90 M parameters, 224 px, patch 16."""
    return create("ccs_s16", Ccs, SIZES, pretrained, **kwargs)


@register_model
def ccs_mixer_b16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Mixer-B/16 with CCS: 58.09 M parameters, 224 px, patch 16; the paper's 57 M has no head."""
    return create("ccs_mixer_b16", Ccs, SIZES, pretrained, **kwargs)


@register_model
def ccs_resmlp_36(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ResMLP-36 with CCS: 43.36 M parameters, 224 px, patch 16."""
    return create("ccs_resmlp_36", Ccs, SIZES, pretrained, **kwargs)
