"""timm's own routes: checkpoint_path, local-dir, save_for_hf, features_only, a state dict in the cfg."""

import json
import logging
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch
from timm.task import FeatureDistillationTask, LogitDistillationTask
from tiny import TINY, images, perturb, same_weights, tiny
from torch import nn

from gmlp_vision import CheckpointError, load_checkpoint
from gmlp_vision.checkpoints import checkpoint_filter_fn, convert_file
from gmlp_vision.layers.resample import resample_operator

W = "blocks.0.mlp_channels.gate.proj.weight"


def local_dir(folder: Path, **kwargs: object) -> nn.Module:
    return timm.create_model(f"local-dir:{folder}", pretrained=True, **kwargs).eval()


@pytest.mark.parametrize("name", ["x.pth", "x.safetensors"])
def test_checkpoint_path_loads_strictly_at_equal_size(name: str, tmp_path: Path) -> None:
    source = tiny()
    if name == "x.pth":
        torch.save(
            {"state_dict": {f"module.{k}": v for k, v in source.state_dict().items()}}, tmp_path / name
        )
    else:
        safetensors.torch.save_file(source.state_dict(), tmp_path / name)
    model = timm.create_model("gmlp_ti16", checkpoint_path=str(tmp_path / name), **TINY)
    assert same_weights(model, source)
    with pytest.raises(RuntimeError, match="size mismatch"):
        timm.create_model("gmlp_ti16", checkpoint_path=str(tmp_path / name), **{**TINY, "img_size": 48})


def test_another_size_by_the_overlay_or_by_converting_first(tmp_path: Path) -> None:
    source = tiny()
    torch.save(source.state_dict(), tmp_path / "x.pth")
    overlay = {"file": str(tmp_path / "x.pth")}
    overlaid = timm.create_model(
        "gmlp_ti16", pretrained=True, pretrained_cfg_overlay=overlay, **{**TINY, "img_size": 48}
    )
    convert_file(tmp_path / "x.pth", tmp_path / "x48.pth", img_size=(48, 48))
    converted = timm.create_model(
        "gmlp_ti16", checkpoint_path=str(tmp_path / "x48.pth"), **{**TINY, "img_size": 48}
    )
    assert same_weights(converted, overlaid)
    assert torch.equal(converted.state_dict()[W], resample_operator(source.state_dict()[W], (4, 4), (6, 6)))


def test_a_converted_folder_teaches_at_another_size(tmp_path: Path) -> None:
    """timm names a teacher and nothing more, so its size is that of its name or of its folder."""
    source = tiny()
    timm.models.save_for_hf(source, str(tmp_path / "of32"), model_args=TINY)
    convert_file(tmp_path / "of32", tmp_path / "of48", img_size=(48, 48))
    student = tiny(img_size=48, embed_dim=8)
    losses = []
    for task in (LogitDistillationTask, FeatureDistillationTask):
        taught = task(student, f"local-dir:{tmp_path / 'of48'}", nn.CrossEntropyLoss(), verbose=False)
        losses.append(taught(images(2, 3, 48, 48), torch.arange(2))["loss"])
        losses[-1].backward()
    assert all(loss > 0 for loss in losses)
    source.set_input_size((48, 48))
    assert same_weights(taught.teacher.model, source)
    by_its_size = LogitDistillationTask(student, f"local-dir:{tmp_path / 'of32'}", nn.CrossEntropyLoss())
    with pytest.raises(ValueError, match=r"48 x 48 pixels .* made for 32 x 32"):
        by_its_size(images(2, 3, 48, 48), torch.arange(2))


@pytest.mark.parametrize("safe", [True, False])
def test_save_for_hf_and_back(safe: bool, tmp_path: Path) -> None:
    source = tiny(img_size=(16, 64), in_chans=1, norm_eps=1e-4)
    timm.models.save_for_hf(source, str(tmp_path / "d"), safe_serialization=safe)
    model = local_dir(tmp_path / "d")
    assert same_weights(model, source)
    x = images(2, 1, 16, 64)
    assert torch.equal(model(x), source(x))
    assert model.pretrained_cfg["input_size"] == (1, 16, 64)


