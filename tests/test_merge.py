"""Kernels beside W merged into W: in a live model, on the way into a plain one, in files of ours."""

import copy
import re
from copy import deepcopy
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file
from test_shared_kernel import KINDS
from timm.models import get_model_args, resume_checkpoint, save_for_hf
from timm.utils import ModelEmaV3
from tiny import images, perturb, projections, same, same_weights, tiny
from torch import nn
from torch.nn.utils import parametrize

import gmlp_vision
from gmlp_vision import CheckpointError, load_checkpoint, merge
from gmlp_vision.checkpoints import build, convert_file, describe
from gmlp_vision.cli import main
from gmlp_vision.export import export_model
from gmlp_vision.filters import extract
from gmlp_vision.layers import SpatialProjection
from gmlp_vision.layers.shared_kernel import DenseToeplitz, SharedKernel

TWO = KINDS[:2]  # a table of all offsets, and a kernel
GATE = "blocks.0.mlp_channels.gate.proj"


@pytest.mark.parametrize("spatial", TWO)
def test_a_run_goes_on_as_if_nothing_was_merged(spatial: str) -> None:
    model = tiny(spatial=spatial)
    plain, before = copy.deepcopy(model), torch.get_rng_state()
    with torch.inference_mode():
        merge(plain)
    assert torch.equal(torch.get_rng_state(), before)
    same(plain(images()), model(images()))
    plain.train()(images()).sum().backward()  # parameters that can be trained
    assert plain.get_parameter(f"{GATE}.weight").grad.any()


def kernel_of(spatial: str) -> str:
    return f"{GATE}.table" if spatial == "dense+toeplitz" else f"{GATE}.kernel"


def save(model: nn.Module, path: Path) -> Path:
    torch.save(model.state_dict(), path)
    return path


# -- a live model -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spatial", KINDS)
def test_a_merged_model_is_a_plain_one_that_computes_the_same(spatial: str) -> None:
    model, x = tiny(spatial=spatial, img_size=(24, 32)).double(), images(2, 3, 24, 32).double()
    before = model(x)
    assert merge(model) is model
    assert before.std() > 1e-2
    torch.testing.assert_close(model(x), before, atol=1e-12, rtol=0)
    plain = tiny(img_size=(24, 32)).double()
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert model.settings() == plain.settings()
    assert get_model_args(model)["spatial"] == "dense"
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(plain(x), before, atol=1e-12, rtol=0)


@pytest.mark.parametrize("spatial", TWO)
def test_timms_own_gmlp_takes_the_merged_file(spatial: str, tmp_path: Path) -> None:
    model = perturb(timm.create_model("gmlp_ti16", spatial=spatial, img_size=48)).eval()
    x = images(2, 3, 48, 48)
    convert_file(save(model, tmp_path / "trained.pth"), tmp_path / "merged.safetensors")
    theirs = timm.create_model(
        "gmlp_ti16_224", img_size=48, checkpoint_path=str(tmp_path / "merged.safetensors")
    )
    expected = model(x)
    assert expected.std() > 1e-2
    torch.testing.assert_close(theirs.eval()(x), expected, atol=1e-5, rtol=1e-5)


def test_what_it_is_for_stays_and_what_it_was_for_goes() -> None:
    model = tiny(spatial="dense+toeplitz", dynamic_img_size=True).to(torch.bfloat16).train()
    first, second = (block.mlp_channels.gate.proj for block in model.blocks)
    first.weight.requires_grad_(False)
    merge(model)
    one, two = projections(model)
    assert (one.weight.requires_grad, one.bias.requires_grad, two.weight.requires_grad) == (False, True, True)
    assert one.training
    assert one.dynamic
    assert (one.held_as, one.init_std) == (second.held_as, second.init_std)
    assert one.weight.dtype == torch.bfloat16
    assert model(images(2, 3, 48, 48).bfloat16()).std() > 0  # any size still
    model.set_input_size(48)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = two.weight.detach().clone()
    model(images(2, 3, 48, 48).bfloat16()).square().sum().backward()
    optimizer.step()
    assert not torch.equal(before, two.weight) or two.weight.shape != before.shape


