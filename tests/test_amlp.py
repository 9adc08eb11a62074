"""aMLP: against gMLP, lucidrains' files of it, what is refused. test_zoo.py has the rest."""

from pathlib import Path

import pytest
import timm
import torch
from others import lucidrains_forward, lucidrains_state
from tiny import TINY, images, perturb, same, tiny
from torch import nn

from gmlp_vision import CheckpointError, load_checkpoint
from gmlp_vision.checkpoints import build, convert_file
from gmlp_vision.checkpoints.names import from_ours
from gmlp_vision.errors import UserError
from gmlp_vision.models import amlp

NAME = "amlp_ti16"
THEIRS = {"mlp_ratio": 4.0, "attn_dim": 8, "norm_eps": 1e-5}


def save(state: object, path: Path) -> Path:
    torch.save(state, path)
    return path


# -- the model ----------------------------------------------------------------------------------------------


def test_without_its_attention_it_is_gmlp() -> None:
    model, plain = tiny(NAME), tiny("gmlp_ti16")
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if ".attn." not in k})
    with_attention = model(images())
    for block in model.blocks:
        nn.init.zeros_(block.mlp_channels.attn.proj.weight)
        nn.init.zeros_(block.mlp_channels.attn.proj.bias)
    same(model(images()), plain(images()))
    assert (with_attention - plain(images())).abs().max() > 1e-2


def test_the_attention_hears_every_token_and_follows_their_order() -> None:
    attention = perturb(amlp.TinyAttention(6, 4, 10), std=0.5)
    x = images(2, 3, 4, 6).requires_grad_()
    y = attention(x)
    assert y.shape == (2, 3, 4, 10)
    same(attention(x.flip(1, 2)), y.flip(1, 2))
    y[0, 0, 0].sum().backward()
    heard = x.grad.flatten(1, 2).abs().sum(-1)
    assert heard[0].min() > 1e-4
    assert heard[1].max() == 0  # another image


def test_every_hook_on_the_gate_is_met() -> None:
    model, met = tiny(NAME), []
    for block in model.blocks:
        block.mlp_channels.gate.register_forward_hook(lambda *_: met.append(1))
    model(images())
    assert len(met) == 2


def test_any_width_of_the_attention_but_none() -> None:
    assert tiny(NAME, attn_dim=3)(images()).std() > 1e-3
    assert timm.create_model(NAME, device="meta").blocks[0].mlp_channels.attn.proj.in_features == 64
    with pytest.raises(ValueError, match="attn_dim is 0; expected"):
        tiny(NAME, attn_dim=0)


def test_logits_of_two_hundred_do_not_overflow() -> None:
    attention = perturb(amlp.TinyAttention(6, 4, 10))
    with torch.no_grad():
        attention.qkv.weight.mul_(1e3)
    y = attention(images(1, 3, 4, 6))
    y.sum().backward()
    assert y.isfinite().all()
    assert all(p.grad.isfinite().all() for p in attention.parameters())


# -- lucidrains' files --------------------------------------------------------------------------------------


def test_it_computes_what_lucidrains_does(tmp_path: Path) -> None:
    state = lucidrains_state(16, a=8)
    model = tiny(NAME, **THEIRS, dtype=torch.float64)
    report = load_checkpoint(model, save(state, tmp_path / "theirs.pth"))
    expected = lucidrains_forward(state, images().double())
    assert report.layout == "lucidrains"
    assert expected.std(dim=0).max() > 1e-2
    torch.testing.assert_close(model(images().double()), expected, rtol=0, atol=1e-10)


def test_their_file_alone_is_taken_for_an_amlp_and_comes_back(tmp_path: Path) -> None:
    state = lucidrains_state(16, a=8)
    path = save(state, tmp_path / "theirs.pth")
    built = build(path)
    assert built.identity.layout == "lucidrains"
    assert isinstance(built.model, amlp.AMlp)
    x = images().double()
    torch.testing.assert_close(built.model(x), lucidrains_forward(state, x), rtol=0, atol=1e-10)
    convert_file(path, tmp_path / "ours")
    model = timm.create_model(f"local-dir:{tmp_path / 'ours'}", pretrained=True, dtype=torch.float64).eval()
    torch.testing.assert_close(model(x), lucidrains_forward(state, x), rtol=0, atol=1e-10)
    convert_file(tmp_path / "ours", tmp_path / "again.pth", to="lucidrains")
    again = torch.load(tmp_path / "again.pth", weights_only=True)
    assert set(again) == set(state)
    assert all(torch.equal(again[k], state[k]) and again[k].shape == state[k].shape for k in state)


