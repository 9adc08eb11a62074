"""Python's own standard library as bytes: a corpus that is on every machine that can run this.

Its .py files without tests and site-packages; `pydoc_data/topics.py`, the reference in plain English, is one
of them. It is split by file, so that nothing of a held-out file was ever seen. Another Python is another
corpus: its version, bytes and sha256 are told with every result.

Shapes: B sequences, N = 128 bytes each.
"""

import hashlib
import platform
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

N = 128
MASK = 256  # the one symbol beside the 256 bytes
MASKED = 0.15
LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages"}
PARTS = {"test": range(2), "tune": range(2, 4), "train": range(4, 40)}  # 5 %, 5 % and 90 % of the files


@dataclass(frozen=True)
class Corpus:
    """The bytes of each part as one tensor, its files one after the other, and where their lines start."""

    parts: dict[str, torch.Tensor]
    lines: dict[str, torch.Tensor]
    about: dict[str, object]


@cache
def corpus() -> Corpus:
    """Which part a file is of, the hash of its name tells, so a file keeps its part from Python to Python."""
    root = Path(sysconfig.get_path("stdlib"))
    names = sorted(p.relative_to(root) for p in root.rglob("*.py"))
    texts: dict[str, list[bytes]] = {part: [] for part in PARTS}
    for name in names:
        if not LEFT_OUT & set(name.parts):
            place = int(hashlib.sha256(name.as_posix().encode()).hexdigest(), 16) % 40
            (part,) = (part for part, places in PARTS.items() if place in places)
            texts[part].append((root / name).read_bytes())
    joined = {part: b"".join(files) for part, files in texts.items()}
    about = {
        "python": platform.python_version(),
        "files": sum(map(len, texts.values())),
        "bytes": {part: len(text) for part, text in joined.items()},
        "sha256": hashlib.sha256(b"".join(joined[part] for part in sorted(PARTS))).hexdigest(),
    }
    parts = {part: torch.frombuffer(bytearray(text), dtype=torch.uint8) for part, text in joined.items()}
    return Corpus(parts, {part: line_starts(text) for part, text in parts.items()}, about)


def line_starts(text: torch.Tensor) -> torch.Tensor:
    """Where the lines begin that have at least 16 bytes; they end at a newline, or after N bytes."""
    ends = (text == ord("\n")).nonzero().flatten()
    starts = torch.cat([torch.zeros(1, dtype=ends.dtype), ends + 1])
    length = torch.cat([ends, torch.tensor([len(text)])]) - starts
    return starts[(length >= 16) & (starts + N <= len(text))]


def windows(part: str, batch: int, generator: torch.Generator) -> torch.Tensor:
    """(B, N) bytes from anywhere in a part, so that no position of a sequence is like another one."""
    text = corpus().parts[part]
    starts = torch.randint(len(text) - N + 1, (batch, 1), generator=generator)
    return text[starts + torch.arange(N)].long()


def lines(part: str, batch: int, generator: torch.Generator) -> torch.Tensor:
    """(B, N) bytes: one line each, which always starts at position 0, and zeros behind its end."""
    text, all_starts = corpus().parts[part], corpus().lines[part]
    starts = all_starts[torch.randint(len(all_starts), (batch, 1), generator=generator)]
    line = text[starts + torch.arange(N)].long()
    is_over = (line == ord("\n")).cumsum(1) - (line == ord("\n")).long() > 0
    return line.masked_fill(is_over, 0)


def mask(text: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """What the model sees, (B, N), and where it is asked, (B, N) bool.

    15 % of the bytes are asked for. Of these 80 % are replaced by MASK, 10 % by any byte, and 10 % stay, as
    in BERT (arXiv:1810.04805). The zeros behind a line are never asked for.
    """
    asked = (torch.rand(text.shape, generator=generator) < MASKED) & (text != 0)
    how = torch.rand(text.shape, generator=generator)
    any_byte = torch.randint(256, text.shape, generator=generator)
    seen = torch.where(asked & (how < 0.8), MASK, text)
    return torch.where(asked & (how >= 0.9), any_byte, seen), asked


SAMPLE = {"windows": windows, "lines": lines}
