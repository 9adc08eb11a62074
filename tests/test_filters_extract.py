"""Operators of models, state dicts and files, against the forward pass of the very modules."""

import json
import re
from argparse import Namespace
from functools import partial
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.layers import GatedMlp, GluMlp
from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock, SpatialGatingBlock
from tiny import perturb, tiny
from torch import nn
from torch.nn.utils import parametrize
from toy_networks import GRIDS, Blocks, Embedding, Heads, Kernels, Shift, projection, pyramid

from gmlp_vision.errors import CheckpointError
from gmlp_vision.filters import FilterBank, extract
from gmlp_vision.layers.ask import Operator

GRID = (2, 3)  # not square, so that swapped axes and rows show
TIMM = {
    "gmlp_ti16_224": (32, 48),
    "resmlp_12_224": (32, 48),
    "mixer_s32_224": (64, 96),
    "gmixer_12_224": (32, 48),
}
SMALL = {
    "gmlp": {"mlp_ratio": 6, "block_layer": SpatialGatingBlock, "mlp_layer": GatedMlp},
    "resmlp": {"mlp_ratio": 4, "block_layer": ResBlock, "norm_layer": Affine},
    "mixer": {"mlp_ratio": (2, 4)},
    "gmixer": {"mlp_ratio": (2, 4), "mlp_layer": GluMlp, "act_layer": nn.SiLU},
}


@pytest.fixture(scope="module", params=TIMM)
def timm_model(request: pytest.FixtureRequest) -> nn.Module:
    return perturb(timm.create_model(request.param, img_size=TIMM[request.param])).eval()


