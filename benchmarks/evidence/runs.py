"""What a finished run leaves: a folder of train.py's, and a line in a file that outlives the folder."""

import csv
import datetime
import json
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch
import yaml

from gmlp_vision.atomic import write_file
from gmlp_vision.errors import UserError

RECORDS = "runs.jsonl"
# Options of train.py that say where something lies on a machine
PLACES = {"config", "data_dir", "experiment", "output"}


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


def read_runs(output: Path, rows: Iterable[str], seeds: Sequence[int]) -> dict[tuple[str, int], Run]:
    """The finished runs by (row, seed): their folders, and the records of those that have none."""
    recorded = read_records(output)
    runs = {}
    for row in rows:
        for seed in seeds:
            folder = folder_of(output, row, seed)
            if folder.is_dir():
                runs[row, seed] = read_run(folder)
            elif (row, seed) in recorded:
                runs[row, seed] = recorded[row, seed]
    return runs


def read_run(folder: Path) -> Run:
    options = read_options(folder)
    told = json.loads((folder / "run.json").read_text())
    return Run(last_top1(folder, options["epochs"]), options, **told)


def read_records(output: Path) -> dict[tuple[str, int], Run]:
    """What `record` wrote; {} where it wrote nothing."""
    return {key: Run(**told) for key, told in read_lines(output / RECORDS).items()}


def record(output: Path, seeds: Sequence[int], recipe: Mapping[str, Any]) -> str:
    """Writes a line for each finished run of whichever row into a file in `output`, which a table is printed
    from as from the folders. Lines of runs whose folders are gone stay.

    Of train.py's options, those that name places on the machine are left out, and what is not set.
    """
    records = read_records(output)
    for told in output.glob("*/seed*/run.json"):
        row, seed = told.parent.parent.name, int(told.parent.name.removeprefix("seed"))
        if seed in seeds:
            run = read_run(told.parent)
            records[row, seed] = run._replace(options=without_places(run.options))
    write_lines(output / RECORDS, {key: run._asdict() for key, run in records.items()})
    return f"{output / RECORDS}: {len(records)} runs"


def read_lines(file: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """What `write_lines` wrote; {} where there is no file."""
    found = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        told = json.loads(line)
        found[told.pop("row"), told.pop("seed")] = told
    return found


def write_lines(file: Path, told: Mapping[tuple[str, int], Mapping[str, Any]]) -> None:
    """A line of JSON for each (row, seed), sorted."""
    lines = [json.dumps({"row": row, "seed": seed, **of}) + "\n" for (row, seed), of in sorted(told.items())]
    file.parent.mkdir(parents=True, exist_ok=True)
    write_file(file, "".join(lines))


def without_places(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: of for key, of in options.items() if key not in PLACES and of is not None}
