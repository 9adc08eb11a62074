"""Time, taken in turns: A B A B ..., so that a busy moment of the machine falls on all alike."""

import math
import time
from collections.abc import Callable, Mapping

import torch

LEAST = 0.05  # seconds of one measurement on a GPU, where the start of a single call would blur it
WARM_UP = {"cpu": 1, "cuda": 5}  # calls; a CUDA graph is recorded within the first three

Call = Callable[[], object]


def take_turns(
    calls: Mapping[str, Call], rounds: int, device: torch.device, limit: float = math.inf
) -> dict[str, list[float]]:
    """The seconds that a call took, by the wall clock, in each of the rounds; they come after a warm-up.

    On a GPU a measurement is of as many runs as take `LEAST`, and gives their mean. No round starts later
    than `limit` seconds after the first; there may then be fewer rounds.
    """
    for call in calls.values():
        seconds(call, WARM_UP[device.type], device)
    runs = dict.fromkeys(calls, 1)
    if device.type == "cuda":
        runs = {name: math.ceil(LEAST / seconds(call, 1, device)) for name, call in calls.items()}
    taken: dict[str, list[float]] = {name: [] for name in calls}
    start = time.monotonic()
    for _ in range(rounds):
        if time.monotonic() - start > limit:
            break
        for name, call in calls.items():
            taken[name].append(seconds(call, runs[name], device))
    return taken


def seconds(call: Call, runs: int, device: torch.device) -> float:
    """How long one of these runs takes, the mean of them; what the GPU was given before does not count."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(runs):
        call()
    synchronize(device)
    return (time.perf_counter() - start) / runs


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
