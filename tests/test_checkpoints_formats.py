"""What a file is, told by its bytes: a checkpoint under any name, data beside the tensors, or none."""

import argparse
import datetime
import decimal
import fractions
import io
import os
import pathlib
import pickle
import threading
import types
import uuid
import warnings
import zipfile
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from tiny import TINY, perturb, same_weights, tiny

from gmlp_vision import CheckpointError, load_checkpoint
from gmlp_vision.checkpoints import convert_file, data_allowed, describe, read_checkpoint
from gmlp_vision.checkpoints.formats import parse
from gmlp_vision.cli import main

STATE = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.tensor([1.0, -2.0])}


def in_torchs_form(content: object, zipped: bool = True) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


# -- names say nothing ---------------------------------------------------------------------------------------

FORMS = {
    "safetensors": safetensors.torch.save(STATE),
    "zip": in_torchs_form(STATE),
    "older": in_torchs_form(STATE, zipped=False),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "name",
    ["X.SAFETENSORS", "x.safetensors", "x.safetensors.bak", "x.PTH", "x.bin", "x.ckpt", "0f" * 20, "x"],
)
def test_a_checkpoint_is_known_by_its_bytes(name: str, form: str, tmp_path: Path) -> None:
    assert same_weights(read_checkpoint(write(tmp_path / name, FORMS[form])).state_dict, STATE)


def test_a_damaged_file_is_called_what_it_is_named(tmp_path: Path) -> None:
    data = FORMS["safetensors"]
    for name, broken in (("x.safetensors", data[:-1]), ("x.bak", data[:-1]), ("X.SAFETENSORS", b"\xff" * 99)):
        with pytest.raises(CheckpointError, match=r"is not a whole \.safetensors file"):
            read_checkpoint(write(tmp_path / name, broken))
    with pytest.raises(CheckpointError, match="is not a whole torch file"):
        read_checkpoint(write(tmp_path / "x.safetensors", FORMS["zip"][:-100]))


# -- data beside the tensors ---------------------------------------------------------------------------------

NUMBERS = [np.dtype(code).type(1) for code in "?bBhHiIlLqQefdgFDG"]
OF_NUMPY = [
    *NUMBERS,
    *(np.str_("text"), np.bytes_(b"bytes"), np.datetime64("2026-11-30", "D"), np.timedelta64(3, "s")),
    *(np.void(b"ab"), np.zeros((), dtype=[("x", "f4")])[()], np.dtype("f4"), np.float64, np.bool_),
    *(np.ones((2, 3)), np.asfortranarray(np.ones((2, 3))), np.array([None, {}], dtype=object)),
    np.random.RandomState(0).get_state(),
]
OF_PYTHON = [
    *(pathlib.Path("a/b"), pathlib.PurePosixPath("a"), pathlib.PureWindowsPath("C:/a")),
    *(datetime.datetime.now(), datetime.datetime.now(datetime.timezone.utc), datetime.date(2026, 11, 30)),
    *(datetime.time(12), datetime.timedelta(days=1)),
    *(defaultdict(list, {"a": [1.0]}), defaultdict(float, a=1.0), OrderedDict(a=1), Counter("aab")),
    *(
        deque([1, 2], maxlen=2),
        deque(),
        frozenset([1]),
        {1},
        range(3),
        slice(1, 2),
        int,
        1j,
        b"x",
        bytearray(2),
    ),
    *(argparse.Namespace(a=1, b=argparse.Namespace()), types.SimpleNamespace(a=1)),
    *(decimal.Decimal("0.1"), fractions.Fraction(1, 3), uuid.UUID(int=1)),
    *(torch.__version__, torch.float16, torch.Size([1]), torch.device("cpu"), torch.get_rng_state()),
]


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("value", [*OF_NUMPY, *OF_PYTHON], ids=lambda value: type(value).__name__)
def test_data_beside_the_tensors_is_no_hindrance(value: object, zipped: bool, tmp_path: Path) -> None:
    content = {"state_dict": STATE, "metric": value, "args": argparse.Namespace(more=[value])}
    write(tmp_path / "x.pth", in_torchs_form(content, zipped))
    assert same_weights(read_checkpoint(tmp_path / "x.pth").state_dict, STATE)


