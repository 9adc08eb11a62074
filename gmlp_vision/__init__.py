"""gMLP ("Pay Attention to MLPs", arXiv 2105.08050) and its attention-free relatives for timm.

Importing this package registers its models with timm: `timm.create_model("gmlp_s16")`.
"""

import gmlp_vision.models  # noqa: F401  registers them
from gmlp_vision.checkpoints import load_checkpoint, merge, save_for_hf
from gmlp_vision.errors import CheckpointError
from gmlp_vision.models.gmlp import GMlp, GMlpBlock
from gmlp_vision.trunks import set_input_size

__version__ = "0.1.0"
__all__ = [
    "CheckpointError",
    "GMlp",
    "GMlpBlock",
    "load_checkpoint",
    "merge",
    "save_for_hf",
    "set_input_size",
]
