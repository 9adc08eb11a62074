"""A model from any source: what it is told by, and what is refused because it may be two things."""

import argparse
from pathlib import Path

import pytest
import timm
import torch
import toys
from timm.layers import GluMlp
from timm.models import MlpMixer
from timm.models.mlp_mixer import Affine, ResBlock
from tiny import images, perturb, same, same_weights, tiny
from torch import nn

from gmlp_vision import CheckpointError, load_checkpoint, set_input_size
from gmlp_vision.checkpoints import build, convert_file, describe
from gmlp_vision.checkpoints.names import from_ours
from gmlp_vision.errors import UserError
from gmlp_vision.models import timm_mixers

W = "blocks.0.mlp_channels.gate.proj.weight"


@pytest.fixture
def _toys(monkeypatch: pytest.MonkeyPatch) -> None:
    toys.move_in(monkeypatch)


def saved(model: nn.Module, path: Path) -> Path:
    torch.save(model.state_dict(), path)
    return path


def toy(name: str) -> nn.Module:
    return perturb(timm.create_model(name)).eval()


# -- what comes out ------------------------------------------------------------------------------------------


def test_a_file_comes_as_the_model_it_was_saved_from(tmp_path: Path) -> None:
    source = tiny(img_size=(16, 64), in_chans=1)
    built = build(saved(source, tmp_path / "x.pth"), grid=(2, 8))
    assert same_weights(built.model, source)
    assert not built.model.training
    same(built.model(images(2, 1, 16, 64)), source(images(2, 1, 16, 64)))
    assert (built.grid, built.how, built.title) == ((2, 8), "as given", str(tmp_path / "x.pth"))


def test_at_another_size_for_other_classes(tmp_path: Path) -> None:
    path = saved(tiny(), tmp_path / "x.pth")
    built = build(path, img_size=(48, 24), num_classes=3)
    by_hand = tiny(img_size=(48, 24), num_classes=3)
    load_checkpoint(by_hand, path)
    assert same_weights(built.model, by_hand, but={"head.weight", "head.bias"})
    assert built.model(images(2, 3, 48, 24)).shape == (2, 3)
    with pytest.raises(ValueError, match="num_classes is -1"):
        build(path, num_classes=-1)


@pytest.mark.parametrize(("weights", "taken"), [("auto", "ema"), ("ema", "ema"), ("raw", "raw")])
def test_the_title_says_which_weights_where_there_is_a_choice(
    weights: str, taken: str, tmp_path: Path
) -> None:
    models = {"raw": tiny(), "ema": perturb(tiny(), seed=1)}
    both = {"state_dict": models["raw"].state_dict(), "state_dict_ema": models["ema"].state_dict()}
    torch.save(both, tmp_path / "x.pth")
    built = build(tmp_path / "x.pth", weights=weights)
    assert same_weights(built.model, models[taken])
    assert built.title == f"{tmp_path / 'x.pth'} ({taken} weights)"


def test_a_state_dict_under_a_wrappers_prefix_beside_other_tensors() -> None:
    model = tiny()
    inside = {f"module.student.{k}": v for k, v in model.state_dict().items()}
    built = build({**inside, "module.centre": torch.zeros(3)})
    assert same_weights(built.model, model)
    assert built.title == "the state dict"
    assert built.report.dropped == {"module.centre": "outside module.student."}
    models = {"student": model, "teacher": tiny(depth=1)}
    both = {f"{who}.{k}": v for who, m in models.items() for k, v in m.state_dict().items()}
    with pytest.raises(
        CheckpointError, match=r"more than one network, under student\., teacher\.: say which"
    ):
        build(both)


@pytest.mark.parametrize("dtypes", [(torch.float16, torch.float32), (torch.bfloat16, torch.float16)])
def test_the_widest_of_the_files_dtypes_holds_all_its_numbers(dtypes: tuple) -> None:
    state = tiny().to(dtypes[0]).state_dict()
    state[W] = tiny().state_dict()[W].to(dtypes[1])
    built = build(state)
    assert {p.dtype for p in built.model.parameters()} == {torch.float32}
    assert same_weights(built.model, {k: v.float() for k, v in state.items()})


def test_a_folder_of_a_registered_size_is_called_by_its_name(tmp_path: Path) -> None:
    """Though timm writes the pooling into its config, as an argument of the model."""
    path = saved(timm.create_model("gmlp_pico4"), tmp_path / "x.pth")
    convert_file(path, tmp_path / "d", img_size=(40, 24))
    assert describe(tmp_path / "d")["architecture"] == "gmlp_pico4"


# -- timm's own mixers ---------------------------------------------------------------------------------------

