"""Time, taken in turns: A B A B ..., so that a busy moment of the machine falls on all alike."""

import math
import time
from collections.abc import Callable, Mapping
from functools import partial

import torch

LEAST = 0.05  # seconds: what is shorter is lost in the noise of a GPU's events
GPU_WARM_UP = 5  # calls; a CUDA graph is recorded within the first three

Call = Callable[[], object]


def take_turns(
    calls: Mapping[str, Call], rounds: int, device: torch.device, limit: float = math.inf
) -> dict[str, list[float]]:
    """The seconds that one run of each call took, in each of the rounds; they come after a warm-up.

    A measurement on a GPU is of as many runs as take `LEAST`, and gives their mean. No round starts later
    than `limit` seconds after the first; there may then be fewer rounds.
    """
    on_gpu = device.type == "cuda"
    measure = partial(gpu_seconds, device) if on_gpu else cpu_seconds
    for call in calls.values():
        for _ in range(GPU_WARM_UP if on_gpu else 1):
            call()
    runs = {name: enough_runs(partial(measure, call)) if on_gpu else 1 for name, call in calls.items()}
    taken: dict[str, list[float]] = {name: [] for name in calls}
    start = time.monotonic()
    for _ in range(rounds):
        if time.monotonic() - start > limit:
            break
        for name, call in calls.items():
            taken[name].append(measure(call, runs[name]) / runs[name])
    return taken


def enough_runs(seconds: Callable[[int], float]) -> int:
    """The least power of 2 whose number of runs take `LEAST`."""
    runs = 1
    while seconds(runs) < LEAST:
        runs *= 2
    return runs


def cpu_seconds(call: Call, runs: int) -> float:
    """How long the runs take together, by the wall clock."""
    start = time.perf_counter()
    for _ in range(runs):
        call()
    return time.perf_counter() - start


def gpu_seconds(device: torch.device, call: Call, runs: int) -> float:
    """How long the runs take together on the GPU, by its events."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stream = torch.cuda.current_stream(device)
    torch.cuda.synchronize(device)
    start.record(stream)
    for _ in range(runs):
        call()
    end.record(stream)
    torch.cuda.synchronize(device)
    return start.elapsed_time(end) / 1e3
