"""Files of the pyramids under their authors' names, at full size on the meta device, and small ones there and
back. That the numbers mean the same was held against the authors' code by hand."""

from pathlib import Path

import pytest
import timm
import torch
from tiny import images, perturb, same, tiny
from torch import nn
from zoo import tiny_kwargs

import gmlp_vision
from gmlp_vision.checkpoints import families
from gmlp_vision.checkpoints.identify import identify
from gmlp_vision.checkpoints.names import from_ours
from gmlp_vision.checkpoints.read import Checkpoint

Shapes = dict[str, tuple[int, ...]]

# the number of tensors in the authors' own state dict, and some of its names and shapes
RELEASED: dict[str, tuple[int, Shapes]] = {
    "vip_s7": (
        314,
        {
            "network.0.0.attn.mlp_h.weight": (192, 192),
            "network.1.proj.weight": (384, 192, 2, 2),
            "network.2.0.attn.reweight.fc2.weight": (1152, 96),
        },
    ),
    "cycle_b1": (
        222 - 20,  # offsets, for a deformable convolution
        {
            "network.0.0.attn.sfc_w.weight": (64, 64, 1, 1),
            "network.0.0.attn.reweight.fc1.weight": (16, 64),
            "network.1.proj.weight": (128, 64, 3, 3),
        },
    ),
    "hire_t": (
        415,
        {
            "patch_embed.norm.running_var": (64,),
            "network.0.0.attn.mlp_h1.weight": (32, 256, 1, 1),
            "network.0.0.attn.mlp_h1_norm.weight": (32,),
            "network.0.0.attn.mlp_w2.bias": (256,),
            "network.1.norm.num_batches_tracked": (),
            "norm.running_mean": (512,),
        },
    ),
    "wave_t_dw": (
        405,
        {
            "network.0.0.attn.tfc_h.weight": (64, 2, 1, 7),
            "network.0.0.attn.theta_h_conv.0.weight": (64, 1, 3, 3),
            "network.0.0.attn.theta_w_conv.1.running_var": (64,),
            "network.0.0.mlp.fc1.weight": (256, 64, 1, 1),
            "norm.num_batches_tracked": (),
        },
    ),
    "as_mlp_t": (
        257,
        {
            "patch_embed.norm.weight": (96,),
            "layers.0.blocks.0.axial_shift.conv2_1.weight": (96, 96, 1, 1),
            "layers.0.downsample.reduction.weight": (192, 384, 1, 1),
            "layers.0.downsample.norm.bias": (384,),
        },
    ),
    "smlp_t": (
        583,
        {
            "to_patch_embedding.0.0.weight": (80, 3, 4, 4),
            "token_mix.0.0.conv_merge.BN.running_mean": (80,),
            "token_mix.0.1.proh_w.weight": (56, 56, 1, 1),
            "channel_mix.0.2.net.0.weight": (240, 80),
            "batch_norm.weight": (640,),
            "mlp_head.0.bias": (1000,),
        },
    ),
    "raft_s": (
        228,
        {
            "levels.0.fn.0.fc.weight": (64, 240),
            "levels.0.fn.2.1.norm.1.weight": (64,),
            "levels.0.fn.2.1.fn.0.weight": (224, 112),
            "levels.0.fn.2.5.norm.bias": (64,),
            "heads.0.1.weight": (512,),
            "classifier.weight": (1000, 512),
        },
    ),
    "convmlp_s": (
        184,
        {
            "tokenizer.block.1.running_mean": (32,),
            "conv_stages.conv_blocks.0.0.weight": (128, 64, 1, 1),
            "conv_stages.downsample.weight": (128, 64, 3, 3),
            "stages.0.blocks.0.connect.weight": (128, 1, 3, 3),
            "stages.0.downsample_mlp.downsample.bias": (256,),
        },
    ),
    "posmlp_t": (
        277 - 24,  # tables of offsets
        {
            "patch_embed.projs.0.weight": (48, 3, 3, 3),
            "patch_embed.norms.0.running_var": (48,),
            "levels.0.encoder.0.proj_c_s.weight": (96, 192),
            "levels.0.encoder.0.gate_unit.pos.attention_spreads": (8, 2, 2),
            "levels.0.encoder.0.gate_unit.pos.token_proj_n_bias": (1, 196, 1),
            "levels.1.pool.conv.weight": (192, 1, 3, 3),
        },
    ),
    "swin_mlp_t_c24": (
        137,
        {
            "layers.0.blocks.0.spatial_mlp.weight": (256, 64, 1),
            "layers.0.blocks.0.spatial_mlp.bias": (256,),
            "layers.0.downsample.reduction.weight": (192, 384),
        },
    ),
    "gfnet_h_ti": (
        203,
        {
            "pos_embed": (1, 3136, 64),
            "patch_embed.0.proj.weight": (64, 3, 4, 4),
            "blocks.0.0.gamma": (64,),
            "blocks.0.0.filter.complex_weight": (56, 29, 64, 2),
        },
    ),
}
LEFT = {
    "cycle_b1": {"network.0.0.attn.sfc_h.offset": torch.zeros(1, 32, 1, 1)},
    "wave_t_dw": {"network.0.0.attn.total_ops": torch.zeros(1), "total_params": torch.zeros(1)},
    "posmlp_t": {"levels.0.encoder.0.gate_unit.pos.rel_indices": torch.zeros(16, 16, 5)},
}

