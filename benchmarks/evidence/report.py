"""The table of evidence.py, from the runs on disk."""

import csv
import datetime
import json
import platform
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch
import yaml
from evidence_models import ROWS, parameters

from gmlp_vision.errors import UserError

OWN = {"device_modules", "model"}  # of the recipe's keys, those that a run sets itself
COLUMNS = ("row", "model", "parameters", "seeds", "top-1, mean", "std", "min", "max", "minutes a run")


class Run(NamedTuple):
    """A finished run."""

    top1: float  # in %
    options: dict[str, Any]  # all of train.py's
    further: list[str]  # those that were given by hand
    seconds: float  # wall time
    machine: dict[str, Any]  # as `machine` says of the run's device


def machine(device: torch.device) -> dict[str, Any]:
    """Day, processor, threads and versions."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.+)$", info.read_text(), flags=re.M) if info.exists() else []
    return {
        "date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC",
        "cpu": names[0] if names else platform.processor(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "threads": torch.get_num_threads(),
        "versions": {"timm": timm.__version__, "torch": torch.__version__},
    }


def folder_of(output: Path, row: str, seed: int) -> Path:
    """Where a run is, once it is finished."""
    return output / row / f"seed{seed}"


def read_options(folder: Path) -> dict[str, Any]:
    """All options of train.py in the run of this folder."""
    return yaml.safe_load((folder / "args.yaml").read_text())


def last_top1(folder: Path, epochs: int) -> float:
    """Top-1, in %, after the last epoch: not the best one, which would be chosen on the test images.

    Raises:
        UserError: train.py has not come to the end of its last epoch there.
    """
    summary = folder / "summary.csv"
    if summary.exists():
        with summary.open(newline="") as lines:
            for line in csv.DictReader(lines):
                if line["epoch"] == str(epochs - 1):
                    return float(line["eval_top1"])
    raise UserError(f"{summary} has no line of the last epoch, {epochs - 1}: train.py was stopped")


def read_runs(output: Path, seeds: Sequence[int]) -> dict[tuple[str, int], Run]:
    """The finished runs by (row, seed)."""
    runs = {}
    for row in ROWS:
        for seed in seeds:
            folder = folder_of(output, row, seed)
            if folder.is_dir():
                options = read_options(folder)
                told = json.loads((folder / "run.json").read_text())
                runs[row, seed] = Run(last_top1(folder, options["epochs"]), options, **told)
    return runs


def report(output: Path, seeds: Sequence[int], recipe: Mapping[str, Any]) -> str:
    """The table in Markdown, what is missing from it, where runs left the recipe, and the machines."""
    runs = read_runs(output, seeds)
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for row in ROWS:
        of_row = {seed: runs[row, seed] for seed in seeds if (row, seed) in runs}
        if of_row:
            lines.append(line(row, of_row))
    lines.append("")
    missing = [f"{row} seed {seed}" for row in ROWS for seed in seeds if (row, seed) not in runs]
    if missing:
        lines.append(f"Not run: {', '.join(missing)}.")
    for text, names in deviations(runs, recipe).items():
        lines.append(
            f"Other than the recipe: {text} ({'all' if len(names) == len(runs) else ', '.join(names)})."
        )
    return "\n".join(lines + machines(runs))


def line(row: str, runs: Mapping[int, Run]) -> str:
    top1 = [run.top1 for run in runs.values()]
    std = f"{statistics.stdev(top1):.2f}" if len(top1) > 1 else "-"
    minutes = statistics.mean(run.seconds for run in runs.values()) / 60
    cells = [
        *(row, ROWS[row].title, f"{parameters(ROWS[row]):,}", ", ".join(map(str, runs))),
        *(f"{statistics.mean(top1):.2f}", std, f"{min(top1):.2f}", f"{max(top1):.2f}", f"{minutes:.1f}"),
    ]
    return f"| {' | '.join(cells)} |"


def deviations(runs: Mapping[tuple[str, int], Run], recipe: Mapping[str, Any]) -> dict[str, list[str]]:
    """What was not as the recipe says, or was said beyond it, and of which runs."""
    found: dict[str, list[str]] = {}
    for (row, seed), run in runs.items():
        texts = [
            f"{key} {run.options.get(key)!r}, not {value!r}"
            for key, value in recipe.items()
            if key not in OWN and run.options.get(key) != value
        ]
        if run.further:
            texts.append(f"given {' '.join(run.further)}")
        for text in texts:
            found.setdefault(text, []).append(f"{row} seed {seed}")
    return found


def machines(runs: Mapping[tuple[str, int], Run]) -> list[str]:
    """Days and machines, each once."""
    kinds: dict[str, set[str]] = {}
    for run in runs.values():
        where, versions = run.machine, run.machine["versions"]
        kind = f"{where['gpu'] or where['cpu']}, threads a run: {where['threads']}, timm {versions['timm']}, "
        kinds.setdefault(kind + f"torch {versions['torch']}", set()).add(where["date"].split()[0])
    return [f"{', '.join(sorted(days))}, {kind}." for kind, days in kinds.items()]
