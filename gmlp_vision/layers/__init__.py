"""What a block is made of. Nothing here knows a model."""

from gmlp_vision.layers.spatial_gating import SpatialGatingUnit
from gmlp_vision.layers.spatial_projection import DynamicSpatialProjection, SpatialProjection

__all__ = ["DynamicSpatialProjection", "SpatialGatingUnit", "SpatialProjection"]
