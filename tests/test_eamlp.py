"""EAMLP: its stem, its sinusoids, the authors' files and names. tests/test_zoo.py has the rest."""

import argparse
import math
from pathlib import Path

import pytest
import timm
import torch
from timm.models import save_for_hf
from tiny import images, learned, perturb, same, same_weights, tiny
from torch import nn
from torch.nn import functional
from zoo import external_attention, gelu, linear, norm

from gmlp_vision import CheckpointError, load_checkpoint
from gmlp_vision.checkpoints import build, convert_file, describe
from gmlp_vision.errors import UserError
from gmlp_vision.models.eamlp import Eamlp, FixedSinusoids, SoftSplits, carry_sinusoids

State = dict[str, torch.Tensor]

# theirs: tokens of 16 pixels, 64 slots
RELEASED = {"img_size": 64, "patch_size": 16, "slots": 64}


# -- the stem -----------------------------------------------------------------------------------------------


def windows(x: torch.Tensor, side: int, stride: tuple[int, int], padding: tuple[int, int]) -> torch.Tensor:
    """(C, H, W) to (H', W', C side^2): what stands in each window, channel after channel, zeros outside."""
    chans, height, width = x.shape
    found = []
    for top in range(-padding[0], height + padding[0] - side + 1, stride[0]):
        row = []
        for left in range(-padding[1], width + padding[1] - side + 1, stride[1]):
            window = x.new_zeros(chans, side, side)
            for i in range(side):
                for j in range(side):
                    if 0 <= top + i < height and 0 <= left + j < width:
                        window[:, i, j] = x[:, top + i, left + j]
            row.append(window.flatten())
        found.append(torch.stack(row))
    return torch.stack(found)


def split_block(t: torch.Tensor, p: State, name: str) -> torch.Tensor:
    p = {key.removeprefix(f"{name}."): value for key, value in p.items() if key.startswith(name)}
    tokens = t.flatten(0, 1)
    q = linear(norm(tokens, p, "norm1", eps=1e-5), p, "q")
    scores = torch.exp(q @ p["m_k.weight"].T)
    over_tokens = scores / scores.sum(0)
    a = over_tokens / (1e-9 + over_tokens.sum(1, keepdim=True))
    y = q + linear(linear(a, p, "m_v"), p, "proj")
    y = y + linear(gelu(linear(norm(y, p, "norm2", eps=1e-5), p, "mlp.fc1")), p, "mlp.fc2")
    return y.unflatten(0, t.shape[:2])


@torch.no_grad()
@pytest.mark.parametrize(
    ("patch", "stride", "padding"),
    [((16, 16), (4, 4), (2, 2)), ((8, 12), (2, 3), (3, 2)), ((4, 28), (1, 7), (3, 0))],
)
def test_the_stem_is_its_equation(
    patch: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
) -> None:
    size = (2 * patch[0], 3 * patch[1])
    norm_layer = lambda dim, **dd: nn.LayerNorm(dim, eps=1e-5, **dd)  # noqa: E731
    stem = perturb(SoftSplits(size, patch, 2, 8, norm_layer)).double().eval()
    x, p = images(2, *size).double(), dict(stem.named_parameters())
    t = windows(x, 7, stride, padding)
    for name in ("block1", "block2"):
        t = windows(split_block(t, p, name).permute(2, 0, 1), 3, (2, 2), (1, 1))
    expected = linear(t, p, "proj")
    assert expected.shape == (2, 3, 8)
    assert expected.std(dim=(0, 1)).min() > 1e-3
    y = stem(x.unsqueeze(0))[0]
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-10 * expected.abs().max().item())


def test_bf16_autocast_stays_near_float32() -> None:
    model = tiny("eamlp_7", depth=4)
    expected = model(images())
    with torch.autocast("cpu", torch.bfloat16):
        y = model(images())
    assert (y.float() - expected).norm() < 0.03 * expected.norm()


def test_dropout_in_the_stem_in_training_only() -> None:
    model, x = tiny("eamlp_7", stem_drop_rate=0.5), images()
    same(model(x), model(x))
    plain = tiny("eamlp_7")
    plain.load_state_dict(model.state_dict())
    same(model(x), plain(x))
    plain.train()
    same(plain(x), plain(x))
    model.train()
    assert (model(x) - model(x)).abs().max() > 1e-3
    with pytest.raises(ValueError, match=r"stem_drop_rate is 1\.0"):
        tiny("eamlp_7", stem_drop_rate=1.0)


