"""timm's model contract, for one name a class of blocks, each through its entrypoint at a small size."""

import copy
import pickle
from pathlib import Path

import pytest
import timm
import torch
from timm.models import create_feature_extractor, save_for_hf
from timm.optim import create_optimizer_v2
from tiny import ISOTROPIC_NAMES, PYRAMID_NAMES, first_block, images, learned, perturb, same, tiny
from torch import nn
from zoo import tiny_kwargs

import gmlp_vision

every_name = pytest.mark.parametrize("name", [*ISOTROPIC_NAMES, *PYRAMID_NAMES])
isotropic = pytest.mark.parametrize("name", ISOTROPIC_NAMES)  # test_pyramid.py has its like for pyramids


def pool(model: nn.Module, features: torch.Tensor) -> torch.Tensor:
    """What the head takes of the features of a model that has its default pooling."""
    return features[:, 0] if model.num_prefix_tokens else features.flatten(1, -2).mean(1)


def shape_of(model: nn.Module) -> tuple[int, ...]:
    """Of the features of two images at 32 px."""
    tokens = (2, model.num_prefix_tokens + 16) if hasattr(model, "blocks") else (2, 4, 4)
    return (*tokens, model.num_features)


# -- heads ----------------------------------------------------------------------------------------------


@every_name
def test_forward_is_head_of_features(name: str) -> None:
    model = tiny(name)
    features = model.forward_features(images())
    assert features.shape == shape_of(model)
    same(model(images()), model.forward_head(features))
    pooled = model.forward_head(features, pre_logits=True)
    same(pooled, pool(model, features))
    assert pooled.shape == (2, model.head_hidden_size)


@every_name
def test_without_classes_or_pooling(name: str) -> None:
    full, x = tiny(name), images()
    headless = tiny(name, num_classes=0)
    headless.load_state_dict({k: v for k, v in full.state_dict().items() if not k.startswith("head")})
    same(headless(x), pool(full, full.forward_features(x)))
    unpooled = tiny(name, global_pool="")
    unpooled.load_state_dict(full.state_dict())
    assert unpooled(x).shape == (*shape_of(full)[:-1], 5)
    same(pool(full, unpooled(x)), full(x))
    bare = tiny(name, num_classes=0, global_pool="")
    bare.load_state_dict(headless.state_dict())
    same(bare(x), full.forward_features(x))


@every_name
def test_reset_classifier(name: str) -> None:
    model = tiny(name)
    features = model.forward_features(images())
    model.reset_classifier(0)
    assert isinstance(model.get_classifier(), nn.Identity)
    assert model.num_classes == 0
    same(model(images()), pool(model, features))
    model.reset_classifier(3)  # from a model without a head
    assert model.get_classifier().weight.shape == (3, model.num_features)
    assert model.num_classes == 3
    model.reset_classifier(4, "")
    assert model(images()).shape == (*shape_of(model)[:-1], 4)
    same(model.forward_features(images()), features)
    with pytest.raises(ValueError, match="'max'"):
        model.reset_classifier(4, "max")


def test_a_new_head_has_the_models_dtype() -> None:
    model = timm.create_model("gmlp_pico4", depth=1, num_classes=0, dtype=torch.bfloat16)
    model.reset_classifier(3)
    assert model.head.weight.dtype == torch.bfloat16


def test_a_head_put_in_by_the_user_is_called_with_one_tensor() -> None:
    model = tiny()
    model.head = nn.Sequential(nn.Dropout(0.5), nn.Linear(16, 9)).eval()
    assert model(images()).shape == (2, 9)


# -- intermediates --------------------------------------------------------------------------------------


