"""Weights: read (bytes to tensors), identify (what they are), adapt (to a model), build, convert, save."""

from gmlp_vision.checkpoints.build import Built, build
from gmlp_vision.checkpoints.convert import convert_file
from gmlp_vision.checkpoints.describe import describe
from gmlp_vision.checkpoints.hub import explain_hub_errors, refuse_page
from gmlp_vision.checkpoints.load import checkpoint_filter_fn, load_checkpoint
from gmlp_vision.checkpoints.merge import kernels_of, merge, save_for_hf
from gmlp_vision.checkpoints.pickled import data_allowed
from gmlp_vision.checkpoints.read import Checkpoint, read_checkpoint
from gmlp_vision.checkpoints.report import Report
from gmlp_vision.checkpoints.save import DTYPES

__all__ = [
    "DTYPES",
    "Built",
    "Checkpoint",
    "Report",
    "build",
    "checkpoint_filter_fn",
    "convert_file",
    "data_allowed",
    "describe",
    "explain_hub_errors",
    "kernels_of",
    "load_checkpoint",
    "merge",
    "read_checkpoint",
    "refuse_page",
    "save_for_hf",
]
