"""What a block is made of. Nothing here knows a model."""

from gmlp_vision.layers.gated_mlp import GatedMlp
from gmlp_vision.layers.grid_tied import GridTied
from gmlp_vision.layers.position import PositionTable
from gmlp_vision.layers.spatial_gating import SpatialGatingUnit
from gmlp_vision.layers.spatial_projection import SpatialProjection

__all__ = ["GatedMlp", "GridTied", "PositionTable", "SpatialGatingUnit", "SpatialProjection"]
