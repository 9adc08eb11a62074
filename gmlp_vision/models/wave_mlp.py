"""Wave-MLP: "An Image Patch is a Wave: Phase-Aware Vision MLP", Tang et al., https://arxiv.org/abs/2111.12294

Shapes: B batch, H, W the token grid of a stage, D its width.

    X = X + proj(fuse(wave_h(X), wave_w(X), X C)) of norm(X);    X = X + GELU(norm(X) F) G

    wave(X) = conv([A cos(T), A sin(T)])       A = X U: the amplitudes;  T = ReLU(BN(phase(X))): the phases

conv goes over 7 tokens along one axis, zeros outside the grid, and makes each of its D outputs from two of
its 2 D inputs. phase is a linear layer, or in the model T* a depthwise 3 x 3 convolution. fuse is
layers/reweight.py, BN batch normalisation; norm is that too in T* and T, and group normalisation with one
group in S, M and B, which also have none behind stem and downsamplings.

In the released code, which this is, `tfc_h` goes along the width and `tfc_w` along the height; and the two
inputs of output c are the numbers 2 c and 2 c + 1 of [A cos(T), A sin(T)], so two channels' cosines or two
channels' sines, and not one channel's cosine and sine as in the paper (eq. 8 to 10).

Nothing belongs to a grid: any image size.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import lecun_normal_
from timm.models import generate_default_cfgs, register_model
from torch import nn

from gmlp_vision.checkpoints.families import pyramid_sizes
from gmlp_vision.checkpoints.names import (
    LEFT_BY_A_TOOL,
    Layout,
    Row,
    as_kernel,
    as_matrix,
    dense_norms,
    network_rows,
    over_channels,
)
from gmlp_vision.layers.embed import ConvEmbed
from gmlp_vision.layers.mix_mlp_block import MixMlpBlock
from gmlp_vision.layers.norm import BatchNorm, GroupNorm
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.reweight import Reweight
from gmlp_vision.trunks import Pyramid, cfg, create

SOURCE = "The released model: equal logits from the authors' code with the same weights."
VERIFIED = ("count", "equation", "authors' code")

NORMS = {"batch": BatchNorm, "group": GroupNorm}


class Wave(nn.Module):
    """``conv([A cos(T), A sin(T)])`` along one axis.

    Args:
        dim: D.
        axis: 1 for the height, 2 for the width.
        phase: 'linear' or 'depthwise': what makes the phases.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).

    Raises:
        ValueError: Another `phase`.
    """

    def __init__(
        self,
        dim: int,
        axis: int,
        phase: str,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        if phase not in ("linear", "depthwise"):
            raise ValueError(f"phase is {phase!r}; expected 'linear' or 'depthwise'")
        self.fc = nn.Linear(dim, dim, bias=False, **dd)
        wide = phase == "depthwise"
        self.phase = nn.Conv2d(
            dim, dim, 3 if wide else 1, padding=int(wide), groups=dim if wide else 1, bias=not wide, **dd
        )
        self.norm = nn.BatchNorm2d(dim, **dd)
        self.act = nn.ReLU()
        self.conv = PairedConv(dim, (7, 1) if axis == 1 else (1, 7), **dd)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        t = self.act(self.norm(self.phase(x.permute(0, 3, 1, 2)))).permute(0, 2, 3, 1)
        a = self.fc(x)
        return self.conv(turn(a[..., 0::2], t[..., 0::2]), turn(a[..., 1::2], t[..., 1::2]))


def turn(a: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """``[A cos(T), A sin(T)]``: (B, H, W, C) amplitudes and phases to (B, H, W, 2 C)."""
    return torch.cat([a * t.cos(), a * t.sin()], dim=-1)


class PairedConv(nn.Module):
    """Output c is a convolution of numbers 2 c and 2 c + 1, which come apart: one tensor has all even ones.

    So it is two depthwise convolutions, which are faster than one with two inputs a group.

    Args:
        dim: D.
        size: (h, w) of the kernels, odd.
        device, dtype: of the parameters.

    Shape: twice (B, H, W, D) -> (B, H, W, D).
    """

    def __init__(
        self,
        dim: int,
        size: tuple[int, int],
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.padding = [size[0] // 2, size[1] // 2]
        self.weight = nn.Parameter(torch.empty(dim, 2, *size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As the trunk starts a convolution."""
        if not self.weight.is_meta:  # trunks/init.py says why
            lecun_normal_(self.weight)

    def forward(self, even: torch.Tensor, odd: torch.Tensor) -> torch.Tensor:
        groups = even.shape[-1]
        w, padding = self.weight, self.padding
        y = nn.functional.conv2d(even.permute(0, 3, 1, 2), w[:, :1], padding=padding, groups=groups)
        z = nn.functional.conv2d(odd.permute(0, 3, 1, 2), w[:, 1:], padding=padding, groups=groups)
        # contiguous as it is, but for torch.compile, which expects of a batch norm another layout than it has
        return (y + z).permute(0, 2, 3, 1).contiguous()