def test_within_another_module_and_with_nothing_to_merge() -> None:
    wrapped = nn.Sequential(tiny(spatial="dense+3x3"), nn.Identity())
    before = wrapped(images())
    same(merge(wrapped)(images()), before)
    assert not any(isinstance(m, SharedKernel) for m in wrapped.modules())
    plain = tiny()
    parameters = list(plain.parameters())
    assert merge(plain) is plain
    assert all(a is b for a, b in zip(plain.parameters(), parameters, strict=True))
    relative = tiny(spatial="toeplitz")
    assert merge(relative).settings()["spatial"] == "toeplitz"


def test_what_would_be_lost_is_refused_and_nothing_changes() -> None:
    model = tiny(spatial="dense+toeplitz")
    last = model.blocks[1].mlp_channels.gate.proj
    hook = last.register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match=r"blocks\.1\.mlp_channels\.gate\.proj has hooks"):
        merge(model)
    hook.remove()
    parametrize.register_parametrization(last, "table", nn.Identity())
    with pytest.raises(ValueError, match=r"blocks\.1\.mlp_channels\.gate\.proj\.table is computed"):
        merge(model)
    assert isinstance(model.blocks[0].mlp_channels.gate.proj, DenseToeplitz)
    parametrize.remove_parametrizations(last, "table")
    merge(model)
    with pytest.raises(ValueError, match="cannot take another's place"):
        merge(DenseToeplitz((2, 2)))


@pytest.mark.parametrize("spatial", TWO)
def test_it_loads_and_writes_its_own_state_dict_as_it_is(spatial: str, tmp_path: Path) -> None:
    model, other = tiny(spatial=spatial), tiny(spatial=spatial)
    other.load_state_dict(torch.load(save(model, tmp_path / "own.pth"), weights_only=True))
    assert kernel_of(spatial) in model.state_dict()
    same(other(images()), model(images()))
    averaged = ModelEmaV3(model, decay=0.5)
    averaged.update(perturb(model))
    assert averaged.module.state_dict().keys() == model.state_dict().keys()
    loaded = timm.models.load_checkpoint(tiny(spatial=spatial), str(tmp_path / "own.pth"))
    assert not loaded.missing_keys + loaded.unexpected_keys
    assert str(load_checkpoint(other, tmp_path / "own.pth")).count("\n") == 1  # all loaded, nothing else


# -- into a model of another kind ---------------------------------------------------------------------------


@pytest.mark.parametrize("spatial", TWO)
@pytest.mark.parametrize("size", [(32, 32), (48, 40)])
def test_merged_on_the_way_into_a_plain_model(spatial: str, size: tuple[int, int], tmp_path: Path) -> None:
    model, plain = tiny(spatial=spatial), tiny(img_size=size, spatial="dense")
    report = load_checkpoint(plain, save(model, tmp_path / "trained.pth"))
    model.set_input_size(size)
    same(plain(images(2, 3, *size)), model(images(2, 3, *size)))
    assert report.dropped == {
        n: "merged into W" for n in model.state_dict() if n.endswith((".table", ".kernel"))
    }
    assert report.adapted[f"{GATE}.weight"].startswith("its shared kernel added")
    assert not {*report.loaded} & {*report.adapted, *report.dropped}
    assert {*report.loaded, *report.adapted} == set(plain.state_dict())


def test_a_plain_model_on_the_meta_device(tmp_path: Path) -> None:
    model, plain = tiny(spatial="dense+3x3"), tiny().to("meta")
    load_checkpoint(plain, save(model, tmp_path / "trained.pth"))
    same(plain(images()), model(images()))


