"""docs/with.md: its blocks run as they stand, beside the tools themselves, and what it says of them is so."""

import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from tiny import images, same
from torch import nn
from torch.nn.functional import cross_entropy, interpolate

import gmlp_vision

pytestmark = [
    pytest.mark.compat,
    pytest.mark.filterwarnings("default"),  # of other people's code: shown, not mended here
    pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]

PAGE = (Path(__file__).parent.parent / "docs/with.md").read_text()
W = "blocks.0.mlp_channels.gate.proj.weight"
Names = dict[str, Any]
Section = Callable[[str], Iterator[Names]]


def blocks(title: str) -> list[str]:
    """The code of a section; of '' what stands before the first."""
    text = next(part for part in PAGE.split("\n## ") if part.startswith(title or "# "))
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Section:
    """Runs the blocks of a section one by one, in an empty folder, and gives the names after each."""
    monkeypatch.chdir(tmp_path)

    def run(title: str) -> Iterator[Names]:
        names: Names = {"__name__": "a_script"}
        for code in (*blocks(""), *blocks(title)):
            exec(code, names)
            if code not in blocks(""):
                yield names

    return run


def last(steps: Iterator[Names]) -> Names:
    *_, names = steps
    return names


def shipped(**kwargs: object) -> nn.Module:
    return timm.create_model("gmlp_pico4", pretrained=True, **kwargs).eval()


def w_of(model: nn.Module) -> torch.Tensor:
    return model.blocks[0].mlp_channels.gate.proj.weight.detach()


def test_every_section_with_code_is_run_here() -> None:
    titles = [part.split("\n")[0] for part in PAGE.split("\n## ")[1:]]
    tests = Path(__file__).read_text()
    assert len(titles) == 16
    assert [t for t in titles if f'section("{t}")' not in tests] == ["fastai"]
    for code in blocks("fastai"):
        compile(code, "fastai", "exec")  # by hand, says the page


# -- training ------------------------------------------------------------------------------------------------


def test_parameter_groups(section: Section) -> None:
    for names in section("Parameter groups"):
        groups = names["optimizer"].param_groups
        decays = [{id(p): g["weight_decay"] > 0 for p in g["params"]} for g in groups]
        decay = {**decays[0], **decays[1]}
        assert len(decay) == sum(map(len, decays)) == len(list(names["model"].parameters()))
        for name, p in names["model"].named_parameters():
            assert decay[id(p)] == (p.ndim > 1), name


def test_peft(section: Section) -> None:
    names = last(section("peft"))
    lora, merged = names["lora"].eval(), names["merged"].eval()
    trained = {name for name, p in lora.named_parameters() if p.requires_grad}
    assert len(trained) == 8 * 3 * 2 + 2
    assert (w_of(merged) - w_of(shipped())).abs().max() > 1e-5
    same(merged(images()).detach(), lora(images()).detach())
    torch.testing.assert_close(merged(images()), lora(images()), atol=1e-6, rtol=1e-6)
    assert merged.state_dict().keys() == shipped().state_dict().keys()

    plain = timm.create_model("gmlp_pico4").eval()
    assert len(gmlp_vision.load_checkpoint(plain, "merged.pth").loaded) == len(plain.state_dict())
    same(plain(images()).detach(), merged(images()).detach())
    with pytest.raises(ValueError, match=r"lora_A\.default\.weight, of shape \(4, 64\).*merge_and_unload"):
        lora.base_model.model.set_input_size(48)
    same(merged(images()).detach(), lora(images()).detach())
    merged.set_input_size(48)
    assert merged(images(2, 3, 48, 48)).std() > 0.1


def test_peft_gives_the_gradients_of_w(section: Section) -> None:
    """A LoRA's gradient is that of W, times the other factor; also with activation checkpointing."""
    from peft import LoraConfig, get_peft_model

    gradients = []
    for checkpointed in (False, True):
        torch.manual_seed(0)
        model = shipped().train()
        model.set_grad_checkpointing(checkpointed)
        lora = get_peft_model(model, LoraConfig(r=4, target_parameters=["gate.proj.weight"]))
        lora(images()).square().sum().backward()
        wrapper = lora.base_model.model.blocks[0].mlp_channels.gate.proj
        gradients.append((wrapper.lora_B["default"].weight.grad, wrapper.lora_A["default"].weight.detach()))
    plain = shipped().train()
    plain(images()).square().sum().backward()
    for grad, factor in gradients:
        expected = 2 * plain.get_parameter(W).grad @ factor.T  # alpha / r is 8 / 4
        torch.testing.assert_close(grad, expected, atol=1e-4 * expected.abs().max().item(), rtol=0)


