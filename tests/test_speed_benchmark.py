"""benchmarks/speed/: that no figure of it lies, not how fast it is."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmark_scripts import load, small_pair
from tiny import images, perturb
from torch import nn

from gmlp_vision.errors import UserError

speed = load("speed")
CPU = torch.device("cpu")
RUN = {"model": "ti", "batch": 16, "dtype": "fp32", "runtime": "eager", "task": "inference"}


# -- processes and their rows -------------------------------------------------------------------------------


def test_the_shell_does_not_tune_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "3")
    kept = speed.processes.environment("as it is")
    assert not [name for name in kept if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES"]
    assert kept["OMP_NUM_THREADS"] == "3"
    raised = speed.processes.environment("thresholds raised")
    assert raised.keys() - kept.keys() == {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}
    assert int(raised["MALLOC_MMAP_THRESHOLD_"]) > 2**29


def test_rows_of_a_process_that_fails_are_kept() -> None:
    code = "print('{\"a\": 1}\\n{\"b', end='', flush=True); exit(3)"
    rows = speed.processes.rows_of([sys.executable, "-c", code], "as it is")
    assert next(rows) == {"a": 1}
    with pytest.raises(UserError, match="'as it is' broke off with exit code 3"):
        next(rows)


@pytest.fixture
def a_row() -> dict:
    seconds = {"timm": [1.0, 2.0, 9.0], "ours": [1.0, 1.0, 8.0], "product": [0.1, 0.2, 0.3]}
    (row,) = speed.rows.rows({"allocator": "as it is", **RUN}, seconds, 10**9, 2048**3)
    return row


def test_a_row_has_medians_and_all_that_was_measured(a_row: dict) -> None:
    assert a_row["images_per_second"] == {"timm": 8.0, "ours": 16.0}
    assert a_row["ratio"] == 2
    assert a_row["of_bound"] == pytest.approx(16 / (2048**3 / 0.2 / 1e9))
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

    monkeypatch.setattr(speed.speed, "rows_of", breaks_off)
    monkeypatch.setattr(speed.speed, "product_rates", lambda: {"MKL": 100.0, "oneDNN": 150.0})
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    out = tmp_path / "speed.json"
    assert speed.speed.main(["--short", "--json", str(out)]) == code
    told, captured = json.loads(out.read_text()), capsys.readouterr()
    assert told["rows"] == [a_row]
    assert told["gflops"] == {"MKL": 100.0, "oneDNN": 150.0}
    assert told["variables"]["ONEDNN_MAX_CPU_ISA"] == "AVX2"
    for shown in ("| **2.000** |", "MKL 100, oneDNN 150", "'ONEDNN_MAX_CPU_ISA': 'AVX2'", told["cpu"]):
        assert shown in captured.out
    assert captured.err == f"speed.py: {'broke off' if code == 2 else 'stopped'}\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--dtypes", "fp32", "tf32"], "tf32 is a dtype of CUDA"),
        (["--runtimes", "cuda graphs", "--tasks", "inference"], "nothing to measure"),
        (["--short", "--json", "nowhere/speed.json"], "no folder nowhere"),
        (["--batches", "1", "0"], "expected 1 or more"),
    ],
)
def test_what_cannot_be_measured(argv: list[str], message: str, capsys: pytest.CaptureFixture) -> None:
    assert speed.speed.main(argv) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not captured.out


# -- the machine --------------------------------------------------------------------------------------------


def test_the_number_of_a_cpus_model_is_told(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    lines = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\npower:\n\n"
    info.write_text(f"processor\t: 0\n{lines}processor\t: 1\n{lines}")
    assert speed.machine.cpu(info).startswith("AuthenticAMD family 25 model 17 (AMD EPYC), ")
    assert speed.machine.cpu(tmp_path / "none").startswith(("x86_64", "arm", "aarch64"))


def test_rates_of_the_products(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = {}

    def take_turns(calls: dict[str, Callable], *_: object) -> dict[str, list[float]]:
        outputs.update({name: call() for name, call in calls.items()})
        return {name: [0.1 * (i + 1), 8.0, 0.0] for i, name in enumerate(calls)}

    monkeypatch.setattr(speed.machine, "take_turns", take_turns)
    flop = 2 * 3136 * 256 * 1536
    assert speed.machine.product_rates() == {
        "MKL": pytest.approx(flop / 0.1 / 1e9),
        "oneDNN": pytest.approx(flop / 0.2 / 1e9),
    }
    assert outputs["MKL"].std() > 1
    torch.testing.assert_close(outputs["oneDNN"], outputs["MKL"], atol=1e-4, rtol=1e-4)
    monkeypatch.setattr(speed.machine, "suits_onednn", lambda x: False)
    assert speed.machine.product_rates().keys() == {"linear layer"}


# -- what is timed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [torch.as_tensor, np.asarray])
def test_only_calls_that_give_timms_logits(form: Callable) -> None:
    check_same = speed.models.check_same
    logits = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    calls = {"timm": lambda: form(logits), "ours": lambda: form(logits + 1e-5), "DeiT-S": lambda: form([0.0])}
    check_same(calls, 1e-3)
    for bad in (logits + 1e-2, logits[::-1].copy(), logits * np.nan):
        with pytest.raises(UserError, match=r"ours, W padded: .*0\.001 is allowed"):
            check_same({**calls, "ours, W padded": lambda bad=bad: form(bad)}, 1e-3)


def test_turns_are_taken() -> None:
    order: list[str] = []
    calls = {name: lambda name=name: order.append(name) for name in "AB"}
    taken = speed.clock.take_turns(calls, 3, CPU)
    assert "".join(order) == "AB" + 3 * "AB"
    assert [len(seconds) for seconds in taken.values()] == [3, 3]
    assert all(len(seconds) == 0 for seconds in speed.clock.take_turns(calls, 3, CPU, limit=-1.0).values())


def test_on_a_gpu_a_measurement_is_of_many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the clock, by which a run takes 4 ms."""
    now, calls = [0.0], []

    def call() -> None:
        calls.append(None)
        now[0] += 4e-3

    monkeypatch.setattr(speed.clock, "synchronize", lambda device: None)
    monkeypatch.setattr(speed.clock.time, "perf_counter", lambda: now[0])
    taken = speed.clock.take_turns({"A": call}, 7, torch.device("cuda"))
    assert taken == {"A": 7 * [pytest.approx(4e-3)]}
    assert len(calls) == speed.clock.WARM_UP["cuda"] + 1 + 7 * 13  # 13 x 4 ms are the first beyond 50 ms


