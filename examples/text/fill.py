"""Prints what a trained model puts for the masked bytes of a text:

    python fill.py "def __init__(s?lf" --mask "?"

Where there is no run yet it trains one first, about 3 minutes: Toeplitz W, longer than in the table.
"""

import argparse
from pathlib import Path

import torch
from corpus import MASK, N, windows
from model import ROWS, TextModel
from results import HERE

import train

STEPS = 800
SURROUNDINGS = 32  # the text is read in the middle of as many pieces of code


def symbols(text: str, hidden: str) -> list[int]:
    """The bytes of a text, MASK for each `hidden`.

    Raises:
        ValueError: No byte is masked, or the text is too long.
    """
    first, *others = text.split(hidden)
    line = [*first.encode(), *(symbol for part in others for symbol in (MASK, *part.encode()))]
    if MASK not in line:
        raise ValueError(f"no {hidden!r} is in the text: put one where a byte is to be found, or give --mask")
    if len(line) > N - 2:
        raise ValueError(f"the text has {len(line)} bytes; expected at most {N - 2}, to be read at once")
    return line


def fill(model: TextModel, line: list[int], count: int) -> list[list[tuple[str, float]]]:
    """For each masked byte the likeliest ones, and how likely, in %.

    The model knows pieces of 128 bytes from the midst of files. So the text stands as a line of its own in
    such pieces, of files that were not trained on, and the probabilities are averaged over them.
    """
    seen = windows("tune", SURROUNDINGS, torch.Generator().manual_seed(0))
    start = (N - len(line)) // 2
    seen[:, start - 1], seen[:, start + len(line)] = ord("\n"), ord("\n")
    seen[:, start : start + len(line)] = torch.tensor(line)
    with torch.inference_mode():
        odds = model.eval()(seen, seen == MASK).softmax(-1).unflatten(0, (SURROUNDINGS, -1)).mean(0)
    return [[(shown(byte), 100 * p) for p, byte in zip(*row.topk(count), strict=True)] for row in odds]


def shown(byte: torch.Tensor) -> str:
    return repr(chr(byte)) if byte < 128 else f"0x{int(byte):02x}"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text")
    parser.add_argument("--mask", default="?", help="what stands for a masked byte in the text")
    parser.add_argument("--count", type=int, default=5, help="how many bytes to print for each")
    parser.add_argument("--run", default="fill", help="whose weights: this program's own, or ROW.SEED")
    parser.add_argument("--out", type=Path, default=HERE / "runs", help="the folder of the runs")
    args = parser.parse_args(argv)
    row, _, seed = ("toeplitz.0" if args.run == "fill" else args.run).partition(".")
    if row not in ROWS or not seed.isdecimal():
        parser.error(f"--run is {args.run!r}; expected fill, or ROW.SEED with a row of {', '.join(ROWS)}")
    if not args.mask or not 1 <= args.count <= MASK:
        parser.error(f"--mask must not be empty, and --count must be 1 to {MASK}")
    try:
        line = symbols(args.text, args.mask)
    except ValueError as error:
        parser.error(str(error))
    file = args.out / f"{args.run}.pt"
    if not file.exists():
        if file.with_suffix(".json").exists():
            parser.error(f"{args.out} holds the result of {args.run} without its weights; give another --out")
        steps, minutes = (STEPS, "3 minutes") if args.run == "fill" else (train.STEPS, "2 minutes")
        print(f"there is no {file} yet: training it first, about {minutes} on one idle core")
        train.main([row, "--seed", seed, "--steps", str(steps), "--name", args.run, "--out", str(args.out)])
    model = TextModel(*ROWS[row])
    model.load_state_dict(torch.load(file))
    for place, best in enumerate(fill(model, line, args.count), 1):
        print(f"{place}: " + ", ".join(f"{byte} {odds:.1f} %" for byte, odds in best))


if __name__ == "__main__":
    main()
