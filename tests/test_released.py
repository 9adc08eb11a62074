"""Released files of pyramids, as their authors wrap them, small, from a server on 127.0.0.1."""

import argparse
import hashlib
import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from hub_server import Hub, serve
from test_pyramid_files import LEFT, in_their_names
from tiny import images, perturb, same, tiny
from torch import nn
from zoo import tiny_kwargs

import gmlp_vision
from gmlp_vision import CheckpointError
from gmlp_vision.checkpoints import describe, hub
from gmlp_vision.cli import main

State = dict[str, torch.Tensor]
TRAINING = {"epoch": 299, "optimizer": {"state": {}, "param_groups": []}, "args": argparse.Namespace(lr=1e-3)}

# By family: what the file holds beside or around the weights; `other` are others of the same names.
WRAPPED: dict[str, tuple[str, Callable[[State, State], object]]] = {
    "model": ("cycle_b1", lambda state, other: {"model": state, **TRAINING}),
    "model_and_no_average": ("hire_t", lambda state, other: {"model": state, "model_ema": None, **TRAINING}),
    "model_and_an_empty_average": ("hire_t", lambda state, other: {"model": state, "model_ema": {}}),
    "model_and_its_average": (
        "hire_t",
        lambda state, other: {"model": other, "model_ema": state, **TRAINING},
    ),
    "flat_with_the_counts_of_a_profiler": ("wave_t_dw", lambda state, other: state),
    "flat": ("convmlp_s", lambda state, other: state),
    "state_dict_ema": (
        "posmlp_t",
        lambda state, other: {"state_dict": other, "state_dict_ema": state, "arch": "pos", **TRAINING},
    ),
    "model_of_swin": ("swin_mlp_t_c24", lambda state, other: {"model": state}),
    "model_of_spach": ("smlp_s", lambda state, other: {"model": state, **TRAINING, "scaler": {"scale": 1.0}}),
}
every_wrapper = pytest.mark.parametrize(("name", "wrap"), WRAPPED.values(), ids=list(WRAPPED))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path / "hub"))
    with serve({"a/b": {}}) as running:
        yield running


def put(server: Hub, content: object, file: str = "released.pth") -> str:
    """The address of a file with this content; HASH in its name becomes the first digits of its sha256."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    file = file.replace("HASH", hashlib.sha256(buffer.getvalue()).hexdigest()[:8])
    server.repos["a/b"][file] = buffer.getvalue()
    return f"{server.url}/a/b/resolve/main/{file}"


def release_of(name: str, wrap: Callable[[State, State], object]) -> tuple[nn.Module, object]:
    model, other = tiny(name), perturb(tiny(name), seed=7)
    return model, wrap(in_their_names(model) | LEFT.get(name, {}), in_their_names(other))


@every_wrapper
def test_created_from_an_address(name: str, wrap: Callable[[State, State], object], server: Hub) -> None:
    model, content = release_of(name, wrap)
    overlay = {"url": put(server, content)}
    made = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **tiny_kwargs(name))
    same(made.eval()(images()), model(images()))


@every_wrapper
def test_loaded_by_name(
    name: str, wrap: Callable[[State, State], object], server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, content = release_of(name, wrap)
    cfg = replace(timm.get_pretrained_cfg(name), url=put(server, content, "released-HASH.pth"))
    monkeypatch.setattr(hub, "get_pretrained_cfg", lambda name: cfg)
    assert describe(name)["weights"] == cfg.url
    assert server.requests == []
    loaded = perturb(tiny(name), seed=5)
    report = gmlp_vision.load_checkpoint(loaded, name)
    same(loaded(images()), model(images()))
    assert report.source == name
    assert report.dropped.keys() >= LEFT.get(name, {}).keys()


def test_a_file_that_is_not_what_its_name_states(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    url = put(server, release_of("cycle_b1", WRAPPED["model"][1])[1], "released-01234567.pth")
    cfg = replace(timm.get_pretrained_cfg("cycle_b1"), url=url)
    monkeypatch.setattr(hub, "get_pretrained_cfg", lambda name: cfg)
    with pytest.raises(CheckpointError, match="was not fetched: invalid hash value"):
        gmlp_vision.load_checkpoint(tiny("cycle_b1"), "cycle_b1")


def test_the_names_whose_files_are_behind_pages() -> None:
    names = timm.list_models(pretrained=True)
    own = [name for name in names if timm.model_entrypoint(name).__module__.startswith("gmlp_vision.")]
    families = {name.split("_")[0] for name in own if hub.page_of(name)}
    assert families == {"vip", "as", "gfnet", "posmlp"}


@pytest.mark.parametrize("name", ["vip_s7", "as_mlp_t", "gfnet_h_ti", "posmlp_t", "posmlp_t.zhicaiwww_in1k"])
def test_a_page_is_told_and_so_is_the_way_round(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = timm.get_pretrained_cfg(name).url
    bare = name.partition(".")[0]
    for go in (
        lambda: timm.create_model(name, pretrained=True),
        lambda: gmlp_vision.load_checkpoint(tiny(bare), name),
    ):
        with pytest.raises(CheckpointError) as refused:
            go()
        message = str(refused.value)
        assert f"are behind a page, {page}: download the file there by hand" in message
        assert (
            f"timm.create_model('{bare}', pretrained=True, pretrained_cfg_overlay=dict(file=FILE))" in message
        )
        assert f"gmlp-vision verify {bare} --checkpoint FILE" in message
    assert main(["info", name]) == 0
    assert f"weights       behind a page, {page}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("url", "is_page"),
    [
        ("https://x.org/a/x.pth", False),
        ("https://x.org/a/x.pth.tar", False),
        ("https://x.org/a/x.pth?download=1", False),
        ("https://x-my.sharepoint.com/:u:/g/personal/a/Eb2l?e=dEQd5q", True),
        ("https://drive.google.com/file/d/1wl0/view", True),
        ("https://drive.google.com/file/d/1wl0/view?name=x.pth", True),
        ("", False),
    ],
)
def test_a_page_is_told_from_a_file(url: str, is_page: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = replace(timm.get_pretrained_cfg("vip_s7"), url=url)
    monkeypatch.setattr(hub, "get_pretrained_cfg", lambda name: cfg)
    assert (hub.page_of("vip_s7") == url) == is_page
    assert (hub.released_at("vip_s7") == url) == (bool(url) and not is_page)
