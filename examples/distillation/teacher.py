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
from timm.layers import ConvNormAct, SelectAdaptivePool2d
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
    """A convolution, max pooling to half the size, and a residual branch of two more convolutions."""

    def __init__(self, in_chs: int, out_chs: int, **dd: Any) -> None:
        super().__init__()
        self.widen = nn.Sequential(
            ConvNormAct(in_chs, out_chs, 3, apply_act=False, **dd), nn.MaxPool2d(2), nn.GELU()
        )
        self.branch = nn.Sequential(
            *(ConvNormAct(out_chs, out_chs, 3, act_layer=nn.GELU, **dd) for _ in range(2))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.widen(x)
        return x + self.branch(x)


class ConvTeacher(nn.Module):
    """Three stages from 32 x 32 to 4 x 4, then the maximum over each channel and a linear head."""

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 3,
        stem_width: int = 32,
        widths: tuple[int, ...] = (64, 128, 256),
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
        self.head = nn.Linear(widths[-1], num_classes, **dd)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(self.pool(self.stages(self.stem(x)))))


@register_model
def conv_teacher(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    return build_model_with_cfg(ConvTeacher, "conv_teacher", pretrained, **kwargs)


if __name__ == "__main__":
    checkpoint, folder = sys.argv[1:]
    model = timm.create_model("conv_teacher")
    load_checkpoint(model, checkpoint, use_ema=True)
    save_for_hf(model.half(), folder, safe_serialization=True)