def block_outputs(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """(B, N, D) of each block, without a class token."""
    x, outputs = model.embed(x), []
    for block in model.blocks:
        x = block(x)
        outputs.append(x.flatten(1, -2)[:, model.num_prefix_tokens :])
    return outputs


@pytest.mark.parametrize(
    ("name", "indices", "chosen"),
    [
        *((name, [0, 2], [0, 2]) for name in ISOTROPIC_NAMES),
        *(
            ("gmlp_ti16", i, c)
            for i, c in [(None, [0, 1, 2]), (1, [2]), (2, [1, 2]), ([-3], [0]), ((2, 0), [0, 2])]
        ),
    ],
)
def test_forward_intermediates(name: str, indices: object, chosen: list[int]) -> None:
    model, x = tiny(name, depth=3, img_size=(16, 24)), images(2, 3, 16, 24)
    expected = block_outputs(model, x)
    final, tokens = model.forward_intermediates(x, indices=indices, output_fmt="NLC")
    same(final, model.forward_features(x))
    assert len(tokens) == len(chosen)
    for i, t in zip(chosen, tokens, strict=True):
        same(t, expected[i])

    maps = model.forward_intermediates(x, indices=indices, norm=True, intermediates_only=True)
    for i, m in zip(chosen, maps, strict=True):
        assert m.shape == (2, 16, 2, 3)
        same(m.flatten(2).transpose(1, 2), model.norm(expected[i]))


@isotropic
def test_stop_early_runs_no_later_block(name: str) -> None:
    model, ran = tiny(name, depth=3), []
    for i, block in enumerate(model.blocks):
        block.register_forward_hook(lambda *_, i=i: ran.append(i))
    final, tokens = model.forward_intermediates(images(), indices=[1], stop_early=True, output_fmt="NLC")
    assert ran == [0, 1]
    same(final[:, model.num_prefix_tokens :], model.norm(tokens[0]))
    ran.clear()
    model.forward_intermediates(images(), indices=[1])
    assert ran == [0, 1, 2]


@isotropic
@pytest.mark.parametrize("prune_norm", [True, False])
def test_prune_intermediate_layers(name: str, prune_norm: bool) -> None:
    model = tiny(name, depth=3)
    expected = model.forward_intermediates(images(), indices=[-2], intermediates_only=True)[0]
    kept = model.prune_intermediate_layers([-2], prune_norm=prune_norm)
    assert kept == [1]
    assert len(model.blocks) == 2
    assert isinstance(model.norm, nn.Identity) == prune_norm
    assert isinstance(model.head, nn.Identity)
    same(model.forward_intermediates(images(), indices=kept, intermediates_only=True)[0], expected)


@pytest.mark.parametrize(
    ("name", "prune_norm", "prune_head"),
    [
        *((name, prune, prune) for name in ISOTROPIC_NAMES for prune in (True, False)),
        *(("gmlp_ti16", prune, not prune) for prune in (True, False)),
    ],
)
def test_what_is_pruned_is_saved_and_loaded_so(
    name: str, prune_norm: bool, prune_head: bool, tmp_path: Path
) -> None:
    model = tiny(name, depth=3)
    model.prune_intermediate_layers([1], prune_norm, prune_head)
    save_for_hf(model, tmp_path)
    loaded = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    same(loaded(images()), model(images()))


@pytest.mark.parametrize("indices", [0, 4, [3], [-4], []])
def test_indices_that_no_block_has(indices: object) -> None:
    model = tiny(depth=3)
    for call in (
        lambda: model.forward_intermediates(images(), indices),
        lambda: model.prune_intermediate_layers(indices),
    ):
        with pytest.raises(ValueError, match="expected"):
            call()
    assert len(model.blocks) == 3


def test_an_unknown_output_format() -> None:
    with pytest.raises(ValueError, match=r"'NCL'.*NCHW, NHWC, NLC"):
        tiny().forward_intermediates(images(), output_fmt="NCL")


@isotropic
def test_features_only(name: str) -> None:
    full = tiny(name, depth=4, img_size=(16, 24), patch_size=(8, 4))
    kwargs = {**tiny_kwargs(name), "depth": 4, "img_size": (16, 24), "patch_size": (8, 4)}
    del kwargs["num_classes"]
    backbone = timm.create_model(name, features_only=True, out_indices=(1, 3), **kwargs).eval()
    backbone.model.load_state_dict(
        {k: v for k, v in full.state_dict().items() if not k.startswith(("head", "norm"))}
    )
    x = images(2, 3, 16, 24)
    maps, expected = backbone(x), full.forward_intermediates(x, indices=[1, 3], intermediates_only=True)
    assert backbone.feature_info.channels() == [16, 16]
    assert backbone.feature_info.reduction() == [8, 8]  # the larger side of the patch
    assert backbone.feature_info.module_name() == ["blocks.1", "blocks.3"]
    for m, e in zip(maps, expected, strict=True):
        assert m.shape == (2, 16, 2, 6)
        same(m, e)


# -- training -------------------------------------------------------------------------------------------


def gradients(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model.train()
    torch.manual_seed(0)  # of what is drawn in training
    model(x).square().sum().backward()
    return {name: p.grad.clone() for name, p in learned(model).items()}


@every_name
def test_grad_checkpointing_recomputes_and_changes_no_gradient(name: str) -> None:
    model, calls = tiny(name), []
    first_block(model).register_forward_pre_hook(lambda *_: calls.append(1))
    plain = gradients(model, images())
    assert len(calls) == 1
    model.set_grad_checkpointing()
    recomputed = gradients(model, images())
    assert len(calls) == 3
    for key, grad in plain.items():
        assert grad.abs().max() > 0, key
        torch.testing.assert_close(recomputed[key], grad, atol=1e-6, rtol=1e-5)
    model.set_grad_checkpointing(False)
    gradients(model, images())
    assert len(calls) == 4


def test_grad_checkpointing_holds_in_forward_intermediates() -> None:
    model, calls = tiny(), []
    model.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    model.set_grad_checkpointing()
    model.forward_intermediates(images())[0].sum().backward()
    assert len(calls) == 2


@isotropic
def test_layer_decay_falls_from_head_to_stem(name: str) -> None:
    model = tiny(name, depth=3)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05, layer_decay=0.5)
    scale = {id(p): g["lr_scale"] for g in optimizer.param_groups for p in g["params"]}
    scales = [
        scale[id(p)]
        for p in (
            model.stem.proj.weight,
            *(next(block.parameters()) for block in model.blocks),
            model.head.weight,
        )
    ]
    assert scales == pytest.approx([0.5**4, 0.5**3, 0.5**2, 0.5, 1.0])
    assert scale[id(model.norm.weight)] == 0.5  # the final norm belongs to the last block, as in timm


@every_name
def test_weight_decay_spares_biases_norms_and_positions_only(name: str) -> None:
    model = tiny(name)
    spared = {key for key, _ in model.named_parameters() if {"pos_embed", "cls_token"} & set(key.split("."))}
    assert model.no_weight_decay() == spared
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    decay = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    for key, p in learned(model).items():
        weight = p.ndim > 1 and not key.endswith(".bias")
        assert decay[id(p)] == (0.05 if weight and key not in spared else 0.0), key


@every_name
def test_bf16_autocast(name: str) -> None:
    model = tiny(name)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(images())
    assert logits.dtype == torch.bfloat16
    expected = model(images())
    # rounding may choose other experts; with the same ones see test_sparse_mlp.py
    limit = 0.1 if name.startswith("sparse_mlp") else 0.03
    assert (logits.float() - expected).norm() < limit * expected.norm()
    with torch.autocast("cpu", torch.bfloat16):
        model(images()).square().sum().backward()
    assert all(p.grad.abs().max() > 0 for p in learned(model).values())


@every_name
def test_every_module_that_owns_parameters_can_draw_them(name: str) -> None:
    """FSDP calls `reset_parameters` of each after the meta device, and so does init_weights."""
    model = timm.create_model(name, device="meta", **tiny_kwargs(name))
    owners = [m for m in model.modules() if m._parameters]
    assert len(owners) > 4
    assert all(callable(getattr(m, "reset_parameters", None)) for m in owners)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(torch.nan)
    model.init_weights()
    assert all(p.isfinite().all() for p in model.parameters())


@every_name
def test_what_a_folder_says_by_default_is_held_against_the_model(name: str, tmp_path: Path) -> None:
    save_for_hf(tiny(name), tmp_path, safe_serialization=True)
    gmlp_vision.load_checkpoint(tiny(name), tmp_path)
    with pytest.raises(gmlp_vision.CheckpointError, match=r"norm_eps=1e-0[56].*norm_eps=0\.1"):
        gmlp_vision.load_checkpoint(tiny(name, norm_eps=0.1), tmp_path)


@isotropic
def test_a_class_token_only_where_blocks_take_a_row(name: str) -> None:
    if not tiny(name).num_prefix_tokens:
        with pytest.raises(ValueError, match="class_token is True"):
            tiny(name, class_token=True)


# -- copies ---------------------------------------------------------------------------------------------


@every_name
def test_copies_are_equal(name: str) -> None:
    model = tiny(name)
    restored = timm.create_model(name, **tiny_kwargs(name))
    restored.load_state_dict(model.state_dict())
    for twin in (restored.eval(), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        same(twin(images()), model(images()))
    perturb(model, seed=3)
    assert not torch.allclose(restored(images()), model(images()))


# -- graphs ---------------------------------------------------------------------------------------------


@pytest.mark.long
@every_name
@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated. Please switch to `torch.compile` or `torch.export`."
)
@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method` is deprecated. Please switch to `torch.compile` or `torch.export`."
)
def test_script(name: str) -> None:
    model = tiny(name)
    scripted = torch.jit.script(model)
    same(scripted(images()), model(images()))
    if model.fixed_input_size:
        with pytest.raises(torch.jit.Error, match="48 x 32"):
            scripted(images(1, 3, 48, 32))


@every_name
def test_fx(name: str) -> None:
    model = tiny(name)
    traced = torch.fx.symbolic_trace(model)
    same(traced(images(3, 3, 32, 32)), model(images(3, 3, 32, 32)))
    if model.fixed_input_size:
        with pytest.raises(ValueError, match="48 x 32"):
            traced(images(1, 3, 48, 32))
    extractor = create_feature_extractor(model, {"norm": "tokens"})
    tokens = (2, 17) if model.num_prefix_tokens else (2, 4, 4)
    assert extractor(images())["tokens"].shape == (*tokens, model.num_features)


@pytest.mark.long
@every_name
def test_export_with_a_dynamic_batch(name: str) -> None:
    model = tiny(name)
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (images(),), dynamic_shapes=({0: batch},)).module()
    for size in (1, 3):
        same(program(images(size, 3, 32, 32)), model(images(size, 3, 32, 32)))


@pytest.mark.long
@every_name
def test_compiles_as_one_graph(name: str) -> None:
    model = tiny(name)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    same(compiled(images()), model(images()))
    compiled(images()).square().sum().backward()
    assert all(p.grad.abs().max() > 0 for p in learned(model).values())


@pytest.mark.slow
def test_inductor() -> None:
    model = tiny("gmlp_pico4")
    with torch.no_grad():
        same(torch.compile(model, fullgraph=True)(images()), model(images()))