def test_what_the_page_says_of_peft(section: Section) -> None:
    from peft import LoraConfig, get_peft_model

    w = {"target_parameters": ["gate.proj.weight"]}
    for refused in (
        {"target_modules": "proj"},
        {**w, "use_dora": True},
        {**w, "lora_dropout": 0.1},
        {"target_parameters": ["gate.proj.bias"]},
    ):
        with pytest.raises(ValueError, match=r"target|dora|dropout|dimensional"):
            get_peft_model(shipped(), LoraConfig(**refused))
    lora = get_peft_model(shipped(), LoraConfig(target_modules="all-linear"))
    wrapped = {name.split(".lora_A")[0] for name, _ in lora.named_parameters() if ".lora_A" in name}
    assert {name.rpartition(".")[2] for name in wrapped} == {"fc1", "fc2", "head"}

    lora = get_peft_model(shipped(dynamic_img_size=True), LoraConfig(init_lora_weights=False, **w)).eval()
    x = images(2, 3, 48, 48)
    found = lora(x).detach()
    assert (found - shipped(dynamic_img_size=True)(x)).abs().max() > 1e-3
    same(found, lora.merge_and_unload()(x).detach())


def test_lightning(section: Section) -> None:
    names = last(section("Lightning"))
    model, trained = names["model"].eval(), names["module"].model.eval()
    assert len(names["report"].loaded) == len(model.state_dict())
    assert w_of(model).std() > 1e-6
    same(model(images()).detach(), trained(images()).detach())


def test_accelerate(section: Section) -> None:
    names = last(section("accelerate"))
    assert len(names["report"].loaded) == len(names["fresh"].state_dict())
    assert not torch.equal(w_of(names["fresh"]), w_of(shipped()))
    same(names["fresh"].eval()(images()).detach(), names["model"].eval()(images()).detach())


def test_fsdp(section: Section, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))
    steps = section("FSDP")
    try:
        names = next(steps)
        plain = shipped().train()
        cross_entropy(plain(names["images"]), names["labels"]).backward()
        for name, p in names["model"].named_parameters():
            expected = plain.get_parameter(name).grad
            assert expected.abs().max() > 0
            torch.testing.assert_close(p.grad.full_tensor(), expected, atol=1e-5, rtol=1e-4, msg=name)
        with pytest.raises(ValueError, match="DTensor"):
            names["model"].set_input_size(48)
        fresh = timm.create_model("gmlp_pico4").eval()
        gmlp_vision.load_checkpoint(fresh, "whole.pth")
        same(fresh(images()).detach(), shipped()(images()).detach())

        names = next(steps)
        square = sum(p.grad.square().sum() for p in names["wrapped"].parameters())
        torch.testing.assert_close(square, sum(p.grad.square().sum() for p in plain.parameters()))
    finally:
        torch.distributed.destroy_process_group()


def test_opacus(section: Section) -> None:
    from opacus import GradSampleModule

    names = last(section("opacus"))
    assert (w_of(names["model"]) - w_of(shipped())).abs().max() > 1e-4
    model, x, y = shipped().train(), names["images"][:3], names["labels"][:3]
    expected = []
    for i in range(3):
        (gradient,) = torch.autograd.grad(
            cross_entropy(model(x[i : i + 1]), y[i : i + 1]), model.get_parameter(W)
        )
        expected.append(gradient)
    private = GradSampleModule(model, loss_reduction="sum")
    cross_entropy(private(x), y, reduction="sum").backward()
    found = model.get_parameter(W).grad_sample
    assert torch.stack(expected).std(dim=0).max() > 1e-5
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-5, rtol=1e-3)


# -- in other packages ---------------------------------------------------------------------------------------


