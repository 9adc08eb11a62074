"""fvcore, which traces a model to count its operations: it finds in ours what it finds in timm's gMLP."""

import pytest
import timm
import torch
from tiny import images, perturb, tiny
from torch import nn

pytestmark = [
    pytest.mark.compat,
    pytest.mark.filterwarnings("default"),  # fvcore's own are shown, not mended here
    pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]

SIZES = {"depth": 2, "embed_dim": 128, "img_size": 32, "patch_size": 4, "num_classes": 10}


def ours(**kwargs: object) -> nn.Module:
    return tiny(**SIZES, **kwargs)


def timms() -> nn.Module:
    mixer = timm.models.MlpMixer(
        num_classes=10,
        img_size=32,
        patch_size=4,
        num_blocks=2,
        embed_dim=128,
        mlp_ratio=6,
        block_layer=timm.models.mlp_mixer.SpatialGatingBlock,
        mlp_layer=timm.layers.GatedMlp,
    )
    return perturb(mixer).eval()


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("kwargs", [{}, {"dynamic_img_size": True}])
def test_fvcore_counts_the_operations_of_timms(kwargs: dict, grad: bool) -> None:
    from fvcore.nn import FlopCountAnalysis

    x = images(1, 3, 32, 32)
    with torch.set_grad_enabled(grad):
        found, expected = FlopCountAnalysis(ours(**kwargs), x), FlopCountAnalysis(timms(), x)
        assert expected.total() == 22_783_232
        assert found.total() == expected.total()
        assert found.by_operator() == expected.by_operator()
        missed = found.unsupported_ops()
        missed.pop("aten::view_as", None)  # which computes nothing
        assert missed == expected.unsupported_ops()
        of_modules, theirs = found.by_module(), expected.by_module()
    for name in ("blocks.0", "blocks.1.mlp_channels.fc1", "blocks.1.mlp_channels.gate.proj"):
        assert of_modules[name] == theirs[name] > 0
    assert of_modules["blocks.1.mlp_channels.gate.proj"] == 64 * 64 * 384  # N x N for each channel


@pytest.mark.parametrize("grad", [True, False])
def test_fvcore_counts_the_activations_of_timms(grad: bool) -> None:
    from fvcore.nn import ActivationCountAnalysis

    x = images(1, 3, 32, 32)
    with torch.set_grad_enabled(grad):
        found, expected = ActivationCountAnalysis(ours(), x), ActivationCountAnalysis(timms(), x)
        assert found.total() == expected.total() > 64 * 768
        assert found.by_operator() == expected.by_operator()


def test_fvcore_counts_a_batch_by_its_images() -> None:
    from fvcore.nn import FlopCountAnalysis

    model = ours()
    assert FlopCountAnalysis(model, images(3, 3, 32, 32)).total() == 3 * 22_783_232
