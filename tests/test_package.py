"""What importing the package does, and what it leaves alone. Each in a fresh interpreter."""

import subprocess
import sys

import pytest
from zoo import ROWS


def python(code: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_import_is_silent_opens_no_socket_and_draws_nothing() -> None:
    code = """
import socket
class Refused(socket.socket):
    def __init__(self, *args, **kwargs): raise AssertionError("a socket was opened")
socket.socket = Refused
import timm, gmlp_vision
timm.create_model("gmlp_pico4", depth=1)
import sys
drawn = [m for m in sys.modules if m.split(".")[0] == "matplotlib"]
assert not drawn, drawn
"""
    done = python(code, "-W", "error")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
def test_timms_own_models_stay_and_ours_come() -> None:
    code = """
import timm
before = {n: timm.model_entrypoint(n) for n in timm.list_models()}
assert not timm.list_models("gmlp_*16") and not timm.is_model("gmlp_pico4")
import gmlp_vision
after = {n: timm.model_entrypoint(n) for n in timm.list_models()}
assert all(after[n] is before[n] for n in before)
new = sorted(set(after) - set(before))
print(*new, *{after[n].__module__ for n in new})
import importlib; importlib.reload(gmlp_vision)  # as a notebook does: nothing is registered twice
"""
    done = python(code, "-W", "error")
    assert done.stderr == ""
    said = done.stdout.split()
    ours = sorted(name for row in ROWS for name in row.names)
    assert said[: len(ours)] == ours
    assert all(module.startswith("gmlp_vision.models.") for module in said[len(ours) :])
