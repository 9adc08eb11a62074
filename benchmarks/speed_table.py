"""Rows of speed.py as lines of a table, and where they were measured."""

import datetime
import os
import platform
import statistics
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

Row = dict[str, Any]

COLUMNS = (
    *("allocator", "model", "batch", "dtype", "runtime", "task", "variant"),
    *("timm img/s", "ours img/s", "ratio", "of bound"),
    *("activations, MiB an image: alive (of timm's), peak", "instead, img/s"),
)


def line(row: Row) -> str:
    """One row of `speed.rows` in Markdown."""
    speeds = dict(row["images_per_second"])
    timm_speed, speed = speeds.pop("timm"), speeds.pop(row["variant"])
    memory = ""
    if "activations" in row:
        (alive, peak), (timm_alive, _) = row["activations"][row["variant"]], row["activations"]["timm"]
        memory = f"{alive:.1f} ({alive / timm_alive:.3f}), {peak:.1f}"
    cells = [row[k] for k in COLUMNS[:7]]
    cells += [f"{timm_speed:.2f}", f"{speed:.2f}", f"**{row['ratio']:.3f}**", f"{row['of_bound']:.2f}"]
    cells += [memory, ", ".join(f"{name} {v:.2f}" for name, v in speeds.items())]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def table(rows: list[Row]) -> str:
    return "\n".join([f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", *map(line, rows)])


def machine(device: torch.device) -> dict[str, Any]:
    """Date, processor, and the versions of all that was measured; the commit is None outside a checkout."""
    info = Path("/proc/cpuinfo")
    names = [s for s in info.read_text().splitlines() if s.startswith("model name")] if info.exists() else []
    cpu = names[0].partition(":")[2].strip() if names else platform.processor()
    packages = ("torch", "timm", "onnxruntime", "openvino", "gmlp-vision")
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(Path(__file__).parent),
        "cpu": f"{cpu}, {os.cpu_count()} cores",
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "versions": {"python": platform.python_version(), **{p: installed(p) for p in packages}},
    }


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
