"""What all models share: timm's model contract, and how a block is called."""

from gmlp_vision.trunks.create import cfg, create
from gmlp_vision.trunks.input_size import set_input_size
from gmlp_vision.trunks.isotropic import Isotropic
from gmlp_vision.trunks.pyramid import Pyramid
from gmlp_vision.trunks.trunk import Trunk

__all__ = ["Isotropic", "Pyramid", "Trunk", "cfg", "create", "set_input_size"]
