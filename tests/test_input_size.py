"""`set_input_size` on a live model: what it carries, what it keeps, what it records."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from timm.layers import resample_patch_embed
from timm.models import get_model_input_config, get_model_traits, save_for_hf
from tiny import TINY, images, perturb, projections, tiny
from torch import nn
from torch.nn.utils import parametrize, prune

from gmlp_vision import GMlp
from gmlp_vision.layers.resample import resample_map, resample_operator


def snapshot(model: nn.Module) -> dict[str, tuple[int, torch.Tensor]]:
    """The identity and value of every parameter."""
    return {name: (id(p), p.detach().clone()) for name, p in model.named_parameters()}


# -- what it carries -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("img_size", "grid"), [(48, (6, 6)), (24, (3, 3)), ((48, 24), (6, 3)), ([32, 56], (4, 7))]
)
def test_every_w_and_b_is_carried_and_nothing_else(img_size: object, grid: tuple[int, int]) -> None:
    model = tiny()
    before = copy.deepcopy(model)
    model.set_input_size(img_size)
    assert len(projections(model)) == 2
    for old, new in zip(projections(before), projections(model), strict=True):
        assert new.grid_size == grid
        assert torch.equal(new.weight, resample_operator(old.weight, (4, 4), grid))
        assert torch.equal(new.bias, resample_map(old.bias, (4, 4), grid))
        assert new.weight.std() > 0.01
    rest = {k: v for k, v in before.state_dict().items() if ".gate.proj." not in k}
    assert len(rest) == len(before.state_dict()) - 4
    assert all(torch.equal(model.state_dict()[k], v) for k, v in rest.items())
    assert model(images(2, 3, grid[0] * 8, grid[1] * 8)).std() > 1e-3


def test_another_patch_resizes_the_stem_as_timm_does() -> None:
    model = tiny()
    kernel = model.stem.proj.weight.detach().clone()
    model.set_input_size(patch_size=(4, 16))
    assert torch.equal(model.stem.proj.weight, resample_patch_embed(kernel, (4, 16)))
    assert model.stem.img_size == (32, 32)
    assert [p.grid_size for p in projections(model)] == [(8, 2)] * 2
    assert model(images()).std() > 1e-3


def test_patches_of_twice_the_pixels_give_the_same_logits() -> None:
    model, x = tiny(), images()
    small = model(x)
    model.set_input_size(64, patch_size=16)  # the same grid, so W and b stay
    patches = x.unfold(2, 8, 8).unfold(3, 8, 8).reshape(-1, 1, 8, 8)
    patches = nn.functional.interpolate(patches, size=(16, 16), mode="bicubic", antialias=True)
    large = patches.reshape(2, 3, 4, 4, 16, 16).transpose(3, 4).reshape(2, 3, 64, 64)
    assert small.std() > 1e-2
    torch.testing.assert_close(model(large), small, atol=1e-4, rtol=1e-4)


def test_the_new_weights_train() -> None:
    model = tiny().train()
    model.set_input_size((48, 24))
    before = [p.weight.detach().clone() for p in projections(model)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(images(2, 3, 48, 24)).square().sum().backward()
    optimizer.step()
    assert all(not torch.equal(p.weight, old) for p, old in zip(projections(model), before, strict=True))


# -- what it keeps -------------------------------------------------------------------------------------------


def test_the_same_size_keeps_the_parameters_themselves() -> None:
    model = tiny()
    before = snapshot(model)
    for call in ({}, {"img_size": 32}, {"img_size": (32, 32), "patch_size": 8}):
        model.set_input_size(**call)
        assert {k: i for k, (i, _) in snapshot(model).items()} == {k: i for k, (i, _) in before.items()}


def test_dtype_requires_grad_and_mode_are_kept() -> None:
    model = tiny().to(torch.bfloat16).train()
    first, second = projections(model)
    first.weight.requires_grad_(False)
    second.bias.requires_grad_(False)
    model.stem.proj.weight.requires_grad_(False)
    model.set_input_size((48, 24), patch_size=4)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert [first.weight.requires_grad, first.bias.requires_grad] == [False, True]
    assert [second.weight.requires_grad, second.bias.requires_grad] == [True, False]
    assert not model.stem.proj.weight.requires_grad
    assert all(m.training for m in model.modules())
    assert not any(m.training for m in model.eval().modules())


def test_device_is_kept() -> None:
    model = timm.create_model("gmlp_ti16", **TINY, device="meta")
    model.set_input_size((48, 24), patch_size=4)
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert projections(model)[0].weight.shape == (12 * 6, 12 * 6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"img_size": 33}, ["height", "33", "8"]),
        ({"img_size": (32, 44)}, ["width", "44", "8"]),
        ({"patch_size": 5}, ["32", "5"]),
        ({"img_size": (40, 48), "patch_size": (8, 32)}, ["width", "48", "32"]),
        ({"img_size": 0}, ["0"]),
        ({"patch_size": -8}, ["-8"]),
        ({"img_size": (3, 32, 32)}, ["(3, 32, 32)", "(H, W)"]),
    ],
)
def test_a_bad_size_leaves_the_model_as_it_was(call: dict, words: list[str]) -> None:
    model = tiny()
    before, expected = snapshot(model), model(images())
    with pytest.raises(ValueError) as error:  # noqa: PT011  the words are matched below
        model.set_input_size(**call)
    assert all(word in str(error.value) for word in words), error.value
    assert {k: i for k, (i, _) in snapshot(model).items()} == {k: i for k, (i, _) in before.items()}
    assert torch.equal(model(images()), expected)
    assert get_model_input_config(model)["input_size"] == (3, 32, 32)


def test_running_out_of_memory_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    before, expected = snapshot(model), model(images())

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(projections(model)[1], "on_grid", fail)
    with pytest.raises(MemoryError):
        model.set_input_size(48)
    assert {k: i for k, (i, _) in snapshot(model).items()} == {k: i for k, (i, _) in before.items()}
    assert torch.equal(model(images()), expected)


class Doubled(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


def parametrize_w(layer: nn.Module, _: nn.Module) -> None:
    parametrize.register_parametrization(layer, "weight", Doubled())


def parametrize_b(layer: nn.Module, _: nn.Module) -> None:
    parametrize.register_parametrization(layer, "bias", Doubled())


def prune_w(layer: nn.Module, _: nn.Module) -> None:
    prune.l1_unstructured(layer, "weight", amount=0.5)


def share_w(layer: nn.Module, first: nn.Module) -> None:
    layer.weight = first.weight


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("change", [parametrize_w, parametrize_b, prune_w, share_w])
def test_w_and_b_that_are_not_the_layers_own_are_refused(change: Callable[..., None], dynamic: bool) -> None:
    model = tiny(dynamic_img_size=dynamic)
    first, second = projections(model)
    change(second, first)
    before, expected = snapshot(model), model(images())
    spatial = [id(p) for layer in projections(model) for p in layer.parameters()]
    words = r"blocks\.1\.mlp_channels\.gate\.proj\.\w+ .*remove_parametrizations.*prune\.remove.*copy"
    with pytest.raises(ValueError, match=words):
        model.set_input_size(48)
    assert {k: i for k, (i, _) in snapshot(model).items()} == {k: i for k, (i, _) in before.items()}
    assert torch.equal(model(images()), expected)
    model.set_input_size(64, patch_size=16)  # the same grid, so nothing of theirs changes
    assert [id(p) for layer in projections(model) for p in layer.parameters()] == spatial


class LowRank(nn.Module):
    """A wrapper that adds to W, as peft's LoRA does; with rank 0 it adds nothing and holds nothing."""

    def __init__(self, layer: nn.Module, rank: int) -> None:
        super().__init__()
        self.base_layer = layer
        if rank:
            self.factor = nn.Linear(len(layer.bias), rank, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_layer(x)


class Rows(torch.Tensor):
    """A tensor of a class of its own, as quantised and sharded ones are."""


def lora(model: nn.Module, rank: int = 2) -> None:
    gate = model.blocks[1].mlp_channels.gate
    gate.proj = LowRank(gate.proj, rank)


def scales_beside(model: nn.Module) -> None:
    """As NNCF holds them."""
    model.hooks = nn.ModuleDict({"blocks/1/mlp_channels/gate/proj/linear/0": nn.ParameterDict()})
    next(iter(model.hooks.values()))["scale"] = nn.Parameter(torch.ones(16, 1))


def quantised(model: nn.Module) -> None:
    layer = projections(model)[1]
    layer.weight = nn.Parameter(layer.weight.detach().as_subclass(Rows))


def a_shard(model: nn.Module) -> None:
    layer = projections(model)[1]
    layer.weight = nn.Parameter(layer.weight.detach().flatten()[:128])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lora, r"blocks\.1\.\S+\.proj\.factor\.weight, of shape \(2, 16\).*merge it or take it off"),
        (scales_beside, r"hooks\.blocks/1\S+scale, of shape \(16, 1\).*merge it or take it off"),
        (quantised, r"blocks\.1\.\S+\.weight is a Rows of shape \(16, 16\).*grid 4 x 4"),
        (a_shard, r"blocks\.1\.\S+\.weight is a Parameter of shape \(128,\).*grid 4 x 4"),
    ],
)
def test_what_a_tool_has_of_the_grid_is_refused(change: Callable[..., None], words: str) -> None:
    model = tiny()
    change(model)
    before = snapshot(model)
    with pytest.raises(ValueError, match=words):
        model.set_input_size(48)
    assert {k: i for k, (i, _) in snapshot(model).items()} == {k: i for k, (i, _) in before.items()}
    model.set_input_size(64, patch_size=16)  # the same grid


