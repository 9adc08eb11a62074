"""Bytes to tensors: every form a checkpoint comes in, and nothing that runs code."""

import argparse
import hashlib
import json
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import TINY, images, same_weights, tiny

from gmlp_vision import CheckpointError, load_checkpoint
from gmlp_vision.checkpoints import read_checkpoint
from gmlp_vision.checkpoints.unwrap import unwrap

STATE = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.tensor([1.0, -2.0])}
EMA = {name: tensor + 1 for name, tensor in STATE.items()}


# -- forms ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x.safetensors", "x.pth", "x.pt", "x.pth.tar", "x.bin"])
def test_one_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name.endswith("safetensors"):
        safetensors.torch.save_file(STATE, path)
    else:
        torch.save(STATE, path)
    for source in (path, str(path)):
        checkpoint = read_checkpoint(source)
        assert same_weights(checkpoint.state_dict, STATE)
        assert (checkpoint.config, checkpoint.source, checkpoint.weights) == ({}, str(path), "raw")
        assert checkpoint.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_torchs_older_form(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "x.pth", _use_new_zipfile_serialization=False)
    assert same_weights(read_checkpoint(tmp_path / "x.pth").state_dict, STATE)


def test_parameters_come_as_plain_tensors(tmp_path: Path) -> None:
    torch.save({"p": torch.nn.Parameter(torch.ones(2))}, tmp_path / "x.pth")
    tensor = read_checkpoint(tmp_path / "x.pth").state_dict["p"]
    assert not tensor.requires_grad


@pytest.mark.parametrize("source", ["{}", "local-dir:{}"])
def test_a_folder_that_timm_wrote(source: str, tmp_path: Path) -> None:
    model = tiny(img_size=(16, 24))
    timm.models.save_for_hf(model, str(tmp_path), safe_serialization="both")
    checkpoint = read_checkpoint(source.format(tmp_path))
    assert same_weights(checkpoint.state_dict, model.state_dict())
    assert checkpoint.config["architecture"] == "gmlp_ti16"
    assert checkpoint.config["model_args"]["img_size"] == [16, 24]
    assert checkpoint.sha256 == hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("args", "size"),
    [({}, None), ({"img_size": 32}, 32), ({"img_size": 32, "input_size": [3, 8, 64]}, [3, 8, 64])],
)
def test_what_train_py_files_beside_the_weights(args: dict, size: object, tmp_path: Path) -> None:
    namespace = argparse.Namespace(model="gmlp_pico4", model_kwargs={"img_size": [8, 64]}, lr=0.1, **args)
    torch.save({"arch": "x", "args": namespace, "state_dict": STATE}, tmp_path / "last.pth.tar")
    assert read_checkpoint(tmp_path / "last.pth.tar").config == {
        "architecture": "gmlp_pico4",
        "model_args": {"img_size": [8, 64]},
        "pretrained_cfg": {"input_size": size},
    }


@pytest.mark.parametrize("how", [{"model_kwargs": {"img_size": [16, 64]}}, {"input_size": [3, 16, 64]}])
def test_the_grid_of_a_train_py_file_is_the_one_it_was_trained_on(how: dict, tmp_path: Path) -> None:
    source = tiny(img_size=(16, 64))  # 2 x 8 tokens; a square guess would say 4 x 4
    args = argparse.Namespace(model="gmlp_ti16", **{"model_kwargs": {}, **how})
    torch.save({"args": args, "state_dict": source.state_dict()}, tmp_path / "last.pth.tar")
    report = load_checkpoint(tiny(img_size=(32, 128)), tmp_path / "last.pth.tar")
    assert report.adapted["blocks.0.mlp_channels.gate.proj.weight"] == "grid 2 x 8 to 4 x 16"


# -- raw or EMA, and prefixes --------------------------------------------------------------------------------


@pytest.mark.parametrize("raw_key", ["state_dict", "model"])
@pytest.mark.parametrize("ema_key", ["state_dict_ema", "model_ema"])
def test_ema_unless_told_otherwise(raw_key: str, ema_key: str, tmp_path: Path) -> None:
    torch.save({"epoch": 3, raw_key: STATE, ema_key: EMA}, tmp_path / "x.pth")
    for weights, expected, said in (("auto", EMA, "ema"), ("ema", EMA, "ema"), ("raw", STATE, "raw")):
        checkpoint = read_checkpoint(tmp_path / "x.pth", weights)
        assert same_weights(checkpoint.state_dict, expected)
        assert checkpoint.weights == said