class Breaks(nn.Module):
    @torch.compiler.disable
    def add(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.add(x)


def test_nothing_compiled_falls_back_to_eager_mode() -> None:
    with pytest.raises(Exception, match=r"torch\.compiler\.disable"):
        speed.runtimes.compiled(Breaks(), torch.ones(2))()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed.rates, "SIDES", {"cpu": 8})
    monkeypatch.setattr(speed.rates, "images", lambda batch: images(batch, 3, 32, 32))
    for module in (speed.rates, speed.side):
        monkeypatch.setattr(module, "make_pair", small_pair)
    monkeypatch.setattr(speed.rates, "make_baselines", lambda size: {"DeiT-S": perturb(small_pair(size)[1])})


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_run_without_gradients() -> None:
    args = argparse.Namespace(device=CPU, short=False, rounds=3)
    ours, pieces = speed.rates.inference({"allocator": "as it is", **RUN}, args)
    assert (ours["variant"], pieces["variant"]) == ("ours", "ours, in pieces of 4")
    assert ours["images_per_second"].keys() == {"timm", "ours", "DeiT-S"}
    assert speed.rows.line(ours).count("|") == len(speed.rows.COLUMNS) + 1


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_run_of_training() -> None:
    args = argparse.Namespace(device=CPU, short=False, rounds=3)
    run = {**RUN, "batch": 2, "dtype": "bf16", "task": "training"}
    plain, selective, block = speed.rates.training({"allocator": "as it is", **run}, args)
    alive = {row["variant"]: row["activations"][row["variant"]][0] for row in (plain, selective, block)}
    assert alive["ours, checkpointing blocks"] < alive["ours, checkpointing"] < alive["ours"]
    assert all(peak > kept > 0 for kept, peak in plain["activations"].values())
    timms = plain["activations"]["timm"][0]
    assert f"({alive['ours'] / timms:.3f})" in speed.rows.line(plain)
