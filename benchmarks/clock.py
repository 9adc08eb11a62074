"""Time, taken in turns: A B A B ..., so that a busy moment of the machine falls on all alike."""

import math
import statistics
import time
from collections.abc import Callable, Mapping

import torch


def take_turns(
    calls: Mapping[str, Callable[[], object]], rounds: int, device: torch.device, limit: float = math.inf
) -> dict[str, float]:
    """The median seconds of each call, over rounds that call all of them once, after one to warm up.

    No round starts later than `limit` seconds after the first; there may then be fewer rounds.
    """
    for call in calls.values():
        call()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    start = time.monotonic()
    for _ in range(rounds):
        if time.monotonic() - start > limit:
            break
        for name, call in calls.items():
            taken[name].append(seconds(call, device))
    return {name: statistics.median(times) for name, times in taken.items()}


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """How long one call takes: by CUDA's events on a GPU, by the wall clock else."""
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize(device)
        return start.elapsed_time(end) / 1e3
    start_time = time.perf_counter()
    call()
    return time.perf_counter() - start_time
