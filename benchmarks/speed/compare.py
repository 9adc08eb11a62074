"""Two checkouts of this repository taking turns: is gMLP-S, batch 16, as fast after a change as before?

    python benchmarks/speed/compare.py BEFORE AFTER [--rows ROW ...] [--pairs 5]

BEFORE and AFTER are folders; `git worktree add` makes one of a commit. A pair is a fresh process of each, and
the two run every row in turns, one call of the one, one of the other; its ratio is that of their medians. The
table has the median of the pairs' ratios, above 1 where AFTER is faster; of the same checkout twice, how far
chance goes.
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from machine import commit, machine
from models import TOLERANCES
from processes import ALLOCATORS, environment
from side import BATCH, ROWS
from tqdm import tqdm

from gmlp_vision.errors import UserError

SIDE = Path(__file__).with_name("side.py")
ROUNDS = 3  # timed calls of each side in a pair, after one to warm up
LIMIT = 20.0  # seconds after which no further round of a row begins; a CPU without bf16 units takes long

Runner = Callable[[str], tuple[float, list[float]]]


@contextmanager
def side(checkout: Path, onnx: Path, allocator: str, threads: int) -> Iterator[Runner]:
    """A process of a checkout: what is yielded runs a row once, and returns its seconds and logits.

    Raises:
        UserError: Another package than the checkout's was imported, or the process broke off.
    """
    env = {**environment(allocator), "PYTHONPATH": str(checkout)}
    command = [sys.executable, str(SIDE), str(onnx), str(threads)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def answer() -> list:
            line = process.stdout.readline()
            if not line.endswith("\n"):
                raise UserError(f"the process of {checkout} broke off with exit code {process.wait()}")
            return json.loads(line)

        def run(row: str) -> tuple[float, list[float]]:
            with suppress(BrokenPipeError):  # then there is no answer either
                print(row, file=process.stdin, flush=True)
            seconds, logits = answer()
            return seconds, logits

        try:
            imported = Path(str(answer()))
            if not imported.is_relative_to(checkout):
                raise UserError(f"python took gmlp_vision from {imported}, not from {checkout}")
            yield run
        finally:
            process.kill()
            with suppress(BrokenPipeError):
                process.stdin.close()


def measure(row: str, before: Runner, after: Runner) -> tuple[float, float]:
    """(seconds before, seconds after) of one pair, each the median of its rounds.

    Raises:
        UserError: The two compute different things.
    """
    taken: list[tuple[float, float]] = []
    start = time.monotonic()
    while len(taken) <= ROUNDS and (not taken or time.monotonic() - start < LIMIT):
        if len(taken) % 2:
            (b, expected), (a, found) = before(row), after(row)
        else:
            (a, found), (b, expected) = after(row), before(row)
        taken.append((b, a))
        check_same(row, torch.tensor(expected), torch.tensor(found))
    timed = taken[1:] or taken
    return statistics.median(b for b, _ in timed), statistics.median(a for _, a in timed)


def check_same(row: str, expected: torch.Tensor, found: torch.Tensor) -> None:
    """Refuses to compare the speed of different things."""
    tolerance = TOLERANCES["bf16" if row.endswith("bf16") else "fp32"]
    difference = ((found - expected).abs().max() / expected.std()).item()
    if not difference <= tolerance:  # nor if it is nan
        raise UserError(
            f"{row}: the logits of the two differ by {difference:.2g} of their spread, and {tolerance:g} is "
            "allowed; nothing to compare"
        )


def table(pairs: dict[str, list[tuple[float, float]]]) -> str:
    """What was measured, in Markdown; ratios are of speeds, so above 1 where AFTER is faster."""
    lines = ["| row | before img/s | after img/s | after / before | of each pair |", "|---" * 5 + "|"]
    for row, seconds in pairs.items():
        ratios = [b / a for b, a in seconds]
        speeds = [BATCH / statistics.median(column) for column in zip(*seconds, strict=True)]
        each = " ".join(f"{ratio:.3f}" for ratio in ratios)
        lines.append(
            f"| {row} | {speeds[0]:.2f} | {speeds[1]:.2f} | **{statistics.median(ratios):.3f}** | {each} |"
        )
    return "\n".join(lines)


def compare(args: argparse.Namespace) -> None:
    """Measures and prints; where it is stopped, the pairs until then."""
    where = machine(torch.device("cpu"))
    print(f"{where['date']}, {where['cpu']}, {args.threads} threads, allocator {args.allocator}")
    print(where["versions"], where["variables"] or "")
    for name in ("before", "after"):
        print(f"{name}: commit {commit(getattr(args, name))}", flush=True)
    found: dict[str, list[tuple[float, float]]] = {row: [] for row in args.rows}
    try:
        with tempfile.TemporaryDirectory() as folder:
            for _ in tqdm(range(args.pairs), unit="pair"):
                with (
                    side(args.before, Path(folder) / "before.onnx", args.allocator, args.threads) as before,
                    side(args.after, Path(folder) / "after.onnx", args.allocator, args.threads) as after,
                ):
                    for row in args.rows:
                        found[row].append(measure(row, before, after))
    finally:
        measured = {row: seconds for row, seconds in found.items() if seconds}
        if measured:
            print(f"\n{table(measured)}", flush=True)


def checkout(text: str) -> Path:
    folder = Path(text).resolve()
    if not (folder / "gmlp_vision/__init__.py").is_file():
        raise UserError(f"{text} is no checkout of this repository: it has no gmlp_vision/__init__.py")
    return folder


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", help="folder of a checkout")
    parser.add_argument("after", help="folder of another")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW", help="(all)")
    parser.add_argument("--pairs", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--allocator", choices=ALLOCATORS, default="thresholds raised", help="(%(default)s)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    try:
        args.before, args.after = checkout(args.before), checkout(args.after)
        if args.pairs < 1 or args.threads < 1:
            raise UserError(f"--pairs {args.pairs} --threads {args.threads}; expected 1 or more of each")
        compare(args)
    except KeyboardInterrupt:
        print("compare.py: stopped", file=sys.stderr)
        return 130
    except UserError as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, so that no process lives on
    sys.exit(main())