def test_a_folder_at_another_size_class_count_and_channels(tmp_path: Path) -> None:
    source = tiny(img_size=(16, 64))  # 2 x 8 tokens, as only config.json tells
    timm.models.save_for_hf(source, str(tmp_path / "d"), safe_serialization=True)
    model = local_dir(tmp_path / "d", img_size=(48, 32), num_classes=7, in_chans=1)
    by_hand = tiny(img_size=(48, 32), num_classes=7, in_chans=1)
    load_checkpoint(by_hand, tmp_path / "d")
    assert torch.equal(model.state_dict()[W], resample_operator(source.state_dict()[W], (2, 8), (6, 4)))
    assert all(
        torch.equal(v, by_hand.state_dict()[k]) for k, v in model.state_dict().items() if "head" not in k
    )
    assert model(images(2, 1, 48, 32)).shape == (2, 7)


def test_after_set_input_size_a_folder_holds_the_new_size(tmp_path: Path) -> None:
    source = tiny()
    source.set_input_size(img_size=(40, 24))
    timm.models.save_for_hf(source, str(tmp_path / "d"), safe_serialization=True)
    assert same_weights(local_dir(tmp_path / "d"), source)
    # and it is what a third size starts from
    third = local_dir(tmp_path / "d", img_size=32)
    expected = resample_operator(source.state_dict()[W], (5, 3), (4, 4))
    assert torch.equal(third.state_dict()[W], expected)


def test_features_only_takes_weights_at_any_size(tmp_path: Path) -> None:
    source = tiny()
    torch.save(source.state_dict(), tmp_path / "x.pth")
    for img_size in (32, 48):
        whole = tiny(img_size=img_size)
        load_checkpoint(whole, tmp_path / "x.pth")
        net = timm.create_model(
            "gmlp_ti16",
            pretrained=True,
            features_only=True,
            out_indices=(0, 1),
            pretrained_cfg_overlay={"file": str(tmp_path / "x.pth")},
            **{**TINY, "img_size": img_size},
        ).eval()
        x = images(2, 3, img_size, img_size)
        expected = whole.forward_intermediates(x, norm=False, intermediates_only=True)
        assert expected[1].std() > 1e-3
        for got, want in zip(net(x), expected, strict=True):
            torch.testing.assert_close(got, want)


def test_a_state_dict_in_the_cfg_in_whatever_wrapping(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gmlp_vision")
    source = tiny()
    wrapped = {f"_orig_mod.module._orig_mod.{k}": v for k, v in source.state_dict().items()}
    for state, said in (
        (source.state_dict(), "ema or raw"),
        ({"state_dict": wrapped}, "raw"),
        ({"state_dict_ema": wrapped, "state_dict": {}}, "ema"),
    ):
        overlay = {"state_dict": state}
        model = timm.create_model("gmlp_ti16", pretrained=True, pretrained_cfg_overlay=overlay, **TINY)
        assert same_weights(model, source)
        assert caplog.records[-1].getMessage().startswith(f"the state dict: {said} weights")


def test_the_filter_raises_no_type_error() -> None:
    """timm would call it again, with one argument, and hide what was wrong."""
    model = timm.create_model("gmlp_ti16", **TINY)
    junk = [None, 3, [], {}, {"a": 1}, {1: torch.ones(1)}, {"state_dict": [1]}, {"model_ema": {"a": None}}]
    for state in junk:
        with pytest.raises(CheckpointError):
            checkpoint_filter_fn(state, model)


def with_model_args(folder: Path, junk: object) -> nn.Module:
    """Saves a model, with junk for the arguments that config.json states."""
    source = tiny()
    timm.models.save_for_hf(source, str(folder), safe_serialization=True)
    good = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**good, "model_args": junk}))
    return source


@pytest.mark.parametrize(
    "junk", [None, 3, [], {}, {"img_size": {}}, {"img_size": "32"}, {"img_size": [None, 3]}]
)
def test_junk_that_matters_to_no_tensor_is_passed_over(junk: object, tmp_path: Path) -> None:
    source, model = with_model_args(tmp_path, junk), perturb(tiny(), seed=3)
    assert not same_weights(model, source)
    load_checkpoint(model, tmp_path)
    assert same_weights(model, source)


@pytest.mark.parametrize(
    "junk", [{"norm_eps": []}, {"norm_eps": None}, {"final_norm": "no"}, {"final_norm": 1}]
)
def test_junk_for_a_setting_is_refused(junk: object, tmp_path: Path) -> None:
    with_model_args(tmp_path, junk)
    with pytest.raises(CheckpointError, match="which is no value for it"):
        load_checkpoint(tiny(), tmp_path)