REGISTERED = {
    "resmlp_12_224": (32, 48),
    "mixer_s32_224": (64, 96),
    "gmixer_12_224": (32, 48),
    "resmlp_big_24_224": (16, 24),
}
UNREGISTERED = {
    "mixer": {},
    "gmixer": {"mlp_ratio": (1.0, 4.0), "mlp_layer": GluMlp, "act_layer": nn.SiLU},
    "resmlp": {"mlp_ratio": 4, "block_layer": ResBlock, "norm_layer": Affine},
}


@pytest.mark.parametrize("name", REGISTERED)
def test_a_mixer_of_timm_by_name(name: str) -> None:
    source = perturb(timm.create_model(name, img_size=REGISTERED[name], num_classes=5), std=0.05).eval()
    built = build(source.state_dict(), grid=(2, 3))
    assert built.identity.name == name
    assert same_weights(built.model, source)
    same(built.model(images(2, 3, *REGISTERED[name])), source(images(2, 3, *REGISTERED[name])))


@pytest.mark.parametrize("kind", UNREGISTERED)
def test_a_mixer_of_timm_of_no_registered_size(kind: str, tmp_path: Path) -> None:
    source = MlpMixer(5, 32, 1, patch_size=8, num_blocks=2, embed_dim=12, **UNREGISTERED[kind])
    path = saved(perturb(source).eval(), tmp_path / "x.pth")
    built = build(path)
    same(built.model(images(2, 1, 32, 32)), source(images(2, 1, 32, 32)))
    assert (built.grid, built.how.split()[0]) == ((4, 4), "guessed")
    said = describe(path)
    assert said["architecture"] == "Mixer of timm, of a size without a name"
    assert said["depth"] == "2"
    assert said["image"] == "1 channels, 32 x 32 pixels"
    convert_file(path, tmp_path / "y.safetensors")
    assert same_weights(build(tmp_path / "y.safetensors").model, source)
    with pytest.raises(UserError, match=r"no registered size.*give the name of a file"):
        convert_file(path, tmp_path / "folder")
    larger = build(path, img_size=(64, 40)).model
    set_input_size(source, (64, 40))
    assert same_weights(larger, source)


def test_the_grid_of_a_mixer_of_timm() -> None:
    state = timm.create_model("resmlp_12_224", img_size=(32, 48)).state_dict()
    with pytest.raises(CheckpointError, match=r"nothing tells the grid of the file's tokens.*`--grid H W`"):
        build(state)
    with pytest.raises(CheckpointError, match=r"the grid 5 x 5 has 25 tokens"):
        build(state, grid=(5, 5))


@pytest.mark.parametrize("name", list(REGISTERED)[:3])  # the fourth is the first in large
def test_maps_over_tokens_may_be_kernels_of_a_1d_convolution(name: str) -> None:
    source = timm.create_model(name, img_size=REGISTERED[name], num_classes=0)
    over_tokens = ("linear_tokens.weight", "mlp_tokens.fc1.weight", "mlp_tokens.fc2.weight")
    state = {k: v[..., None] if k.endswith(over_tokens) else v for k, v in source.state_dict().items()}
    assert sum(v.ndim == 3 and v.shape[2] == 1 for v in state.values()) >= 8
    assert same_weights(build(state, grid=(2, 3)).model, source)


def test_the_names_of_the_resmlp_authors(tmp_path: Path) -> None:
    source = perturb(timm.create_model("resmlp_12_224", img_size=32))
    theirs = from_ours(source.state_dict(), timm_mixers.LAYOUTS["deit"].rows)
    assert theirs["blocks.11.norm2.alpha"].shape == (384,)
    assert {"patch_embed.proj.bias", "blocks.3.attn.weight", "blocks.3.mlp.fc2.bias", "norm.beta",
            "blocks.3.gamma_2", "head.weight"} <= theirs.keys()  # fmt: skip
    built = build(theirs)
    assert built.report.layout == "deit"
    assert same_weights(built.model, source)
    convert_file(saved(source, tmp_path / "x.pth"), tmp_path / "y.pth", to="deit")
    assert same_weights(torch.load(tmp_path / "y.pth", weights_only=True), theirs)


def test_the_table_of_sizes_is_timms() -> None:
    for name, sizes in timm_mixers.SIZES.items():
        read = timm_mixers.sizes_of(timm.create_model(name, device="meta").state_dict())
        assert {key: read[key] for key in sizes} == sizes


