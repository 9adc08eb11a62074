"""Whatever is typed, and whatever a file holds: a result, or one line and exit status 2."""

import json
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from itertools import chain, cycle
from pathlib import Path

import pytest
import safetensors.torch
import test_checkpoints_faults as faults
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from others import lucidrains_state
from timm.models import save_for_hf
from tiny import tiny

from gmlp_vision.checkpoints import values
from gmlp_vision.cli import main

Ends = Callable[..., int]


@pytest.fixture
def ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ends:
    """Runs a command in a folder with a few sources; asserts how it ends, and returns its status."""
    monkeypatch.chdir(tmp_path)
    torch.save(tiny().state_dict(), "w.pth")
    torch.save(lucidrains_state(16), "theirs.pth")
    save_for_hf(tiny(), "folder", safe_serialization=True)
    Path("old.png").write_text("no picture")
    sources = {path: path.read_bytes() for path in (Path("w.pth"), Path("theirs.pth"), Path("old.png"))}

    def run(*argv: object) -> int:
        capsys.readouterr()
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="backslashreplace")  # as the entry does it
        status = main([str(word) for word in argv])
        said = capsys.readouterr()
        lines = said.err.splitlines()
        assert (status, len(lines)) in ((0, 0), (2, 1)), (argv, said)
        assert all(path.read_bytes() == data for path, data in sources.items()), argv
        assert not list(tmp_path.rglob("*.tmp")), argv
        return status

    return run


# -- options -------------------------------------------------------------------------------------------------

NUMBERS = """
-1 0 1 4 8 16 32 40 16384 16385 1000000000 1000000000000000000000000000000 nan inf 1e3 0x10 1_0 - -- 1,2 [1]
"""
PATHS = """
. .. / w.pth folder folder/config.json folder/model.safetensors old.png missing/x.pth w.pth/x.pth -x.pth ~
/dev/full /dev/null /dev/zero /dev/full/x.pth NEW.PTH x.pth. local-dir: local-dir:folder
new.pth new.pt new.png new.html new.csv new.onnx new.xml new
"""
WORDS = """
raw ema auto fp16 fp8 timm lucidrains jaketae resnet18 gmlp_ti16 mixer_s32_224 torchscript ' %s {}
center corners grid:2 grid:999999999 1 0-1 0-99999999999 1;2 9,9 0,0;3,3 layer picture kernels units
"""
ODD = ["", " ", "\uff11\uff12", "\u0663", "\u22121", "a\nb", "\x1b[31m", "\udcff", "a\0b", "9" * 5000]
NUMBERS, PATHS, WORDS = (st.sampled_from([*known.split(), *ODD]) for known in (NUMBERS, PATHS, WORDS))
PAIRS = ("--img-size", "--grid", "--patch-size")
OPTIONS = {
    "convert": {
        "paths": 2,
        **dict.fromkeys(PAIRS, (NUMBERS, NUMBERS)),
        "--num-classes": (NUMBERS,),
        **dict.fromkeys(("--from", "--to", "--model", "--weights", "--dtype"), (WORDS,)),
    },
    "export": {
        "paths": 2,
        "--img-size": (NUMBERS, NUMBERS),
        **dict.fromkeys(("--format", "--dtype", "--model"), (WORDS,)),
    },
    "filters": {
        "paths": 1,
        "--grid": (NUMBERS, NUMBERS),
        **dict.fromkeys(("-o", "--stats", "--html", "--image"), (PATHS,)),
        **dict.fromkeys(("--draw", "--layers", "--tokens", "--scale", "--model", "--weights"), (WORDS,)),
    },
    "info": {"paths": 1, "--model": (WORDS,)},
    "recipe": {"paths": 1},
    "demo": {"paths": 0, "--output": (PATHS,), "--epochs": (NUMBERS,), "--seed": (NUMBERS,)},
    "verify": {
        "paths": 1,
        **dict.fromkeys(("--data-dir", "--scripts", "--checkpoint"), (PATHS,)),
        **dict.fromkeys(("--batch-size", "--workers", "--crop-pct"), (NUMBERS,)),
        **dict.fromkeys(("--split", "--device"), (WORDS,)),
    },
    "nonsense": {"paths": 1, "--model": (WORDS,)},
}


@st.composite
def command_lines(draw: st.DrawFn, command: str) -> list[str]:
    """A command with up to two of its options; half of the time its source is one that can be read."""
    options = dict(OPTIONS[command])
    paths = [draw(PATHS) for _ in range(options.pop("paths"))]
    if paths and draw(st.booleans()):
        paths[0] = "w.pth"
    chosen = draw(st.lists(st.sampled_from(sorted(options)), max_size=2)) if options else []
    words = [[option, *(draw(value) for value in options[option])] for option in chosen]
    return [command, *paths, *chain.from_iterable(words)]


