"""What a model is given by mistake: the message says what it looks like, and what to do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from tiny import TINY, images, tiny

from gmlp_vision import CheckpointError, load_checkpoint
from gmlp_vision.checkpoints import build, describe, read_checkpoint
from gmlp_vision.cli import main

NAMES = ["gmlp_ti16", "s2mlp_deep"]  # one that belongs to a grid, and one that does not


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (images(2, 32, 32, 3), r"\[2, 32, 32, 3\], which looks like \(B, height, width, C\).*\(0, 3, 1, 2\)"),
        (images(3, 32, 32), r"\[3, 32, 32\], which looks like one image, \(C, height.*`images\[None\]`"),
        (images(32, 32, 3), r"looks like one image, \(height, width, C\).*permute\(2, 0, 1\)\[None\]`"),
        (images(32, 32), r"\[32, 32\]; expected a batch of images, \(B, 3, height, width\)"),
        (images(1, 2, 3, 32, 32), r"expected a batch of images, \(B, 3, height, width\)"),
        (images(2, 1, 32, 32), "have 1 channels, and this model takes 3: convert them, or .* in_chans=1"),
        ((images() * 50).to(torch.uint8), "are whole numbers; expected floats, normalised"),
        (images(2, 3, 30, 32), "30 x 32 pixels"),
    ],
)  # fmt: skip
def test_a_batch_that_is_none(name: str, batch: torch.Tensor, said: str) -> None:
    model = tiny(name)
    with pytest.raises(ValueError, match=said):
        model(batch)
    with pytest.raises(ValueError, match=said):
        model.forward_intermediates(batch)


def test_what_is_advised_works() -> None:
    model = tiny()
    assert model(images(2, 32, 32, 3).permute(0, 3, 1, 2)).std() > 0
    assert model(images(3, 32, 32)[None]).std() > 0
    assert model(images(32, 32, 3).permute(2, 0, 1)[None]).std() > 0


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")
def test_a_script_says_it_too() -> None:
    script = torch.jit.script(tiny())
    assert torch.equal(script(images()), tiny()(images())) or script(images()).std() > 0
    with pytest.raises(Exception, match="looks like \\(B, height, width, C\\)"):
        script(images(2, 32, 32, 3))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"img_size": "40"}, r"img_size is '40'; expected whole pixels.*img_size=32"),
        ({"img_size": 40.0}, r"img_size is 40\.0; expected whole pixels"),
        ({"img_size": (32, 32, 3)}, r"img_size is \(32, 32, 3\); expected whole pixels, one number or"),
        ({"img_size": (32, "32")}, "img_size is .*; expected whole pixels"),
        ({"img_size": True}, "img_size is True"),
        ({"img_size": 0}, "a height of 0 pixels"),
        ({"img_size": -32}, "a height of -32 pixels"),
        ({"patch_size": "4"}, "patch_size is '4'; expected whole pixels"),
        ({"patch_size": 4.0}, r"patch_size is 4\.0; expected whole pixels"),
        ({"patch_size": (4, 4, 4)}, r"patch_size is \(4, 4, 4\); expected whole pixels"),
        ({"patch_size": 0}, "a patch of 0"),
        ({"in_chans": 0}, "in_chans is 0; expected at least 1"),
        ({"in_chans": 1.0}, r"in_chans is 1\.0; expected a whole number of at least 1"),
        ({"in_chans": "3"}, "in_chans is '3'; expected a whole number"),
        ({"num_classes": -1}, "num_classes is -1; expected at least 0"),
        ({"num_classes": 10.0}, r"num_classes is 10\.0; expected a whole number of at least 0"),
        ({"num_classes": "10"}, "num_classes is '10'"),
        ({"depth": 2.0}, r"depth is 2\.0; expected a whole number"),
        ({"depth": "2"}, "depth is '2'"),
        ({"depth": 0}, "depth is 0; expected at least 1"),
        ({"embed_dim": 16.0}, r"embed_dim is 16\.0"),
        ({"embed_dim": [16]}, r"embed_dim is \[16\]"),
        ({"mlp_ratio": -1}, "mlp_ratio is -1; expected a number above 0"),
        ({"mlp_ratio": float("inf")}, "mlp_ratio is inf; expected a number above 0"),
        ({"mlp_ratio": "6"}, "mlp_ratio is '6'; expected a number above 0"),
        ({"mlp_ratio": 0.01}, r"mlp_ratio is 0\.01, which leaves .* no hidden channel; expected at least"),
        ({"norm_eps": -1e-6}, "norm_eps is -1e-06; expected a small number"),
        ({"norm_eps": float("nan")}, "norm_eps is nan; expected a small number"),
        ({"norm_eps": "1e-6"}, "norm_eps is '1e-6'; expected a small number"),
        ({"drop_rate": "0.1"}, r"drop_rate is '0\.1'; expected a probability"),
        ({"drop_path_rate": [0.1]}, r"drop_path_rate is \[0\.1\]; expected a probability"),
        ({"drop_path_rate": 1}, "drop_path_rate is 1; expected a probability"),
    ],
)  # fmt: skip
def test_an_argument_of_another_kind(args: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        timm.create_model("gmlp_ti16", device="meta", **{**TINY, **args})


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda file: load_checkpoint(tiny(), 7), "the source is a int; expected a path, a name or a state"),
        (lambda file: load_checkpoint(tiny(), {}, sha256="0"), "sha256 is of a file, and the source is a"),
        (lambda file: build(tiny().state_dict(), weights="foo"), "weights is 'foo'; expected 'auto', 'ema'"),
        (lambda file: build(file, img_size=48), r"img_size is 48; expected height and width.* as \(H, W\)"),
        (lambda file: build(file, grid=(4.0, 4.0)), r"grid is \(4\.0, 4\.0\); expected height and width"),
        (lambda file: describe("gmlp_pico4", model="gmlp_s16"), "model is 'gmlp_s16', which is of a file"),
    ],
)
def test_an_argument_of_what_reads_files(call: Callable[[Path], Any], said: str, tmp_path: Path) -> None:
    torch.save(tiny().state_dict(), tmp_path / "x.pth")
    with pytest.raises(ValueError, match=said):
        call(tmp_path / "x.pth")


@pytest.mark.parametrize("name", [*NAMES, "fnet_ti16", "gfnet_ti", "ccs_s16", "amlp_ti16"])
def test_an_empty_batch(name: str) -> None:
    assert tiny(name)(images(0, 3, 32, 32)).shape == (0, 5)


def test_the_same_of_a_live_model() -> None:
    model = tiny()
    for size in ("40", 40.0, (32, 32, 3)):
        with pytest.raises(ValueError, match="expected whole pixels"):
            model.set_input_size(size)
    with pytest.raises(ValueError, match="num_classes is -1; expected at least 0"):
        model.reset_classifier(-1)
    model.set_input_size(np.int64(64))
    assert model.img_size == (64, 64)
    assert type(model.img_size[0]) is int


def test_a_mistyped_model_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CheckpointError, match=r"a model timm knows; did you mean .*gmlp_s16.*\?"):
        read_checkpoint("gmpl_s16")
    with pytest.raises(CheckpointError, match=r"did you mean .*gmlp_pico4"):
        describe("gmlp_pico.cifar10")
    assert main(["info", "gmlp-s16"]) == 2
    assert "did you mean gmlp_s16" in capsys.readouterr().err
    assert main(["info", "gmlp_pico4.cifar10", "--model", "gmlp_s61"]) in (0, 2)
    with pytest.raises(CheckpointError, match=r"a model timm knows$"):
        read_checkpoint("no/such/file.pth")
