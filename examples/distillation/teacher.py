"""The small convolutional net that teaches gmlp_pico4 in its last stage: for train.py's --device-modules.

It sees what its pupil sees: 32 px images, normalised by the same mean and std.

    python teacher.py runs/teacher/last.pth.tar teacher

writes the averaged weights of a checkpoint of train.py, in float16, into a folder that
`--kd-model-name local-dir:teacher` takes.
"""

import sys
from itertools import pairwise
from typing import Any

import timm
import torch
from timm.layers import BatchNormAct2d, ConvNormAct, SelectAdaptivePool2d
from timm.models import (
    build_model_with_cfg,
    generate_default_cfgs,
    get_pretrained_cfg_value,
    load_checkpoint,
    register_model,
    save_for_hf,
)
from torch import nn

import gmlp_vision  # noqa: F401  registers the pupil

default_cfgs = generate_default_cfgs(
    {
        "conv_teacher": {
            **{
                key: get_pretrained_cfg_value("gmlp_pico4", key)
                for key in ("num_classes", "input_size", "crop_pct", "interpolation", "mean", "std")
            },
            "first_conv": "stem.conv",
            "classifier": "head",
        }
    }
)


class Stage(nn.Module):
    """Two convolutions, the first of them pooled to half the size."""

    def __init__(self, in_chs: int, out_chs: int, **dd: Any) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_chs, out_chs, 3, padding=1, bias=False, **dd)
        self.pool = nn.MaxPool2d(2)  # before the norm, which then has a quarter to do
        self.norm_act1 = BatchNormAct2d(out_chs, act_layer=nn.GELU, **dd)
        self.conv2 = ConvNormAct(out_chs, out_chs, 3, act_layer=nn.GELU, **dd)
        for conv in (self.conv1, self.conv2.conv):
            nn.init.dirac_(conv.weight[:in_chs])  # so that what comes in goes on, as in a residual net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv2(self.norm_act1(self.pool(self.conv1(x))))


class ConvTeacher(nn.Module):
    """Three stages from 32 x 32 to 4 x 4, then the maximum over each channel and a linear head.

    After cifar10-airbench (Jordan, arXiv 2404.00498): its widths, the place of its pooling, its start from
    the identity and its small logits, but not its whitening.
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 3,
        stem_width: int = 32,
        widths: tuple[int, ...] = (64, 256, 256),
        drop_rate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.num_classes, self.in_chans, self.num_features = num_classes, in_chans, widths[-1]
        self.stem = ConvNormAct(in_chans, stem_width, 3, act_layer=nn.GELU, **dd)
        self.stages = nn.Sequential(*(Stage(*between, **dd) for between in pairwise((stem_width, *widths))))
        self.pool = SelectAdaptivePool2d(pool_type="max", flatten=True)
        self.drop = nn.Dropout(drop_rate)
        self.head = nn.Linear(widths[-1], num_classes, bias=False, **dd)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(self.pool(self.stages(self.stem(x))))) / 9


@register_model
def conv_teacher(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    return build_model_with_cfg(ConvTeacher, "conv_teacher", pretrained, **kwargs)


if __name__ == "__main__":
    checkpoint, folder = sys.argv[1:]
    model = timm.create_model("conv_teacher")
    load_checkpoint(model, checkpoint, use_ema=True)
    save_for_hf(model.half(), folder, safe_serialization=True)
