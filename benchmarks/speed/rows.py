"""From seconds to rows, and from rows to the lines of a table."""

import statistics
from collections.abc import Iterator
from typing import Any

Row = dict[str, Any]

COLUMNS = (
    *("allocator", "model", "batch", "dtype", "runtime", "task", "variant"),
    *("timm img/s", "ours img/s", "ratio", "of bound"),
    *("activations, MiB an image: alive (of timm's), peak", "others, img/s"),
)


def rows(run: Row, seconds: dict[str, list[float]], model_macs: int, product_macs: int) -> Iterator[Row]:
    """One row for each of our variants.

    Args:
        seconds: What each contender took in each round, and the large product under "product".
        model_macs, product_macs: The multiply-adds of the model, for one image, and of that product.
    """
    usual = {name: statistics.median(taken) for name, taken in seconds.items()}
    bound = product_macs / usual.pop("product") / model_macs
    speeds = {name: run["batch"] / s for name, s in usual.items()}
    others = {k: v for k, v in speeds.items() if k != "timm" and not k.startswith("ours")}
    for name in (name for name in speeds if name.startswith("ours")):
        shown = {"timm": speeds["timm"], name: speeds[name], **(others if name == "ours" else {})}
        yield {
            **run,
            "variant": name,
            "images_per_second": shown,
            "ratio": speeds[name] / speeds["timm"],
            "of_bound": speeds[name] / bound,
            "seconds": {k: seconds[k] for k in (*shown, "product")},
        }


def line(row: Row) -> str:
    """One row in Markdown."""
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
