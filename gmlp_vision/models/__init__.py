"""One architecture, one file. Importing this package registers every model with timm."""

from gmlp_vision.models.gmlp import GMlp, GMlpBlock

__all__ = ["GMlp", "GMlpBlock"]