@pytest.mark.parametrize("patch", [6, 32, (16, 2)])
def test_a_patch_that_is_no_stride_of_the_windows(patch: object) -> None:
    with pytest.raises(ValueError, match=r"patch_size is .* expected multiples of 4 up to 28"):
        Eamlp(img_size=192, patch_size=patch, depth=1, device="meta")


def test_an_image_that_the_patch_does_not_divide() -> None:
    with pytest.raises(ValueError, match="36 pixels, which a patch of 8 does not divide"):
        tiny("eamlp_7", img_size=36)
    with pytest.raises(ValueError, match="multiples of 8 x 8"):
        tiny("eamlp_7", dynamic_img_size=True)(images(1, 3, 36, 36))


def test_another_patch_size_is_refused_and_nothing_changes() -> None:
    model, x = tiny("eamlp_7"), images()
    before, y = {k: v.clone() for k, v in model.state_dict().items()}, model(x)
    model.set_input_size(32, patch_size=8)  # which it is
    with pytest.raises(ValueError, match=r"patch_size is to be \(4, 4\) and is \(8, 8\)"):
        model.set_input_size(64, patch_size=4)
    assert same_weights(model, before)
    assert model.img_size == model.stem.img_size == (32, 32)
    same(model(x), y)


# -- positions and the class token --------------------------------------------------------------------------


def formula(places: int, dim: int) -> torch.Tensor:
    table = torch.empty(places, dim, dtype=torch.float64)
    for p in range(places):
        for c in range(dim):
            angle = p / 10000 ** (2 * (c // 2) / dim)
            table[p, c] = math.cos(angle) if c % 2 else math.sin(angle)
    return table


def test_the_table_is_the_sinusoids_at_every_size() -> None:
    model = timm.create_model("eamlp_14", depth=1, embed_dim=24, num_classes=0, img_size=(32, 48))
    assert torch.equal(model.pos_embed.weight, formula(7, 24).float())
    for size in ((64, 32), 112, 16, (32, 48)):
        model.set_input_size(size)
        tokens = math.prod(model.stem.grid_size)
        assert torch.equal(model.pos_embed.weight, formula(1 + tokens, 24).float())
        assert not model.pos_embed.weight.requires_grad


def test_no_training_changes_it() -> None:
    model = tiny("eamlp_7").train()
    before = model.pos_embed.weight.clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    model(images()).square().sum().backward()
    optimizer.step()
    assert torch.equal(model.pos_embed.weight, before)
    assert set(dict(model.named_parameters())) - set(learned(model)) == {"pos_embed.weight"}


def test_what_somebody_trained_goes_along() -> None:
    learnt = images(13, 8).double()
    grown = carry_sinusoids(formula(13, 8) + learnt, (3, 4), (6, 8)) - formula(49, 8)
    torch.testing.assert_close(grown[0], learnt[0])
    maps = learnt[1:].unflatten(0, (3, 4)).permute(2, 0, 1)
    maps = functional.interpolate(maps[None], (6, 8), mode="bicubic", align_corners=False)[0]
    torch.testing.assert_close(grown[1:], maps.permute(1, 2, 0).flatten(0, 1))


def test_the_class_token_has_the_first_place() -> None:
    table = FixedSinusoids((1, 2), 4)
    y = table(torch.zeros(2, 3, 4), (1, 2))
    torch.testing.assert_close(y, formula(3, 4).float().expand(2, 3, 4))
    assert y[0, 0].tolist() == [0, 1, 0, 1]


def test_the_class_token_is_one_of_the_tokens_of_each_softmax() -> None:
    model, x = tiny("eamlp_7", depth=1), images()
    before = model.forward_features(x)
    with torch.no_grad():
        model.cls_token.weight.add_(images(16))
    moved = (model.forward_features(x) - before).abs().amax(-1)
    assert moved.min() > 1e-6
    same(model(x), model.head(model.forward_features(x)[:, 0]))


# -- the authors' files -------------------------------------------------------------------------------------


def authors_state(dim: int = 16, depth: int = 2, tokens: int = 16, classes: int = 5) -> State:
    """Random tensors in the authors' names and shapes, of a model with 2 heads (8 in its blocks)."""
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, dim),
        "tokens_to_token.project.weight": (dim, 576),
        "tokens_to_token.project.bias": (dim,),
        "norm.weight": (dim,),
        "norm.bias": (dim,),
        "head.weight": (classes, dim),
        "head.bias": (classes,),
    }

    def norms(prefix: str, first: int, second: int) -> None:
        for name, width in (("norm1", first), ("norm2", second)):
            shapes.update({f"{prefix}.{name}.weight": (width,), f"{prefix}.{name}.bias": (width,)})

    def linears(prefix: str, layers: dict[str, tuple[int, int]]) -> None:
        for name, (out, into) in layers.items():
            shapes.update({f"{prefix}.{name}.weight": (out, into), f"{prefix}.{name}.bias": (out,)})

    for name, width in (("tokens_to_token.attention1", 147), ("tokens_to_token.attention2", 576)):
        norms(name, width, 64)
        linears(f"{name}.attn", {"q_linear": (64, width), "linear_1": (64, 128), "proj": (64, 64)})
        linears(f"{name}.mlp", {"fc1": (64, 64), "fc2": (64, 64)})
        shapes[f"{name}.attn.linear_0.weight"] = (128, 64)
    d = 4 * dim // 8
    for name in (f"blocks.{i}" for i in range(depth)):
        norms(name, dim, dim)
        linears(f"{name}.attn", {"trans_dims": (4 * dim, dim), "linear_0": (64, d), "linear_1": (d, 64)})
        linears(name, {"attn.proj": (dim, 4 * dim), "mlp.fc1": (2 * dim, dim), "mlp.fc2": (dim, 2 * dim)})
    generator = torch.Generator().manual_seed(0)
    state = {
        name: (0.2 if len(shape) > 1 else 0.5) * torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }
    # two views of one memory, as theirs start
    for j in (1, 2):
        name = f"tokens_to_token.attention{j}.attn.linear"
        state[f"{name}_1.weight"] = state[f"{name}_0.weight"].T
    return {**state, "pos_embed": formula(1 + tokens, dim).unsqueeze(0)}


