"""The tables of README.md from the runs in results/: `python report.py`, and with --write into the page.

A claim holds where t > 2, and one of equality where |t| <= 2. t is Welch's: the difference of two means over
its standard error, as the spread over the seeds gives it.
"""

import argparse
import math
import re
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from corpus import N
from results import FIRST, HERE, read

MODELS = {
    "split": "gMLP, split: Z1 * f(Z2)",
    "multiplicative": "gMLP, multiplicative: Z * f(Z)",
    "additive": "gMLP, additive: Z + f(Z)",
    "linear": "gMLP, linear: f(Z)",
    "toeplitz": "gMLP, split, Toeplitz W",
    "frozen": "gMLP, split, W frozen near zero: the bytes do not mix",
    "mixer": "MLP-Mixer",
    "transformer": "Transformer, relative position bias (timm's)",
    "amlp": "aMLP, attention of width 64",
}
# Table 3; split is of Toeplitz W there
PAPER = {
    "split": 4.35,
    "multiplicative": 4.53,
    "additive": 4.97,
    "linear": 5.14,
    "mixer": 5.34,
    "transformer": 4.26,
}
RANDOM = {"all": (2 * N - 1) / N**2, "first": (2 * FIRST - 1) / FIRST**2}
Runs = list[dict[str, Any]]


class Sample(NamedTuple):
    """Of a figure over the seeds: mean, standard deviation (0 of one seed), and how many."""

    mean: float
    std: float
    count: int


def sample(values: Sequence[float]) -> Sample:
    return Sample(statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0, len(values))


def welch(a: Sample, b: Sample) -> float | None:
    """t of a - b; None where a seed says nothing of the spread, or there is none."""
    error = math.sqrt(a.std**2 / a.count + b.std**2 / b.count)
    return (a.mean - b.mean) / error if min(a.count, b.count) > 1 and error else None


def of(runs: Runs, row: str, opt: str = "nadamuon") -> Runs:
    return [run for run in runs if (run["row"], run["opt"], run["part"]) == (row, opt, "test")]


def loss(run: dict[str, Any]) -> float:
    return run["loss"]


def share(when: str, part: str) -> Callable[[dict[str, Any]], float]:
    return lambda run: statistics.mean(run["toeplitz_share"][when][part])


def table(runs: Runs) -> str:
    names = "row", "model", "parameters", "seeds", "loss, nats", "std", "perplexity", "accuracy, %", "std"
    lines = [f"| {' | '.join((*names, 'CPU min', 'paper'))} |", "|" + "---|" * (len(names) + 2)]
    for row, model in MODELS.items():
        lines.append(line(row, model, of(runs, row), str(PAPER.get(row, "-"))))
    lines.append(line("split, AdamW", "gMLP, split, as the first row", of(runs, "split", "adamw"), "-"))
    return "\n".join(lines)


def line(row: str, model: str, runs: Runs, paper: str) -> str:
    if not runs:
        return f"| {row} | {model} | | not run | | | | | | | {paper} |"
    nats, right = sample([run["loss"] for run in runs]), sample([100 * run["accuracy"] for run in runs])
    minutes = statistics.mean(run["cpu_seconds"] for run in runs) / 60
    std = (f"{nats.std:.3f}", f"{right.std:.2f}") if nats.count > 1 else ("-", "-")
    seeds = ", ".join(str(run["seed"]) for run in runs)
    return (
        f"| {row} | {model} | {runs[0]['parameters']:,} | {seeds} | {nats.mean:.3f} | {std[0]} | "
        f"{math.exp(nats.mean):.2f} | {right.mean:.2f} | {std[1]} | {minutes:.1f} | {paper} |"
    )


def less(name: str, a: Runs, b: Runs, figure: Callable[[dict[str, Any]], float] = loss) -> str:
    """A claim that a figure is less in a than in b."""
    if not (a and b):
        return f"| {name} | not run | | | |"
    x, y = sample([figure(run) for run in a]), sample([figure(run) for run in b])
    return f"| {name} | {x.mean:.3f} | {y.mean:.3f} | {_t(t := welch(y, x))} | {_answer(t)} |"


def alike(name: str, a: Runs, b: Runs) -> str:
    """A claim that the loss is the same."""
    if not (a and b):
        return f"| {name} | not run | | | |"
    x, y = sample(list(map(loss, a))), sample(list(map(loss, b)))
    t = welch(y, x)
    answer = "open: one seed" if t is None else "yes" if abs(t) <= 2 else "no"
    return f"| {name} | {x.mean:.3f} | {y.mean:.3f} | {_t(t)} | {answer} |"


def above(name: str, a: Runs, part: str) -> str:
    """A claim that the Toeplitz share of W is above a random matrix's, which has no spread to speak of."""
    if not a:
        return f"| {name} | not run | | | |"
    x = sample([share("end", part)(run) for run in a])
    t = (x.mean - RANDOM[part]) / (x.std / math.sqrt(x.count)) if x.std else None
    return f"| {name} | {x.mean:.3f} | {RANDOM[part]:.4f} | {_t(t)} | {_answer(t)} |"


def _t(t: float | None) -> str:
    return "-" if t is None else f"{t:.1f}"


