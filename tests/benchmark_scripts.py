"""The scripts of benchmarks/ and examples/, for their tests.

A script imports what lies beside it by its short name.
"""

import importlib
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import timm
import torch
from tiny import TINY, tiny
from torch import nn

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@cache
def load(name: str, room: Path = BENCHMARKS) -> SimpleNamespace:
    """All modules of one folder of a room; no test can import them by their short names afterwards."""
    folder = room / name
    names = [path.stem for path in sorted(folder.glob("*.py"))]
    others = {module: sys.modules.pop(module) for module in names if module in sys.modules}
    sys.path.insert(0, str(folder))
    try:
        return SimpleNamespace(**{module: importlib.import_module(module) for module in names})
    finally:
        sys.path.remove(str(folder))
        for module in names:
            sys.modules.pop(module, None)
        sys.modules.update(others)


def small_pair(size: str) -> tuple[nn.Module, nn.Module]:
    """In place of `make_pair` of speed/: ours and timm's, with the same weights in every call, at 32 px."""
    torch.manual_seed(0)
    ours = tiny()
    theirs = timm.models.MlpMixer(
        num_blocks=TINY["depth"],
        mlp_ratio=6,
        block_layer=timm.models.mlp_mixer.SpatialGatingBlock,
        mlp_layer=timm.layers.GatedMlp,
        **{k: v for k, v in TINY.items() if k != "depth"},
    )
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs.eval()
