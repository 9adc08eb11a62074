"""Where in a file a network is: dicts in dicts, prefixes, wrappers of parts; one is taken, of two none."""

from collections import OrderedDict
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from others import lucidrains_state
from tiny import TINY, images, same_weights, tiny
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from gmlp_vision import CheckpointError, load_checkpoint
from gmlp_vision.checkpoints import Report, convert_file, describe, read_checkpoint
from gmlp_vision.checkpoints.unwrap import unwrap
from gmlp_vision.cli import main
from gmlp_vision.filters import extract

State = dict[str, Any]
SOURCE = tiny(num_classes=5)
STATE = SOURCE.state_dict()
OTHER = {name: tensor + 1 for name, tensor in STATE.items()}
LOSS = {"loss.weight": torch.ones(3), "accuracy.total": torch.tensor(7)}


def under(prefix: str, state: State = STATE) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


def lightning(state: State) -> State:
    """What Lightning 2.6 files, as far as it is data."""
    return {
        "epoch": 3,
        "global_step": 12,
        "pytorch-lightning_version": "2.6.0",
        "state_dict": OrderedDict(state),
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 4}}}},
        "callbacks": {"EarlyStopping{'monitor': 'x'}": {"wait_count": 0, "best_score": torch.tensor(1.0)}},
        "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": [{"lr": 0.1}]}],
        "lr_schedulers": [],
        "hparams_name": "kwargs",
        "hyper_parameters": {"lr": 0.1, "model": "gmlp_ti16"},
    }


def compiled_blocks() -> State:
    model = deepcopy(SOURCE)
    model.blocks[1] = torch.compile(model.blocks[1])
    return model.state_dict()


def checkpointed_blocks() -> State:
    model = deepcopy(SOURCE)
    model.blocks[0] = checkpoint_wrapper(model.blocks[0])  # its own state_dict() would hide itself
    found = {name: tensor for name, tensor in model.named_parameters()}
    return {name: tensor.detach() for name, tensor in found.items()}


def averaged() -> State:
    return torch.optim.swa_utils.AveragedModel(SOURCE).state_dict()


