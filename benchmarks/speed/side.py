"""One side of compare.py: runs a row once for each line that it reads, and answers with seconds and logits.

    python benchmarks/speed/side.py MODEL.onnx THREADS < rows

The checkout to measure is the first on PYTHONPATH. It may be an older one, so only names are used that all of
them have. The ONNX file is written the first time that it is asked for.
"""

import json
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import torch
from models import Run, logits, make_pair
from rates import images, step
from runtimes import eager, open_in_onnxruntime, open_in_openvino

import gmlp_vision
from gmlp_vision.export import write_onnx

BATCH = 16


def eager_fp32(onnx: Path) -> Run:
    return eager(make_pair("s")[0], images(BATCH))


def eager_bf16(onnx: Path) -> Run:
    return eager(make_pair("s")[0].bfloat16(), images(BATCH).bfloat16())


def training_step(onnx: Path, **checkpointing: bool) -> Run:
    return partial(step, images(BATCH), False, make_pair("s")[0].train(), checkpointing)


def in_runtime(open_file: Callable[[Path, torch.Tensor], Run], onnx: Path) -> Run:
    if not onnx.exists():
        write_onnx(make_pair("s")[0], images(2), onnx)
    return open_file(onnx, images(BATCH))


ROWS: dict[str, Callable[[Path], Run]] = {
    "eager": eager_fp32,
    "eager-bf16": eager_bf16,
    "training": partial(training_step, enable=False),
    "checkpointed": partial(training_step, enable=True),
    "onnxruntime": partial(in_runtime, open_in_onnxruntime),
    "openvino": partial(in_runtime, open_in_openvino),
}


def main() -> None:
    onnx, threads = Path(sys.argv[1]), int(sys.argv[2])
    # what a library prints must not come between the answers
    answers, sys.stdout = sys.stdout, sys.stderr
    torch.set_num_threads(threads)
    print(json.dumps(gmlp_vision.__file__), file=answers, flush=True)
    make = cache(lambda row: ROWS[row](onnx))
    for line in sys.stdin:
        call = make(line.strip())
        start = time.perf_counter()
        found = call()
        seconds = time.perf_counter() - start
        print(json.dumps([seconds, logits(lambda found=found: found)[0].tolist()]), file=answers, flush=True)


if __name__ == "__main__":
    main()
