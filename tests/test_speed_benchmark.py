"""benchmarks/speed.py and int8.py: what they refuse, keep and time; not how fast it is."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import int8
import numpy as np
import pytest
import speed
import speed_clock
import torch
from PIL import Image
from speed_contenders import check_same
from speed_processes import environment, rows_of
from speed_rates import SIDES, rows
from speed_runtimes import compiled
from speed_table import commit
from torch import nn

from gmlp_vision.errors import UserError

CPU = torch.device("cpu")
RUN = {"model": "ti", "batch": 16, "dtype": "fp32", "runtime": "eager", "task": "inference"}


# -- processes and their rows -------------------------------------------------------------------------------


def test_the_shell_does_not_tune_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "3")
    kept = environment("as it is")
    assert not [name for name in kept if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES"]
    assert kept["OMP_NUM_THREADS"] == "3"
    raised = environment("thresholds raised")
    assert raised.keys() - kept.keys() == {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}
    assert int(raised["MALLOC_MMAP_THRESHOLD_"]) > 2**29


def process(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_rows_come_before_the_process_ends() -> None:
    rows = rows_of(process("print('{\"a\": 1}', flush=True); input()"), "as it is")
    assert next(rows) == {"a": 1}
    rows.close()  # else it would wait for a line


def test_rows_of_a_process_that_fails_are_kept() -> None:
    rows = rows_of(process("print('{\"a\": 1}\\n{\"b', end='', flush=True); exit(3)"), "as it is")
    assert next(rows) == {"a": 1}
    with pytest.raises(UserError, match="'as it is' broke off with exit code 3"):
        next(rows)


@pytest.fixture
def a_row() -> dict:
    seconds = {"timm": [1.0, 2.0, 9.0], "ours": [1.0, 1.0, 8.0], "product": [0.1, 0.2, 0.3]}
    (row,) = rows({"allocator": "as it is", **RUN}, seconds, 10**9, CPU)
    return row


def test_a_row_has_medians_and_all_that_was_measured(a_row: dict) -> None:
    assert a_row["images_per_second"] == {"timm": 8.0, "ours": 16.0}
    assert a_row["ratio"] == 2
    assert a_row["of_bound"] == pytest.approx(16 / (SIDES["cpu"] ** 3 / 0.2 / 1e9))
    assert a_row["seconds"]["ours"] == [1.0, 1.0, 8.0]
    assert a_row["seconds"].keys() == {"timm", "ours", "product"}


@pytest.mark.parametrize(("stop", "code"), [(UserError("broke off"), 2), (KeyboardInterrupt(), 130)])
def test_what_was_measured_is_kept(
    stop: BaseException,
    code: int,
    a_row: dict,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    def breaks_off(command: list[str], allocator: str) -> object:
        yield a_row
        raise stop

    monkeypatch.setattr(speed, "rows_of", breaks_off)
    out = tmp_path / "speed.json"
    assert speed.main(["--short", "--json", str(out)]) == code
    told, captured = json.loads(out.read_text()), capsys.readouterr()
    assert told["rows"] == [a_row]
    assert "| **2.000** |" in captured.out
    assert str(told["commit"]) in captured.out
    assert captured.err.splitlines() == [
        "speed.py: broke off" if code == 2 else "speed.py: stopped at allocator 'as it is'"
    ]
    assert [file.name for file in tmp_path.iterdir()] == ["speed.json"]


def test_commit(tmp_path: Path) -> None:
    assert commit(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    file = tmp_path / "file"
    file.write_text("one")
    for command in (["init", "-q"], ["add", "file"], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *command], check=True)
    clean = commit(tmp_path)
    assert len(clean) >= 7
    assert int(clean, 16)
    file.write_text("two")
    assert commit(tmp_path) == f"{clean} with changes"


# -- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--dtypes", "fp32", "tf32"], "tf32 is a dtype of CUDA"),
        (["--runtimes", "cuda graphs", "--tasks", "inference"], "nothing to measure"),
        (["--runtimes", "--tasks", "inference"], "nothing to measure"),
        (["--short", "--json", "nowhere/speed.json"], "no folder nowhere"),
    ],
)
def test_what_cannot_be_measured(argv: list[str], message: str, capsys: pytest.CaptureFixture) -> None:
    assert speed.main(argv) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not captured.out


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_a_package_that_is_missing(
    runtime: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(speed.importlib.util, "find_spec", lambda name: None if name == runtime else name)
    assert speed.main(["--runtimes", runtime, "eager"]) == 2
    error = capsys.readouterr().err
    assert f"{runtime} not installed" in error
    assert '".[export]"' in error
    speed.check(speed.arguments(["--runtimes", "eager"]))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--rounds", "5"], "5 rounds; expected an odd number, at least 7"),
        (["--rounds", "8"], "8 rounds; expected an odd number, at least 7"),
        (["--runtimes", "eagre"], "'eagre'"),
        (["--device", "mps"], "'mps'; expected cpu"),
    ],
)
def test_arguments(argv: list[str], message: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as ended:
        speed.arguments(argv)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_the_plan_is_the_devices() -> None:
    cpu, cuda = (speed.arguments(["--device", name]) for name in ("cpu", "cuda"))
    assert {(run["batch"], run["dtype"]) for run in speed.plan(cpu)} == {
        (batch, dtype) for batch in (1, 16) for dtype in ("fp32", "bf16")
    }
    assert {run["runtime"] for run in speed.plan(cpu)} == {"eager", "compile", "onnxruntime", "openvino"}
    assert {run["runtime"] for run in speed.plan(cuda)} == {"eager", "compile", "cuda graphs"}
    assert {run["batch"] for run in speed.plan(cuda)} == {1, 16, 256}
    assert {run["dtype"] for run in speed.plan(cuda)} == {"fp32", "tf32", "bf16"}


@pytest.mark.parametrize("form", [torch.as_tensor, np.asarray])
def test_only_calls_that_give_timms_logits(form: Callable) -> None:
    logits = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    calls = {"timm": lambda: form(logits), "ours": lambda: form(logits + 1e-5), "DeiT-S": lambda: form([0.0])}
    check_same(calls, 1e-3)
    for bad in (logits + 1e-2, logits[::-1].copy(), logits * np.nan):
        with pytest.raises(UserError, match=r"ours, W padded: .*0\.001 is allowed"):
            check_same({**calls, "ours, W padded": lambda bad=bad: form(bad)}, 1e-3)


def test_int8_wants_images_to_test_and_to_calibrate_on(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "cat").mkdir()
    for i in range(20):
        Image.new("RGB", (1, 1)).save(tmp_path / "cat" / f"{i}.png")
    for images, message in (("8", "--images is 8"), ("16", "has 20 images; 16 to test and 256 to")):
        assert int8.main(["none", str(tmp_path), "--images", images]) == 2
        assert message in capsys.readouterr().err


# -- what is timed ------------------------------------------------------------------------------------------


def test_turns_are_taken() -> None:
    order: list[str] = []
    calls = {name: lambda name=name: order.append(name) for name in "AB"}
    taken = speed_clock.take_turns(calls, 3, CPU)
    assert "".join(order) == "AB" + 3 * "AB"
    assert [len(seconds) for seconds in taken.values()] == [3, 3]
    assert all(len(seconds) == 0 for seconds in speed_clock.take_turns(calls, 3, CPU, limit=-1.0).values())


@pytest.mark.parametrize("each", [1e-6, 1e-3, 0.049, 0.05, 3.0])
def test_runs_of_a_measurement_on_a_gpu(each: float) -> None:
    runs = speed_clock.enough_runs(lambda n: n * each)
    assert runs * each >= speed_clock.LEAST
    assert runs == 1 or runs * each < 2 * speed_clock.LEAST


def test_on_a_gpu_a_measurement_is_of_many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the GPU's events, which takes 4 ms a run."""
    measured: list[int] = []

    def seconds(device: torch.device, call: Callable, runs: int) -> float:
        measured.append(runs)
        return 4e-3 * runs

    monkeypatch.setattr(speed_clock, "gpu_seconds", seconds)
    calls: list[None] = []
    taken = speed_clock.take_turns({"A": lambda: calls.append(None)}, 7, torch.device("cuda"))
    assert len(calls) == speed_clock.GPU_WARM_UP  # and the stand-in calls nothing
    assert measured == [1, 2, 4, 8, 16, *(7 * [16])]
    assert taken == {"A": 7 * [pytest.approx(4e-3)]}


class Breaks(nn.Module):
    @torch.compiler.disable
    def add(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.add(x)


def test_nothing_compiled_falls_back_to_eager_mode() -> None:
    with pytest.raises(Exception, match=r"torch\.compiler\.disable"):
        compiled(Breaks(), torch.ones(2))()