def test_the_report_says_which_weights_were_taken(tmp_path: Path) -> None:
    raw, ema, model = tiny(), tiny(num_classes=5), tiny()
    torch.save({"state_dict": raw.state_dict(), "state_dict_ema": ema.state_dict()}, tmp_path / "x.pth")
    report = load_checkpoint(model, tmp_path / "x.pth")
    assert "ema weights" in str(report)
    assert torch.equal(model(images()), ema(images()))
    report = load_checkpoint(model, tmp_path / "x.pth", weights="raw")
    assert "raw weights" in str(report)
    assert torch.equal(model(images()), raw(images()))


def test_ema_that_is_not_there(tmp_path: Path) -> None:
    torch.save({"state_dict": STATE, "state_dict_ema": None}, tmp_path / "x.pth")
    assert read_checkpoint(tmp_path / "x.pth").weights == "raw"
    with pytest.raises(CheckpointError, match="no EMA weights"):
        read_checkpoint(tmp_path / "x.pth", "ema")
    with pytest.raises(ValueError, match="'best'; expected 'auto', 'ema' or 'raw'"):
        read_checkpoint(tmp_path / "x.pth", "best")


@given(
    st.lists(st.sampled_from(["module.", "_orig_mod."]), max_size=6),
    st.sampled_from([*"xy", "state_dict_ema"]),
)
def test_any_stack_of_prefixes_is_stripped(prefixes: list[str], key: str) -> None:
    wrapped = OrderedDict(("".join(prefixes) + name, tensor) for name, tensor in STATE.items())
    network = unwrap({key: wrapped} if key == "state_dict_ema" else wrapped, "auto", "x")
    assert same_weights(network.tensors, STATE)
    assert network.weights == ("ema" if key == "state_dict_ema" else None)


def test_a_name_that_only_contains_a_prefix_is_kept() -> None:
    state = {"blocks.module.weight": torch.ones(1), "model.0.weight": torch.ones(1)}
    assert same_weights(unwrap(state, "auto", "x").tensors, state)


def test_the_same_tensor_with_and_without_a_prefix() -> None:
    with pytest.raises(CheckpointError, match="same tensor twice"):
        unwrap({"a": torch.ones(1), "module.a": torch.zeros(1)}, "auto", "x")


# -- hashes --------------------------------------------------------------------------------------------------


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_known_hash_is_held_against_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    safetensors.torch.save_file(STATE, path)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    assert read_checkpoint(path, sha256=sha256.upper()).sha256 == sha256
    flip(path, -1)
    assert not same_weights(read_checkpoint(path).state_dict, STATE)  # nothing in the file itself tells
    with pytest.raises(CheckpointError, match=rf"damaged.*expected {sha256}"):
        read_checkpoint(path, sha256=sha256)


def test_a_hash_in_config_json_is_held_against_the_file(tmp_path: Path) -> None:
    safetensors.torch.save_file(STATE, tmp_path / "model.safetensors")
    sha256 = hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
    (tmp_path / "config.json").write_text(json.dumps({"sha256": sha256}))
    assert same_weights(read_checkpoint(tmp_path).state_dict, STATE)
    flip(tmp_path / "model.safetensors", -1)
    with pytest.raises(CheckpointError, match="damaged"):
        read_checkpoint(tmp_path)