def mixes(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What timm's block itself adds to (B, N, D) tokens by mixing them, in linear form, all else off."""
    if hasattr(block, "norm1"):
        block.norm1 = nn.Identity()
        nn.init.zeros_(block.mlp_channels.fc2.weight)
        nn.init.zeros_(block.mlp_channels.fc2.bias)
        if hasattr(block, "ls1"):
            nn.init.ones_(block.ls1)
        else:
            block.mlp_tokens.act = nn.Identity()
        return block(x) - x
    gate = block.mlp_channels.gate
    gate.norm = nn.Identity()
    return gate(torch.cat([torch.ones_like(x), x], dim=-1))


def test_rows_are_output_tokens_in_the_modules_own_forward(timm_model: nn.Module) -> None:
    bank = extract(timm_model)
    (layer,) = bank.select([1], "token").layers
    block = timm_model.blocks[1]
    if (
        hasattr(block, "mlp_tokens")
        and block.mlp_tokens.fc1.out_features == 2 * block.mlp_tokens.fc2.in_features
    ):
        half = block.mlp_tokens.fc2.in_features  # the gate's half, set to pass the value through
        nn.init.zeros_(block.mlp_tokens.fc1.weight[half:].detach())
        nn.init.ones_(block.mlp_tokens.fc1.bias[half:].detach())
    dim = block.mlp_channels.fc1.in_features
    with torch.no_grad():
        for j in range(6):
            one_hot = torch.zeros(1, 6, dim)
            one_hot[:, j] = 1
            column = mixes(block, one_hot)[0, :, 0]
            torch.testing.assert_close(layer.matrix[:, j] + layer.bias, column, atol=2e-5, rtol=1e-5)
    assert layer.matrix.std() > 0.01
    assert (layer.matrix - layer.matrix.T).abs().max() > 0.01


def test_every_token_mixer_of_timm_is_of_a_family_tested_here() -> None:
    families = {name.split("_")[0] for name in timm.list_models(module="mlp_mixer")}
    assert families == {name.split("_")[0] for name in TIMM}


def test_layers_have_stable_names_a_grid_and_the_order_of_depth(timm_model: nn.Module) -> None:
    bank = extract(timm_model)
    assert {layer.grid for layer in bank} == {GRID}
    assert bank.blocks == list(range(len(timm_model.blocks)))
    assert [x.block for x in bank.layers] == sorted(x.block for x in bank.layers)
    for layer in bank.layers:
        assert layer.weight.shape[1:] == GRID
        assert layer.name.startswith(f"blocks.{layer.block}.")
        assert (layer.weight.shape[0] == 6) == (layer.kind == "token")


def test_ours_reads_as_the_parameter_and_as_timms_with_the_same_weights() -> None:
    model = tiny(img_size=(32, 48))
    bank = extract(model)
    assert [x.name for x in bank.layers] == [f"blocks.{i}.mlp_channels.gate.proj" for i in range(2)]
    for layer, block in zip(bank.layers, model.blocks, strict=True):
        proj = block.mlp_channels.gate.proj
        assert torch.equal(layer.matrix, proj.weight)
        assert torch.equal(layer.bias, proj.bias)
        assert layer.grid == (4, 6)
        assert torch.equal(layer.filter((1, 2)), proj.weight[1 * 6 + 2].reshape(4, 6))
        assert layer.by_token.shape == (4, 6, 4, 6)
        assert layer.by_token[1, 2, 3, 5] == proj.weight[1 * 6 + 2, 3 * 6 + 5]
    same_layers(bank, extract(model.state_dict(), grid=(4, 6)))


def test_a_bank_stays_as_it_is_while_the_model_trains_on() -> None:
    model = tiny()
    bank = extract(model)
    before = bank.layers[0].weight.clone()
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    assert torch.equal(bank.layers[0].weight, before)


def test_a_mixer_gives_its_two_layers_and_their_product() -> None:
    model = perturb(timm.create_model("mixer_s32_224", img_size=(64, 96)))
    reads, writes, product = extract(model).select([3]).layers
    mlp = model.blocks[3].mlp_tokens
    assert [x.kind for x in (reads, writes, product)] == ["hidden", "hidden", "token"]
    assert torch.equal(reads.matrix, mlp.fc1.weight)
    assert torch.equal(writes.matrix, mlp.fc2.weight.T)
    torch.testing.assert_close(product.matrix, writes.matrix.T @ reads.matrix)
    assert product.note == "ignores the non-linearity"
    assert product.name == "blocks.3.mlp_tokens.product"
    assert product.by_token.shape == (2, 3, 2, 3)
    with pytest.raises(ValueError, match=r"fc1 is of kind 'hidden': its rows are no tokens"):
        reads.filter((0, 0))
    with pytest.raises(ValueError, match=r"fc2 is of kind 'hidden': its rows are no tokens"):
        _ = writes.by_token


def test_a_gmixer_gives_value_and_gate_apart() -> None:
    model = perturb(timm.create_model("gmixer_12_224", img_size=(32, 48)))
    value, gate, writes, product = extract(model).select([0]).layers
    fc1, k = model.blocks[0].mlp_tokens.fc1, writes.weight.shape[0]
    assert (value.name, gate.name) == ("blocks.0.mlp_tokens.fc1.value", "blocks.0.mlp_tokens.fc1.gate")
    assert torch.equal(value.matrix, fc1.weight[:k])
    assert torch.equal(gate.matrix, fc1.weight[k:])
    assert torch.equal(gate.bias, fc1.bias[k:])
    torch.testing.assert_close(product.matrix, writes.matrix.T @ value.matrix)


@pytest.mark.parametrize("gate_last", [True, False])
def test_either_half_of_a_glu_may_be_the_value(gate_last: bool) -> None:
    mlp = partial(GluMlp, gate_last=gate_last)
    model = MlpMixer(img_size=(32, 48), num_blocks=1, embed_dim=8, mlp_ratio=(2, 4), mlp_layer=mlp)
    value, gate, writes, product = extract(model)
    first, second = (value, gate) if gate_last else (gate, value)
    fc1, k = model.blocks[0].mlp_tokens.fc1, writes.weight.shape[0]
    assert torch.equal(first.matrix, fc1.weight[:k])
    assert torch.equal(second.matrix, fc1.weight[k:])
    assert (first.init_std > 0.1) & (second.init_std == 1e-6)
    torch.testing.assert_close(product.matrix, writes.matrix.T @ value.matrix)
    for row in extract(model).stats():
        assert row.moved == pytest.approx(1, rel=0.4), row.name


class Doubled(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


@pytest.mark.parametrize(
    ("name", "size", "part"),
    [
        ("gmlp_ti16", (32, 48), "mlp_channels.gate.proj"),
        ("gmlp_ti16_224", (32, 48), "mlp_channels.gate.proj"),
        ("resmlp_12_224", (32, 48), "linear_tokens"),
        ("mixer_s32_224", (64, 96), "mlp_tokens.fc1"),
    ],
)
def test_what_computes_a_map_is_shown_as_it_acts(name: str, size: tuple[int, int], part: str) -> None:
    model = perturb(timm.create_model(name, img_size=size)).eval()
    plain = extract(model)
    images = torch.randn(1, 3, *size)
    with torch.no_grad():
        before = model(images)
        parametrize.register_parametrization(model.blocks[1].get_submodule(part), "weight", Doubled())
        assert (model(images) - before).abs().max() > 1e-4
    doubled = extract(model)
    assert [x.name for x in doubled] == [x.name for x in plain]
    for a, b in zip(plain, doubled, strict=True):
        twice = a.block == 1 and (a.kind == "token" or a.name.endswith("fc1"))
        torch.testing.assert_close(b.weight, (2 if twice else 1) * a.weight)


def test_a_layer_that_stands_in_two_blocks_acts_in_both() -> None:
    shared = projection((2, 3))
    bank = extract(Blocks(shared, projection((2, 3)), shared))
    assert [x.name for x in bank] == [f"blocks.{i}.mix" for i in range(3)]
    assert torch.equal(bank[0].weight, bank[2].weight)


class Forwarding(nn.Module):
    """A wrapper that answers for what it wraps, as torch.compile's does."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def __getattr__(self, name: str) -> object:
        return (
            super().__getattr__(name) if name == "inner" or name in vars(self) else getattr(self.inner, name)
        )


def test_a_wrapper_does_not_tell_the_map_of_what_it_wraps_again() -> None:
    layer = projection((2, 3))
    assert Forwarding(layer).operators((2, 3))
    assert [x.name for x in extract(Blocks(Forwarding(layer)))] == ["blocks.0.mix.inner"]


# -- stages, grids, kinds ------------------------------------------------------------------------------------


def test_stages_are_numbered_through_and_each_layer_has_its_grid() -> None:
    net = pyramid()
    bank = extract(net)
    assert [x.name for x in bank] == [
        "stages.0.blocks.0.mix",
        "stages.0.blocks.1.mix",
        "stages.1.blocks.0.mix",
    ]
    assert [x.block for x in bank] == [0, 1, 2]
    assert tuple(x.grid for x in bank) == GRIDS
    assert torch.equal(bank[2].filter((1, 2)), net["stages"][1].blocks[0]["mix"].weight[5].view(2, 3))
    assert str(bank) == "ModuleDict: 3 layers on grids of 4 x 6 and 2 x 3 tokens, as the model's own"
    same_layers(bank, extract(nn.ModuleDict({"model": net})))


def test_blocks_without_a_map_count_too() -> None:
    net = nn.ModuleDict(
        {"stages": nn.Sequential(Blocks(Shift(), Kernels()), Blocks(Shift(), projection((2, 3))))}
    )
    assert [(x.name, x.block) for x in extract(net)] == [
        ("stages.0.blocks.1.mix", 1),
        ("stages.1.blocks.1.mix", 3),
    ]


def test_kernels_need_no_grid() -> None:
    bank = extract(Blocks(Kernels(5, (3, 3)), Kernels(5, (1, 7))))
    assert [x.kind for x in bank] == ["kernel", "kernel"]
    assert [x.grid for x in bank] == [(3, 3), (1, 7)]
    assert bank[0].note == "exp of it mixes"
    assert str(bank) == "Blocks: 2 layers of kernels of 3 x 3 and 1 x 7 offsets"
    with pytest.raises(ValueError, match=r"blocks\.0\.mix is of kind 'kernel': its rows are no tokens"):
        bank[0].filter((0, 0))
    with pytest.raises(
        ValueError, match=r"grid 3 x 3 is given; Blocks tells its own, none, since it holds kernels"
    ):
        extract(Blocks(Kernels()), grid=(3, 3))


def test_a_layer_may_hold_several_maps() -> None:
    layer = Heads(6)
    bank = extract(Blocks(layer), grid=(2, 3))
    assert [x.name for x in bank] == ["blocks.0.mix.head0", "blocks.0.mix.head1"]
    assert torch.equal(bank[1].matrix, layer.weight[1])


def test_a_grid_is_that_of_the_nearest_embedding_with_as_many_tokens() -> None:
    net = nn.ModuleDict(
        {
            "stem": Embedding((3, 4)),
            "position": Embedding((7, 7)),
            "trunk": Blocks(Heads(12), projection((2, 6))),
        }
    )
    assert [x.grid for x in extract(net)] == [(3, 4), (3, 4), (2, 6)]
    net["position"] = Embedding((6, 2))
    assert [x.grid for x in extract(net)] == [(6, 2), (6, 2), (2, 6)]


def test_a_grid_that_nothing_tells_is_given_or_square() -> None:
    given = extract(Blocks(Heads(6)), grid=(3, 2))
    assert (given[0].grid, given.grid_source) == ((3, 2), "as given")
    square = extract(Blocks(Heads(9)))
    assert (square[0].grid, square.grid_source) == ((3, 3), "guessed to be square, since nothing states it")
    both = extract(Blocks(Heads(6), projection((2, 3))), grid=(3, 2))
    assert [x.grid for x in both] == [(3, 2), (3, 2), (2, 3)]
    assert both.grid_source == "as given; as the model's own"
    with pytest.raises(ValueError, match=r"blocks\.0\.mix\.head0 is over 6 tokens.*give `grid=\(H, W\)`"):
        extract(Blocks(Heads(6)))
    for grid in ((5, 5), (-2, -3)):
        with pytest.raises(
            ValueError, match=f"the grid {grid[0]} x {grid[1]} is given, but .* over 6 tokens"
        ):
            extract(Blocks(Heads(6)), grid=grid)
    with pytest.raises(
        ValueError, match=r"grid 3 x 2 is given; ModuleDict tells its own, 2 x 3 and 4 x 6: leave"
    ):
        extract(pyramid(), grid=(3, 2))


# -- nothing to show -----------------------------------------------------------------------------------------


def test_a_network_without_maps_says_why_in_the_words_of_its_layers() -> None:
    with pytest.raises(
        ValueError, match=r"^Blocks has no map over tokens to show: its tokens mix by fixed shifts$"
    ):
        extract(Blocks(Shift(), Shift()))
    assert len(extract(Blocks(Shift(), projection((2, 3))))) == 1


def test_another_architecture_is_told_what_is_known() -> None:
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1)
    known = "MixerBlock, .*ResBlock, .*SpatialGatingUnit, SpatialProjection"
    with pytest.raises(ValueError, match=f"VisionTransformer has no layer that is known to hold.*{known}"):
        extract(model)


def test_two_networks_in_one_are_refused() -> None:
    two = nn.ModuleDict({"student": tiny(), "teacher": pyramid()})
    with pytest.raises(ValueError, match="holds more than one network, 'student' and 'teacher': pass one"):
        extract(two)


def test_a_part_of_a_network_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"outside of 'blocks\.N', mlp_channels\.gate\.proj: pass a whole network"
    ):
        extract(tiny().blocks[0])


def test_a_model_without_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"blocks\.0\.mlp_channels\.gate\.proj is on the meta device"):
        extract(timm.create_model("gmlp_ti16", device="meta"))


def test_nan_names_its_layer() -> None:
    model = tiny()
    model.blocks[1].mlp_channels.gate.proj.weight.data[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"blocks\.1\.mlp_channels\.gate\.proj holds 1 values of 256"):
        extract(model)


@pytest.mark.parametrize(
    ("kind", "shape", "message"),
    [
        ("row", (4, 4), "the kind of an operator is 'row'; expected one of token, hidden, kernel"),
        ("token", (6, 4), r"kind 'token' is \(6, 4\); expected \(N, N\)"),
        ("hidden", (6, 2, 2), r"kind 'hidden' is \(6, 2, 2\); expected \(R, N\)"),
        ("kernel", (6, 4), r"kind 'kernel' is \(6, 4\); expected \(R, h, w\)"),
    ],
)
def test_an_operator_has_the_shape_of_its_kind(kind: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Operator("", kind, torch.ones(shape), None, init_std=1.0)


# -- sources -------------------------------------------------------------------------------------------------


def write_folder(model: nn.Module, config: dict[str, object], folder: Path) -> None:
    """timm's local-dir form."""
    save_file(model.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"architecture": "gmlp_ti16", **config}))