def test_transformers(section: Section) -> None:
    from PIL import Image
    from transformers import AutoModelForImageClassification

    steps = section("transformers")
    names = next(steps)
    classifier = names["classifier"].eval()
    same(classifier(pixel_values=images()).logits.detach(), shipped()(images()).detach())
    torch.testing.assert_close(names["loss"], cross_entropy(shipped()(names["images"]), names["labels"]))
    assert w_of(classifier.timm_model).std() > 0
    assert classifier.timm_model.get_parameter(W).grad.abs().max() > 0
    assert len(names["report"].loaded) == len(names["model"].state_dict())
    picture = Image.effect_noise((40, 50), 90).convert("RGB")
    transform = timm.data.create_transform(
        **timm.data.resolve_input_data_config(shipped()), is_training=False
    )
    same(names["processor"](picture)["pixel_values"][0], transform(picture))

    names = next(steps)
    same(names["classifier"].eval()(pixel_values=images()).logits.detach(), shipped()(images()).detach())
    timm.models.save_for_hf(shipped(), "twice", safe_serialization=True)
    with pytest.raises(TypeError, match="multiple values for keyword argument 'num_classes'"):
        AutoModelForImageClassification.from_pretrained("./twice")

    maps = next(steps)["backbone"].eval()(images(1, 3, 48, 48)).feature_maps
    expected = shipped(img_size=48).forward_intermediates(
        images(1, 3, 48, 48), indices=[3, 7], intermediates_only=True
    )
    for found, one in zip(maps, expected, strict=True):
        assert found.shape == (1, 128, 12, 12)
        same(found.detach(), one.detach())


def test_a_config_of_timm_backbone_loads_nothing() -> None:
    from transformers import TimmBackbone, TimmBackboneConfig

    made = TimmBackbone(TimmBackboneConfig(backbone="gmlp_pico4", use_pretrained_backbone=True))
    assert made.state_dict()[f"_backbone.model.{W}"].std() < 1e-5


def test_segmentation_models(section: Section) -> None:
    import segmentation_models_pytorch as smp

    steps = section("segmentation-models-pytorch")
    names = next(steps)
    assert names["masks"].shape == (2, 3, 64, 96)
    names["masks"].square().mean().backward()
    for p in (names["unet"].encoder.model.model.stem.proj, names["unet"].encoder.model.model.stages[-1]):
        assert all(q.grad.abs().max() > 0 for q in p.parameters())

    names = next(steps)
    assert names["masks"].shape == (1, 3, 256, 256)
    with pytest.raises(ValueError, match=r"96 x 128 pixels.*made for 128 x 128"):
        names["fpn"](images(1, 3, 96, 128))
    with pytest.raises(ValueError, match="multiples of 256 x 256"):
        names["windows"](images(1, 3, 224, 224))
    assert names["masks"].std() > 1e-3
    small = {"depths": (1, 1, 1, 1), "embed_dims": (8, 16, 16, 16), "img_size": 64}
    for name in ("smlp_t", "gfnet_h_ti"):
        dynamic = smp.FPN(f"tu-{name}", encoder_weights=None, classes=3, dynamic_img_size=True, **small)
        assert dynamic.eval()(images(1, 3, 32, 96)).shape == (1, 3, 32, 96)
    decoders = ["Unet", "UnetPlusPlus", "FPN", "Linknet", "MAnet", "PSPNet", "Segformer", "UPerNet", "DPT"]
    for decoder in decoders:
        found = getattr(smp, decoder)("tu-cycle_b1", encoder_weights=None, classes=3, depths=(1, 1, 1, 1))
        assert found.eval()(images(1, 3, 64, 64)).shape == (1, 3, 64, 64)
    for decoder in ("PAN", "DeepLabV3", "DeepLabV3Plus"):
        with pytest.raises(TypeError, match="output_stride"):
            getattr(smp, decoder)("tu-cycle_b1", encoder_weights=None)

    names = next(steps)
    mine = torch.load("mine.pth")
    for name, tensor in names["unet"].encoder.model.model.state_dict().items():
        assert torch.equal(tensor, mine[name])

    names = last(steps)
    dpt, masks = names["dpt"], names["masks"]
    assert masks.shape == (2, 3, 64, 64)
    assert masks.std() > 1e-3
    assert torch.equal(w_of(dpt.encoder.model), w_of(shipped(img_size=64)))
    masks.square().mean().backward()
    assert dpt.encoder.model.get_parameter(W).grad.abs().max() > 0
    others = re.findall(r"\((Unet, .*?)\)", PAGE, flags=re.DOTALL)[0].replace("\n", " ").split(", ")
    assert len(others) == 9
    for decoder in others:
        with pytest.raises(ValueError, match="Unsupported model downsampling pattern"):
            getattr(smp, decoder)("tu-gmlp_pico4", encoder_weights=None)
    dynamic = smp.DPT("tu-gmlp_pico4", encoder_weights=None, classes=3, dynamic_img_size=True).eval()
    assert dynamic(images(1, 3, 32, 64)).shape == (1, 3, 32, 64)


