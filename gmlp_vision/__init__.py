"""gMLP ("Pay Attention to MLPs", arXiv 2105.08050) for timm.

Importing this package registers its models with timm: `timm.create_model("gmlp_s16")`.
"""

from gmlp_vision.models import GMlp, GMlpBlock

__version__ = "0.1.0"
__all__ = ["GMlp", "GMlpBlock"]