class WaveMix(nn.Module):
    """``proj(fuse(wave_h(X), wave_w(X), X C))``, the phase-aware token mixing of Section 3.2.

    Args:
        dim: D.
        grid_size: (H, W); the convolutions are the same on every grid.
        phase: 'linear' or 'depthwise': what makes the phases.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).
    """

    NO_OPERATOR = "what a token gives to others turns with its own phase: there is no fixed map over tokens"

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        phase: str = "linear",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.wave_h = Wave(dim, 2, phase, **dd)
        self.wave_w = Wave(dim, 1, phase, **dd)
        self.fc_c = nn.Linear(dim, dim, bias=False, **dd)
        self.reweight = Reweight(dim, **dd)
        self.proj = nn.Linear(dim, dim, **dd)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.proj(self.reweight(self.wave_h(x), self.wave_w(x), self.fc_c(x)))


class WaveMlp(Pyramid):
    """Wave-MLP: an overlapping stem, four stages, final norm, mean pool, linear head.

    Args:
        norms: 'batch' or 'group': the norms of the blocks and the final one.
        embed_norm: Whether such a norm follows the stem and each downsampling.
        kwargs: Those of Pyramid, of MixMlpBlock `mlp_ratio` and `proj_drop_rate`, and `phase`; those of
            Wave-MLP-T by default.

    Raises:
        ValueError: Other `norms`.
    """

    def __init__(self, *, norms: str = "batch", embed_norm: bool = True, **kwargs: Any) -> None:
        if norms not in NORMS:
            raise ValueError(f"norms is {norms!r}; expected one of {', '.join(NORMS)}")
        norm = NORMS[norms]
        embed = partial(ConvEmbed, norm=norm if embed_norm else None)
        super().__init__(
            partial(MixMlpBlock, mixer=WaveMix, norm=norm),
            stem=partial(embed, kernel_size=7, padding=2),
            downsample=partial(embed, kernel_size=3, padding=1),
            norm=norm,
            **{**SIZES["wave_t"], **kwargs},
        )


NARROW, WIDE = (64, 128, 320, 512), (96, 192, 384, 768)
GROUP: dict[str, Any] = {"norms": "group", "embed_norm": False}

# Table 1 of the paper, and the released code for the norms
SIZES: dict[str, dict[str, Any]] = {
    "wave_t_dw": {"depths": (2, 2, 4, 2), "embed_dims": NARROW, "mlp_ratio": 4.0, "phase": "depthwise"},
    "wave_t": {"depths": (2, 2, 4, 2), "embed_dims": NARROW, "mlp_ratio": 4.0},
    "wave_s": {"depths": (2, 3, 10, 3), "embed_dims": NARROW, "mlp_ratio": 4.0, "norms": "group"},
    "wave_m": {"depths": (3, 4, 18, 3), "embed_dims": NARROW, "mlp_ratio": (8.0, 8.0, 4.0, 4.0), **GROUP},
    "wave_b": {"depths": (2, 2, 18, 2), "embed_dims": WIDE, "mlp_ratio": 4.0, **GROUP},
}

# README of the release; of Wave-MLP-B there is no file
TOP1 = {"wave_t_dw": 80.1, "wave_t": 80.9, "wave_s": 82.9, "wave_m": 83.3}