def test_torchvision(section: Section) -> None:
    steps = section("torchvision")
    names = next(steps)
    assert all(loss.isfinite() for loss in names["losses"].values())
    pyramid = names["detector"].backbone.body.model
    for part in (pyramid.stem.proj, pyramid.stages[-1]):
        assert all(p.grad.abs().max() > 0 for p in part.parameters())
    names = next(steps)
    assert all(found.keys() == {"boxes", "labels", "scores", "masks"} for found in names["found"])
    assert len(names["found"]) == 1
    other = names["Backbone"]("vip_s7")
    assert {level.shape[-1] for level in other(images(1, 3, 224, 224)).values()} == {32, 16, 8}


# -- looking inside ------------------------------------------------------------------------------------------


def test_captum(section: Section) -> None:
    names = last(section("captum"))
    assert names["delta"].abs().max() < 0.05
    x, y, model = names["images"][:2], names["labels"][:2], names["model"]
    expected = (model(x) - model(torch.zeros(1, 3, 32, 32))).gather(1, y[:, None])[:, 0].detach()
    assert expected.std() > 0.1
    found = names["attribution"].sum((1, 2, 3)).float()
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0)
    assert names["gates"].shape == (8, 8, 8, 384)

    from captum.attr import LayerGradCam

    meaningless = LayerGradCam(model, model.blocks[-1]).attribute(x, target=y)
    assert meaningless.shape == (2, 1, 8, 128)  # W and D, as the page says


def test_grad_cam(section: Section) -> None:
    names = last(section("grad-cam"))
    found, model = torch.from_numpy(names["maps"]), names["model"]
    tokens: list[torch.Tensor] = []
    with model.blocks[-1].register_forward_hook(lambda *call: tokens.append(call[-1])):
        score = model(names["images"]).gather(1, names["labels"][:, None]).sum()
    (gradient,) = torch.autograd.grad(score, tokens[0])
    weights = gradient.mean(dim=(1, 2), keepdim=True)  # over the grid: one a channel
    expected = (tokens[0] * weights).sum(-1).relu().detach()
    expected = interpolate(expected[:, None], (32, 32), mode="bilinear")[:, 0]
    assert found.shape == (8, 32, 32)
    assert found.max() > 0.9
    for one, other in zip(found.flatten(1), expected.flatten(1), strict=True):
        assert torch.corrcoef(torch.stack([one, other]))[0, 1] > 0.99


# -- smaller, and elsewhere ----------------------------------------------------------------------------------


def differs_little(found: torch.Tensor, expected: torch.Tensor, part: float) -> None:
    """Asserts a difference, but less than this part of the logits' spread."""
    assert 0 < (found - expected).abs().max() < part * expected.std()


def test_torchao(section: Section) -> None:
    names = last(section("torchao"))
    kinds = {name: type(p) is not nn.Parameter for name, p in names["model"].named_parameters()}
    assert {name.rpartition(".")[0].rpartition(".")[2] for name, other in kinds.items() if other} == {
        "fc1", "fc2", "proj", "head",
    } - ({"proj"} if not kinds[W] else set())  # fmt: skip
    assert kinds[W]
    assert not kinds["stem.proj.weight"]
    with torch.no_grad():
        differs_little(names["model"](images()), shipped()(images()), 0.1)


def test_nncf(section: Section, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNCF_EXTENSION_LOAD_TIMEOUT", "0")
    names = last(section("NNCF"))
    with torch.no_grad():
        differs_little(names["quantised"](names["images"]), shipped()(names["images"]), 0.5)
    with pytest.raises(ValueError, match="belongs to the grid of"):
        names["quantised"].set_input_size(48)


def test_executorch(section: Section) -> None:
    names = last(section("ExecuTorch"))
    expected = shipped()(names["images"][:1]).detach()
    same(names["logits"], expected)
    assert Path("model.pte").stat().st_size > 2**20


def test_fvcore(section: Section) -> None:
    names = last(section("fvcore"))
    products = 64 * (3 * 4 * 4 * 128 + 8 * (128 * 768 + 64 * 384 + 384 * 128)) + 128 * 10
    norms = 5 * 64 * (8 * (128 + 384) + 128)  # it takes a norm for five operations a number
    assert names["multiply_adds"] == products + norms