def test_a_flipped_bit_in_a_pth_is_caught_by_its_crc(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    torch.save(STATE, path)
    flip(path, path.read_bytes().index(STATE["a.weight"].numpy().tobytes()) + 5)
    assert not same_weights(torch.load(path, weights_only=True), STATE)  # torch does not see it
    with pytest.raises(CheckpointError, match="CRC"):
        read_checkpoint(path)


def test_an_entry_that_poses_as_a_folder(tmp_path: Path) -> None:
    """torch takes it for empty: its tensor is whatever the memory held."""
    path = tmp_path / "x.pth"
    torch.save(STATE, path)
    with zipfile.ZipFile(path) as archive:
        entry = archive.read("x/data/0")
        directory = archive.start_dir
    assert entry == STATE["a.weight"].numpy().tobytes()
    data = path.read_bytes()
    name = data.index(b"x/data/0", directory)  # after 46 bytes, of which 38 to 41 are the attributes
    path.write_bytes(data[: name - 8] + b"\x10" + data[name - 7 :])
    with pytest.raises(CheckpointError, match="the kind of x/data/0 is wrong"):
        read_checkpoint(path)


# -- what is refused -----------------------------------------------------------------------------------------


class Malicious:
    """Its pickle, loaded by an unsafe unpickler, makes a file."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple:
        return Path.touch, (self.proof,)


@pytest.mark.parametrize("form", ["zip", "older", "pickle"])
@pytest.mark.parametrize("place", ["value", "beside", "args"])
def test_a_malicious_pickle_is_refused_and_does_not_run(form: str, place: str, tmp_path: Path) -> None:
    proof = tmp_path / "it ran"
    evil = Malicious(proof)
    content = {
        "value": {"a": evil},
        "beside": {"state_dict": STATE, "more": evil},
        "args": {"state_dict": STATE, "args": argparse.Namespace(model=evil)},
    }[place]
    path = tmp_path / "x.pth"
    if form == "pickle":
        path.write_bytes(pickle.dumps(content, protocol=2))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")
    model = tiny()
    before = {k: v.clone() for k, v in model.state_dict().items()}

    for load in (lambda: read_checkpoint(path), lambda: load_checkpoint(model, path)):
        with pytest.raises(CheckpointError):
            load()
    with pytest.raises(Exception, match=r"."):
        timm.create_model("gmlp_ti16", pretrained=True, pretrained_cfg_overlay={"file": str(path)}, **TINY)
    assert not proof.exists()
    assert same_weights(model.state_dict(), before)

    # the file is what it is said to be: an unsafe unpickler runs it
    if form == "zip":
        torch.load(path, weights_only=False)
        assert proof.exists()


def test_a_whole_model_is_refused_and_what_to_do(tmp_path: Path) -> None:
    torch.save(tiny(), tmp_path / "x.pth")
    with pytest.raises(
        CheckpointError, match=r"refused.*gmlp_vision\.models\.gmlp\.GMlp.*state_dict\(\) alone"
    ):
        read_checkpoint(tmp_path / "x.pth")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({}, "holds no named tensors"),
        ([STATE], "holds a list; expected a state dict"),
        (torch.ones(2), "holds a Tensor; expected a state dict"),
        ({"state_dict": {}}, "holds no named tensors"),
        ({"state_dict_ema": 5}, "holds no named tensors"),
        ({3: torch.ones(2)}, "holds no named tensors"),
        pytest.param(
            {"a": torch.ones(2).to_sparse()},
            "no plain tensors: a",
            marks=pytest.mark.filterwarnings("ignore:Validating sparse tensor"),
        ),
        ({"a": torch.ones(2, device="meta")}, "no plain tensors: a"),
        ({"a": torch.ones(1).expand(2**40)}, "no plain tensors: a"),
        (
            {f"n{i}": torch.ones(2, device="meta") for i in range(9)},
            r"n0, n1, n2, n3, n4, \.\.\. \(9 in all\)",
        ),
        ({"state_dict": {"a": torch.ones(2, device="meta")}}, r"x\.pth\[state_dict\] is no state dict.*: a"),
    ],
)
def test_what_is_no_state_dict(content: object, why: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "x.pth")
    with pytest.raises(CheckpointError, match=why):
        read_checkpoint(tmp_path / "x.pth")


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "x.pth").write_text("hello")
    (tmp_path / "x.safetensors").write_text("hello")
    (tmp_path / "folder").mkdir()
    (tmp_path / "config").mkdir()
    for source, why in {
        tmp_path / "x.pth": "not a whole torch file of tensors: its pickle is not torch's",
        tmp_path / "x.safetensors": r"not a whole \.safetensors file",
        tmp_path / "folder": "a folder without config.json",
        f"local-dir:{tmp_path / 'nothing'}": "neither a file nor a folder",
        tmp_path / "nothing.pth": "neither a file, nor a folder, nor the name of a model",
        "gmlp_b16": "no released weights",
        "gmlp_s16.nosuch": r"Invalid pretrained tag \(nosuch\)",
    }.items():
        with pytest.raises(CheckpointError, match=why):
            read_checkpoint(source)
    broken = {"[1]": "holds a list", "{": "is not JSON", "[" * 10**5: "is not JSON", "{}": "and no weights"}
    for text, why in broken.items():
        (tmp_path / "config" / "config.json").write_text(text)
        with pytest.raises(CheckpointError, match=why):
            read_checkpoint(tmp_path / "config")
