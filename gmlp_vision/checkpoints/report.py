"""What became of every tensor of a file and of a model."""

import re
from dataclasses import dataclass, field


@dataclass
class Report:
    """The account of one load.

    Attributes:
        source: What was read.
        weights: 'ema' or 'raw'; 'ema or raw' where timm read the file, which takes EMA first.
        layout: Whose names the file has, 'timm' for this package's own, or a key of its family's LAYOUTS.
        loaded: Tensors taken as they were.
        adapted: Tensors changed on the way in, and how.
        dropped: Tensors of the file that the model has no use for, and why.
        missing: Tensors for which the model keeps its own, and why.
        explained: Where W's of the file are of another kind than the model's, the share of each that the
            nearest one explains, by its layer: 1 - |W - W'|^2 / |W|^2.
        notes: How the file's grid is known, where it mattered; where in the file the network was; numbers
            that a dtype could not hold; what the file says of itself that is not so.
        doubtful: Whether that grid is a guess, or not the only one that is stated.
    """

    source: str
    weights: str = "ema or raw"
    layout: str = "timm"
    loaded: list[str] = field(default_factory=list)
    adapted: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    explained: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    doubtful: bool = False

    def add_note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def add_adapted(self, name: str, how: str) -> None:
        """Says one change more of a tensor."""
        self.adapted[name] = f"{self.adapted[name]}, {how}" if name in self.adapted else how

    def __str__(self) -> str:
        lines = [
            f"{self.source}: {self.weights} weights, names of {self.layout}",
            f"  loaded   {len(self.loaded)} tensors",
        ]
        for title, why in (("adapted", self.adapted), ("dropped", self.dropped), ("missing", self.missing)):
            lines += [f"  {title:<9}{line}" for line in _group(why)]
        if self.explained:
            shares = [100 * share for share in self.explained.values()]
            mean = sum(shares) / len(shares)
            lines.append(
                f"  {'kept':<9}{min(shares):.1f} to {max(shares):.1f} % of each W, on average {mean:.1f}"
            )
        return "\n".join(lines + [f"  {'note':<9}{note}" for note in self.notes])


def first_five(names: list[str]) -> str:
    """The names, or the first five and how many there are."""
    return ", ".join(names[:5]) + (f", ... ({len(names)} in all)" if len(names) > 5 else "")


def _group(why: dict[str, str]) -> list[str]:
    """One line a reason, with the tensors it holds for; those of all blocks are named once."""
    names: dict[str, list[str]] = {}
    for name, reason in why.items():
        names.setdefault(reason, []).append(name)
    lines = []
    for reason, group in names.items():
        count = f"{len(group)} tensor{'s' if len(group) > 1 else ''}"
        lines.append(f"{count}, {reason}: {of_all_blocks(group)}")
    return lines


def of_all_blocks(names: list[str]) -> str:
    """The names, or the first five; those that differ in a number alone are one."""
    if len(names) == 1:
        return names[0]
    return first_five(list(dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in names)))
