"""The newcomer's run, as the README gives it, and what can go wrong before it starts."""

import hashlib
import io
import json
import os
import signal
import stat
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import timm
import torch
from tiny import same_weights
from torch.utils.data import DataLoader

from gmlp_vision import cli, load_checkpoint
from gmlp_vision.accuracy import accuracy
from gmlp_vision.demo import (
    MODEL_ARGS,
    PRETRAINED_ARGS,
    load_digits,
    loader,
    run_demo,
    train_model,
    trained_model,
)
from gmlp_vision.errors import UserError

COMMAND = str(Path(sys.executable).with_name("gmlp-vision"))


@pytest.mark.long
def test_demo_keeps_its_promise(tmp_path: Path) -> None:
    done = subprocess.run([COMMAND, "demo"], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    log = [line for line in done.stderr.splitlines() if line]
    assert len(log) == 40  # a line an epoch, where no terminal has a bar
    assert log[-1].startswith("epoch 40 of 40, loss ")
    folder = tmp_path / "runs" / "demo"
    assert sorted(p.name for p in folder.iterdir()) == [
        "config.json",
        "filters.png",
        "model.safetensors",
        "result.json",
    ]
    assert [p.name for p in folder.parent.iterdir()] == ["demo"]  # no temporary folder is left
    assert (folder / "filters.png").read_bytes().startswith(b"\x89PNG")

    result = json.loads((folder / "result.json").read_text())
    assert result["accuracy"] >= 0.98
    assert 0.95 < result["logistic_regression"] < result["accuracy"]
    assert len(result["moved"]) == 4
    assert min(result["moved"]) > 1000  # times its size at init
    assert f"{result['accuracy']:.4f}" in done.stdout

    model = timm.create_model(f"local-dir:{folder}", pretrained=True)
    assert accuracy(model, loader(load_digits(16)[1], is_training=False)) == result["accuracy"]

    # every later command reads it
    for command in (["info"], ["filters"], ["convert", str(tmp_path / "c.pth")]):
        assert cli.main([command[0], str(folder), *command[1:]]) == 0
    report = load_checkpoint(timm.create_model("gmlp_pico4", **MODEL_ARGS), tmp_path / "c.pth")
    assert not report.missing
    assert not report.dropped


@pytest.mark.long
def test_pretrained_weights_are_worth_their_while(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "demo"
    assert cli.main(["demo", "--pretrained", "--epochs", "3", "--output", str(output)]) == 0
    result = json.loads((output / "result.json").read_text())
    assert result["accuracy"] >= 0.85
    assert result["from_scratch"] < result["accuracy"] - 0.1
    assert f"{result['from_scratch']:.4f}" in capsys.readouterr().out
    model = timm.create_model(f"local-dir:{output}", pretrained=True)
    assert accuracy(model, loader(load_digits(32)[1], is_training=False)) == result["accuracy"]


def test_the_pretrained_start_is_the_shipped_weights_without_their_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gmlp_vision.demo.train_model", lambda model, batches, epochs: None)
    start = trained_model(PRETRAINED_ARGS, load_digits(32)[0], epochs=3, seed=0, pretrained=True)
    assert start.head.weight.abs().max() == 0
    shipped = timm.create_model("gmlp_pico4", pretrained=True, in_chans=1).state_dict()
    assert same_weights(start, shipped, but={"head.weight", "head.bias"})
    fresh = trained_model(PRETRAINED_ARGS, load_digits(32)[0], epochs=3, seed=0)
    assert not same_weights(fresh, start)


def test_the_split_is_fixed_and_stratified() -> None:
    train, test, _ = load_digits(16)
    again = load_digits(16)[1]
    assert (len(train), len(test)) == (1347, 450)
    assert test.labels == again.labels
    assert all(a.tobytes() == b.tobytes() for a, b in zip(test.images, again.images, strict=True))
    assert set(Counter(test.labels).values()) <= {43, 44, 45, 46}
    seen = {image.tobytes() for image in train.images}
    assert not any(image.tobytes() in seen for image in test.images)


def test_images_fill_the_range_that_the_model_expects() -> None:
    batch, labels = next(iter(loader(load_digits(16)[1], is_training=False)))
    assert batch.shape == (64, 1, 16, 16)
    assert labels.shape == (64,)
    assert batch.min() == -1
    assert batch.max() > 0.99


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("mine")
    with pytest.raises(UserError, match="exists"):
        run_demo(tmp_path)
    assert (tmp_path / "result.json").read_text() == "mine"


def test_fewer_epochs_than_the_warm_up_needs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="epochs is 2"):
        run_demo(tmp_path / "demo", epochs=2)


def test_without_scikit_learn_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(UserError, match=r"gmlp-vision\[demo\]"):
        run_demo(tmp_path / "demo")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "told"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, -signal.SIGTERM, "")],
    ids=["Ctrl-C", "kill"],
)
def test_an_interrupted_run_leaves_nothing_and_no_traceback(
    number: signal.Signals, status: int, told: str, tmp_path: Path
) -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # A job in the background of a shell is started deaf to Ctrl-C, and its children inherit that.
    hear = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    with subprocess.Popen([COMMAND, "demo"], cwd=tmp_path, **pipes, **hear) as process:
        shown = ""
        while "epoch 1 " not in shown:
            shown += process.stderr.read(1)
            assert process.poll() is None, shown
        process.send_signal(number)
        rest = process.communicate(timeout=60)[1]
    assert process.returncode == status
    assert told in rest
    assert "Traceback" not in rest
    assert list(tmp_path.iterdir()) == []


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Screen, io.StringIO])
def test_a_bar_on_a_screen_and_lines_in_a_log(
    stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream())
    batches = DataLoader([(torch.rand(1, 16, 16), 3)] * 4)
    train_model(timm.create_model("gmlp_pico4", **{**MODEL_ARGS, "depth": 1}), batches, epochs=3)
    shown = sys.stderr.getvalue()
    if stream is Screen:
        assert "100%" in shown
        assert "12/12" in shown
        assert "epoch 1 of" not in shown
    else:
        assert [line[:12] for line in shown.splitlines()] == ["epoch 1 of 3", "epoch 2 of 3", "epoch 3 of 3"]
        assert "\r" not in shown


def test_the_folder_says_what_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gmlp_vision.demo.train_model", lambda model, batches, epochs: None)
    before = os.umask(0o022)
    try:
        run_demo(tmp_path / "demo", epochs=3, seed=7)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "demo").stat().st_mode) == 0o755
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "demo").iterdir()} == {0o644}
    model = timm.create_model(f"local-dir:{tmp_path}/demo", pretrained=True)
    cfg = model.pretrained_cfg
    assert cfg["tag"] == "demo_digits"
    assert cfg["description"].startswith(
        "gmlp-vision demo: trained from scratch on scikit-learn's handwritten"
    )
    assert "3 epochs, seed 7; accuracy 0." in cfg["description"]
    assert cfg["label_names"] == list("0123456789")
    config = json.loads((tmp_path / "demo/config.json").read_text())
    weights = (tmp_path / "demo/model.safetensors").read_bytes()
    assert config["sha256"] == hashlib.sha256(weights).hexdigest()


def test_accuracy_counts_correct_answers() -> None:
    class Constant(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(torch.full((len(x),), 3), 10)

    test = load_digits(16)[1]
    assert accuracy(Constant(), loader(test, is_training=False)) == pytest.approx(test.labels.count(3) / 450)