def test_the_two_versions_of_numpy(tmp_path: Path) -> None:
    data = in_torchs_form({"state_dict": STATE, "metric": np.float64(1), "array": np.ones(2)})
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {info.filename: archive.read(info) for info in archive.infolist()}
    (name,) = (name for name in parts if name.endswith("data.pkl"))
    new, old = b"numpy._core.multiarray", b"numpy.core.multiarray"
    here, there = (new, old) if new in parts[name] else (old, new)
    assert parts[name].count(here) == 2
    parts[name] = parts[name].replace(here, there)
    with zipfile.ZipFile(tmp_path / "x.pth", "w") as archive:
        for part, content in parts.items():
            archive.writestr(part, content)
    assert same_weights(read_checkpoint(tmp_path / "x.pth").state_dict, STATE)


def test_numbers_of_numpy_are_those_that_were_filed() -> None:
    values = [*NUMBERS, np.float32(0.1), np.int64(-(2**62)), np.dtype(">f8").type(2.5), np.str_("ä")]
    found = parse(in_torchs_form(values), Path("x.pth"), "x")
    assert found == values
    assert not any(isinstance(v, np.generic) for v in found if v != np.longdouble(1))


def test_the_arguments_of_training_are_read_whatever_made_their_numbers(tmp_path: Path) -> None:
    args = argparse.Namespace(
        model="gmlp_ti16", img_size=np.int64(48), model_kwargs=defaultdict(list, depth=np.int32(2))
    )
    write(tmp_path / "x.pth", in_torchs_form({"state_dict": STATE, "args": args}))
    config = read_checkpoint(tmp_path / "x.pth").config
    assert config["model_args"] == {"depth": 2}
    assert config["pretrained_cfg"] == {"input_size": 48}
    assert type(config["pretrained_cfg"]["input_size"]) is int


SCALAR = np.float64(1).__reduce__()[0]


class Custom:
    pass


RUN: list[object] = []


class Runs:
    def __init__(self, what: object, *args: object) -> None:
        self.what, self.args = what, args

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.what, self.args


@pytest.mark.parametrize(
    "value",
    [
        Custom(),
        Runs(RUN.append, 1),
        Runs(os.getcwd),
        Runs(np.load, "x"),
        Runs(eval, "RUN.append(1)"),
        Runs(np.frombuffer, b""),
    ],
)
def test_the_rest_is_refused_as_before(value: object, tmp_path: Path) -> None:
    for zipped in (True, False):
        write(tmp_path / "x.pth", in_torchs_form({"state_dict": STATE, "metric": value}, zipped))
        with pytest.raises(CheckpointError):
            read_checkpoint(tmp_path / "x.pth")
    assert not RUN


@pytest.mark.parametrize(
    "value",
    [
        Runs(np.dtype, "O8"),
        Runs(SCALAR, np.dtype("O"), b"\1" * 8),
        Runs(SCALAR, np.dtype("U999999"), b"x"),
        Runs(pathlib.PurePosixPath, "x", "y"),
        Runs(range, 10**12),
        Runs(decimal.Decimal, "1e999999999"),
        Runs(fractions.Fraction, "1e999999999"),
        Runs(bytes, 10**15),
    ],
)  # fmt: skip
def test_what_stands_for_data_runs_nothing_of_it(value: object) -> None:
    parse(in_torchs_form([value, Runs(list, value)]), Path("x.pth"), "x")  # at once, and without the memory


def test_timms_own_way_agrees(tmp_path: Path) -> None:
    state = tiny().state_dict()
    args = {"pretrained": True, "pretrained_cfg_overlay": {"file": str(tmp_path / "x.pth")}, **TINY}
    torch.save({"state_dict": state, "metric": np.float64(1), "where": pathlib.Path("x")}, tmp_path / "x.pth")
    assert same_weights(timm.create_model("gmlp_ti16", **args), state)
    torch.save({"state_dict": state, "metric": Custom()}, tmp_path / "x.pth")
    with pytest.raises(RuntimeError, match="Custom"):
        timm.create_model("gmlp_ti16", **args)


