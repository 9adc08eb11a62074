"""The bytes that a training step on a CPU keeps for its backward pass, as the allocator saw them.

torch's saved_tensors_hooks would not do: they do not see what a checkpointed block keeps.
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile


def activation_bytes(forward: Callable[[], torch.Tensor]) -> int:
    """The bytes alive between forward and backward, beyond those before the step.

    Args:
        forward: Gives the loss. It has been run once, with its backward, so parameters have their gradients.
    """
    kept = []
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept.append(forward())
    kept.pop().backward()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    memory = [e["args"] for e in events if e["name"] == "[memory]"]
    return sum(args["Bytes"] for args in memory if args["Device Type"] == 0)
