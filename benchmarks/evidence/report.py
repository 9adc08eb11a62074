"""The tables of evidence.py, from the runs that runs.py reads."""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evidence_models import KERNELS, OPTIMIZERS, RATES, ROWS, Contender, parameters, values
from levers import LEVERS
from runs import Run, folder_of, read_runs

from gmlp_vision.filters import extract

# Of the recipe's keys, those that a run sets itself
OWN = {"device_modules", "model", "model_kwargs", "seed"}
TOP1 = ("top-1, mean", "std", "min", "max")
COLUMNS = ("row", "model", "parameters", "seeds", *TOP1, "minutes a run")
OPTIMIZER_COLUMNS = ("row", "optimizer", "lr", "seeds", *TOP1, "rms of W at the end", "times its start")
RATE_COLUMNS = ("row", "optimizer", "lr", "seeds", *TOP1)


def report(output: Path, seeds: Sequence[int], recipe: Mapping[str, Any]) -> str:
    """What gMLP and others learn: the table in Markdown, what is missing from it, where runs left the recipe,
    and the machines."""
    return models(ROWS, output, seeds, recipe)


def kernels(output: Path, seeds: Sequence[int], recipe: Mapping[str, Any]) -> str:
    """What a shared kernel beside W gives: as `report`. The parameters are those in training."""
    return models(KERNELS, output, seeds, recipe)


def rates(output: Path, seeds: Sequence[int], recipe: Mapping[str, Any]) -> str:
    """What a learning rate gives: as `report`."""

    def line(row: str, runs: Mapping[int, Run]) -> list[str]:
        return [RATES[row].title, RATES[row].options["lr"], ", ".join(map(str, runs)), *top1(runs)]

    return table(RATES, RATE_COLUMNS, line, read_runs(output, RATES, seeds), seeds, recipe)


def levers(output: Path, seeds: Sequence[int], recipe: Mapping[str, Any]) -> str:
    """What a lever of levers.py gives: as `report`."""
    return models(LEVERS, output, seeds, recipe)


def models(
    rows: Mapping[str, Contender], output: Path, seeds: Sequence[int], recipe: Mapping[str, Any]
) -> str:
    def line(row: str, runs: Mapping[int, Run]) -> list[str]:
        options = next(iter(runs.values())).options
        minutes = statistics.mean(run.seconds for run in runs.values()) / 60
        count = parameters(rows[row], options.get("model_kwargs", {}))
        return [rows[row].title, f"{count:,}", ", ".join(map(str, runs)), *top1(runs), f"{minutes:.1f}"]

    return table(rows, COLUMNS, line, read_runs(output, rows, seeds), seeds, recipe)


def optimizers(output: Path, seeds: Sequence[int], recipe: Mapping[str, Any]) -> str:
    """What optimizers make of W: as `report`, with its root mean square over all blocks in the last epoch's
    checkpoint, of the runs whose folders are there ("-" for none). That of W at its init is `init_std`."""

    def line(row: str, runs: Mapping[int, Run]) -> list[str]:
        options = next(iter(runs.values())).options
        folders = [folder for seed in runs if (folder := folder_of(output, row, seed)).is_dir()]
        sizes = [rms_of_w(folder) for folder in folders]
        size = statistics.mean(sizes) if sizes else None
        init = float(OPTIMIZERS[row].model_kwargs["init_std"])
        seeds = ", ".join(map(str, runs))
        return [
            OPTIMIZERS[row].title,
            f"{options['lr']:g}",
            seeds,
            *top1(runs),
            "-" if size is None else f"{size:.1e}",
            "-" if size is None else f"{size / init:.3g}",
        ]

    return table(OPTIMIZERS, OPTIMIZER_COLUMNS, line, read_runs(output, OPTIMIZERS, seeds), seeds, recipe)


def rms_of_w(folder: Path) -> float:
    """Root mean square of W, the mean over the blocks, in a run's last checkpoint."""
    return statistics.mean(layer.stats().rms for layer in extract(folder / "last.pth.tar"))