def test_what_the_user_allows_stays_allowed_and_nothing_else(tmp_path: Path) -> None:
    before = torch.serialization.get_safe_globals()
    torch.serialization.add_safe_globals([argparse.Namespace])
    try:
        with data_allowed(), data_allowed():
            assert len(torch.serialization.get_safe_globals()) > 30
        assert set(torch.serialization.get_safe_globals()) == {*before, argparse.Namespace}
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def test_threads_do_not_end_each_others_allowance(tmp_path: Path) -> None:
    write(tmp_path / "x.pth", in_torchs_form({"state_dict": STATE, "metric": np.float64(1)}))
    inside, leave, other = threading.Event(), threading.Event(), []

    def read() -> None:
        with data_allowed():
            inside.set()
            leave.wait(10)
            other.append(read_checkpoint(tmp_path / "x.pth"))

    thread = threading.Thread(target=read)
    thread.start()
    inside.wait(10)
    read_checkpoint(tmp_path / "x.pth")  # begins and ends within
    leave.set()
    thread.join()
    assert same_weights(other[0].state_dict, STATE)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "x.pth", weights_only=True)


# -- memory --------------------------------------------------------------------------------------------------


def test_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    big = io.BytesIO(in_torchs_form({"a": torch.zeros(10**6)}))
    with (
        zipfile.ZipFile(big) as archive,
        zipfile.ZipFile(tmp_path / "x.pth", "w", zipfile.ZIP_DEFLATED) as small,
    ):
        for info in archive.infolist():
            small.writestr(info.filename, archive.read(info))
    assert torch.load(tmp_path / "x.pth", weights_only=True)["a"].numel() == 10**6  # torch inflates it
    with pytest.raises(CheckpointError, match="is a compressed zip, which torch does not write"):
        read_checkpoint(tmp_path / "x.pth")
    write(tmp_path / "x.pth", in_torchs_form({"a": Runs(torch.Tensor, 10**8), "b": torch.ones(2)}))
    with pytest.raises(CheckpointError, match=r"would take 400,000,008 bytes, and it has 1,\d\d\d"):
        read_checkpoint(tmp_path / "x.pth")


def test_tensors_that_share_their_numbers_are_counted_once(tmp_path: Path) -> None:
    shared = torch.ones(1000)
    torch.save({"a": shared, "b": shared.view(10, 100), "c": shared[:10]}, tmp_path / "x.pth")
    assert len(read_checkpoint(tmp_path / "x.pth").state_dict) == 3