def same_layers(a: FilterBank, b: FilterBank) -> None:
    assert [x.name for x in a.layers] == [x.name for x in b.layers]
    for x, y in zip(a.layers, b.layers, strict=True):
        assert torch.equal(x.weight, y.weight)
        assert x.bias is y.bias is None or torch.equal(x.bias, y.bias)


def test_a_training_checkpoint(tmp_path: Path) -> None:
    model = tiny()
    torch.save({"state_dict": model.state_dict(), "args": Namespace(lr=1e-3)}, tmp_path / "last.pth.tar")
    bank = extract(tmp_path / "last.pth.tar")
    same_layers(bank, extract(model))
    assert bank.source == str(tmp_path / "last.pth.tar")


def test_where_a_file_offers_a_choice_the_bank_says_what_was_taken(tmp_path: Path) -> None:
    raw, ema = tiny(), perturb(tiny(), seed=1)
    torch.save({"state_dict": raw.state_dict(), "state_dict_ema": ema.state_dict()}, tmp_path / "both.pth")
    both = tmp_path / "both.pth"
    for weights, taken, model in (("auto", "ema", ema), ("ema", "ema", ema), ("raw", "raw", raw)):
        bank = extract(both, weights=weights)
        same_layers(bank, extract(model))
        assert bank.source == bank.select([1]).source == f"{both} ({taken} weights)"
    assert not torch.equal(extract(raw).layers[0].weight, extract(ema).layers[0].weight)
    with pytest.raises(ValueError, match="weights is 'new'; expected 'auto', 'ema' or 'raw'"):
        extract(both, weights="new")
    for source in (raw, raw.state_dict()):
        with pytest.raises(ValueError, match=r"weights is 'raw', which chooses from a checkpoint"):
            extract(source, weights="raw")