# What a file holds; what of it stands beside the network; whether the report tells where that was.
FORMS: dict[str, tuple[State, set[str], bool]] = {
    "lightning": (lightning({**under("model."), **LOSS}), set(LOSS), True),
    "lightning, compiled": (lightning({**under("model._orig_mod."), **LOSS}), set(LOSS), True),
    "lightning, DDP inside": (lightning(under("net.module.")), set(), True),
    "a compiled block": (compiled_blocks(), set(), False),
    "checkpointed blocks": (checkpointed_blocks(), set(), False),
    "FSDP": (
        under("_fsdp_wrapped_module.", {n.replace("blocks.", "blocks._fsdp_wrapped_module."): t
                                       for n, t in STATE.items()}), set(), False,
    ),
    "SWA": (averaged(), {"n_averaged"}, False),
    "torchvision's EMA": ({"model": OTHER, "model_ema": averaged(), "epoch": 3}, {"n_averaged"}, False),
    "model_state_dict": ({"model_state_dict": STATE, "epoch": 3, "loss": torch.tensor(1.0)}, set(), True),
    "net": ({"net": under("module."), "acc": 0.9}, set(), True),
    "weights": ({"weights": STATE}, set(), True),
    "DeepSpeed": ({"module": STATE, "optimizer": None, "ds_version": "0.18"}, set(), False),
    "accelerate": (under("module."), set(), False),
    "dicts in dicts": ({"state": {"model": under("module."), "optimizers": {}}}, set(), True),
    "one of timm's keys twice": ({"state_dict": {"state_dict": STATE}}, set(), True),
    "backbone": ({"state_dict": {**under("backbone."), "neck.weight": torch.ones(2)}}, {"neck.weight"}, True),
    "encoder": ({**under("encoder."), "queue": torch.ones(2, 2)}, {"queue"}, True),
    "a number beside": ({**STATE, "epoch": 3}, {"epoch"}, False),
    "twice the same": ({**under("model."), **under("compiled._orig_mod.")}, set(under("model.")), True),
    "EMA by another name": ({"net": OTHER, "ema_net": STATE}, set(), True),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_one_network_is_taken_from_wherever_it_is(form: str, tmp_path: Path) -> None:
    content, beside, told = FORMS[form]
    torch.save(content, tmp_path / "x.pth")
    model = tiny(num_classes=5, img_size=32)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    report = load_checkpoint(model, tmp_path / "x.pth")
    assert same_weights(model, SOURCE)
    assert set(report.loaded) == set(STATE)
    assert set(report.dropped) == beside
    assert report.weights == ("ema" if "EMA" in form else "raw")
    assert any(note.startswith("the network is taken from under") for note in report.notes) is told
    assert torch.equal(model(images()), SOURCE(images()))
    # and wherever else a file is read
    assert read_checkpoint(tmp_path / "x.pth").state_dict.keys() == STATE.keys()
    convert_file(tmp_path / "x.pth", tmp_path / "y.pth")
    assert same_weights(torch.load(tmp_path / "y.pth", weights_only=True), STATE)


@pytest.mark.parametrize("form", FORMS)
def test_and_by_timm(form: str, tmp_path: Path) -> None:
    """timm itself takes its own four keys, and a prefix of torch.compile or DDP; the rest reaches us."""
    content, _, _ = FORMS[form]
    torch.save(content, tmp_path / "x.pth")
    overlay = {"file": str(tmp_path / "x.pth")}
    args = {**TINY, "num_classes": 5}
    made = timm.create_model("gmlp_ti16", pretrained=True, pretrained_cfg_overlay=overlay, **args)
    assert same_weights(made, SOURCE)


def test_another_implementations_names_under_a_prefix(tmp_path: Path) -> None:
    state = {name: tensor.float() for name, tensor in lucidrains_state(16).items()}
    torch.save(lightning({**under("model.", state), **LOSS}), tmp_path / "x.ckpt")
    assert describe(tmp_path / "x.ckpt")["names"] == "lucidrains"
    torch.save(state, tmp_path / "bare.pth")
    report = convert_file(tmp_path / "x.ckpt", tmp_path / "a")
    convert_file(tmp_path / "bare.pth", tmp_path / "b")
    a, b = (read_checkpoint(tmp_path / x).state_dict for x in "ab")
    assert same_weights(a, b)
    assert set(report.dropped) == set(LOSS)


def test_the_account_of_a_prefix(tmp_path: Path) -> None:
    torch.save(lightning({**under("model."), **LOSS}), tmp_path / "x.ckpt")
    report = load_checkpoint(tiny(num_classes=7, img_size=64), tmp_path / "x.ckpt")
    text = str(report)
    assert "dropped  2 tensors, outside model.: loss.weight, accuracy.total" in text
    assert "note     the network is taken from under state_dict.model." in text
    assert "note     the file's grid is 4 x 4 tokens" in text  # one note does not take another's place
    told = describe(tmp_path / "x.ckpt")
    assert told["note"] == "the network is taken from under state_dict.model."
    assert told["beside it"] == "loss.weight, accuracy.total"


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["module", "_orig_mod", "model", "net", "_fsdp_wrapped_module"]), max_size=5),
    st.lists(st.sampled_from(["state_dict", "model", "x", "module"]), max_size=3),
)
def test_any_stack_of_prefixes_and_dicts(prefixes: list[str], dicts: list[str]) -> None:
    content: Any = {"".join(f"{p}." for p in prefixes) + name: tensor for name, tensor in STATE.items()}
    for key in dicts:
        content = {key: content, "epoch": 3}
    network = unwrap(content, "auto", "x")
    assert same_weights(network.tensors, STATE)
    assert network.outside == {}
    assert bool(network.notes) is bool({*prefixes, *dicts[:-1]} & {"model", "net", "x", "state_dict"}
                                       or dicts[-1:] == ["x"])  # fmt: skip


# -- more than one -------------------------------------------------------------------------------------------

TWO: dict[str, State] = {
    "by names": {**under("student."), **under("teacher.", OTHER)},
    "by dicts": {"student": STATE, "teacher": OTHER},
    "Lightning": lightning({**under("student."), **under("teacher.module.", OTHER), **LOSS}),
    "dicts and names": {"student": under("module.backbone."), "teacher": under("backbone.", OTHER)},
    "one in the other": {**under("student."), **under("student.teacher.", OTHER)},
}