def table(
    rows: Mapping[str, Contender],
    columns: Sequence[str],
    line: Callable[[str, Mapping[int, Run]], list[str]],
    runs: Mapping[tuple[str, int], Run],
    seeds: Sequence[int],
    recipe: Mapping[str, Any],
) -> str:
    """A line for each row that has runs, and below them what no line says."""
    found = {row: {seed: runs[row, seed] for seed in seeds if (row, seed) in runs} for row in rows}
    lines = markdown(columns, [[row, *line(row, of_row)] for row, of_row in found.items() if of_row])
    lines.append("")
    missing = [f"{row} seed {seed}" for row in rows for seed in seeds if (row, seed) not in runs]
    if missing:
        lines.append(f"Not run: {', '.join(missing)}.")
    return "\n".join([*lines, *deviations(rows, runs, recipe), *machines(runs)])


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    head, *lines = (f"| {' | '.join(cells)} |" for cells in (columns, *rows))
    return [head, "|---" * len(columns) + "|", *lines]


def top1(runs: Mapping[int, Run]) -> list[str]:
    """The cells of TOP1."""
    values = [run.top1 for run in runs.values()]
    return [*mean_and_std(values), f"{min(values):.2f}", f"{max(values):.2f}"]


def spread(values: Sequence[float]) -> str:
    """The mean, and of more than one their standard deviation and number; "-" for none."""
    mean, std = mean_and_std(values)
    return mean if std == "-" else f"{mean} (std {std}, {len(values)} seeds)"


def mean_and_std(values: Sequence[float]) -> tuple[str, str]:
    """Cells; "-" where there are too few runs for it."""
    return (
        f"{statistics.mean(values):.2f}" if values else "-",
        f"{statistics.stdev(values):.2f}" if len(values) > 1 else "-",
    )


def deviations(
    rows: Mapping[str, Contender], runs: Mapping[tuple[str, int], Run], recipe: Mapping[str, Any]
) -> list[str]:
    """A line on each thing that was neither as the recipe nor as the row says, or was said beyond them."""
    found: dict[str, list[str]] = {}
    for (row, seed), run in runs.items():
        own = {name.replace("-", "_"): said for name, said in rows[row].options.items()}
        texts = [
            f"{key} {run.options.get(key)!r}, not {value!r}"
            for key, value in recipe.items()
            if key not in OWN | own.keys() and run.options.get(key) != value
        ]
        texts += [  # a run of before the row was changed
            f"{key} {run.options.get(key)!r}, not the row's {said}"
            for key, said in own.items()
            if said and _words(run.options.get(key)) != _words(said)
        ]
        made = {"model": run.options.get("model"), "model_kwargs": run.options.get("model_kwargs") or {}}
        sizes = {**recipe.get("model_kwargs", {}), **values(rows[row].model_kwargs)}
        # as JSON, since a tuple has become a list in the file
        for key, said in (("model", rows[row].model), ("model_kwargs", sizes)):
            if json.dumps(made[key], sort_keys=True) != json.dumps(said, sort_keys=True):
                texts.append(f"{key} {made[key]!r}, not the row's {said!r}")
        if run.further:
            texts.append(f"given {' '.join(run.further)}")
        for text in texts:
            found.setdefault(text, []).append(f"{row} seed {seed}")
    return [
        f"Other than the recipe: {text} ({'all' if len(names) == len(runs) else ', '.join(names)})."
        for text, names in found.items()
    ]


def _words(value: object) -> list[object]:
    """An option, as it is said in words or as train.py has it, so that both compare equal."""
    if isinstance(value, dict):
        value = [f"{key}={of_key}" for key, of_key in value.items()]
    words = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return [_number(word) for word in words.split()]


def _number(word: str) -> object:
    """The number that a word says, else the word."""
    try:
        return float(word)
    except ValueError:
        return word


def machines(runs: Mapping[tuple[str, int], Run]) -> list[str]:
    """Days and machines, each once."""
    kinds: dict[str, set[str]] = {}
    for run in runs.values():
        where, versions = run.machine, run.machine["versions"]
        kind = f"{where['gpu'] or where['cpu']}, threads a run: {where['threads']}, timm {versions['timm']}, "
        kinds.setdefault(kind + f"torch {versions['torch']}", set()).add(where["date"].split()[0])
    return [f"{', '.join(sorted(days))}, {kind}." for kind, days in kinds.items()]
