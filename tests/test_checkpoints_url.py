"""A model name whose released weights are at a direct address, on a server on 127.0.0.1."""

import hashlib
import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from hub_server import Hub, serve
from tiny import same_weights, tiny

from gmlp_vision import CheckpointError, load_checkpoint
from gmlp_vision.checkpoints import describe, hub, read_checkpoint

NAME = "ff_ti16"
SOURCE = tiny(NAME)


def content() -> bytes:
    buffer = io.BytesIO()
    torch.save({"model": SOURCE.state_dict(), "epoch": 3}, buffer)
    return buffer.getvalue()


DATA = content()


@pytest.fixture
def server() -> Iterator[Hub]:
    with serve({"a/b": {}}) as running:
        yield running


@pytest.fixture
def release(server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Puts DATA under a file name on the server, and makes that the release of NAME."""
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path / "hub"))

    def put(file: str) -> str:
        server.repos["a/b"][file] = DATA
        url = f"{server.url}/a/b/resolve/main/{file}"
        cfg = replace(timm.models.get_pretrained_cfg(NAME), url=url)
        monkeypatch.setattr(hub, "get_pretrained_cfg", lambda name: cfg)
        return url

    return put


@pytest.mark.parametrize(
    "file", ["x.pth", f"x-{hashlib.sha256(DATA).hexdigest()[:8]}.pth"], ids=["bare", "with its hash"]
)
def test_fetched_once(file: str, release: Callable[[str], str], server: Hub, tmp_path: Path) -> None:
    url = release(file)
    assert describe(NAME)["weights"] == url
    assert server.requests == []  # for a name nothing is fetched
    for _ in range(2):
        model = tiny(NAME, img_size=SOURCE.img_size)
        model.load_state_dict({k: torch.zeros_like(v) for k, v in model.state_dict().items()})
        report = load_checkpoint(model, NAME)
        assert same_weights(model, SOURCE)
        assert report.source == NAME
    assert server.requests == [f"GET /a/b/resolve/main/{file}"]
    assert [p.name for p in (tmp_path / "hub/checkpoints").iterdir()] == [file]


def test_another_hash_than_the_name_states(
    release: Callable[[str], str], server: Hub, tmp_path: Path
) -> None:
    release("x-01234567.pth")
    with pytest.raises(CheckpointError, match=r"ff_ti16, http.*was not fetched: invalid hash value"):
        read_checkpoint(NAME)
    assert list((tmp_path / "hub/checkpoints").iterdir()) == []
    (tmp_path / "hub/checkpoints/x-01234567.pth").write_bytes(DATA[:-1])
    with pytest.raises(CheckpointError, match=r"x-01234567\.pth is damaged, or another file: remove it"):
        read_checkpoint(NAME)


def test_no_network(release: Callable[[str], str], server: Hub) -> None:
    release("x.pth")
    del server.repos["a/b"]["x.pth"]
    with pytest.raises(
        CheckpointError, match=r"was not fetched: HTTP Error 404.*Without a network, give a file"
    ):
        read_checkpoint(NAME)