@pytest.mark.parametrize(
    ("config", "how"),
    [
        ({"model_args": {"img_size": [32, 48]}}, "by the img_size in its config"),
        ({"pretrained_cfg": {"input_size": [3, 32, 48]}}, "by the input_size in its config"),
        (
            {"model_args": {"img_size": 224}, "pretrained_cfg": {"input_size": [3, 32, 48]}},
            "by the input_size in its config",
        ),
    ],
)
def test_the_config_of_a_folder_tells_the_grid(tmp_path: Path, config: dict[str, object], how: str) -> None:
    model = tiny(img_size=(32, 48))
    write_folder(model, config, tmp_path)
    same_layers(extract(tmp_path), extract(model))
    assert (extract(tmp_path)[0].grid, extract(tmp_path).grid_source) == ((4, 6), how)


@pytest.mark.parametrize(
    "config",
    [
        {"model_args": {"img_size": "64"}},
        {"model_args": 3, "pretrained_cfg": ["x"]},
        {"model_args": {"img_size": [32, "48"]}, "pretrained_cfg": {"input_size": [3, None, 48]}},
        {"model_args": {"img_size": -32}, "pretrained_cfg": None, "input_size": {"height": 32}},
    ],
)
def test_a_config_that_says_nothing_of_use(tmp_path: Path, config: dict[str, object]) -> None:
    write_folder(tiny(), config, tmp_path)
    assert extract(tmp_path)[0].grid == (4, 4)
    assert extract(tmp_path).grid_source == "guessed to be square, since nothing states it"