def test_our_model_computes_the_same_in_their_names() -> None:
    model = tiny(NAME, **THEIRS, dtype=torch.float64)
    rows = amlp.LAYOUTS["lucidrains"].rows_for(model)
    theirs = lucidrains_forward(from_ours(model.state_dict(), rows), images().double())
    assert theirs.std(dim=0).max() > 1e-2
    torch.testing.assert_close(theirs, model(images().double()), rtol=0, atol=1e-10)


def test_their_file_without_attention_stays_a_gmlp(tmp_path: Path) -> None:
    built = build(save(lucidrains_state(16), tmp_path / "theirs.pth"))
    assert built.identity.name == "gmlp_ti16"
    with pytest.raises(CheckpointError, match=r"attn\.qkv\.weight"):
        load_checkpoint(tiny(NAME, **THEIRS), tmp_path / "theirs.pth", layout="lucidrains")


def test_gmlp_says_where_to_load_it(tmp_path: Path) -> None:
    path = save(lucidrains_state(16, a=8), tmp_path / "theirs.pth")
    with pytest.raises(CheckpointError, match=r"it is an aMLP.*such as amlp_s16"):
        load_checkpoint(tiny("gmlp_ti16", mlp_ratio=4.0, norm_eps=1e-5), path)
    with pytest.raises(CheckpointError, match=r"it is an aMLP.*such as amlp_s16"):
        build(path, model="gmlp_ti16")


def test_several_heads_are_refused(tmp_path: Path) -> None:
    state = lucidrains_state(16, a=8)
    for i in range(2):
        state[f"layers.{i}.fn.fn.sgu.weight"] = torch.zeros(4, 16, 16)
        state[f"layers.{i}.fn.fn.sgu.bias"] = torch.zeros(4, 16)
    path = save(state, tmp_path / "heads.pth")
    with pytest.raises(CheckpointError, match="4 heads"):
        load_checkpoint(tiny(NAME, **THEIRS), path)
    with pytest.raises(CheckpointError, match="4 heads"):
        build(path)


def test_what_lucidrains_cannot_express_is_refused(tmp_path: Path) -> None:
    timm.models.save_for_hf(tiny(NAME, **{**THEIRS, "mlp_ratio": 3.5}), str(tmp_path / "ours"))
    with pytest.raises(UserError, match="the hidden width, 56, would have to be a multiple of 16"):
        convert_file(tmp_path / "ours", tmp_path / "theirs.pth", to="lucidrains")
    with pytest.raises(UserError, match="the names of jaketae have none for a aMLP"):
        convert_file(tmp_path / "ours", tmp_path / "theirs.pth", to="jaketae")


@pytest.mark.parametrize("kwargs", [{}, {"attn_dim": 5, "embed_dim": 24}])
def test_a_bare_file_of_ours(kwargs: dict[str, int], tmp_path: Path) -> None:
    model = perturb(amlp.AMlp(**{**TINY, "mlp_ratio": 6.0, **kwargs})).eval()
    built = build(save(model.state_dict(), tmp_path / "bare.pth"))
    assert built.identity.name == NAME
    same(built.model(images()), model(images()))


@pytest.mark.parametrize(("spatial", "groups"), [("axial", 1), ("rank:3", 1), ("circulant", 4)])
def test_its_w_may_be_of_every_kind(spatial: str, groups: int, tmp_path: Path) -> None:
    model = tiny(NAME, spatial=spatial, groups=groups)
    built = build(save(model.state_dict(), tmp_path / "bare.pth"))
    same(built.model(images()), model(images()))
    timm.models.save_for_hf(tiny(NAME, **THEIRS, spatial=spatial, groups=groups), str(tmp_path / "ours"))
    with pytest.raises(UserError, match=f"W is any matrix there, and {spatial} here"):
        convert_file(tmp_path / "ours", tmp_path / "theirs.pth", to="lucidrains")
    with pytest.raises(ValueError, match="groups is 5; expected a divisor of the channels of W"):
        tiny(NAME, spatial="circulant", groups=5)
