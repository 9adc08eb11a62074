"""Where a figure was measured: date, commit, processor, versions, and how fast this machine multiplies."""

import datetime
import os
import platform
import re
import statistics
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from clock import take_turns
from torch.nn.functional import linear

from gmlp_vision.layers.linear import project_channels, suits_onednn

# What changes the speed of a CPU from outside: these imitate another one, or bind threads.
TUNING = ("MKL_", "ONEDNN_", "DNNL_", "OMP_", "GOMP_", "KMP_", "ATEN_CPU_CAPABILITY")


def machine(device: torch.device) -> dict[str, Any]:
    """Date, processor, versions of all that was measured, and the variables that tune it.

    The commit is None outside a checkout.
    """
    packages = ("torch", "timm", "onnxruntime", "openvino", "gmlp-vision")
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(Path(__file__).parent),
        "cpu": cpu(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "versions": {"python": platform.python_version(), **{p: installed(p) for p in packages}},
        "variables": {k: v for k, v in sorted(os.environ.items()) if k.startswith(TUNING)},
    }


def cpu(info: Path = Path("/proc/cpuinfo")) -> str:
    """Vendor, family, model number and name where Linux tells them, vector units in use, number of cores.

    The name alone does not do: a virtual machine may say "AMD EPYC" of any of them.
    """
    told = dict(re.findall(r"^(.*?)[ \t]*: (.+)$", info.read_text(), flags=re.M)) if info.exists() else {}
    parts = [text.format(told[key]) for key, text in CPUINFO.items() if key in told]
    name = " ".join(parts) or platform.processor() or platform.machine()
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores"


CPUINFO = {"vendor_id": "{}", "cpu family": "family {}", "model": "model {}", "model name": "({})"}


def product_rates() -> dict[str, float]:
    """GFLOP/s in float32 of MKL, which has torch's linear layers on a CPU, and of oneDNN, for convolutions.

    The product is that with U of gMLP-S at batch 16: (3136, 256) by (256, 1536). Where torch has not both
    libraries, it is that of its linear layer alone.
    """
    x, weight, bias = torch.randn(16, 196, 256), torch.randn(1536, 256), torch.randn(1536)
    calls = {"linear layer": lambda: linear(x, weight, bias)}
    if suits_onednn(x):
        calls = {"MKL": calls["linear layer"], "oneDNN": lambda: project_channels(x, weight, bias)}
    with torch.inference_mode():
        taken = take_turns(calls, 15, torch.device("cpu"))
    flop = 2 * x.numel() * len(weight)
    return {name: flop / statistics.median(seconds) / 1e9 for name, seconds in taken.items()}


def commit(folder: Path) -> str | None:
    """What git has checked out there, as "abc1234" or "abc1234 with changes"; None where it has nothing."""
    command = ["git", "-C", str(folder), "describe", "--always", "--exclude=*", "--dirty= with changes"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def import_seconds() -> float:
    """How much longer a process takes to import this package once it has timm; the median of 5."""
    code = "import time, timm; t = time.perf_counter(); import gmlp_vision; print(time.perf_counter() - t)"
    runs = [
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE) for _ in range(5)
    ]
    return statistics.median(float(run.stdout) for run in runs)