every_family = pytest.mark.parametrize("name", RELEASED)


def layout_of(model: nn.Module) -> str:
    """The layout of the model's family that is of its trunk."""
    found = families.layouts_of(families.family_of_model(model))
    return list(found)[-1]


def in_their_names(model: nn.Module) -> dict[str, torch.Tensor]:
    layout = families.layouts_of(families.family_of_model(model))[layout_of(model)]
    return from_ours(model.state_dict(), layout.rows_for(model))


@every_family
def test_full_size_in_the_authors_names(name: str) -> None:
    state = in_their_names(timm.create_model(name, device="meta"))
    count, shapes = RELEASED[name]
    assert len(state) == count
    assert {key: tuple(state[key].shape) for key in shapes} == shapes
    zeros = {key: torch.zeros((), dtype=t.dtype).expand(t.shape) for key, t in state.items()}
    found = identify(Checkpoint(zeros, {}, "a file", "raw", ""))
    assert found.name == name
    assert found.layout == layout_of(found.model)


@every_family
def test_there_and_back(name: str, tmp_path: Path) -> None:
    model = tiny(name)
    torch.save({"model": in_their_names(model) | LEFT.get(name, {})}, tmp_path / "theirs.pth")
    loaded = perturb(tiny(name), seed=5)
    report = gmlp_vision.load_checkpoint(loaded, tmp_path / "theirs.pth")
    assert report.layout == layout_of(model)
    assert report.dropped.keys() == LEFT.get(name, {}).keys()
    same(loaded(images()), model(images()))
    overlay = {"file": str(tmp_path / "theirs.pth")}
    kwargs = {**tiny_kwargs(name), "pretrained_cfg_overlay": overlay}
    same(timm.create_model(name, pretrained=True, **kwargs).eval()(images()), model(images()))


@pytest.mark.parametrize("name", ["cycle_b1", "hire_t", "wave_t_dw", "wave_s"])
def test_a_backbone_for_dense_heads(name: str, tmp_path: Path) -> None:
    """Stage norms in place of the final one and the head, as the authors' code has with `fork_feat`."""
    model = tiny(name)
    theirs = {k: v for k, v in in_their_names(model).items() if not k.startswith("head.")}
    last = {k: theirs.pop(k) for k in list(theirs) if k.startswith("norm.")}
    assert last
    theirs |= {k.replace("norm.", "norm6."): v for k, v in last.items()}
    earlier = {f"norm{i}.{leaf}": torch.ones(16) for i in (0, 2, 4) for leaf in ("weight", "bias")}
    torch.save({"state_dict": theirs | earlier}, tmp_path / "backbone.pth")
    loaded = perturb(tiny(name), seed=5)
    head = loaded.head.weight.clone()
    report = gmlp_vision.load_checkpoint(loaded, tmp_path / "backbone.pth")
    assert report.dropped.keys() == earlier.keys()
    assert "dense head" in str(report)
    assert report.missing.keys() == {"head.weight", "head.bias"}
    same(loaded.forward_features(images()), model.forward_features(images()))
    assert torch.equal(loaded.head.weight, head)
