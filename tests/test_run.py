"""The launcher, with small scripts of the tests' own in a folder that looks like a checkout of timm."""

import json
import os
import subprocess
import sys
from multiprocessing import Process, get_context
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
import timm

from gmlp_vision.cli import main
from gmlp_vision.errors import UserError
from gmlp_vision.run import find_script, put_last, run_script

COMMAND = str(Path(sys.executable).with_name("gmlp-vision"))

# What a script of timm does: imports timm and a module beside it, makes a model, loads data in workers. They
# know this package's models too.
PROBE = """
import json, sys
import sibling, timm
from torch.utils.data import DataLoader, Dataset

class Files(Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, i):
        return timm.__file__ if timm.is_model("gmlp_pico4") else "a worker that knows no models"

if __name__ == "__main__":
    model = timm.create_model("gmlp_pico4", depth=1)
    seen = {
        start: [x for b in DataLoader(Files(), num_workers=1, multiprocessing_context=start) for x in b]
        for start in ("fork", "spawn")
    }
    print(json.dumps({"argv": sys.argv, "timm": timm.__file__, "sibling": sibling.WORD, "workers": seen,
                      "model": type(model).__module__}))
    sys.exit(7)
"""

GLOO = """
import timm, torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = timm.create_model("gmlp_pico4", depth=1, embed_dim=16)
torch.manual_seed(dist.get_rank())
torch.nn.init.normal_(model.head.weight)
model = torch.nn.parallel.DistributedDataParallel(model)
loss = model(torch.randn(2, 3, 32, 32)).square().mean()
loss.backward()
grad = model.module.head.weight.grad.clone()  # each number: a sum of them depends on where they lie in memory
both = [torch.zeros_like(grad) for _ in range(2)]
dist.all_gather(both, grad)
# one write for each line: torchrun's processes are unbuffered and share the pipe
print(f"gradients {dist.get_rank()} {torch.equal(*both) and bool(grad.any())}\\n", end="")
dist.destroy_process_group()
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with scripts, a module beside them, and a timm/ that must not be imported."""
    folder = tmp_path / "checkout"
    (folder / "timm").mkdir(parents=True)
    (folder / "timm/__init__.py").write_text("raise ImportError('this is the timm of the checkout')")
    (folder / "sibling.py").write_text("WORD = 'beside'")
    (folder / "probe.py").write_text(PROBE)
    (folder / "gloo.py").write_text(GLOO)
    return folder


@pytest.fixture
def process_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives sys.path and sys.argv back to the tests that run a script in this process."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.delenv("TIMM_SCRIPTS", raising=False)


@pytest.mark.slow
def test_the_installed_timm_is_used_in_a_checkout(checkout: Path) -> None:
    done = subprocess.run(
        [COMMAND, "run", "probe.py", "--size", "8", "-h"], cwd=checkout, capture_output=True, text=True
    )
    assert done.returncode == 7, done.stderr
    seen = json.loads(done.stdout)
    assert seen == {
        "argv": [str(checkout / "probe.py"), "--size", "8", "-h"],
        "timm": timm.__file__,
        "sibling": "beside",
        "workers": {"fork": [timm.__file__] * 2, "spawn": [timm.__file__] * 2},
        "model": "gmlp_vision.models.gmlp",
    }


@pytest.mark.slow
def test_two_processes_under_torchrun(checkout: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", COMMAND, "run", "gloo.py"],
        cwd=checkout,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("gradients")]  # gloo may speak too
    assert sorted(said) == ["gradients 0 True", "gradients 1 True"]


def test_a_script_runs_as_main_with_its_arguments(
    process_state: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "say.py").write_text(
        "import sys, timm\nprint(__name__, sys.argv[1:], timm.is_model('gmlp_s16'))"
    )
    for args in (["--config", "x.yaml", "--help", "data"], ["--", "--version"], ["a", "--", "--", "-h"]):
        assert main(["run", str(tmp_path / "say.py"), *args]) == 0
        assert capsys.readouterr().out == f"__main__ {args} True\n"
    assert sys.path[-1] == str(tmp_path.resolve())


@pytest.mark.parametrize("status", [0, 3, "it is wrong"])
def test_exit_status_passes_through(process_state: None, tmp_path: Path, status: object) -> None:
    (tmp_path / "end.py").write_text(f"import sys\nsys.exit({status!r})")
    with pytest.raises(SystemExit) as ended:
        main(["run", str(tmp_path / "end.py")])
    assert ended.value.code == status


def test_the_scripts_own_error_keeps_its_traceback(
    process_state: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command line puts its own errors on one line, a ValueError among them, but not a script's."""
    script = tmp_path / "fail.py"
    script.write_text("def inner():\n    raise ValueError('of the script')\ninner()")
    with pytest.raises(SystemExit) as ended:
        main(["run", str(script)])
    assert ended.value.code == 1
    err = capsys.readouterr().err
    assert f'File "{script.resolve()}", line 2, in inner' in err
    assert err.endswith("ValueError: of the script\n")
    with pytest.raises(ValueError, match="of the script"):
        run_script(script, [])


@pytest.mark.parametrize(
    "kind", [get_context(start).Process for start in ("spawn", "forkserver")] + [Process]
)
def test_a_worker_is_made_by_this_package(process_state: None, tmp_path: Path, kind: type) -> None:
    """To unpickle itself it imports the package, whatever the script imports."""
    (tmp_path / "nothing.py").touch()
    run_script(tmp_path / "nothing.py", [])
    sent = bytes(ForkingPickler.dumps(with_no_key(kind(target=print, args=(3,), name="mine"))))
    assert b"gmlp_vision.run" in sent
    made = ForkingPickler.loads(sent)
    assert (type(made), made.name, made._target, made._args) == (kind, "mine", print, (3,))


def with_no_key(process: BaseProcess) -> BaseProcess:
    """Its key goes nowhere but to a worker that is being spawned."""
    process._config = {}
    return process


def test_a_bare_name_is_looked_up(
    process_state: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, scripts = tmp_path / "here", tmp_path / "scripts"
    for path in (here / "a.py", here / "b.py", scripts / "a.py", scripts / "c.py"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    monkeypatch.chdir(here)
    assert find_script("a.py") == here / "a.py"
    monkeypatch.setenv("TIMM_SCRIPTS", str(scripts))
    assert find_script("a.py") == scripts / "a.py"
    assert find_script("b.py") == here / "b.py"
    assert find_script("c.py") == scripts / "c.py"
    assert find_script("./a.py") == here / "a.py"  # a path, so not looked up
    with pytest.raises(UserError):
        find_script("./c.py")


def test_a_missing_script_says_how_to_get_it(
    process_state: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIMM_SCRIPTS", str(tmp_path))
    assert main(["run", "validate.py", "--model", "gmlp_s16"]) == 2
    err = capsys.readouterr().err
    clone = f"git clone --depth 1 --branch v{timm.__version__} https://github.com/huggingface/pytorch-image-models"
    assert clone in err
    assert str(tmp_path / "validate.py") in err
    assert err.count("\n") == 1


def test_put_last(process_state: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sys.path[:] = ["", "/first", str(tmp_path), "/second"]
    monkeypatch.chdir(tmp_path)
    put_last(tmp_path)
    assert sys.path == ["/first", "/second", str(tmp_path.resolve())]
    put_last("/new")
    assert sys.path[-2:] == [str(tmp_path.resolve()), "/new"]