def test_for_other_classes_and_channels(tmp_path: Path) -> None:
    model = tiny(spatial="dense+toeplitz")
    plain = tiny(num_classes=3, in_chans=1)
    head = plain.head.weight.clone()
    report = load_checkpoint(plain, save(model, tmp_path / "trained.pth"))
    assert torch.equal(plain.head.weight, head)
    assert set(report.missing) == {"head.weight", "head.bias"}
    w = model.get_submodule(GATE).matrix()[0]
    assert torch.equal(plain.get_submodule(GATE).weight, w)


@pytest.mark.parametrize("spatial", TWO)
def test_what_is_saved_for_timm_is_merged(
    spatial: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = perturb(timm.create_model("gmlp_pico4", depth=2, spatial=spatial)).eval()
    before = deepcopy(model.state_dict())
    gmlp_vision.save_for_hf(model, tmp_path / "plain", model_args={"depth": 2})
    assert "the shared kernels of 2 layers are merged into W" in caplog.text
    assert same_weights(model, before)
    plain = timm.create_model(f"local-dir:{tmp_path / 'plain'}", pretrained=True).eval()
    assert type(plain.get_submodule(GATE)) is SpatialProjection
    same(plain(images()), model(images()))
    caplog.clear()
    gmlp_vision.save_for_hf(plain, tmp_path / "again")
    assert not caplog.text
    assert same_weights(timm.create_model(f"local-dir:{tmp_path / 'again'}", pretrained=True), plain)


def test_train_py_resumes_with_the_kernel(tmp_path: Path) -> None:
    """By the call of train.py, which loads strictly, and the averaged weights beside it."""
    model = perturb(timm.create_model("gmlp_pico4", depth=2, spatial="dense+toeplitz"))
    saved = {"state_dict": model.state_dict(), "state_dict_ema": model.state_dict(), "epoch": 3, "version": 2}
    torch.save(saved, tmp_path / "last.pth.tar")
    other = timm.create_model("gmlp_pico4", depth=2, spatial="dense+toeplitz")
    ema = ModelEmaV3(timm.create_model("gmlp_pico4", depth=2, spatial="dense+toeplitz"))
    assert resume_checkpoint(other, str(tmp_path / "last.pth.tar"), log_info=False) == 4
    timm.models.load_checkpoint(ema.module, str(tmp_path / "last.pth.tar"), use_ema=True)
    assert same_weights(other, model)
    assert same_weights(ema.module, model)


@pytest.mark.parametrize("spatial", TWO)
def test_timm_makes_the_plain_model(spatial: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = timm.create_model("gmlp_pico4", depth=2, spatial=spatial)
    expected = perturb(model).eval()(images())
    file = save(model, tmp_path / "trained.pth")
    overlay = {"file": str(file)}
    plain = timm.create_model("gmlp_pico4", depth=2, pretrained=True, pretrained_cfg_overlay=overlay)
    same(plain.eval()(images()), expected)
    assert "2 tensors, merged into W" in caplog.text
    save_for_hf(model, str(tmp_path / "as it is"), safe_serialization=True)  # the state dict, as it is
    folder = f"local-dir:{tmp_path / 'as it is'}"
    again = timm.create_model(folder, pretrained=True).eval()
    assert same_weights(again, model)
    plain = timm.create_model(folder, pretrained=True, spatial="dense").eval()
    assert type(plain.get_submodule(GATE)) is SpatialProjection
    same(plain(images()), expected)
    save_for_hf(merge(deepcopy(model)), str(tmp_path / "merged"), safe_serialization=True)
    merged = timm.create_model(f"local-dir:{tmp_path / 'merged'}", pretrained=True).eval()
    assert type(merged.get_submodule(GATE)) is SpatialProjection
    same(merged(images()), expected)
    assert kernel_of(spatial) in model.state_dict()  # which trains on


@pytest.mark.parametrize("spatial", TWO)
def test_a_plain_file_starts_with_the_kernel_at_0(spatial: str, tmp_path: Path) -> None:
    plain, model = tiny(img_size=(24, 32)), tiny(spatial=spatial, img_size=(24, 32))
    report = load_checkpoint(model, save(plain, tmp_path / "plain.pth"))
    same(model(images(2, 3, 24, 32)), plain(images(2, 3, 24, 32)))
    assert not model.state_dict()[kernel_of(spatial)].any()
    assert report.adapted[kernel_of(spatial)] == "0, since the file has no such kernel"
    assert f"{GATE}.weight" in report.loaded
    larger = tiny(spatial=spatial, img_size=(40, 32))
    load_checkpoint(larger, tmp_path / "plain.pth", grid=(3, 4))
    plain.set_input_size((40, 32))
    same(larger(images(2, 3, 40, 32)), plain(images(2, 3, 40, 32)))


def test_a_file_in_others_names_starts_with_the_kernel_at_0(tmp_path: Path) -> None:
    plain, model = (tiny(norm_eps=1e-5, spatial=spatial) for spatial in ("dense", "dense+3x3"))
    save_for_hf(plain, str(tmp_path / "ours"))
    convert_file(tmp_path / "ours", tmp_path / "theirs.pth", to="lucidrains")
    assert load_checkpoint(model, tmp_path / "theirs.pth").layout == "lucidrains"
    same(model(images()), plain(images()))


def test_one_kernel_into_another(tmp_path: Path) -> None:
    model, other = tiny(spatial="dense+3x3"), tiny(spatial="dense+5x5")
    load_checkpoint(other, save(model, tmp_path / "trained.pth"))
    same(other(images()), model(images()))
    load_checkpoint(relative := tiny(spatial="dense+toeplitz"), tmp_path / "trained.pth")
    same(relative(images()), model(images()))


def test_released_weights_start_with_it() -> None:
    plain, model = (
        timm.create_model("gmlp_pico4", pretrained=True, **kwargs).eval()
        for kwargs in ({}, {"spatial": "dense+toeplitz"})
    )
    same(model(images()), plain(images()))
    assert f"{GATE}.table" in model.state_dict()


def test_the_table_tells_the_grid(tmp_path: Path) -> None:
    model, plain = tiny(spatial="dense+toeplitz", img_size=(24, 64)), tiny(img_size=(48, 32))
    load_checkpoint(plain, save(model, tmp_path / "wide.pth"))  # 24 tokens, as 4 x 6 has
    model.set_input_size((48, 32))
    same(plain(images(2, 3, 48, 32)), model(images(2, 3, 48, 32)))


def test_what_does_not_fit_is_refused_and_the_model_is_unchanged(tmp_path: Path) -> None:
    plain = tiny()
    before = deepcopy(plain.state_dict())
    state = tiny(spatial="dense+3x3").state_dict()
    broken = {
        "even": {**state, f"{GATE}.kernel": torch.zeros(4, 4)},
        "missing": {n: t for n, t in state.items() if n != f"{GATE}.weight"},
        "nan": {**state, f"{GATE}.kernel": torch.full((3, 3), torch.nan)},
        "one of two": {n: t for n, t in state.items() if n != "blocks.1.mlp_channels.gate.proj.kernel"},
        "misshapen": {**state, f"{GATE}.weight": torch.zeros(16, 15)},
    }
    for tensors in broken.values():
        torch.save(tensors, tmp_path / "broken.pth")
        with pytest.raises(CheckpointError, match=r"gate\.proj"):
            load_checkpoint(plain, tmp_path / "broken.pth")
        assert same_weights(plain, before)
    save_for_hf(tiny(spatial="dense+3x3", norm_eps=1e-3), str(tmp_path / "other"))
    with pytest.raises(CheckpointError, match=r"trained with norm_eps=0\.001"):
        load_checkpoint(plain, tmp_path / "other")


# -- files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spatial", KINDS)
def test_a_file_is_known_by_its_tensors(spatial: str, tmp_path: Path) -> None:
    model = tiny(spatial=spatial)
    file = save(model, tmp_path / "bare.pth")
    built = build(file)
    assert same_weights(built.model, model)
    assert built.model.settings()["spatial"] == spatial
    save_for_hf(model, str(tmp_path / "folder"))
    assert f"spatial={spatial}" in describe(tmp_path / "folder")["settings"]
    bank = extract(file)
    assert torch.equal(bank[0].matrix, model.get_submodule(GATE).matrix()[0])


@pytest.mark.parametrize("spatial", TWO)
@pytest.mark.parametrize("size", [None, (48, 40)])
def test_convert_merges_and_says_so(
    spatial: str, size: tuple[int, int] | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny(spatial=spatial)
    file = save(model, tmp_path / "trained.pth")
    words = [] if size is None else ["--img-size", *map(str, size)]
    assert main(["convert", str(file), str(tmp_path / "merged.safetensors"), *words]) == 0
    assert f"2 tensors, merged into W: {kernel_of(spatial).replace('0', '*')}" in capsys.readouterr().out
    if size is not None:
        model.set_input_size(size)
    plain = tiny(img_size=size or 32)
    plain.load_state_dict(load_file(tmp_path / "merged.safetensors"))
    x = images(2, 3, *(size or (32, 32)))
    same(plain(x), model(x))


@pytest.mark.parametrize("to", ["lucidrains", "jaketae"])
def test_others_names_are_for_the_merged_w(to: str, tmp_path: Path) -> None:
    model = tiny(spatial="dense+toeplitz", norm_eps=1e-5, final_norm=to == "lucidrains")
    save_for_hf(model, str(tmp_path / "ours"))
    convert_file(tmp_path / "ours", tmp_path / "theirs.pth", to=to)
    same(build(tmp_path / "theirs.pth").model(images()), model(images()))


def test_a_folder_says_it_is_dense(tmp_path: Path) -> None:
    model = timm.create_model("gmlp_pico4", spatial="dense+3x3", img_size=40)
    expected = perturb(model).eval()(images(2, 3, 40, 40))
    save_for_hf(model, str(tmp_path / "trained"))
    convert_file(tmp_path / "trained", tmp_path / "merged")
    plain = timm.create_model(f"local-dir:{tmp_path / 'merged'}", pretrained=True).eval()
    assert plain.settings()["spatial"] == "dense"
    same(plain(images(2, 3, 40, 40)), expected)


def test_a_kernel_that_is_asked_for_is_not_merged_at_once(tmp_path: Path) -> None:
    plain = tiny()
    file, out = save(plain, tmp_path / "plain.pth"), tmp_path / "start.pth"
    report = convert_file(file, out, spatial="dense+3x3")
    assert report.adapted[f"{GATE}.kernel"] == "0, since the file has no such kernel"
    model = tiny(spatial="dense+3x3")
    assert load_checkpoint(model, out).adapted == {}
    same(model(images()), plain(images()))


def test_export_merges_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny(spatial="dense+toeplitz")
    file = save(model, tmp_path / "trained.pth")
    words = ["export", str(file), str(tmp_path / "model.pt2"), "--format", "exported-program"]
    assert main([*words, "--dynamic-batch"]) == 0
    assert "note: the shared kernels of 2 layers are merged into W" in capsys.readouterr().out
    program = torch.export.load(tmp_path / "model.pt2")
    assert not [name for name in program.state_dict if name.endswith("table")]
    same(program.module()(images()), model(images()))
    assert export_model(model, tmp_path / "live.pt2", "exported-program").notes == (
        "the shared kernels of 2 layers are merged into W",
    )
    assert kernel_of("dense+toeplitz") in model.state_dict()
    assert gmlp_vision.merge is merge


def test_the_code_of_the_page_runs() -> None:
    page = (Path(__file__).parents[1] / "docs/structure.md").read_text()
    section = page.partition("## Kernels that merge into W")[2].partition("\n## ")[0]
    names = {"timm": timm, "copy": copy, "gmlp_vision": gmlp_vision}
    blocks = re.findall(r"^```python\n(.*?)^```", section, flags=re.M | re.S)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "structure.md", "exec"), names)
    assert same_weights(names["plain"], merge(names["model"]))
