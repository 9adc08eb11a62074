"""Two processes that share a training, for the tests of data parallelism."""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist


def run_on_two_ranks(work: Callable[[int, str], None], folder: Path) -> None:
    """Calls `work(rank, folder)`, a function of a module, on two gloo ranks of a thread each."""
    torch.multiprocessing.spawn(_one_rank, (work, str(folder)), nprocs=2)


def _one_rank(rank: int, work: Callable[[int, str], None], folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    work(rank, folder)
    dist.destroy_process_group()
