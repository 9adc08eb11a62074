"""What the operators of the families learned: statistics and a picture of each run, which outlive it."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import timm
from families import FAMILIES, TRIES
from report import markdown
from runs import folder_of, read_lines, read_options, write_lines
from timm.models import load_checkpoint

from gmlp_vision.filters import FilterBank, extract, plot_kernels, save_figure
from gmlp_vision.filters.extract import find

ROWS = (*FAMILIES, *TRIES)
STATISTICS = "learned.jsonl"
PICTURES = "learned"
DPI = 100
EACH = 4
COLUMNS = (
    "row",
    "seed",
    "kind",
    "maps",
    "reach, in tokens",
    "of a random one",
    "explained by offsets",
    "of a random one",
    "anisotropy",
    "symmetry",
)
MEANS = (
    "locality",
    "locality_random",
    "toeplitz_share",
    "toeplitz_share_random",
    "anisotropy",
    "symmetry",
)


def learned(output: Path, seeds: Sequence[int], recipe: Mapping[str, Any]) -> str:
    """A line for each run of a family, tries too, with maps over tokens, means over its layers.

    Reads the last checkpoint of the runs whose folders are there, writes their statistics, layer by layer,
    into a file in `output` and draws the first seed's kernels into a folder beside it. Statistics of runs
    whose folders are gone stay.
    """
    known = read_learned(output)
    for row in ROWS:
        for seed in seeds:
            folder = folder_of(output, row, seed)
            bank = bank_of(folder) if folder.is_dir() else None
            if bank:
                known[row, seed] = [asdict(layer) for layer in bank.stats()]
                if seed == seeds[0]:
                    (output / PICTURES).mkdir(exist_ok=True)
                    save_figure(plot_kernels(a_few(bank)), output / PICTURES / f"{row}.png", dpi=DPI)
    if known:
        write_lines(output / STATISTICS, {key: {"layers": layers} for key, layers in known.items()})
    cells = [
        [row, str(seed), kind, str(len(layers)), *(_mean(layers, field) for field in MEANS)]
        for row in ROWS
        for seed in seeds
        for kind, layers in _by_kind(known.get((row, seed), [])).items()
    ]
    return "\n".join(markdown(COLUMNS, cells))


def bank_of(folder: Path) -> FilterBank | None:
    """The maps over tokens of a run's model after its last epoch, without those of a single token; None if
    it has none.
    """
    options = read_options(folder)
    sizes = options.get("model_kwargs") or {}
    model = timm.create_model(options["model"], num_classes=options["num_classes"], **sizes)
    load_checkpoint(model, str(folder / "last.pth.tar"))
    if not any(find(model, options["model"], None)):
        return None
    bank = extract(model)
    return replace(bank, layers=tuple(layer for layer in bank if layer.grid != (1, 1)))


def a_few(bank: FilterBank) -> FilterBank:
    """What a picture of a page has room for: the first EACH maps or kernels of a block."""
    seen: Counter[int] = Counter()
    few = []
    for layer in bank:
        if layer.kind != "hidden":
            seen[layer.block] += 1
            if seen[layer.block] <= EACH:
                few.append(layer)
    return replace(bank, layers=tuple(few))


def read_learned(output: Path) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """What `learned` wrote, by row and seed, a dict of statistics a layer; {} where it wrote nothing."""
    return {key: told["layers"] for key, told in read_lines(output / STATISTICS).items()}


def _by_kind(layers: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    kinds = dict.fromkeys(layer["kind"] for layer in layers)
    return {kind: [layer for layer in layers if layer["kind"] == kind] for kind in kinds}


def _mean(layers: Sequence[dict[str, Any]], field: str) -> str:
    """ "-" where the statistic is not one of this kind of map."""
    found = [layer[field] for layer in layers if layer[field] is not None]
    return f"{statistics.mean(found):.2f}" if found else "-"