def test_tools_that_have_nothing_of_the_grid_stay() -> None:
    model = tiny(img_size=(32, 24))  # 12 tokens of width 16
    lora(model, rank=0)
    model.aside = LowRank(nn.Linear(16, 12), 2)  # a size of 12, but nothing to do with a layer
    model.set_input_size((48, 24))
    assert [p.grid_size for p in projections(model)] == [(6, 3)] * 2
    assert model(images(2, 3, 48, 24)).std() > 1e-3


def test_what_the_refusal_says_to_do_helps() -> None:
    model = tiny()
    first, second = projections(model)
    parametrize_w(first, second)
    prune_w(second, first)
    parametrize.remove_parametrizations(first, "weight")
    prune.remove(second, "weight")
    old = first.weight.detach().clone()
    model.set_input_size(48)
    assert torch.equal(first.weight, resample_operator(old, (4, 4), (6, 6)))
    assert model(images(2, 3, 48, 48)).std() > 1e-3


def test_a_layer_that_is_shared_as_a_whole_stays_shared() -> None:
    model = tiny()
    model.blocks[1].mlp_channels.gate.proj = model.blocks[0].mlp_channels.gate.proj
    (layer,) = projections(model)
    old = layer.weight.detach().clone()
    model.set_input_size(48)
    assert projections(model) == [layer]
    assert torch.equal(layer.weight, resample_operator(old, (4, 4), (6, 6)))
    assert model(images(2, 3, 48, 48)).std() > 1e-3