def rows(model: Any) -> Iterator[Row]:
    """Their names: stages and downsamplings stand in one list, and every layer is a convolution."""
    kernel = (as_kernel, as_matrix)
    first = model.stages[0].blocks[0]
    parts = [
        *(Row(over_channels(f"norm{k}", first.norm1), f"norm{k}") for k in (1, 2)),
        *(Row(part, part, *kernel) for part in ("mlp.fc1", "mlp.fc2")),
        *(Row(f"mixer.{part}", f"attn.{part}", *kernel) for part in ("fc_c", "proj")),
        Row("mixer.reweight.mlp.fc{k}", "attn.reweight.fc{k}", *kernel),
    ]
    for axis in "hw":
        parts += [
            Row(f"mixer.wave_{axis}.fc", f"attn.fc_{axis}", *kernel),
            Row(f"mixer.wave_{axis}.conv", f"attn.tfc_{axis}"),
            Row(f"mixer.wave_{axis}.phase", f"attn.theta_{axis}_conv.0"),
            Row(f"mixer.wave_{axis}.norm", f"attn.theta_{axis}_conv.1"),
        ]
    yield Row("stem.proj", "patch_embed.proj")
    yield Row("stem.norm.norm", "patch_embed.norm")
    yield from network_rows(model, lambda stage: parts)
    yield Row(over_channels("norm", model.norm), "norm")
    yield Row(over_channels("norm", model.norm), "norm6")  # of a backbone for dense heads


LAYOUTS = {
    # Wave-MLP of https://github.com/ggjy/Hire-Wave-MLP.pytorch; the released files hold what a counter of
    # operations left in them
    "ggjy": Layout(
        rows=rows,
        marks=("patch_embed.proj.weight", "network.0.0.attn.tfc_h.weight"),
        drop={"*total_ops": LEFT_BY_A_TOOL, "*total_params": LEFT_BY_A_TOOL, **dense_norms()},
        settings={"norm_eps": 1e-5, "final_norm": True},
    ),
}


def sizes_of(state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """The arguments of the Wave-MLP that has these tensors; None if they are not those of one."""
    kernel = state_dict.get("stages.0.blocks.0.mixer.wave_h.phase.weight")
    sizes = pyramid_sizes(state_dict, "mlp.fc1.weight")
    if kernel is None or sizes is None:
        return None
    return {
        **sizes,
        "phase": "depthwise" if kernel.shape[-1] == 3 else "linear",
        "norms": "batch" if "stages.0.blocks.0.norm1.norm.running_mean" in state_dict else "group",
        "embed_norm": "stem.norm.norm.weight" in state_dict,
    }


PAPER = {
    "paper_ids": "arXiv:2111.12294",
    "paper_name": "An Image Patch is a Wave: Phase-Aware Vision MLP",
    "origin_url": "https://github.com/ggjy/Hire-Wave-MLP.pytorch",
    "license": "mit",  # by the badge of its README; there is no licence file
    "fixed_input_size": False,
    "mean": IMAGENET_DEFAULT_MEAN,
    "std": IMAGENET_DEFAULT_STD,
}
RELEASE = "https://github.com/ggjy/Hire-Wave-MLP.pytorch/releases/download/log-wave/WaveMLP_{}.pth.tar"

default_cfgs = generate_default_cfgs(
    {
        "wave_t_dw.ggjy_in1k": cfg(**PAPER, crop_pct=0.9, url=RELEASE.format("T_dw")),
        "wave_t.ggjy_in1k": cfg(**PAPER, crop_pct=0.9, url=RELEASE.format("T")),
        "wave_s.ggjy_in1k": cfg(**PAPER, crop_pct=0.9, url=RELEASE.format("S")),
        "wave_m.ggjy_in1k": cfg(**PAPER, crop_pct=0.9, url=RELEASE.format("M")),
        "wave_b.untrained": cfg(**PAPER),
    }
)


@register_model
def wave_t_dw(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Wave-MLP-T*, with depthwise phases: 15.29 M parameters, any image size."""
    return create("wave_t_dw", WaveMlp, SIZES, pretrained, **kwargs)


@register_model
def wave_t(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Wave-MLP-T: 17.19 M parameters, any image size."""
    return create("wave_t", WaveMlp, SIZES, pretrained, **kwargs)


@register_model
def wave_s(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Wave-MLP-S: 30.71 M parameters, any image size."""
    return create("wave_s", WaveMlp, SIZES, pretrained, **kwargs)


@register_model
def wave_m(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Wave-MLP-M: 44.06 M parameters, any image size."""
    return create("wave_m", WaveMlp, SIZES, pretrained, **kwargs)


@register_model
def wave_b(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Wave-MLP-B: 63.59 M parameters, any image size."""
    return create("wave_b", WaveMlp, SIZES, pretrained, **kwargs)