def authors_forward(state: State, x: torch.Tensor, depth: int = 2, eps: float = 1e-5) -> torch.Tensor:
    """What their model computes, from tensors in their names."""

    def layer_norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], eps=eps)

    def fc(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, state[f"{name}.weight"], state.get(f"{name}.bias"))

    def mlp(x: torch.Tensor, name: str) -> torch.Tensor:
        hidden = fc(layer_norm(x, f"{name}.norm2"), f"{name}.mlp.fc1")
        return x + fc(functional.gelu(hidden), f"{name}.mlp.fc2")

    def memories(x: torch.Tensor, name: str) -> torch.Tensor:
        a = fc(x, f"{name}.linear_0").softmax(-2)
        return fc(a / (a.sum(-1, keepdim=True) + 1e-9), f"{name}.linear_1")

    for j, unfold in ((1, nn.Unfold(7, stride=4, padding=2)), (2, nn.Unfold(3, stride=2, padding=1))):
        name = f"tokens_to_token.attention{j}"
        x = fc(layer_norm(unfold(x).mT, f"{name}.norm1"), f"{name}.attn.q_linear")
        x = mlp(x + fc(memories(x, f"{name}.attn"), f"{name}.attn.proj"), name)
        side = math.isqrt(x.shape[1])
        x = x.mT.unflatten(2, (side, side))
    x = fc(nn.Unfold(3, stride=2, padding=1)(x).mT, "tokens_to_token.project")
    x = torch.cat([state["cls_token"].expand(len(x), -1, -1), x], 1) + state["pos_embed"]
    for i in range(depth):
        name = f"blocks.{i}"
        q = (
            fc(layer_norm(x, f"{name}.norm1"), f"{name}.attn.trans_dims")
            .unflatten(2, (8, -1))
            .transpose(1, 2)
        )
        heads = memories(q, f"{name}.attn").transpose(1, 2).flatten(2)
        x = mlp(x + fc(heads, f"{name}.attn.proj"), name)
    return fc(layer_norm(x, "norm")[:, 0], "head")


def file_of(state: State, path: Path, size: int = 64) -> Path:
    """As their training leaves it."""
    raw = {name: tensor * 0 for name, tensor in state.items()}
    args = argparse.Namespace(model="T2t_vit_7", img_size=size, num_classes=5)
    torch.save({"epoch": 309, "state_dict": raw, "state_dict_ema": state, "args": args}, path)
    return path


@pytest.mark.parametrize("small_tokens", [False, True])
def test_a_file_of_theirs_computes_what_it_did(small_tokens: bool, tmp_path: Path) -> None:
    state = authors_state()
    if small_tokens:  # so small that LayerNorm's eps decides
        state = {
            k: v * 1e-3 if "project" in k or k in ("cls_token", "pos_embed") else v for k, v in state.items()
        }
    model = tiny("eamlp_7", **RELEASED, dtype=torch.float64)
    report = load_checkpoint(model, file_of(state, tmp_path / "theirs.pth.tar"))
    assert (report.layout, report.weights) == ("menghaoguo", "ema")
    assert not report.dropped
    assert not report.adapted
    x = 3 * images(2, 3, 64, 64).double()
    expected = authors_forward(state, x)
    assert expected.std(dim=0).max() > 1e-4
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-10 * expected.abs().max().item())
    if small_tokens:  # so the comparison above does see the eps
        assert (authors_forward(state, x, eps=1e-6) - expected).abs().max() > 1e-3