@pytest.mark.parametrize("form", TWO)
def test_of_two_networks_the_one_that_is_said(form: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    torch.save(TWO[form], path)
    model = tiny(num_classes=5)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(
        CheckpointError, match=r"more than one network, under student\..*teacher\..*`--prefix`"
    ):
        load_checkpoint(model, path)
    with pytest.raises(
        CheckpointError, match=r"under the prefix 'studen'; networks are under student\..*teach"
    ):
        load_checkpoint(model, path, prefix="studen")
    assert same_weights(model, before)
    names = ["student.", "teacher."] if form != "one in the other" else ["student", "student.teacher"]
    for prefix, expected in zip(names, (STATE, OTHER), strict=True):
        for said in (prefix, prefix.rstrip(".")):
            report = load_checkpoint(model, path, prefix=said)
            assert same_weights(model, expected)
            assert "not from under" in report.notes[0]
            if "dicts" not in form:  # one dict holds both, so each tensor of it is accounted for
                both = TWO[form].get("state_dict", TWO[form])
                assert len(report.loaded) + len(report.dropped) == len(both)


def test_a_wrappers_part_of_the_prefix_may_be_said_too() -> None:
    both = {**under("model._orig_mod."), **under("other.", OTHER)}
    assert same_weights(unwrap(both, "auto", "x", "model._orig_mod.").tensors, STATE)
    assert same_weights(unwrap(both, "auto", "x", "model").tensors, STATE)


def test_the_one_without_a_prefix() -> None:
    both = {**STATE, **under("teacher.", OTHER)}
    with pytest.raises(CheckpointError, match=r"under '' \(none\), teacher\."):
        unwrap(both, "auto", "x")
    network = unwrap(both, "auto", "x", "")
    assert same_weights(network.tensors, STATE)
    assert network.outside.keys() == under("teacher.").keys()
    with pytest.raises(CheckpointError, match="no network under the prefix ''; networks are under a"):
        unwrap(under("a."), "auto", "x", "")


def test_a_prefix_and_a_choice_of_weights() -> None:
    content = {"state_dict": {**under("model."), **under("old.", OTHER)}, "model_ema": under("model.", OTHER)}
    assert same_weights(unwrap(content, "auto", "x", "model").tensors, OTHER)
    assert same_weights(unwrap(content, "raw", "x", "model").tensors, STATE)
    with pytest.raises(CheckpointError, match="holds no EMA weights"):
        unwrap(content, "ema", "x", "old")
    with pytest.raises(CheckpointError, match="EMA weights alone"):
        unwrap({"ema": STATE}, "raw", "x")


def test_timms_own_key_goes_before_others() -> None:
    for content in ({"state_dict": STATE, "teacher": OTHER}, {"state_dict": STATE, "model": OTHER}):
        network = unwrap(content, "auto", "x")
        assert same_weights(network.tensors, STATE)
    assert same_weights(
        unwrap({"state_dict": STATE, "teacher": OTHER}, "auto", "x", "teacher").tensors, OTHER
    )


def test_no_network_that_is_known() -> None:
    state = nn.Linear(3, 4).state_dict()
    with pytest.raises(
        CheckpointError, match="no network under the prefix 'model'; no network in it is known"
    ):
        unwrap(under("model.", state), "auto", "x", "model")
    content = {"epoch": 3, "net": state, "optimizer": {"state": {"a": {"exp_avg": torch.ones(1)}}}}
    assert same_weights(unwrap(content, "auto", "x").tensors, state)


def test_a_dict_that_holds_itself() -> None:
    content: State = {"net": STATE}
    content["again"] = content
    assert same_weights(unwrap(content, "auto", "x").tensors, STATE)


def test_a_tensor_that_is_none_beside_the_network_is_no_reason_to_refuse_it() -> None:
    beside = {"metric": torch.ones(2, device="meta"), 7: torch.ones(1)}
    network = unwrap({**under("model."), **beside}, "auto", "x")
    assert same_weights(network.tensors, STATE)
    assert network.outside == {"metric": "outside model.", "7": "outside model."}


# -- the ways to say it --------------------------------------------------------------------------------------


def test_every_command_that_reads_a_file_takes_a_prefix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "x.pth", tmp_path / "y.pth"
    torch.save(TWO["by dicts"], path)
    for command in (
        ["convert", str(path), str(out)],
        ["info", str(path)],
        ["filters", str(path)],
        ["export", str(path), str(tmp_path / "x.pt2"), "--format", "exported-program"],
    ):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "more than one network, under student., teacher.: say which" in error
        assert main([*command, "--prefix", "nobody"]) == 2
        assert "networks are under student., teacher." in capsys.readouterr().err
        assert main([*command, "--prefix", "teacher"]) == 0
        capsys.readouterr()
    assert same_weights(torch.load(out, weights_only=True), OTHER)
    exported = torch.export.load(tmp_path / "x.pt2").module()
    model = tiny(num_classes=5)
    model.load_state_dict(OTHER)
    torch.testing.assert_close(
        exported(images(1, 3, 32, 32)), model(images(1, 3, 32, 32)), atol=1e-4, rtol=1e-4
    )


def test_every_function_that_reads_a_file_takes_a_prefix(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    torch.save(TWO["by dicts"], path)
    model = tiny(num_classes=5)
    model.load_state_dict(OTHER)
    assert same_weights(read_checkpoint(path, prefix="teacher").state_dict, OTHER)
    assert "teacher" in describe(path, prefix="teacher")["note"]
    assert isinstance(convert_file(path, tmp_path / "y.pth", prefix="teacher"), Report)
    assert same_weights(torch.load(tmp_path / "y.pth", weights_only=True), OTHER)
    theirs, ours = extract(path, prefix="teacher"), extract(model)
    assert torch.equal(theirs.layers[1].weight, ours.layers[1].weight)
    with pytest.raises(
        ValueError, match=r"prefix is 'x', which is of a file; gmlp_s16 is the name of a model"
    ):
        describe("gmlp_s16", prefix="x")