# -- which of several ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_toys")
def test_models_that_differ_in_no_tensor_are_told_apart_by_what_is_said(tmp_path: Path) -> None:
    minus, plus = toy("toy_minus"), toy("toy_plus")
    plus.load_state_dict(minus.state_dict())
    assert not torch.equal(minus(images(2, 3, 16, 16)), plus(images(2, 3, 16, 16)))
    path = saved(minus, tmp_path / "x.pth")
    for call in (build, describe, lambda p: convert_file(p, tmp_path / "y.pth")):
        with pytest.raises(CheckpointError, match=r"those of toy_plus, toy_minus, .*`--model NAME`"):
            call(path)
    assert describe(path, model="toy_minus")["architecture"] == "toy_minus"
    built = build(path, model="toy_minus").model
    same(built(images(2, 3, 16, 16)), minus(images(2, 3, 16, 16)))
    # a folder says it by itself
    convert_file(path, tmp_path / "folder", model="toy_minus")
    same(build(tmp_path / "folder").model(images(2, 3, 16, 16)), minus(images(2, 3, 16, 16)))
    with pytest.raises(CheckpointError, match=r"was trained with sign=-1\.0, and this model has sign=1\.0"):
        load_checkpoint(plus, tmp_path / "folder")
    with pytest.raises(ValueError, match="resnet18 is no model of this package"):
        build(path, model="resnet18")
    with pytest.raises(CheckpointError, match="does not hold the weights of toy_deep"):
        build(path, model="toy_deep")


@pytest.mark.parametrize("name", ["aft_full_s16", "aft_local_s16"])
def test_what_train_py_filed_tells_models_apart_that_have_alike_tensors(name: str, tmp_path: Path) -> None:
    sizes = {"img_size": 16, "patch_size": 4, "depth": 1, "embed_dim": 8}
    sizes |= {"reach": 2} if "local" in name else {}
    model = perturb(timm.create_model(name, num_classes=3, **sizes)).eval()
    args = argparse.Namespace(model=name, model_kwargs=sizes, input_size=[3, 16, 16])
    torch.save({"state_dict": model.state_dict(), "args": args}, tmp_path / "last.pth.tar")
    built = build(tmp_path / "last.pth.tar")
    assert built.identity.name == name
    same(built.model(images(2, 3, 16, 16)), model(images(2, 3, 16, 16)))
    with pytest.raises(CheckpointError, match="does not hold the weights of a model known here"):
        build(saved(model, tmp_path / "bare.pth"))


@pytest.mark.usefixtures("_toys")
def test_a_family_that_reads_no_sizes_is_told_by_its_names(tmp_path: Path) -> None:
    model = toy("toy_deep")
    built = build(saved(model, tmp_path / "x.pth"), img_size=(8, 24))
    assert built.identity.name == "toy_deep"
    assert built.model(images(2, 3, 8, 24)).shape == (2, 5)
    with pytest.raises(CheckpointError, match=r"not hold the weights of a model known here \(.*gMLP, "):
        build(saved(perturb(timm.create_model("toy_deep", embed_dim=4)), tmp_path / "y.pth"))


@pytest.mark.usefixtures("_toys")
def test_names_that_depend_on_the_depth(tmp_path: Path) -> None:
    model = toy("toy_deep")
    rows = toys.FAMILY.LAYOUTS["flat"].rows_for(model)
    theirs = from_ours(model.state_dict(), rows)
    assert "network.4.weight" in theirs  # the norm
    theirs["network.1.total_ops"] = torch.zeros(1, dtype=torch.float64)
    torch.save(theirs, tmp_path / "theirs.pth")
    built = build(tmp_path / "theirs.pth")
    assert same_weights(built.model, model)
    live = toy("toy_deep")
    report = load_checkpoint(live, tmp_path / "theirs.pth")
    for told in (built.report, report):
        assert told.layout == "flat"
        assert told.dropped == {"network.1.total_ops": "left there by a tool, and no weight"}
    assert same_weights(live, model)
    convert_file(tmp_path / "theirs.pth", tmp_path / "back.pth", to="flat")
    del theirs["network.1.total_ops"]
    assert same_weights(torch.load(tmp_path / "back.pth", weights_only=True), theirs)
    with pytest.raises(UserError, match="names of jaketae have none for a Toy; expected one of timm, flat"):
        convert_file(tmp_path / "theirs.pth", tmp_path / "back.pth", to="jaketae")


@pytest.mark.usefixtures("_toys")
def test_models_whose_sizes_are_others_are_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, create_model = [], timm.create_model

    def counted(name: str, **kwargs: object) -> nn.Module:
        made.append(name)
        return create_model(name, **kwargs)

    path = saved(timm.create_model("gmlp_pico4"), tmp_path / "x.pth")
    monkeypatch.setattr(timm, "create_model", counted)
    describe(path)
    assert made
    assert set(made) - set(toys.SIZES) == {"gmlp_pico4"}  # toys tell no sizes: one block of each is made
