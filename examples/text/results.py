"""What a run leaves: a small file of numbers, and W as pictures of 8 bits, so that tables and figures can be
made again without the weights."""

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from corpus import N, corpus
from torch import nn

from gmlp_vision.filters import extract
from gmlp_vision.filters.measure import toeplitz_share

HERE = Path(__file__).parent
FIRST = 32  # positions at which nearly every line of code still has a byte


def spatial_weights(model: nn.Module) -> torch.Tensor | None:
    """W of each block, (6, N, N); None where nothing is a map over tokens, as in attention."""
    try:
        return torch.stack([layer.matrix for layer in extract(model).select(kind="token")])
    except ValueError:
        return None


def shares(weights: torch.Tensor | None) -> dict[str, list[float | None]] | None:
    """Of each W, and of its part between the first positions: how much of it is Toeplitz, from 0 to 1."""
    if weights is None:
        return None
    return {
        "all": [toeplitz_share(w, (1, N)) for w in weights],
        "first": [toeplitz_share(w[:FIRST, :FIRST], (1, FIRST)) for w in weights],
    }


def about() -> dict[str, Any]:
    """Corpus, versions, day and kind of processor."""
    info = Path("/proc/cpuinfo")
    told = (
        dict(line.split(":", 1) for line in info.read_text().splitlines() if ":" in line)
        if info.exists()
        else {}
    )
    named = {key.strip(): value.strip() for key, value in told.items()}
    keys = ("vendor_id", "cpu family", "model")
    return {
        "corpus": corpus().about,
        "versions": {"torch": torch.__version__, "timm": timm.__version__},
        "date": time.strftime("%Y-%m-%d"),
        "cpu": ", ".join(f"{key} {named[key]}" for key in keys if key in named) or platform.machine(),
    }


def write_weights(path: Path, weights: torch.Tensor) -> None:
    """Each W as 8 bits, its largest entry at 127: 98 kB, enough for a picture and no model."""
    limit = weights.abs().amax((1, 2), keepdim=True).clamp(min=1e-30)
    np.savez_compressed(path, w=(weights / limit * 127).round().to(torch.int8).numpy(), limit=limit.numpy())


def read_weights(path: Path) -> torch.Tensor:
    """(6, N, N)"""
    with np.load(path) as file:
        return torch.from_numpy(file["w"]).float() / 127 * torch.from_numpy(file["limit"])


def check_same(run: dict[str, Any], found: dict[str, Any], file: Path) -> None:
    """Neither goes on with a run of other settings nor shows it as this one."""
    for key, value in run.items():
        if found[key] != value:
            raise SystemExit(f"{file} has {key} {found[key]}, not {value}: give another --name or --out")


def save_state(path: Path, state: Any) -> None:
    """Whole or not at all: a run that is killed while it writes goes on from the file before."""
    torch.save(state, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def read(folder: Path) -> list[dict[str, Any]]:
    """The runs of a folder."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
