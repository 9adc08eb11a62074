"""For every test."""

import pytest
import torch


@pytest.fixture(autouse=True)
def same_draws_in_every_run() -> None:
    """A model is drawn from torch's global generator: without this its weights depend on the tests before."""
    torch.manual_seed(0)
