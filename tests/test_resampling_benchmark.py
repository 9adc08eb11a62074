"""benchmarks/resampling/: its ways to carry a mixer, of which one is that of set_input_size."""

import argparse
import copy
from pathlib import Path

import pytest
import timm
import torch
from benchmark_scripts import load
from test_timm_sizes import KINDS, mixer
from tiny import images, perturb, tiny
from torchvision.transforms.functional import to_pil_image

from gmlp_vision import set_input_size

resampling = load("resampling").resampling
load("evidence")  # registers resmlp_pico4 and mixer_pico4


@pytest.mark.parametrize("kind", [*KINDS, "ours"])
def test_the_first_way_is_that_of_set_input_size(kind: str) -> None:
    model = tiny() if kind == "ours" else mixer(kind)
    before = copy.deepcopy(model.state_dict())
    outputs = [
        resampling.model_at(model, (48, 24, 8), rule)(images(2, 3, 48, 24))
        for rule in resampling.RULES.values()
    ]
    assert all(torch.equal(model.state_dict()[k], v) for k, v in before.items())
    set_input_size(model, (48, 24))
    expected = model(images(2, 3, 48, 24))
    torch.testing.assert_close(outputs[0], expected, atol=1e-5, rtol=1e-5)
    assert all((y - expected).abs().max() > 1e-4 for y in outputs[1:])


@pytest.mark.parametrize("name", ["gmlp_pico4", "resmlp_pico4", "mixer_pico4"])
def test_a_table_of_a_checkpoint_of_train_py(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(resampling, "SIZES", [(32, 32, 4), (24, 40, 4), (64, 64, 8)])
    monkeypatch.setattr(resampling, "RULES", dict(list(resampling.RULES.items())[:2]))
    for label in "ab":
        (tmp_path / "test" / label).mkdir(parents=True)
        to_pil_image(torch.rand(3, 32, 32)).save(tmp_path / "test" / label / "0.png")
    args = argparse.Namespace(model=name, num_classes=10, img_size=None)
    state = {
        "arch": name,
        "args": args,
        "epoch": 0,
        "state_dict": perturb(timm.create_model(name)).half().state_dict(),
    }
    torch.save(state, tmp_path / "last.pth.tar")
    resampling.main([str(tmp_path / "last.pth.tar"), str(tmp_path / "test"), "--images", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert ", 8 x 8 tokens, " in lines[0]
    assert [line.split(" | ")[0] for line in lines if line.startswith(("| 2", "| 6"))] == [
        "| 24 x 40 px, patch 4",
        "| 64 x 64 px, patch 8",
    ]
