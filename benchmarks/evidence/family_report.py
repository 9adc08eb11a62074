"""The table of families.py, from the runs on disk and what speeds.py wrote."""

import statistics
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import timm
from evidence_models import IMAGES, NADAMUON, parameters, values
from families import FAMILIES, MODELS, OTHER_RATES, RECIPES, TRIES
from report import deviations, machines, markdown, spread
from runs import Run, read_runs
from speeds import INFERENCE, read_speeds

from gmlp_vision.zoo import count_macs

COLUMNS = (
    *("family", "model", "parameters", "MMACs"),
    *(f"top-1, {recipe}" for recipe in RECIPES),
    *(f"images/s in training, {recipe}" for recipe in RECIPES),
    "images/s in inference",
    *(f"minutes, {recipe}" for recipe in RECIPES),
)

# From a column of the tries to the prefix of its rows, all by NAdaMuon
TRY_COLUMNS = {
    NADAMUON["lr"]: "nadamuon",
    **{rate: f"lr{rate}" for rate in OTHER_RATES},
    f"{NADAMUON['lr']}, small start": "small",
}


class Row(NamedTuple):
    """What there is to say of a family.

    Attributes:
        runs: By recipe and seed.
        macs: Multiply-adds of an image, without those of FFTs.
        images: Per second, by recipe, and of inference; {} where nothing was measured.
    """

    family: str
    title: str
    parameters: int
    macs: int
    runs: dict[str, dict[int, Run]]
    images: dict[str, float]

    def top1(self, recipe: str) -> list[float]:
        """Of each seed that was run, in %."""
        return [run.top1 for run in self.runs[recipe].values()]

    def cells(self) -> list[str]:
        """One for each of COLUMNS; "-" for what was not run."""
        return [
            self.family,
            self.title,
            f"{self.parameters:,}",
            f"{self.macs / 1e6:.1f}",
            *(spread(self.top1(recipe)) for recipe in RECIPES),
            *(f"{self.images[task]:.0f}" if self.images else "-" for task in (*RECIPES, INFERENCE)),
            *(self.minutes(recipe) for recipe in RECIPES),
        ]

    def minutes(self, recipe: str) -> str:
        seconds = [run.seconds for run in self.runs[recipe].values()]
        return f"{statistics.mean(seconds) / 60:.1f}" if seconds else "-"


def families(output: Path, seeds: Sequence[int], recipe: Mapping[str, Any]) -> str:
    """What each family learns by each recipe, and what it costs, the best first; below as `report`."""
    runs = read_runs(output, FAMILIES, seeds)
    lines = markdown(COLUMNS, [row.cells() for row in best_first(read_rows(output, seeds))])
    lines.append("")
    for name in RECIPES:
        missing = [
            family for family in MODELS if not any((f"{name}_{family}", seed) in runs for seed in seeds)
        ]
        if missing:
            lines.append(f"Not run by {name}: {', '.join(missing)}.")
    measured = read_speeds(output)
    if measured:
        where = measured["machine"]
        lines.append(
            f"Images a second: {where['date']}, {where['cpu']}, {where['threads']} threads, batch "
            f"{measured['batch']}, {measured['precision']}, median of {measured['rounds']}, all in turns."
        )
    return "\n".join([*lines, *deviations(FAMILIES, runs, recipe), *machines(runs)])


def best_first(rows: Sequence[Row]) -> list[Row]:
    """By the first recipe, and those without it by the others."""

    def means(row: Row) -> list[float]:
        return [statistics.mean(row.top1(recipe) or [0.0]) for recipe in RECIPES]

    return sorted(rows, key=means, reverse=True)


def read_rows(output: Path, seeds: Sequence[int]) -> list[Row]:
    """The families that have runs, in their order."""
    runs = read_runs(output, FAMILIES, seeds)
    images = read_speeds(output).get("images a second", {})
    rows = []
    for family, model in MODELS.items():
        own = {
            recipe: {s: runs[f"{recipe}_{family}", s] for s in seeds if (f"{recipe}_{family}", s) in runs}
            for recipe in RECIPES
        }
        if any(own.values()):
            sizes = values(model.model_kwargs)
            made: Any = timm.create_model(model.model, num_classes=10, device="meta", **sizes)
            count, macs = parameters(model, sizes), count_macs(made.eval(), IMAGES["input_size"][1:])
            rows.append(Row(family, model.title, count, macs, own, images.get(family, {})))
    return rows


def tries(output: Path, seeds: Sequence[int], recipe: Mapping[str, Any]) -> str:
    """Top-1 of each family that has a try at settings of its own, beside that at NAdaMuon's common rate, "-"
    for what was not run; where runs left their rows, and the machines."""
    rows = {**FAMILIES, **TRIES}
    found = read_runs(output, rows, seeds)
    tried = {row.partition("_")[2] for row, _ in found if row in TRIES}
    shown = {family: [f"{prefix}_{family}" for prefix in TRY_COLUMNS.values()] for family in MODELS}
    shown = {family: own for family, own in shown.items() if family in tried}
    runs = {(row, seed): run for (row, seed), run in found.items() if row in chain(*shown.values())}

    def top1(row: str) -> str:
        return spread([runs[row, seed].top1 for seed in seeds if (row, seed) in runs])

    cells = [[family, *map(top1, own)] for family, own in shown.items()]
    lines = markdown(("family", *TRY_COLUMNS), cells)
    return "\n".join([*lines, "", *deviations(rows, runs, recipe), *machines(runs)])