@pytest.mark.parametrize("command", OPTIONS)
def test_whatever_is_typed(command: str, ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gmlp_vision.demo.train_model", lambda model, batches, epochs: None)
    fixture = {"suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}

    @given(command_lines(command))
    @settings(deadline=None, max_examples=20, derandomize=True, database=None, **fixture)
    def check(argv: list[str]) -> None:
        if argv[0] == "demo":  # its options alone: the rest is the same in every run
            argv = [*argv, "--epochs", "1"]
        if argv[0] == "verify" and argv[1] == "w.pth":
            argv = ["verify", "gmlp_pico4", "--data-dir", "folder", *argv[2:]]
        ends(*argv)
        shutil.rmtree("new", ignore_errors=True)

    check()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["--num-classes", "99999999999999"],
            "num_classes is 99999999999999; expected a count up to 1000000",
        ),
        (
            ["--img-size", "100000", "100000"],
            "img_size is 100000 x 100000; expected height and width of 1 to",
        ),
        (
            ["--grid", "1000000", "1000000"],
            "grid is 1000000 x 1000000; expected height and width of 1 to 16384",
        ),
        (["--patch-size", "0", "0"], "patch_size is 0 x 0; expected height and width of 1 to 16384 pixels"),
        (["--patch-size", "0", "8"], "patch_size is 0 x 8"),
        (["--from", "nobody"], "the layout is 'nobody'; expected one of timm, "),
        (["--to", "nobody"], "the layout is 'nobody'; expected one of timm, "),
        (["--model", "resnet18"], "resnet18 is no model of this package"),
    ],
)
def test_convert_checks_its_options_before_it_reads(argv: list[str], message: str, capsys) -> None:
    assert main(["convert", "no-such-file.pth", "out.pth", *argv]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize("command", ["info", "filters", "export --format onnx out.onnx"])
def test_a_model_nobody_knows_is_told_before_anything_is_read(command: str, capsys) -> None:
    command, *options = command.split()
    assert main([command, "no-such-file.pth", *options, "--model", "resnet18"]) == 2
    assert "resnet18 is no model of this package" in capsys.readouterr().err


def test_a_patch_that_the_file_does_not_have_is_refused(ends: Ends, capsys) -> None:
    assert ends("convert", "theirs.pth", "a", "--patch-size", 8, 8) == 0
    assert ends("convert", "w.pth", "b.pth", "--patch-size", 8, 8) == 0  # what it is
    assert main(["convert", "w.pth", "b.pth", "--patch-size", "4", "4"]) == 2
    assert "patch_size is 4 x 4, and the stem of w.pth takes 8 x 8 pixels a token" in capsys.readouterr().err


def test_a_model_far_larger_than_its_source_is_not_made(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """W of 16384 x 16384 pixels would take 140 TB: refused at what it would be, before a byte of it is."""
    for command in (["convert", "w.pth", "o.pth"], ["export", "w.pth", "o.pt", "--format", "torchscript"]):
        assert main([*command, "--img-size", "16384", "16384"]) == 2
        assert "a model of 140,737.5 GB" in capsys.readouterr().err
    monkeypatch.setattr(values, "LARGEST_MODEL", 2**20)
    assert ends("convert", "w.pth", "o.pth", "--img-size", 32, 40) == 0
    assert ends("convert", "w.pth", "o.pth", "--num-classes", 2**14) == 2
    monkeypatch.setattr(values, "LARGEST_MODEL", 0)
    assert ends("convert", "w.pth", "o.pth") == 0  # as large as it is
    assert ends("convert", "w.pth", "o.pth", "--num-classes", 2**14) == 2


@pytest.mark.parametrize(
    "argv",
    [
        ["convert", "w.pth", "w.pth"],
        ["convert", "w.pth", "./folder/../w.pth"],
        ["convert", "w.pth", "link.pth"],
        ["convert", "link.pth", "w.pth"],
        ["convert", "folder", "folder/model.safetensors"],
        ["convert", "local-dir:folder", "folder/model.safetensors"],
        ["export", "w.pt", "w.pt", "--format", "torchscript"],
        ["export", "w.bin", "w.xml", "--format", "openvino"],
        ["filters", "w.csv", "--stats", "w.csv"],
        ["filters", "w.pth", "--html", "e.html", "--image", "photo.png", "-o", "photo.png"],
    ],
)
def test_what_is_read_is_not_replaced(argv: list[str], ends: Ends, capsys) -> None:
    for name in ("w.pt", "w.bin", "w.csv", "photo.png"):
        shutil.copy("w.pth", name)
    Path("link.pth").symlink_to("w.pth")
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    assert main(argv) == 2
    assert "is what is read, and would be lost" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def test_two_results_are_not_one_file(ends: Ends, capsys) -> None:
    Path("a.csv").touch()
    Path("a.html").symlink_to("a.csv")
    assert main(["filters", "w.pth", "--stats", "a.csv", "--html", "a.html"]) == 2
    assert "a.html and a.csv are one file" in capsys.readouterr().err


# -- files ---------------------------------------------------------------------------------------------------

COMMANDS = (
    ["info"],
    ["convert", "o.pth"],
    ["filters"],
    ["export", "o.pt", "--format", "torchscript"],
    ["convert", "new", "--img-size", "40", "32", "--dtype", "fp16", "--num-classes", "3"],
)


def check_all(ends: Ends, sources: Iterator[Path], every: bool = False) -> list[int]:
    """How each source ends with the next command, or with every one."""
    turn = cycle(COMMANDS)
    found = []
    for source in sources:
        for command, *rest in COMMANDS if every else [next(turn)]:
            shutil.rmtree("new", ignore_errors=True)
            found.append(ends(command, source, *rest))
    return found


def test_every_command_takes_the_good_files(ends: Ends) -> None:
    assert check_all(ends, iter([Path("w.pth"), Path("folder")]), every=True) == [0] * 10


def damaged() -> Iterator[Path]:
    for suffix, data in (*list(faults.truncations())[::14], *list(faults.header_flips())[::14]):
        path = Path(f"bytes{suffix}")
        path.write_bytes(data)
        yield path
    for data in faults.OTHER_BYTES:
        for suffix in (".pth", ".safetensors"):
            path = Path(f"bytes{suffix}")
            path.write_bytes(data)
            yield path


def test_every_command_on_damaged_bytes(ends: Ends) -> None:
    found = check_all(ends, damaged())
    assert len(found) > 80
    assert set(found) == {0, 2}


def test_every_command_on_what_is_no_state_dict(ends: Ends) -> None:
    def files() -> Iterator[Path]:
        for content in faults.other_contents():
            torch.save(content, "content.pth")
            yield Path("content.pth")

    check_all(ends, files(), every=True)


def test_every_command_on_other_tensors(ends: Ends) -> None:
    def files() -> Iterator[Path]:
        sample = random.Random(0).sample(list(faults.other_tensors()), 16)
        of_other_kinds = (torch.float8_e4m3fn, torch.int32, torch.bool, torch.complex64, torch.float64)
        for kind, name in zip(of_other_kinds, cycle([None, "stem.proj.weight"]), strict=False):
            sample.append(("", {k: v.to(kind) if name in (None, k) else v for k, v in faults.GOOD.items()}))
        for i, (_, state) in enumerate(sample):
            if i % 2 and "" not in state:
                torch.save(state, "tensors.pth")
                yield Path("tensors.pth")
            else:
                Path("tensors.safetensors").write_bytes(safetensors.torch.save(state))
                yield Path("tensors.safetensors")

    found = check_all(ends, files())
    assert found.count(2) > 12


CONFIGS = [
    {"architecture": "gmlp_ti16", "model_args": {"depth": 10**9}},
    {"architecture": "gmlp_ti16", "model_args": {"depth": "2", "embed_dim": 10**30}},
    {"architecture": "gmlp_ti16", "model_args": {"img_size": 10**30}},
    {"architecture": "gmlp_ti16", "model_args": {"img_size": [1e400, "x"], "norm_eps": "x"}},
    {"architecture": "gmlp_ti16", "model_args": {"patch_size": 0, "nonsense": [[]]}},
    {"architecture": "gmlp_ti16", "pretrained_cfg": {"mean": "x", "std": [[]], "input_size": [10**30] * 3}},
    {"architecture": ["gmlp_ti16"], "model_args": "none", "pretrained_cfg": 3, "sha256": []},
    {"architecture": "mixer_s32_224", "model_args": {"num_blocks": 10**9}},
]


def test_every_command_on_a_config_of_nonsense(ends: Ends) -> None:
    """A billion blocks are not made to see that the file has two."""

    def folders() -> Iterator[Path]:
        for config in CONFIGS:
            Path("folder/config.json").write_text(json.dumps(config))
            yield Path("folder")

    check_all(ends, folders())
