"""The pyramids under heads for dense prediction: segmentation-models-pytorch's and torchvision's."""

from typing import Any

import pytest
import timm
import torch
from tiny import images, learned, perturb
from torch import nn
from torch.nn import functional

import gmlp_vision  # noqa: F401  registers the names

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("default")]

SMALL: dict[str, Any] = {"depths": (1, 1, 1, 1), "embed_dims": (16, 32, 32, 64)}
# every family whose stages have strides 4, 8, 16 and 32, and what a small model of it needs beside SMALL
FAMILIES: dict[str, dict[str, Any]] = {
    "cycle_b1": {},
    "hire_t": {},
    "wave_t_dw": {},
    "wave_s": {},
    "as_mlp_t": {},
    "smlp_t": {"img_size": 64},
    "raft_s": {"img_size": 64},
    "convmlp_s": {},
    "posmlp_t": {"img_size": 64, "window": (4, 4, 2, 2), "groups": (2, 2, 4, 4)},
    "swin_mlp_t_c24": {"img_size": 64, "window": 2, "heads": 2, "shifted": False},
    "gfnet_h_ti": {"img_size": 64},
}
OUTSIDE = ("vip_s14", "vip_s7", "s2mlpv2_s7")
every_family = pytest.mark.parametrize("name", FAMILIES)


def encoder_kwargs(name: str) -> dict[str, Any]:
    return SMALL | FAMILIES[name]


def learns(model: nn.Module, pyramid: nn.Module, loss_of: Any) -> None:
    """One step: a finite loss, gradients from the last stage to the first, and a smaller loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
    torch.manual_seed(0)  # dropout, and which boxes are taken
    loss = loss_of()
    assert loss.isfinite()
    loss.backward()
    for part in (pyramid.stem, pyramid.stages[0], pyramid.stages[-1]):
        for name, p in learned(part).items():
            assert p.grad.abs().max() > 0, name
    optimizer.step()
    torch.manual_seed(0)
    assert loss_of() < loss - 1e-5


# -- segmentation-models-pytorch ---------------------------------------------------------------------------


@every_family
@pytest.mark.parametrize("decoder", ["Unet", "FPN"])
def test_segmentation(name: str, decoder: str) -> None:
    import segmentation_models_pytorch as smp

    torch.manual_seed(0)
    model = getattr(smp, decoder)(
        f"tu-{name}", encoder_weights=None, classes=3, **encoder_kwargs(name)
    ).train()
    pyramid = perturb(model.encoder.model, std=0.02).model
    assert model.encoder.out_channels == [3, 0, *SMALL["embed_dims"]]
    x, classes = images(2, 3, 64, 64), torch.arange(64).expand(2, 64, 64) // 22
    learns(model, pyramid, lambda: functional.cross_entropy(model(x), classes))


@pytest.mark.parametrize("name", OUTSIDE)
def test_strides_that_segmentation_does_not_know(name: str) -> None:
    import segmentation_models_pytorch as smp

    with pytest.raises(ValueError, match="Unsupported model downsampling pattern"):
        smp.Unet(f"tu-{name}", encoder_weights=None)


# -- torchvision ------------------------------------------------------------------------------------------


class Backbone(nn.Module):
    """As docs/with.md has it."""

    def __init__(self, name: str, **kwargs: object) -> None:
        super().__init__()
        from torchvision.ops import FeaturePyramidNetwork
        from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

        self.body = timm.create_model(name, features_only=True, **kwargs)
        self.out_channels = 16
        channels = self.body.feature_info.channels()
        self.fpn = FeaturePyramidNetwork(channels, self.out_channels, extra_blocks=LastLevelMaxPool())

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return self.fpn({str(i): level for i, level in enumerate(self.body(x))})


def detector(name: str, **kwargs: Any) -> nn.Module:
    from torchvision.models.detection import MaskRCNN

    torch.manual_seed(0)
    backbone = Backbone(name, **encoder_kwargs(name))
    perturb(backbone.body, std=0.02)
    few = {"rpn_pre_nms_top_n_train": 50, "rpn_post_nms_top_n_train": 20, "box_batch_size_per_image": 8}
    return MaskRCNN(backbone, num_classes=3, **{**few, **kwargs}).train()


def targets() -> list[dict[str, torch.Tensor]]:
    masks = torch.zeros(1, 64, 64, dtype=torch.uint8)
    masks[0, 8:40, 8:48] = 1
    boxes = torch.tensor([[8.0, 8.0, 48.0, 40.0]])
    return [{"boxes": boxes, "labels": torch.tensor([label]), "masks": masks} for label in (1, 2)]


@every_family
def test_detection(name: str) -> None:
    model = detector(name, min_size=64, max_size=64)
    x = list(images(2, 3, 64, 64).sigmoid())
    learns(model, model.backbone.body.model, lambda: sum(model(x, targets()).values()))
