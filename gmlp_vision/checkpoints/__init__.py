"""Weights in three verbs: load (bytes to tensors), convert (others' names to ours), adapt (to this model)."""

from gmlp_vision.checkpoints.convert_file import convert_file
from gmlp_vision.checkpoints.describe import describe
from gmlp_vision.checkpoints.hub import explain_hub_errors
from gmlp_vision.checkpoints.into_model import checkpoint_filter_fn, load_checkpoint
from gmlp_vision.checkpoints.load import Checkpoint, read_checkpoint
from gmlp_vision.checkpoints.report import Report
from gmlp_vision.checkpoints.save import DTYPES

__all__ = [
    "DTYPES",
    "Checkpoint",
    "Report",
    "checkpoint_filter_fn",
    "convert_file",
    "describe",
    "explain_hub_errors",
    "load_checkpoint",
    "read_checkpoint",
]