def _answer(t: float | None) -> str:
    if t is None:
        return "open: one seed"
    return "yes" if t > 2 else "no: the other way round" if t < -2 else "no"


def claims(runs: Runs) -> str:
    split, first = of(runs, "split"), share("end", "first")
    near = f"first {FIRST} positions"
    lines = [
        "| claim | left | right | t | holds |",
        "|---|---|---|---|---|",
        less("loss: split < multiplicative", split, of(runs, "multiplicative")),
        less("loss: multiplicative < additive", of(runs, "multiplicative"), of(runs, "additive")),
        less("loss: additive < linear", of(runs, "additive"), of(runs, "linear")),
        alike("loss: Toeplitz W = dense W", of(runs, "toeplitz"), split),
        less("loss: aMLP < Transformer", of(runs, "amlp"), of(runs, "transformer")),
        less("loss: split < W frozen", split, of(runs, "frozen")),
        less("loss: split, Muon < split, AdamW", split, of(runs, "split", "adamw")),
        above("Toeplitz share of dense W > a random matrix's", split, "all"),
        above(f"the same, {near}", split, "first"),
        less(
            "Toeplitz share of dense W: trained on lines < on pieces",
            of(runs, "lines"),
            split,
            share("end", "all"),
        ),
        less(f"the same, {near}", of(runs, "lines"), split, first),
        above(f"trained on lines > a random matrix's, {near}", of(runs, "lines"), "first"),
    ]
    return "\n".join(lines)


def layers(runs: Runs) -> str:
    """The Toeplitz share of each layer, mean over the seeds."""
    depth = 6
    lines = [
        "| trained on | positions | at the start | " + " | ".join(f"layer {i}" for i in range(depth)) + " |",
        "|" + "---|" * (depth + 3),
    ]
    trained = {
        ("split", "nadamuon"): "pieces",
        ("split", "adamw"): "pieces, AdamW",
        ("lines", "nadamuon"): "lines that start at position 0",
    }
    for (row, opt), name in trained.items():
        for part, which in (("all", f"all {N}"), ("first", f"first {FIRST}")):
            if found := of(runs, row, opt):
                ends = [run["toeplitz_share"]["end"][part] for run in found]
                means = " | ".join(f"{statistics.mean(x):.3f}" for x in zip(*ends, strict=True))
                start = statistics.mean(share("start", part)(run) for run in found)
                lines.append(f"| {name} | {which} | {start:.3f} | {means} |")
    return "\n".join(lines)


def rates(runs: Runs) -> str:
    """Loss at each learning rate, on the files that are kept for choosing it."""
    lines = ["| optimizer | steps | learning rate: loss |", "|---|---|---|"]
    tuned = [run for run in runs if run["part"] == "tune"]
    for opt in ("nadamuon", "adamw"):
        found = sorted((run for run in tuned if run["opt"] == opt), key=lambda run: run["lr"])
        best = min(map(loss, found), default=0.0)
        told = [f"{run['lr']:g}: {loss(run):.3f}" for run in found]
        marked = [f"**{x}**" if loss(run) == best else x for x, run in zip(told, found, strict=True)]
        steps = ", ".join(sorted({str(run["steps"]) for run in found}))
        lines.append(f"| {opt} | {steps} | {'; '.join(marked) or 'not run'} |")
    return "\n".join(lines)


def done(runs: Runs) -> str:
    """What was run on what, and which runs are missing."""
    there = {(run["row"], run["seed"], run["opt"]) for run in runs if run["part"] == "test"}
    rows = [(row, "nadamuon") for row in (*MODELS, "lines")] + [("split", "adamw")]
    missing = [f"{row} ({opt}) seed {i}" for i in range(3) for row, opt in rows if (row, i, opt) not in there]
    about = [
        f"{run['date']}, {run['cpu']}, torch {run['versions']['torch']}, timm {run['versions']['timm']}; "
        f"corpus: Python {run['corpus']['python']}, {run['corpus']['files']} files, bytes of each part "
        f"{run['corpus']['bytes']}, sha256 `{run['corpus']['sha256']}`"
        for run in runs
    ]
    return "\n".join([*dict.fromkeys(about), "", f"Not run: {', '.join(missing) or 'nothing'}."])


TABLES = {"rows": table, "claims": claims, "layers": layers, "rates": rates, "done": done}


def rewritten(page: str, runs: Runs) -> str:
    """The page with each table between its two marks made anew."""
    for name, make in TABLES.items():
        marks = rf"(<!-- begin {name}: written by report.py -->\n).*?(<!-- end {name} -->)"
        page = re.sub(marks, partial(_between, make(runs)), page, flags=re.DOTALL)
    return page


def _between(text: str, marks: re.Match[str]) -> str:
    return f"{marks[1]}\n{text}\n\n{marks[2]}"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=HERE / "results", help="where the runs are")
    parser.add_argument("--write", action="store_true", help="into README.md")
    args = parser.parse_args(argv)
    runs = read(args.folder)
    if not runs:
        parser.error(f"there is no run in {args.folder}: make one with train.py --out {args.folder}")
    if args.write:
        readme = HERE / "README.md"
        readme.write_text(rewritten(readme.read_text(), runs))
    else:
        print("\n\n".join(make(runs) for make in TABLES.values()))


if __name__ == "__main__":
    main()