def test_such_a_file_is_known_by_its_tensors_and_goes_back_to_the_same(tmp_path: Path) -> None:
    state = authors_state(depth=3, tokens=4)
    source = file_of(state, tmp_path / "theirs.pth.tar", 32)
    built = build(source)
    assert isinstance(built.model, Eamlp)
    assert built.model.img_size == (32, 32)
    assert "by the input_size in its config" in built.how
    x = images(2, 3, 32, 32).double()
    torch.testing.assert_close(built.model(x), authors_forward(state, x, depth=3), rtol=0, atol=1e-10)
    convert_file(source, tmp_path / "ours.safetensors")
    convert_file(tmp_path / "ours.safetensors", tmp_path / "again.pth", to="menghaoguo")
    assert same_weights(torch.load(tmp_path / "again.pth", weights_only=True), state)


@pytest.mark.parametrize("key", ["file", "url"])
def test_timms_way_takes_their_file(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    path = file_of(authors_state(), tmp_path / "theirs.pth.tar")
    overlay = {key: str(path) if key == "file" else path.as_uri(), "num_classes": 5}
    kwargs = {**RELEASED, "depth": 2, "embed_dim": 16, "heads": 8, "num_classes": 5}
    model = timm.create_model("eamlp_7", pretrained=True, pretrained_cfg_overlay=overlay, **kwargs)
    x = images(2, 3, 64, 64)
    expected = authors_forward(authors_state(), x.double()).float()
    torch.testing.assert_close(model.eval()(x), expected, rtol=1e-4, atol=1e-4)


def test_at_another_size_it_is_their_model_of_that_size(tmp_path: Path) -> None:
    state = authors_state(tokens=16)
    model = tiny("eamlp_7", **{**RELEASED, "img_size": 96}, dtype=torch.float64)
    report = load_checkpoint(model, file_of(state, tmp_path / "theirs.pth.tar"))
    assert list(report.adapted) == ["pos_embed.weight"]
    x = images(2, 3, 96, 96).double()
    expected = authors_forward({**state, "pos_embed": formula(37, 16).unsqueeze(0)}, x)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-10 * expected.abs().max().item())
    dynamic = tiny("eamlp_7", **RELEASED, dtype=torch.float64, dynamic_img_size=True)
    load_checkpoint(dynamic, tmp_path / "theirs.pth.tar")
    torch.testing.assert_close(dynamic(x), expected, rtol=0, atol=1e-10 * expected.abs().max().item())


@pytest.mark.parametrize(
    ("name", "size", "count", "tokens"),
    [
        ("eamlp_7", 224, 6_146_638, 197),
        ("eamlp_7", 384, 6_243_918, 577),
        ("eamlp_14", 224, 29_877_070, 197),
        ("eamlp_19", 224, 54_559_054, 197),
    ],
)
def test_the_authors_shapes(name: str, size: int, count: int, tokens: int) -> None:
    model = timm.create_model(name, img_size=size, device="meta")
    assert sum(p.numel() for p in model.parameters()) == count
    dim, shapes = model.embed_dim, {key: tuple(p.shape) for key, p in model.state_dict().items()}
    assert shapes["pos_embed.weight"] == (tokens, dim)
    assert shapes["stem.block1.q.weight"] == (64, 147)
    assert shapes["stem.block2.m_k.weight"] == (128, 64)
    assert shapes["stem.proj.weight"] == (dim, 576)
    assert shapes["blocks.0.mixer.q.weight"] == (4 * dim, dim)
    assert shapes["blocks.0.mixer.m_k.weight"] == (64, 64)
    assert len(shapes) == 2 + 2 * 15 + 2 + 16 * len(model.blocks) + 4


def test_the_cfg_says_where_the_released_file_is() -> None:
    cfg = timm.get_pretrained_cfg("eamlp_7")
    assert cfg.url.startswith("https://github.com/MenghaoGuo/EANet/raw/")
    assert cfg.url.endswith("EAMLP/EAMLP_7_384/model_best.pth.tar")
    assert cfg.input_size == (3, 384, 384)
    assert timm.create_model("eamlp_7", device="meta").img_size == (384, 384)
    assert timm.create_model("eamlp_14", device="meta").img_size == (224, 224)


