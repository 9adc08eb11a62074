"""Files out: what convert writes, what a kill leaves, what info says; by the functions and by the command."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from others import in_names_of
from tiny import images, same_weights, tiny

from gmlp_vision.checkpoints import DTYPES, convert_file, describe, read_checkpoint
from gmlp_vision.checkpoints.save import save_file
from gmlp_vision.cli import main
from gmlp_vision.errors import CheckpointError, UserError
from gmlp_vision.layers.resample import resample_operator
from gmlp_vision.models.gmlp import sizes_of

W = "blocks.0.mlp_channels.gate.proj.weight"
NAMES = ["x.safetensors", "x.pth", "x.pt", "x.pth.tar", "x.bin"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    torch.save(
        {"state_dict": tiny().state_dict(), "state_dict_ema": tiny().state_dict()}, tmp_path / "in.pth"
    )
    return tmp_path / "in.pth"


# -- convert -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["raw", "ema"])
@pytest.mark.parametrize("name", [*NAMES, "folder"])
def test_the_same_tensors_in_every_form(name: str, weights: str, source: Path, tmp_path: Path) -> None:
    report = convert_file(source, tmp_path / name, weights=weights)
    assert same_weights(
        read_checkpoint(tmp_path / name).state_dict, read_checkpoint(source, weights).state_dict
    )
    assert report.weights == weights
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["in.pth", name])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_files_own_precision_stays(dtype: torch.dtype, tmp_path: Path) -> None:
    state = tiny().to(dtype).state_dict()
    torch.save(state, tmp_path / "in.pth")
    convert_file(tmp_path / "in.pth", tmp_path / "out.safetensors")
    assert same_weights(read_checkpoint(tmp_path / "out.safetensors").state_dict, state)


@pytest.mark.parametrize("name", ["out.safetensors", "out.pth", "folder"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_another_precision_is_rounded_to_after_resampling(dtype: str, name: str, tmp_path: Path) -> None:
    state = tiny().double().state_dict()
    torch.save(state, tmp_path / "in.pth")
    convert_file(tmp_path / "in.pth", tmp_path / name, dtype=dtype, img_size=(48, 48))
    found = read_checkpoint(tmp_path / name).state_dict
    assert {tensor.dtype for tensor in found.values()} == {DTYPES[dtype]}
    assert torch.equal(found[W], resample_operator(state[W], (4, 4), (6, 6)).to(DTYPES[dtype]))


def test_a_precision_that_cannot_hold_the_numbers_is_refused(source: Path, tmp_path: Path) -> None:
    state = tiny().state_dict()
    state["head.weight"][0, 0] = 1e5
    torch.save(state, source)
    why = r"float16 ends at 65504 and cannot hold head\.weight of .* is 1e\+05: take bfloat16 or float32"
    with pytest.raises(UserError, match=why):
        convert_file(source, tmp_path / "out.pth", dtype="fp16")
    assert not (tmp_path / "out.pth").exists()
    state["head.weight"][0, :2] = 1e-9
    torch.save(state, source)
    report = convert_file(source, tmp_path / "out.pth", dtype="fp16")
    total = sum(p.numel() for p in tiny().parameters())
    lost = f"2 of {total:,} numbers were too small for float16 and became 0, in head.weight"
    assert report.notes[-1] == lost
    assert lost in str(report)
    with pytest.raises(ValueError, match="dtype is 'int8'; expected one of fp32, fp16, bf16"):
        convert_file(source, tmp_path / "out.pth", dtype="int8")


def test_size_and_classes(source: Path, tmp_path: Path) -> None:
    convert_file(source, tmp_path / "out", img_size=(48, 24), num_classes=3)
    model = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)
    w = read_checkpoint(source).state_dict[W]
    assert torch.equal(model.state_dict()[W], resample_operator(w, (4, 4), (6, 3)))
    assert (model.num_classes, model.stem.img_size) == (3, (48, 24))
    assert not model.head.weight.any()
    convert_file(source, tmp_path / "headless.pth", num_classes=0)
    assert "head.weight" not in read_checkpoint(tmp_path / "headless.pth").state_dict
    with pytest.raises(ValueError, match="a height of 33 pixels"):
        convert_file(source, tmp_path / "odd.pth", img_size=(33, 32))


def test_the_grid_that_is_given(source: Path, tmp_path: Path) -> None:
    w = read_checkpoint(source).state_dict[W]  # over 16 tokens, and the file does not say how they lie
    report = convert_file(source, tmp_path / "out.pth", grid=(2, 8), img_size=(32, 32))
    assert torch.equal(
        read_checkpoint(tmp_path / "out.pth").state_dict[W], resample_operator(w, (2, 8), (4, 4))
    )
    assert report.notes == ["the file's grid is 2 x 8 tokens, as given"]


def test_a_folder_has_the_name_of_its_size_and_nothing_twice(tmp_path: Path) -> None:
    state = timm.create_model("gmlp_pico4").state_dict()
    torch.save(state, tmp_path / "in.pth")
    convert_file(tmp_path / "in.pth", tmp_path / "named")
    config = json.loads((tmp_path / "named/config.json").read_text())
    assert config["architecture"] == "gmlp_pico4"
    assert set(config["model_args"]) == {"img_size", "in_chans", "global_pool"}
    assert config["num_classes"] == 10
    assert config["sha256"] == hashlib.sha256((tmp_path / "named/model.safetensors").read_bytes()).hexdigest()


@pytest.mark.parametrize("classes", [0, 7])
def test_a_folder_of_another_class_count_than_the_names(classes: int, tmp_path: Path) -> None:
    model = tiny("gmlp_pico4", num_classes=classes)
    torch.save(model.state_dict(), tmp_path / "in.pth")
    convert_file(tmp_path / "in.pth", tmp_path / "out", model="gmlp_pico4")
    loaded = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    assert loaded.num_classes == classes
    assert torch.equal(loaded(images()), model(images()))
    assert convert_file(tmp_path / "out", tmp_path / "again.pth").missing == {}


def test_a_hash_that_transformers_has_carried_along_is_not_asked(source: Path, tmp_path: Path) -> None:
    convert_file(source, tmp_path / "out", weights="raw")
    save_file(tiny(num_classes=3).state_dict(), tmp_path / "out/model.safetensors")
    with pytest.raises(CheckpointError, match="sha256"):
        read_checkpoint(tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    (tmp_path / "out/config.json").write_text(json.dumps({**config, "transformers_version": "5.24.0"}))
    assert len(read_checkpoint(tmp_path / "out").state_dict["head.bias"]) == 3


def test_preprocessing_and_provenance_of_the_source_stay(tmp_path: Path) -> None:
    model, said = tiny(), {"tag": "mine", "description": "trained on my images"}
    model.pretrained_cfg.update(
        mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), interpolation="bilinear", crop_pct=1.0, **said
    )
    timm.models.save_for_hf(model, str(tmp_path / "in"), safe_serialization=True)
    convert_file(tmp_path / "in", tmp_path / "out", img_size=(48, 48))
    cfg = timm.create_model(f"local-dir:{tmp_path / 'out'}").pretrained_cfg
    assert (cfg["mean"], cfg["std"]) == ([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])
    assert (cfg["interpolation"], cfg["crop_pct"]) == ("bilinear", 1.0)
    assert {key: cfg[key] for key in said} == said


@pytest.mark.parametrize("at_root", [True, False])
def test_names_of_classes_stay_unless_there_is_a_new_head(tmp_path: Path, at_root: bool) -> None:
    model = tiny(num_classes=3)
    said: dict[str, Any] = {"label_names": ["cat", "dog", "owl"], "label_descriptions": {"owl": "a bird"}}
    timm.models.save_for_hf(
        model,
        str(tmp_path / "in"),
        safe_serialization=True,
        model_config=said if at_root else {"pretrained_cfg": {**said, "num_classes": 3}},
    )
    convert_file(tmp_path / "in", tmp_path / "out", img_size=(48, 48))
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert {key: config[key] for key in said} == said
    assert not said.keys() & config["pretrained_cfg"].keys()
    cfg = timm.create_model(f"local-dir:{tmp_path / 'out'}").pretrained_cfg
    assert {key: cfg[key] for key in said} == said
    convert_file(tmp_path / "in", tmp_path / "other", num_classes=4)
    assert "label_names" not in (tmp_path / "other/config.json").read_text()


@pytest.mark.parametrize(("dim", "hidden"), [(49, 98), (12, 38), (100, 286), (7, 30), (25, 58)])
def test_any_hidden_width_is_written_as_a_ratio_that_gives_it(dim: int, hidden: int) -> None:
    state = {
        "stem.proj.weight": torch.zeros(dim, 3, 8, 8),
        "blocks.0.mlp_channels.fc1.weight": torch.zeros(hidden, dim),
        "blocks.0.mlp_channels.gate.proj.weight": torch.zeros(4, 4),
    }
    assert int(dim * sizes_of(state)["mlp_ratio"]) == hidden


def test_a_folder_that_is_there_is_not_touched(source: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("mine", "file"):
        with pytest.raises(UserError, match="exists; give the name of a new folder"):
            convert_file(source, tmp_path / name)
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    convert_file(source, tmp_path / "empty")
    assert (tmp_path / "empty/model.safetensors").exists()


def test_other_names_are_one_file(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"with --to, end it in \.safetensors or \.pth"):
        convert_file(source, tmp_path / "out", to="timm")
    convert_file(source, tmp_path / "out.pth", to="timm")
    theirs = torch.load(tmp_path / "out.pth", weights_only=True)
    assert same_weights(theirs, read_checkpoint(source).state_dict)


# -- a whole file, or the old one ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*NAMES, "folder"])
def test_a_write_that_fails_leaves_what_was_there(
    name: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    def killed(*args: object) -> None:
        raise KeyboardInterrupt

    if name != "folder":
        convert_file(source, tmp_path / name)
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    faults = [(os, "replace", killed, KeyboardInterrupt)]
    if name != "folder":  # timm writes that one's file
        faults.append((os, "fsync", full, OSError))
    for target, attribute, fault, error in faults:
        monkeypatch.setattr(target, attribute, fault)
        with pytest.raises(error):
            convert_file(source, tmp_path / name, num_classes=3)
        monkeypatch.undo()
        assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_file_may_be_converted_onto_itself(source: Path) -> None:
    ema = read_checkpoint(source, "ema").state_dict
    convert_file(source, source)
    assert same_weights(read_checkpoint(source).state_dict, ema)


WRITER = """
import sys, torch
from pathlib import Path
from typing import Any
from gmlp_vision.checkpoints.save import save_file
print("ready", flush=True)
while True:
    for value in (0.0, 1.0):
        for name in sys.argv[1:]:
            save_file({f"t{i}": torch.full((50, 1000), value) for i in range(20)}, Path(name))
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_whole_file(tmp_path: Path) -> None:
    paths, rng = [tmp_path / "x.safetensors", tmp_path / "x.pth"], random.Random(0)
    for path in paths:
        save_file({"t0": torch.zeros(1)}, path)
    process = subprocess.Popen([sys.executable, "-c", WRITER, *map(str, paths)], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"ready\n"
        seen = set()
        stops, give_up = 0, time.monotonic() + 60
        # both files, with either value; on a busy machine the writer takes its time
        while stops < 20 or len([s for s in seen if s[1] == 20]) < 4:
            assert time.monotonic() < give_up, seen
            stops += 1
            # a stopped process leaves on the disk what a killed one does, and can go on
            time.sleep(rng.uniform(0.005, 0.03))
            process.send_signal(signal.SIGSTOP)
            for path in paths:
                state = read_checkpoint(path).state_dict
                values = {float(v) for t in state.values() for v in t.unique()}
                assert len(values) == 1
                assert len(state) in (1, 20)
                seen |= {(path, len(state), *values)}
            process.send_signal(signal.SIGCONT)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert all(len(read_checkpoint(path).state_dict) == 20 for path in paths)
    leftovers = {p.name for p in tmp_path.iterdir()} - {p.name for p in paths}
    assert all(name.startswith(".x.") for name in leftovers)


# -- info ----------------------------------------------------------------------------------------------------


def test_info_about_a_file(source: Path) -> None:
    said = describe(source)
    assert said == {
        "source": str(source),
        "sha256": hashlib.sha256(source.read_bytes()).hexdigest(),
        "weights": "ema",
        "names": "timm",
        "architecture": "gMLP, of a size without a name",
        "depth": "2",
        "width": "16, hidden 6 times that",
        "image": "3 channels, 32 x 32 pixels",
        "patch": "8 x 8 pixels",
        "grid": "4 x 4 tokens, guessed to be square, since nothing states it",
        "classes": "5",
        "dtype": "float32",
        "parameters": f"{sum(p.numel() for p in tiny().parameters()):,}",
        "settings": "none stated",
    }


def test_info_about_other_forms(tmp_path: Path) -> None:
    torch.save(in_names_of("lucidrains", tiny().half()), tmp_path / "theirs.pth")
    said = describe(tmp_path / "theirs.pth")
    assert said["names"] == "lucidrains"
    assert said["dtype"] == "float16"
    assert said["settings"] == "norm_eps=1e-05, final_norm=True"
    torch.save(tiny(img_size=(32, 40)).state_dict(), tmp_path / "x.pth")
    assert describe(tmp_path / "x.pth")["grid"] == "of the tokens: nothing states it"
    timm.models.save_for_hf(tiny(img_size=(32, 40), norm_eps=1e-4), str(tmp_path / "d"))
    said = describe(tmp_path / "d")
    assert said["grid"] == "4 x 5 tokens, by the img_size in its config"
    assert said["settings"] == "norm_eps=0.0001"


def test_info_tells_what_a_file_is_that_lacks_a_tensor(source: Path, tmp_path: Path) -> None:
    state = tiny().state_dict()
    del state["norm.bias"]
    torch.save({**state, "extra": torch.zeros(1)}, tmp_path / "x.pth")
    told, whole = describe(tmp_path / "x.pth"), describe(source)
    assert {k for k in whole if told[k] != whole[k]} == {"source", "sha256", "weights", "parameters"}
    with pytest.raises(
        UserError, match=r"not in the file: norm\.bias\. In the file, not in the model: extra"
    ):
        convert_file(tmp_path / "x.pth", tmp_path / "y.pth")


def test_info_about_a_name_downloads_nothing() -> None:
    said = describe("gmlp_s16")
    assert said["parameters"] == "19,422,656"
    assert said["grid"] == "14 x 14 tokens, by the input_size of the model's pretrained cfg"
    assert said["weights"] == "hf-hub:timm/gmlp_s16_224.ra3_in1k"
    assert describe("gmlp_b16")["weights"] == "none released"


# -- the command ---------------------------------------------------------------------------------------------


def test_the_commands(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["convert", str(source), str(tmp_path / "out"), "--img-size", "48", "24", "--num-classes", "3"])
        == 0
    )
    out = capsys.readouterr().out
    assert out.startswith(f"{source}: ema weights, names of timm\n")
    assert "dropped  2 tensors, it is for 5 classes, and the model has 3: head.weight, head.bias" in out
    assert out.endswith(f"wrote {tmp_path / 'out'}\n")
    assert main(["info", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "image         3 channels, 48 x 24 pixels\n" in out
    assert f"sha256        {read_checkpoint(tmp_path / 'out').sha256}\n" in out


def test_the_commands_on_other_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny(img_size=(32, 40), norm_eps=1e-5, in_chans=1)
    torch.save(in_names_of("lucidrains", model), tmp_path / "in.pth")
    args = ["--from", "lucidrains", "--to", "lucidrains", "--grid", "4", "5", "--patch-size", "8", "8"]
    assert (
        main(["convert", str(tmp_path / "in.pth"), str(tmp_path / "out.pth"), *args, "--weights", "raw"]) == 0
    )
    assert same_weights(
        read_checkpoint(tmp_path / "out.pth").state_dict, read_checkpoint(tmp_path / "in.pth").state_dict
    )
    capsys.readouterr()


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["info", "nosuch.pth"], "neither a file"),
        (["info", "gmlp_s16.nosuch"], "Invalid pretrained tag (nosuch)"),
        (["convert", "{in}", "{dir}/no/such/out.pth"], "there is no folder"),
        (["convert", "{in}", "{dir}/out.pth", "--to", "jaketae"], "cannot express this model"),
        (["convert", "{in}", "{dir}/out.pth", "--grid", "2", "4"], "grid 2 x 4 has 8 tokens"),
        (["convert", "{in}", "{dir}/out.pth", "--img-size", "0", "0"], "img_size is 0 x 0"),
        (["convert", "{in}", "{dir}/out.pth", "--num-classes", "-1"], "num_classes is -1; expected a count"),
        (["convert", "{in}", "{dir}"], "exists"),
    ],
)
def test_what_a_user_can_mend_is_one_line(
    args: list[str], why: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [a.replace("{in}", str(source)).replace("{dir}", str(tmp_path)) for a in args]
    assert main(filled) == 2
    error = capsys.readouterr().err
    assert why in error
    assert error.count("\n") == 1
