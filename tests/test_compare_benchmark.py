"""benchmarks/speed/compare.py: two checkouts taking turns. With stand-ins that say how long they took."""

from pathlib import Path

import pytest
import torch
from benchmark_scripts import load, small_pair
from tiny import images

speed = load("speed")
compare = speed.compare

# Answers as side.py does, with what the package that it finds has.
SIDE = """
import json, sys, gmlp_vision
print(json.dumps(gmlp_vision.__file__), flush=True)
for line in sys.stdin:
    gmlp_vision.called(line.strip())
    print(json.dumps([gmlp_vision.SECONDS, gmlp_vision.LOGITS]), flush=True)
"""
PACKAGE = """
SECONDS, LOGITS = {seconds}, {logits}
def called(row):
    with open({log!r}, "a") as file:
        print({name!r}, row, file=file)
"""


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    (tmp_path / "side.py").write_text(SIDE)
    monkeypatch.setattr(compare, "SIDE", tmp_path / "side.py")

    def checkout(name: str, seconds: float = 1.0, logits: tuple = (1.0, 2.0, 4.0), then: str = "") -> str:
        package = tmp_path / name / "gmlp_vision"
        package.mkdir(parents=True)
        text = PACKAGE.format(seconds=seconds, logits=list(logits), name=name, log=str(tmp_path / "log"))
        (package / "__init__.py").write_text(text + then)
        return str(tmp_path / name)

    return checkout


def test_the_ratio_is_above_1_where_after_is_faster(
    make: object, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    argv = [make("before", 2.0), make("after", 1.6), "--rows", "eager", "training", "--pairs", "2"]
    assert compare.main(argv) == 0
    told = capsys.readouterr().out
    assert "| eager | 8.00 | 10.00 | **1.250** | 1.250 1.250 |" in told
    assert "| training | 8.00 | 10.00 | **1.250** | 1.250 1.250 |" in told
    calls = (tmp_path / "log").read_text().splitlines()
    once = [f"{name} eager" for name in ("after", "before", "before", "after") * 2]
    assert calls[:8] == once  # one of each to warm up, then three
    assert len(calls) == 2 * 2 * 8


def test_the_median_is_of_the_pairs() -> None:
    pairs = {"eager": [(1.0, 1.0), (3.0, 2.0), (8.0, 2.0)]}
    assert compare.table(pairs).splitlines()[2] == "| eager | 5.33 | 8.00 | **1.500** | 1.000 1.500 4.000 |"


def test_the_first_round_warms_up_but_where_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def runner(*seconds: float) -> object:
        left = list(seconds)
        return lambda row: (left.pop(0), [1.0, 2.0])

    assert compare.measure("eager", runner(9.0, 1.0, 2.0, 3.0), runner(9.0, 4.0, 4.0, 4.0)) == (2.0, 4.0)
    monkeypatch.setattr(compare, "LIMIT", 0.0)
    assert compare.measure("eager", runner(9.0), runner(8.0)) == (9.0, 8.0)


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (
            {"logits": (1.0, 2.0, 4.1)},
            "eager: the logits of the two differ by 0.065 of their spread, and 0.001",
        ),
        ({"then": "LOGITS = [float('nan')] * 3"}, "eager: the logits of the two differ by nan"),
        ({"then": "def called(row): raise SystemExit(3)"}, "after broke off with exit code 3"),
        ({"then": "raise SystemExit(4)"}, "after broke off with exit code 4"),
        (
            {"then": "__file__ = '/elsewhere/__init__.py'"},
            "took gmlp_vision from /elsewhere/__init__.py, not",
        ),
    ],
)
def test_what_is_not_compared(after: dict, message: str, make: object, capfd: pytest.CaptureFixture) -> None:
    assert compare.main([make("before"), make("after", **after), "--rows", "eager"]) == 2
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("compare.py: ")]
    assert message in line


def test_bad_input_is_one_line(make: object, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    before = make("before")
    for argv, message in (
        ([before, str(tmp_path)], "is no checkout of this repository"),
        ([before, before, "--pairs", "0"], "--pairs 0 --threads 2; expected 1 or more"),
    ):
        assert compare.main(argv) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith("compare.py: ")
        assert message in err


@pytest.mark.slow
def test_every_row_of_a_side_computes_what_timms_model_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(speed.side, "make_pair", small_pair)
    monkeypatch.setattr(speed.side, "images", lambda batch: images(batch, 3, 32, 32))
    theirs, x = small_pair("s")[1], images(speed.side.BATCH, 3, 32, 32)
    with torch.no_grad():
        expected = {"fp32": theirs(x), "bf16": theirs.bfloat16()(x.bfloat16()).float()}
    assert expected["fp32"].std(dim=0).min() > 1e-2
    for row, make in speed.side.ROWS.items():
        call = make(tmp_path / "m.onnx")
        logits = speed.models.logits(call)
        compare.check_same(row, expected["bf16" if row.endswith("bf16") else "fp32"], logits)
        if row in ("training", "checkpointed"):
            model = call.args[2]
            assert model.training
            assert model.grad_checkpointing == (row == "checkpointed")
            assert all(p.grad.abs().max() > 0 for p in model.parameters())
