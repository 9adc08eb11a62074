"""Top-1, size and speed of a trained gMLP in ONNX Runtime, before and after quantisation to 8 bits.

    python benchmarks/int8/int8.py CHECKPOINT DATA [--images N]

DATA has one folder a class. Its first N images in the order of a seeded permutation are the test, and the
first 16 of them the batch that is timed; the static kind is calibrated on the next 256. Both kinds leave the
stem's convolution as it is.
"""

import argparse
import datetime
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnxruntime
import torch
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantType,
    quant_pre_process,
    quantize_dynamic,
    quantize_static,
)
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision import datasets, transforms
from tqdm import tqdm

from gmlp_vision.errors import UserError
from gmlp_vision.export import export_checkpoint

OPERATIONS = ["MatMul", "Gemm"]
MEAN = STD = (0.5, 0.5, 0.5)
BATCH = 16  # images of the timing
CALIBRATION = 256  # images
ROUNDS = 100  # of the timing, in which the kinds take turns, after one to warm up


class Batches(CalibrationDataReader):
    """The calibration images, one batch at a time, as ONNX Runtime asks for them."""

    def __init__(self, images: Dataset) -> None:
        self.batches: Iterator = iter(DataLoader(images, batch_size=32))

    def get_next(self) -> dict | None:
        batch = next(self.batches, None)
        return None if batch is None else {"image": batch[0].numpy()}


def quantised(path: Path, calibration: Dataset) -> dict[str, Path]:
    """The exported file, and its two 8-bit kinds, each written beside it."""
    prepared, dynamic, static = (path.with_stem(name) for name in ("prepared", "dynamic", "static"))
    quant_pre_process(path, prepared)
    chosen = {"op_types_to_quantize": OPERATIONS, "weight_type": QuantType.QInt8, "per_channel": True}
    quantize_dynamic(prepared, dynamic, **chosen)
    quantize_static(prepared, static, Batches(calibration), **chosen)
    return {"fp32": path, "int8, dynamic": dynamic, "int8, static": static}


def measure(args: argparse.Namespace) -> None:
    """Prints the table.

    Raises:
        UserError: Too few images, or the checkpoint cannot be exported.
    """
    images = datasets.ImageFolder(args.data)
    if not BATCH <= args.images <= len(images) - CALIBRATION:
        raise UserError(
            f"--images is {args.images}; expected at least {BATCH}, for the timing, and at most the "
            f"{len(images)} of {args.data} less {CALIBRATION} to calibrate on"
        )
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).tolist()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    # else the threads of one go on spinning after a call, into the turn of the next
    options.add_session_config_entry("session.force_spinning_stop", "1")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export_checkpoint(args.checkpoint, path, "onnx", dynamic_batch=True)
        size = onnxruntime.InferenceSession(path).get_inputs()[0].shape[2:]
        steps = [transforms.Resize(size, transforms.InterpolationMode.BICUBIC), transforms.ToTensor()]
        images.transform = transforms.Compose([*steps, transforms.Normalize(MEAN, STD)])
        files = quantised(path, Subset(images, order[args.images : args.images + CALIBRATION]))
        sessions = {name: onnxruntime.InferenceSession(file, options) for name, file in files.items()}
        sizes = {name: file.stat().st_size for name, file in files.items()}

    right = dict.fromkeys(sessions, 0)
    tested = Subset(images, order[: args.images])
    for x, labels in tqdm(DataLoader(tested, batch_size=128), desc="top-1", disable=None):
        for name, session in sessions.items():
            found = session.run(None, {"image": x.numpy()})[0].argmax(1)
            right[name] += (found == labels.numpy()).sum().item()
    batch = {"image": torch.stack([tested[i][0] for i in range(BATCH)]).numpy()}
    seconds: dict[str, list[float]] = {name: [] for name in sessions}
    for _ in range(1 + ROUNDS):
        for name, session in sessions.items():
            start = time.perf_counter()
            session.run(None, batch)
            seconds[name].append(time.perf_counter() - start)

    print(f"{datetime.date.today()}, {os.cpu_count()} CPU cores, onnxruntime {onnxruntime.__version__}\n")
    print(f"| kind | top-1 | MB | img/s, batch {BATCH} |\n|---|---|---|---|")
    for name in files:
        top1, speed = 100 * right[name] / len(tested), BATCH / statistics.median(seconds[name][1:])
        print(f"| {name} | {top1:.2f} | {sizes[name] / 1e6:.2f} | {speed:.0f} |")


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint")
    parser.add_argument("data", help="folder of one folder a class")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    try:
        measure(args)
    except (UserError, OSError) as error:
        print(f"int8.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