def test_a_bare_state_dict_is_square_or_is_told() -> None:
    square = tiny().state_dict()
    assert extract(square)[0].grid == (4, 4)
    assert extract(square).grid_source == "guessed to be square, since nothing states it"
    assert extract(square, grid=(2, 8))[0].grid == (2, 8)
    assert extract(square, grid=(2, 8)).grid_source == "as given"
    wide = tiny(img_size=(32, 48))
    assert extract(wide).select([0]).grid_source == "as the model's own"
    with pytest.raises(CheckpointError, match=r"nothing tells the grid.*`grid=\(H, W\)`.*`--grid H W`"):
        extract(wide.state_dict())
    with pytest.raises(CheckpointError, match="the grid 5 x 5"):
        extract(wide.state_dict(), grid=(5, 5))
    with pytest.raises(ValueError, match="grid is -4 x -6; expected height and width of 1"):
        extract(wide.state_dict(), grid=(-4, -6))


def test_prefixes_and_half_precision() -> None:
    state = {f"module._orig_mod.{k}": v.bfloat16() for k, v in tiny().state_dict().items()}
    bank = extract(state)
    assert bank.layers[1].name == "blocks.1.mlp_channels.gate.proj"
    assert bank.layers[1].weight.dtype == torch.float32


@pytest.mark.parametrize("family", SMALL)
def test_maps_over_tokens_may_be_kernels_of_a_1d_convolution(family: str) -> None:
    model = MlpMixer(img_size=(32, 48), num_blocks=2, embed_dim=8, **SMALL[family])
    state = model.state_dict()
    over_tokens = re.compile(r"\.(gate\.proj|linear_tokens|mlp_tokens\.fc[12])\.weight$")
    as_kernels = {k: v[..., None] if over_tokens.search(k) else v for k, v in state.items()}
    assert sum(v.ndim == 3 and v.shape[-1] == 1 for k, v in as_kernels.items() if k.startswith("blocks")) >= 2
    same_layers(extract(as_kernels, GRID), extract(model))


