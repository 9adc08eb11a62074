"""gMLP ("Pay Attention to MLPs", arXiv 2105.08050) for timm.

Importing this package registers its models with timm: `timm.create_model("gmlp_s16")`.
"""

from gmlp_vision.search_path import prefer_installed_timm

prefer_installed_timm()  # before the next line imports timm

from gmlp_vision.checkpoints import load_checkpoint  # noqa: E402
from gmlp_vision.errors import CheckpointError  # noqa: E402
import gmlp_vision.models
from gmlp_vision.models.gmlp import GMlp, GMlpBlock  # noqa: E402

__version__ = "0.1.0"
__all__ = ["CheckpointError", "GMlp", "GMlpBlock", "load_checkpoint"]
