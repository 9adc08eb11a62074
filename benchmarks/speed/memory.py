"""The bytes that a training step keeps for its backward pass, as the allocator saw them.

torch's saved_tensors_hooks would not do: they do not see what a checkpointed block keeps.
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile


def activation_bytes(forward: Callable[[], torch.Tensor], device: torch.device) -> tuple[int, int]:
    """(bytes alive between forward and backward, most bytes alive at any time), beyond those before the step.

    Args:
        forward: Gives the loss. It has been run once, with its backward, so parameters have their gradients.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        loss = forward()
        alive = torch.cuda.memory_allocated(device) - before
        loss.backward()
        return alive, torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as first:
        loss = forward()
    loss.backward()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as whole:
        forward().backward()
    return sum(event.self_cpu_memory_usage for event in first.events()), peak(whole)


def peak(profiler: profile) -> int:
    """The most bytes allocated on the CPU beyond those at the start; only the trace has their order."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    changes = [e for e in events if e["name"] == "[memory]" and e["args"]["Device Type"] == 0]
    total = highest = 0
    for event in sorted(changes, key=lambda e: e["ts"]):
        total += event["args"]["Bytes"]
        highest = max(highest, total)
    return highest
