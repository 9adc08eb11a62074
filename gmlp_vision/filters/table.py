"""Statistics of a FilterBank as text for a terminal, and as CSV or JSON."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from gmlp_vision.atomic import write_file
from gmlp_vision.filters.bank import LayerStats
from gmlp_vision.filters.options import check_ending

STATS_FILES = (".csv", ".json")
COLUMNS = (
    ("layer", "block"),
    ("moved", "moved"),
    ("rms", "rms"),
    ("toeplitz", "toeplitz_share"),
    ("(random)", "toeplitz_share_random"),
    ("locality", "locality"),
    ("(random)", "locality_random"),
    ("diagonal", "diagonal_share"),
    ("anisotropy", "anisotropy"),
    ("symmetry", "symmetry"),
    ("rank", "effective_rank"),
)


def format_stats(stats: Sequence[LayerStats]) -> str:
    """A table for people, a line a layer, 3 digits; '-' where a statistic is not defined.

    The grid has a column where the layers have more than one.
    """
    several = len({layer.grid for layer in stats}) > 1
    columns = [COLUMNS[0], ("grid", "grid"), *COLUMNS[1:]] if several else COLUMNS
    rows = [[*(title for title, _ in columns), "name"]]
    for layer in stats:
        name = f"{layer.name} ({layer.note})" if layer.note else layer.name
        rows.append([*(_cell(getattr(layer, field)) for _, field in columns), name])
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    lines = []
    for *cells, name in rows:
        aligned = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        lines.append("  ".join([*aligned, name]))
    return "\n".join(lines)


def untrained_notice(stats: Sequence[LayerStats]) -> str:
    """A line that names the layers which look untrained, or ''."""
    blocks = sorted({row.block for row in stats if row.untrained})
    if not blocks:
        return ""
    return (
        f"looks untrained: layer {', '.join(map(str, blocks))}. W is zero, or no larger and no more regular "
        "than at init: its pictures show noise"
    )


def write_stats(stats: Sequence[LayerStats], path: str | Path) -> None:
    """Writes every field of every layer, in full precision; an older file there is replaced at the end.

    Args:
        stats: From `FilterBank.stats()`.
        path: Ends in .csv (an empty cell where a statistic is not defined) or .json (a list of objects, null
            there).

    Raises:
        ValueError: Another ending.
        OSError: The folder is not there or cannot be written.
    """
    ending = check_ending(path, STATS_FILES, "statistics are")
    rows = [asdict(row) for row in stats]
    if ending == ".csv":
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, [field.name for field in fields(LayerStats)])
        writer.writeheader()
        writer.writerows(rows)
        data = text.getvalue()
    else:
        data = json.dumps(rows, indent=1, allow_nan=False) + "\n"
    write_file(path, data)


def _cell(value: float | int | str | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
