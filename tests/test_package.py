"""What importing the package does, and what it leaves alone, in a fresh interpreter."""

import subprocess
import sys

import pytest
from zoo import ROWS

CODE = """
import socket
class Refused(socket.socket):
    def __init__(self, *args, **kwargs): raise AssertionError("a socket was opened")
socket.socket = Refused
import timm
before = {n: timm.model_entrypoint(n) for n in timm.list_models()}
assert not timm.list_models("gmlp_*16") and not timm.is_model("gmlp_pico4")
import gmlp_vision
after = {n: timm.model_entrypoint(n) for n in timm.list_models()}
assert all(after[n] is before[n] for n in before)
timm.create_model("gmlp_pico4", depth=1)
import sys
drawn = [m for m in sys.modules if m.split(".")[0] == "matplotlib"]
assert not drawn, drawn
new = sorted(set(after) - set(before))
print(*new, *{after[n].__module__ for n in new})
import importlib; importlib.reload(gmlp_vision)  # as a notebook does: nothing is registered twice
"""


@pytest.mark.slow
def test_import_is_silent_opens_no_socket_draws_nothing_and_leaves_timms_models_alone() -> None:
    command = [sys.executable, "-W", "error", "-c", CODE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    said = line.split()
    ours = sorted(name for row in ROWS for name in row.names)
    assert said[: len(ours)] == ours
    assert all(module.startswith("gmlp_vision.models.") for module in said[len(ours) :])