# -- exported models -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of real ones, of one layer."""
    import onnx
    import openvino
    from openvino import opset8

    folder = tmp_path_factory.mktemp("exported")
    layer = torch.nn.Linear(2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions of torch would have another format
        torch.jit.save(torch.jit.script(layer), folder / "x.pt")
        torch.jit.script(layer)._save_for_lite_interpreter(str(folder / "x.ptl"))
    torch.export.save(torch.export.export(layer, (torch.zeros(1, 2),)), folder / "x.pt2")
    value = onnx.helper.make_tensor_value_info("v", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([], "graph", [value], [value])
    onnx.save(onnx.helper.make_model(graph), folder / "bare.onnx")
    onnx.save(onnx.helper.make_model(graph, producer_name="pytorch"), folder / "x.onnx")
    image = opset8.parameter([1, 2])
    network = openvino.Model([opset8.add(image, np.ones((1, 2), dtype=np.float32))], [image])
    openvino.save_model(network, folder / "x.xml")
    return folder


EXPORTED = {
    "x.pt": "TorchScript",
    "x.ptl": "TorchScript",
    "x.pt2": "a program of torch.export",
    "x.onnx": "an ONNX model",
    "bare.onnx": "an ONNX model",
    "x.xml": "an OpenVINO model",
    "x.bin": "the weights of an OpenVINO model, x.xml",
}


@pytest.mark.parametrize("name", EXPORTED)
def test_an_exported_model_is_called_one(
    name: str, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = exported / name
    said = f"{path} is {EXPORTED[name]}: an exported model, not a checkpoint; give the file that it was"
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(tiny(), path)
    assert str(caught.value).startswith(said)
    out = str(tmp_path / "x.pth")
    for command in (["info"], ["filters"], ["convert"], ["export", "--format", "onnx"]):
        outs = {"convert": [out], "export": [str(tmp_path / "x.onnx")]}.get(command[0], [])
        assert main([command[0], str(path), *outs, *command[1:]]) == 2
        assert capsys.readouterr().err.startswith(f"gmlp-vision: {said}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["x.pt", "x.pt2", "x.onnx"])
def test_an_exported_model_is_known_by_its_bytes(name: str, exported: Path, tmp_path: Path) -> None:
    for other in ("x", "x.pth", "x.safetensors"):
        with pytest.raises(CheckpointError, match=f"is {EXPORTED[name]}: an exported model"):
            read_checkpoint(write(tmp_path / other, (exported / name).read_bytes()))


# -- other files ---------------------------------------------------------------------------------------------


def zipped(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, b"content")
    return buffer.getvalue()


def of_numpy(save: object, *args: object) -> bytes:
    buffer = io.BytesIO()
    save(buffer, *args)
    return buffer.getvalue()


OTHERS = {
    "is an .npz file of numpy: save the weights as": of_numpy(np.savez, np.ones(2)),
    "is an .npz file": of_numpy(np.savez_compressed, np.zeros(10**5)),
    "is an .npy file of numpy": of_numpy(np.save, np.ones(2)),
    "is a Keras model": zipped("metadata.json", "config.json", "model.weights.h5"),
    "is an HDF5 file, as Keras": b"\x89HDF\r\n\x1a\n" + bytes(50),
    "is a GGUF file": b"GGUF\3\0\0\0" + bytes(50),
    "is a msgpack file, as Flax writes": b"\x81\xa6params\x81\xa4head\x80",
    "is a TensorFlow Lite file: an exported model": b"\x1c\0\0\0TFL3" + bytes(50),
    "is an ExecuTorch program: an exported model": b"\x38\0\0\0ET12" + bytes(50),
    "is an ONNX Runtime model: an exported": b"\x18\0\0\0ORTM" + bytes(50),
    "is a pointer of Git LFS: `git lfs pull`": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    "is a page of HTML: download the file": b"<!DOCTYPE html><html><body>404</body></html>",
    "is JSON, and no weights": b'{"error": "Repository not found"}',
    "is a compressed file: unpack it": b"\x1f\x8b\x08" + bytes(50),
    "is a tar archive: unpack it": b"x.pth".ljust(257, b"\0") + b"ustar" + bytes(50),
    "is a zip archive, and none of torch's: unpack it": zipped("notes.txt", "weights/x.pth"),
}


@pytest.mark.parametrize("why", OTHERS)
def test_another_file_is_called_what_it_looks_like(why: str, tmp_path: Path) -> None:
    for name in ("x", "x.pth", "x.h5", "x.safetensors"):
        with pytest.raises(CheckpointError) as caught:
            read_checkpoint(write(tmp_path / name, OTHERS[why]))
        assert str(caught.value).startswith(f"{tmp_path / name} {why}")


def test_a_file_of_json_that_is_no_index(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architecture": "gmlp_ti16"}')
    with pytest.raises(CheckpointError, match=r"is no index of shards.* give the folder"):
        read_checkpoint(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (".metadata", "is a checkpoint of torch.distributed: make a file of it"),
        ("saved_model.pb", "is a SavedModel of TensorFlow: an exported model"),
        ("Manifest.json", "is a Core ML package: an exported model"),
    ],
)
def test_another_folder_is_called_what_it_looks_like(file: str, why: str, tmp_path: Path) -> None:
    folder = tmp_path / "x.mlpackage"
    folder.mkdir()
    (folder / file).touch()
    with pytest.raises(CheckpointError, match=why):
        read_checkpoint(folder)


# -- names of results ----------------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> Path:
    torch.save(tiny().state_dict(), tmp_path / "in.pth")
    return tmp_path / "in.pth"


@pytest.mark.parametrize("name", ["x.PTH", "x.Pt", "x.Safetensors", "x.BIN", "x.ckpt", "x.pth.TAR", "x.CKPT"])
def test_a_name_of_a_file_gives_that_file(name: str, source: Path, tmp_path: Path) -> None:
    convert_file(source, tmp_path / name)
    data = (tmp_path / name).read_bytes()
    assert (data[:4] == b"PK\3\4") == (name != "x.Safetensors")
    assert same_weights(read_checkpoint(tmp_path / name).state_dict, read_checkpoint(source).state_dict)


@pytest.mark.parametrize(
    "name", ["x.onnx", "x.h5", "x.npz", "x.safetensor", "x.pht", "x.tar", "x.PT2", "x.json"]
)
def test_a_name_of_another_file_is_no_folder_by_surprise(name: str, source: Path, tmp_path: Path) -> None:
    assert main(["convert", str(source), str(tmp_path / name)]) == 2
    assert not (tmp_path / name).exists()
    assert main(["convert", str(source), f"{tmp_path / name}/"]) == 0
    assert (tmp_path / name / "model.safetensors").exists()


@pytest.mark.parametrize("name", ["x", "gmlp_pico4.cifar10", "gmlp_s16.ra3_in1k", "run-0.5", "2026.11.30"])
def test_other_names_are_folders(name: str, source: Path, tmp_path: Path) -> None:
    convert_file(source, tmp_path / name)
    assert (tmp_path / name / "config.json").exists()


# -- dtypes --------------------------------------------------------------------------------------------------

FLOAT8 = [
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
NO_WEIGHTS = {
    "int8": torch.Tensor.char,
    "int64": torch.Tensor.long,
    "uint16": lambda t: t.abs().to(torch.uint16),
    "bool": torch.Tensor.bool,
    "complex64": lambda t: t.to(torch.complex64),
    "float4_e2m1fn_x2": lambda t: t.char().view(torch.float4_e2m1fn_x2),
}
W = "blocks.0.mlp_channels.gate.proj.weight"


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        *((kind, "stem.proj.weight") for kind in NO_WEIGHTS),
        ("int8", "all"),
        ("int64", W),
        ("bool", "head.weight"),
    ],
)
def test_numbers_that_are_no_weights_are_refused_alike_everywhere(
    kind: str, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change = NO_WEIGHTS[kind]
    state = {name: change(t) if part in ("all", name) else t for name, t in tiny().state_dict().items()}
    torch.save(state, tmp_path / "x.pth")
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(tiny(), tmp_path / "x.pth")
    said = str(caught.value)
    named = "stem.proj.weight" if part == "all" else part
    assert f"has tensors that are not floating point: {named} (torch.{kind})" in said
    describe(tmp_path / "x.pth")  # which builds nothing
    path, out = str(tmp_path / "x.pth"), tmp_path / "out"
    for args in (
        ["convert", path, str(out)],
        ["convert", path, f"{out}.pth", "--dtype", "fp16", "--img-size", "48", "48"],
        ["filters", path],
        ["export", path, f"{out}.pt", "--format", "torchscript"],
    ):
        assert main(args) == 2
        assert capsys.readouterr().err == f"gmlp-vision: {said}\n"
    assert [p.name for p in tmp_path.iterdir()] == ["x.pth"]


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_eight_bits_are_numbers_as_they_stand(dtype: torch.dtype, tmp_path: Path) -> None:
    model = perturb(tiny(), seed=1)
    state = {name: tensor.abs().to(dtype) for name, tensor in model.state_dict().items()}
    torch.save(state, tmp_path / "x.pth")
    as_they_stand = {name: tensor.float() for name, tensor in state.items()}
    load_checkpoint(model, tmp_path / "x.pth")
    assert same_weights(model, as_they_stand)
    convert_file(tmp_path / "x.pth", tmp_path / "out.pth")
    assert same_weights(torch.load(tmp_path / "out.pth", weights_only=True), as_they_stand)
    torch.save({**state, "norm.bias": as_they_stand["norm.bias"].half()}, tmp_path / "x.pth")
    convert_file(tmp_path / "x.pth", tmp_path / "out.pth")
    found = torch.load(tmp_path / "out.pth", weights_only=True)
    assert same_weights(found, as_they_stand, but={"norm.bias"})
