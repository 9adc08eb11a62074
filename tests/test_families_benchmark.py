"""benchmarks/speed/families.py and beside.py: what they measure and refuse, not how fast anything is."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch
from benchmark_scripts import load
from tiny import perturb, tiny

from gmlp_vision.checkpoints.names import from_ours
from gmlp_vision.models import vip

speed = load("speed")

THEIRS = """
import torch
from test_families_benchmark import Theirs

def make():
    return Theirs()

def nothing():
    return 3
"""


class Theirs(torch.nn.Module):
    """A ViP that keeps its weights under the authors' names."""

    def __init__(self, wrong: float = 1.0, fails: bool = False) -> None:
        super().__init__()
        self.inner, self.wrong, self.fails = perturb(tiny("vip_s7")), wrong, fails

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fails and torch.compiler.is_exporting():
            raise TypeError("their code asks for numpy")
        return self.inner(x) * self.wrong

    def state_dict(self) -> dict[str, torch.Tensor]:
        return from_ours(self.inner.state_dict(), vip.LAYOUTS["houqb"].rows_for(self.inner))


def test_every_family_is_in_the_table() -> None:
    assert all(timm.is_model(name) for name in speed.families.NAMES)
    ours = {n for n in timm.list_models() if timm.model_entrypoint(n).__module__.startswith("gmlp_vision.")}
    modules = {timm.model_entrypoint(name).__module__ for name in ours}
    shown = {timm.model_entrypoint(name).__module__ for name in speed.families.NAMES}
    assert modules <= shown


def test_a_row_for_each_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(speed.families, "REFERENCE", "gmlp_pico4")
    assert speed.families.main(["gmlp_pico4", "--batch", "1", "--rounds", "1"]) == 0
    out = capsys.readouterr().out
    assert "| gmlp_pico4 | 0.09 | " in out
    assert "batch 1" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [(["gmlp_z"], "no model gmlp_z"), (["gmlp_s16", "--batch", "0"], "batch is 0 and rounds 5")],
)
def test_what_cannot_be_measured(argv: list[str], message: str, capsys: pytest.CaptureFixture) -> None:
    assert speed.families.main(argv) == 2
    assert message in capsys.readouterr().err


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(
        speed.beside, "timm", SimpleNamespace(create_model=tiny, is_model=timm.is_model, data=timm.data)
    )
    file = tmp_path / "authors.py"
    file.write_text(THEIRS)
    return file


def test_beside_others(theirs: Path, capsys: pytest.CaptureFixture) -> None:
    argv = [
        "vip_s7",
        "--theirs",
        f"{theirs}:make",
        "--batch",
        "1",
        "--rounds",
        "1",
        "--runtimes",
        "eager",
        "training",
    ]
    assert speed.beside.main(argv) == 0
    out = capsys.readouterr().out
    assert "| vip_s7 | eager | " in out
    assert "| vip_s7 | training | " in out


@pytest.mark.long
def test_beside_what_cannot_be_exported(theirs: Path, capsys: pytest.CaptureFixture) -> None:
    theirs.write_text(THEIRS.replace("Theirs()", "Theirs(fails=True)"))
    argv = ["vip_s7", "--theirs", f"{theirs}:make", "--batch", "1", "--rounds", "1"]
    assert speed.beside.main([*argv, "--runtimes", "openvino"]) == 0
    row = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(
        r"\| vip_s7 \| openvino \| not exported \| \d+\.\d \| - \| - \| \(\w*Error: .*\)", row
    )


def test_beside_something_else(theirs: Path, capsys: pytest.CaptureFixture) -> None:
    theirs.write_text(THEIRS.replace("Theirs()", "Theirs(wrong=1.1)"))
    assert speed.beside.main(["vip_s7", "--theirs", f"{theirs}:make", "--batch", "1"]) == 2
    assert "nothing to time" in capsys.readouterr().err
    assert speed.beside.main(["vip_s7", "--theirs", f"{theirs}:nothing"]) == 2
    assert "gives a int" in capsys.readouterr().err
    assert speed.beside.main(["vip_s7", "--theirs", "nowhere.py:make"]) == 2
    assert "expected FILE.py:FUNCTION" in capsys.readouterr().err