# -- what it records -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "call", [{"img_size": 48}, {"img_size": (48, 24)}, {"img_size": (64, 32), "patch_size": (4, 8)}]
)
def test_saved_and_loaded_again(tmp_path: Path, call: dict, dynamic: bool) -> None:
    model = tiny(dynamic_img_size=dynamic)
    model.set_input_size(**call)
    save_for_hf(model, tmp_path)
    loaded = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    assert loaded.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(loaded.state_dict()[k], v) for k, v in model.state_dict().items())
    x = images(2, 3, *model.stem.img_size)
    assert model(x).std() > 1e-3
    assert torch.equal(loaded(x), model(x))
    assert get_model_input_config(loaded) == get_model_input_config(model)


def test_timms_input_helpers_tell_the_new_size() -> None:
    model = tiny()
    model.set_input_size((48, 24))
    assert get_model_input_config(model)["input_size"] == (3, 48, 24)
    assert get_model_traits(model)["img_size"] == (48, 24)
    assert timm.data.resolve_input_data_config(model)["input_size"] == (3, 48, 24)
    with pytest.raises(ValueError, match="48 x 24"):
        model(images())


def test_feature_info_tells_the_new_reduction() -> None:
    model = timm.create_model("gmlp_ti16", **TINY, features_only=True, out_indices=(0, 1))
    perturb(model).eval()
    assert model.feature_info.reduction() == [8, 8]
    model.model.set_input_size((64, 32), patch_size=(4, 8))
    assert model.feature_info.reduction() == [8, 8]
    assert [m.shape for m in model(images(1, 3, 64, 32))] == [(1, 16, 16, 4)] * 2
    model.model.set_input_size(patch_size=4)
    assert model.feature_info.reduction() == [4, 4]
    assert [m.shape for m in model(images(1, 3, 64, 32))] == [(1, 16, 16, 8)] * 2


def test_a_model_made_without_the_registry_can_change_its_size_too() -> None:
    model = perturb(GMlp(img_size=32, patch_size=8, depth=1, embed_dim=8, num_classes=2))
    model.set_input_size((16, 24))
    assert model(images(1, 3, 16, 24)).std() > 1e-3


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated", "ignore:`torch.jit.script_method` is deprecated"
)
def test_the_fixed_form_stays_scriptable_and_traceable_at_its_new_size() -> None:
    model = tiny()
    model.set_input_size((48, 24), patch_size=(4, 8))
    x = images(2, 3, 48, 24)
    expected = model(x)
    assert expected.std() > 1e-3
    torch.testing.assert_close(torch.fx.symbolic_trace(model)(x), expected)
    torch.testing.assert_close(torch.jit.script(model)(x), expected)