@pytest.mark.parametrize(
    ("kwargs", "why"),
    [
        ({"norm_eps": 1e-6}, "norm_eps=1e-05"),
        ({"global_pool": "avg"}, "global_pool=token"),
        ({"img_size": 32, "patch_size": 8}, "patch_size=16"),
    ],
)
def test_a_model_that_would_compute_something_else_does_not_take_it(
    kwargs: dict[str, object], why: str, tmp_path: Path
) -> None:
    model = tiny("eamlp_7", **{**RELEASED, **kwargs})
    with pytest.raises(CheckpointError, match=f"was trained with {why}"):
        load_checkpoint(model, file_of(authors_state(), tmp_path / "theirs.pth.tar"))


@pytest.mark.parametrize(
    ("kwargs", "why"),
    [
        ({"patch_size": 8}, "patch_size is 16 there and 8 here"),
        ({"img_size": (64, 32)}, "images are square there"),
        ({"slots": 6}, "slots is 64 there and 6 here"),
        ({"widening": 2}, "widening is 4 there and 2 here"),
    ],
)
def test_what_their_names_cannot_say(kwargs: dict[str, object], why: str, tmp_path: Path) -> None:
    save_for_hf(tiny("eamlp_7", **{**RELEASED, **kwargs}), tmp_path / "ours", safe_serialization=True)
    with pytest.raises(UserError, match=why):
        convert_file(tmp_path / "ours", tmp_path / "theirs.pth", to="menghaoguo")


# -- files of our own ---------------------------------------------------------------------------------------


def test_the_patch_size_is_held_against_the_model(tmp_path: Path) -> None:
    for patch in ((8, 4), 4):
        folder, model = tmp_path / str(patch), tiny("eamlp_7", patch_size=patch)
        save_for_hf(model, folder, safe_serialization=True)
        same(build(folder).model(images()), model(images()))
        with pytest.raises(CheckpointError, match="patch_size"):
            load_checkpoint(tiny("eamlp_7"), folder)


@pytest.mark.parametrize("chans", [1, 4])
def test_other_channels(chans: int, tmp_path: Path) -> None:
    kwargs = {**RELEASED, "in_chans": chans, "depth": 3}
    model, x = tiny("eamlp_7", **kwargs), images(2, chans, 64, 64)
    torch.save(model.state_dict(), tmp_path / "ours.pth")
    same(build(tmp_path / "ours.pth").model(x), model(x))
    assert describe(tmp_path / "ours.pth")["image"].startswith(f"{chans} channels")
    with pytest.raises(
        CheckpointError, match=f"of {chans} channels, and the model takes 3: .*in_chans={chans}"
    ):
        load_checkpoint(tiny("eamlp_7", **{**kwargs, "in_chans": 3}), tmp_path / "ours.pth")
    overlay = {"file": str(file_of(authors_state(), tmp_path / "theirs.pth.tar")), "num_classes": 5}
    with pytest.raises(CheckpointError, match=f"of 3 channels, and the model takes {chans}"):
        timm.create_model(
            "eamlp_7",
            pretrained=True,
            pretrained_cfg_overlay=overlay,
            **{**RELEASED, "embed_dim": 16, "depth": 2, "heads": 8, "in_chans": chans},
        )


def test_a_grey_file_of_a_registered_size_keeps_its_name(tmp_path: Path) -> None:
    model = timm.create_model("eamlp_7", img_size=32, in_chans=1)
    torch.save(model.state_dict(), tmp_path / "grey.pth")
    assert describe(tmp_path / "grey.pth")["architecture"] == "eamlp_7"


@pytest.mark.parametrize("name", ["pos_embed", "class_token", "stem_norm"])
def test_it_is_never_without_its_parts(name: str) -> None:
    try:
        raise StopIteration  # the message is ours wherever it is created: Python 3.11 has none here
    except StopIteration:
        with pytest.raises(TypeError, match=f"{name} is fixed"):
            tiny("eamlp_7", **{name: False})


def test_the_mixer_takes_a_row_of_tokens_as_those_of_a_grid() -> None:
    mixer = tiny("eamlp_7").double().blocks[0].mixer
    x = images(1, 3, 4, 16).double()
    p = {f"mixer.{key}": value for key, value in mixer.named_parameters()}
    expected = external_attention(p, x[0]).flatten(0, 1)
    same(mixer(x.flatten(1, 2))[0], expected)
    same(mixer(x)[0].flatten(0, 1), expected)