def test_the_names_of_the_resmlp_authors() -> None:
    model = perturb(MlpMixer(img_size=(32, 48), num_blocks=2, embed_dim=8, **SMALL["resmlp"]))
    words = {"stem.": "patch_embed.", "linear_tokens": "attn", "mlp_channels": "mlp", ".ls": ".gamma_"}
    theirs = {}
    for name, tensor in model.state_dict().items():
        for ours, other in words.items():
            name = name.replace(ours, other)
        theirs[name] = tensor.flatten() if name.endswith((".alpha", ".beta")) else tensor
    same_layers(extract(theirs, grid=GRID), extract(model))


def test_the_name_of_the_model_may_be_said() -> None:
    model = tiny()
    state = model.state_dict()
    same_layers(extract(state, model="gmlp_s16"), extract(model))
    with pytest.raises(CheckpointError, match="does not hold the weights of resmlp_12_224"):
        extract(state, model="resmlp_12_224")
    with pytest.raises(
        ValueError, match="model is 'gmlp_s16', which says what a file holds; this is a network"
    ):
        extract(model, model="gmlp_s16")
    with pytest.raises(ValueError, match=r"prefix is 'model\.', which says what a file holds"):
        extract(model, prefix="model.")


def test_two_networks_in_one_state_dict_are_refused() -> None:
    state = tiny().state_dict()
    both = {f"{who}.{k}": v + (who == "teacher") for who in ("student", "teacher") for k, v in state.items()}
    with pytest.raises(CheckpointError, match=r"more than one network, under student\., teacher\."):
        extract(both)
    same_layers(extract(both, prefix="student"), extract(state))


def test_a_state_dict_of_another_architecture_is_told_what_is_known() -> None:
    with pytest.raises(CheckpointError, match=r"not hold the weights of .* \(.*gMLP.*Mixer of timm"):
        extract(nn.Linear(4, 4).state_dict())
