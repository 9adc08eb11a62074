"""For every test."""

import gc
import os

import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:  # a worker a core: more threads would only wait for each other
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # else it starts processes that import torch


def pytest_collection_finish() -> None:
    """In a worker what is imported by now stays, and need not be gone through at each collection of garbage.

    Not where a summary is printed: hypothesis may be imported for that, and asks `gc` for referrers, which
    finds none of what is frozen.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def same_draws_in_every_run() -> None:
    """A model is drawn from torch's global generator: without this its weights depend on the tests before."""
    torch.manual_seed(0)
