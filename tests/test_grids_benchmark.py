"""benchmarks/speed/grids.py: what it measures and refuses, not how fast anything is."""

import io
import json
from types import SimpleNamespace

import pytest
import timm
import torch
from benchmark_scripts import load
from tiny import TINY, images

grids = load("speed").grids


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models in the place of gMLP-S."""

    def create_model(name: str, **kwargs: object) -> torch.nn.Module:
        return timm.create_model(name, **{**TINY, **kwargs, "patch_size": 16})

    monkeypatch.setattr(grids, "timm", SimpleNamespace(create_model=create_model))
    # a limit would hold for the process of the tests too
    monkeypatch.setattr(grids, "resource", SimpleNamespace(RLIMIT_DATA=0, setrlimit=lambda *_: None))


def test_the_bytes_of_w() -> None:
    device = torch.device("meta")
    made = {name: grids.bytes_of_w(grids.make(name, 512, 6, device)) for name in grids.KINDS}
    each = {"dense": 1024**2, "toeplitz": 63**2, "7x7": 49, "axial": 2 * 32**2}
    assert made == {name: 5 * 4 * each[name] for name in grids.KINDS}
    assert len(grids.make("ViT-S", 512, 3, device).blocks) == 4


@pytest.mark.parametrize("task", grids.TASKS)
def test_a_worker_answers_each_line(
    task: str, small: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n\n"))
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert grids.main(["--part", "6", "--worker", "toeplitz", "64", task]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(answers) == 2
    for answer in answers:
        assert answer["seconds"] > 0
        assert answer["peak"] >= 0
        assert answer["w"] == 5 * 7 * 7 * 4


def test_a_step_has_gradients(small: None) -> None:
    model = grids.make("7x7", 64, 6, torch.device("cpu"))
    grids.call_of(model, "training", 64, False, torch.device("cpu"))()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    grids.call_of(model, "unit", 64, True, torch.device("cpu"))()
    assert model.eval()(images(1, 3, 64, 64)).shape == (1, 5)


def test_what_does_not_fit_and_what_fails(
    small: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def no_memory(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(grids, "make", no_memory)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n\n"))
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert grids.main(["--worker", "dense", "64", "inference"]) == 0
    assert capsys.readouterr().out == "null\n"


def test_a_row() -> None:
    def answers(*seconds: float, w: int = 2**21) -> list[dict[str, float]]:
        return [{"seconds": s, "peak": 2**22, "w": w} for s in seconds]

    found = {
        "dense": answers(0.1, 0.4, 0.4),
        "toeplitz": answers(0.05, 0.1, 0.4, w=2**19),
        "7x7": None,
        "ViT-S": answers(0.2, 0.2, 0.2),
    }
    args = SimpleNamespace(models=["dense", "toeplitz", "7x7", "axial", "ViT-S"], limit=3.0)
    assert grids.row(64, "unit", found, args) == (
        "| 64 | unit | 400.0 ms, 4 MiB, W 2 MiB | 100.0 ms (**2.00**), 4 MiB, W 0.50 MiB | over 3 GiB | - | "
        "200.0 ms (**2.00**), 4 MiB |"
    )


@pytest.mark.parametrize("argv", [["--rounds", "0"], ["--sizes", "224", "100"], ["--sizes", "0"]])
def test_what_cannot_be_measured(argv: list[str], capsys: pytest.CaptureFixture) -> None:
    assert grids.main(argv) == 2
    assert "expected 1 or more, multiples of 16" in capsys.readouterr().err
