"""The hub, played by a server on 127.0.0.1 (tests/hub_server.py), each step in a process of its own."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import timm
from hub_server import Hub, serve
from tiny import tiny

pytestmark = pytest.mark.slow

BEGIN = """
import json, os, time, timm, torch
from pathlib import Path
import gmlp_vision
from gmlp_vision import CheckpointError
from gmlp_vision.checkpoints import read_checkpoint

time.sleep = lambda seconds: None  # huggingface_hub pauses between tries, for 23 s in all
said = {}
cache = os.environ["HF_HOME"]

def attempt(name, call):
    try:
        said[name] = call()
    except Exception as error:
        said[name] = f"{type(error).__name__}: {error}"

def total(state):
    return float(sum(t.double().abs().sum() for t in state.values()))

"""


def run(hub: Hub | None, cache: Path, code: str, **env: str) -> dict:
    """What the code put into `said`, in a new process that knows no other hub."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    url = hub.url if hub else "http://127.0.0.1:9"  # the discard port: nobody listens
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code + "\nprint(json.dumps(said))"],
        env={**clean, "HF_ENDPOINT": url, "HF_HOME": str(cache), "HF_HUB_DISABLE_TELEMETRY": "1", **env},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def source() -> dict:
    """A model of 2 x 8 tokens, as its repository has it."""
    model = tiny(img_size=(16, 64))
    return {"model": model, "total": float(sum(t.double().abs().sum() for t in model.state_dict().values()))}


SHARDS = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]


def sharded(whole: dict[str, bytes]) -> dict[str, bytes]:
    """The same repository, with its weights in two files."""
    state = safetensors.torch.load(whole["model.safetensors"])
    places = {name: SHARDS[i % 2] for i, name in enumerate(state)}
    shards = {file: {n: state[n] for n in state if places[n] == file} for file in SHARDS}
    return {
        "config.json": whole["config.json"],
        "model.safetensors.index.json": json.dumps({"weight_map": places}).encode(),
        **{file: safetensors.torch.save(tensors) for file, tensors in shards.items()},
    }


def files(model: object, folder: Path, safe: bool = True) -> dict[str, bytes]:
    timm.models.save_for_hf(model, str(folder), safe_serialization=safe)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_download_push_and_what_goes_wrong(source: dict, tmp_path: Path) -> None:
    good = files(source["model"], tmp_path / "good")
    repos = {
        "me/safe": good,
        "me/bin": files(source["model"], tmp_path / "bin", safe=False),
        "me/config": {"config.json": good["config.json"]},
        "me/shards": sharded(good),
        "me/lacking": {name: data for name, data in sharded(good).items() if name != SHARDS[1]},
        "me/outside": {**good, "model.safetensors.index.json": b'{"weight_map": {"a": "../../../x.pth"}}'},
        "me/once": good,
        "me/half": good,
    }
    del repos["me/outside"]["model.safetensors"]
    with serve(repos) as hub:
        hub.breaks_off = {"me/once/model.safetensors": 1, "me/half/model.safetensors": 99}
        said = run(hub, tmp_path / "cache", """
for name in ("safe", "bin", "shards", "lacking", "outside", "config", "once", "half", "nothing", "no name"):
    attempt(name, lambda: total(read_checkpoint(f"hf-hub:me/{name}").state_dict))
attempt("half by timm", lambda: timm.create_model("hf-hub:me/half", pretrained=True))
attempt("sha256", lambda: read_checkpoint("hf-hub:me/safe").sha256)
model = timm.create_model("hf-hub:me/safe", pretrained=True)
attempt("timm", lambda: total(model.state_dict()))
attempt("size", lambda: timm.create_model("hf-hub:me/safe", pretrained=True, img_size=32).stem.img_size)
model.set_input_size(img_size=24)
push = timm.models.push_to_hf_hub
attempt("push", lambda: str(push(model, "me/pushed", token="hf_test", safe_serialization=True)))
attempt("pushed", lambda: total(model.state_dict()))
attempt("pulled", lambda: total(timm.create_model("hf-hub:me/pushed", pretrained=True).state_dict()))
""")  # fmt: skip
        pushed = hub.repos["me/pushed"]
        assert not any("x.pth" in request for request in hub.requests)
    for name in ("safe", "bin", "shards", "once", "timm"):
        assert said[name] == pytest.approx(source["total"], rel=1e-12), name
    assert said["sha256"] == hashlib.sha256(good["model.safetensors"]).hexdigest()
    assert said["size"] == [32, 32]
    assert (
        said["lacking"]
        == f"CheckpointError: hf-hub:me/lacking lacks {SHARDS[1]}, a shard that its index names"
    )
    assert said["outside"].startswith(
        "CheckpointError: hf-hub:me/outside: model.safetensors.index.json names files"
    )
    assert said["config"].startswith("CheckpointError: hf-hub:me/config is no timm model: it lacks")
    assert said["nothing"].startswith("CheckpointError: hf-hub:me/nothing: there is no such repository")
    assert said["no name"].startswith("CheckpointError: hf-hub:me/no name was not fetched")
    assert said["half"].startswith("CheckpointError: hf-hub:me/half was not fetched: ")
    assert said["half by timm"].startswith("CheckpointError: gmlp_ti16 was not fetched: ")
    for half in (said["half"], said["half by timm"]):
        assert "pretrained_cfg_overlay=dict(file=FILE)" in half
    assert not list((tmp_path / "cache/hub/models--me--half/snapshots").glob("*/model.safetensors"))
    # push_to_hf_hub wrote the size after set_input_size, and what it wrote comes back
    assert set(pushed) == {"README.md", "config.json", "model.safetensors"}
    assert json.loads(pushed["config.json"])["model_args"]["img_size"] == [24, 24]
    assert said["pulled"] == said["pushed"] != pytest.approx(source["total"])


@pytest.fixture(scope="module")
def warm_cache(source: dict, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds me/tiny, me/bin, which has no .safetensors, and me/shards."""
    folder = tmp_path_factory.mktemp("hub")
    repos = {
        "me/tiny": files(source["model"], folder / "d"),
        "me/bin": files(source["model"], folder / "bin", safe=False),
    }
    repos["me/shards"] = sharded(repos["me/tiny"])
    with serve(repos) as hub:
        run(hub, folder / "cache", f"for name in {list(repos)}: read_checkpoint('hf-hub:' + name)")
    return folder / "cache"


ROUTES = ("load_checkpoint(model, FILE)", "pretrained_cfg_overlay=dict(file=FILE)", "local-dir:FOLDER")

OFFLINE = """
attempt("warm", lambda: total(read_checkpoint("hf-hub:me/tiny").state_dict))
attempt("bin", lambda: total(read_checkpoint("hf-hub:me/bin").state_dict))
attempt("shards", lambda: total(read_checkpoint("hf-hub:me/shards").state_dict))
attempt("timm", lambda: total(timm.create_model("hf-hub:me/tiny", pretrained=True).state_dict()))
attempt("cold", lambda: total(read_checkpoint("hf-hub:me/other").state_dict))
attempt("config", lambda: timm.create_model("hf-hub:me/other", pretrained=True))
attempt("name", lambda: total(read_checkpoint("gmlp_s16").state_dict))
attempt("pretrained", lambda: total(timm.create_model("gmlp_s16", pretrained=True, depth=1).state_dict()))
model = timm.create_model("hf-hub:me/tiny", pretrained=True)
torch.save(model.state_dict(), f"{cache}/x.pth")
timm.models.save_for_hf(model, f"{cache}/folder", safe_serialization=True)
args = dict(img_size=(16, 64), patch_size=8, depth=2, embed_dim=16, num_classes=5)
overlay = dict(file=f"{cache}/x.pth")
attempt("file", lambda: total(timm.create_model(
    "gmlp_ti16", pretrained=True, pretrained_cfg_overlay=overlay, **args).state_dict()))
attempt("path", lambda: total(timm.create_model(
    "gmlp_ti16", checkpoint_path=overlay["file"], **args).state_dict()))
attempt("folder", lambda: total(timm.create_model(f"local-dir:{cache}/folder", pretrained=True).state_dict()))
blob = next(Path(cache).glob("hub/models--me--tiny/snapshots/*/model.safetensors")).resolve()
data = bytearray(blob.read_bytes())
data[-1] ^= 1
blob.write_bytes(data)
attempt("damaged", lambda: total(read_checkpoint("hf-hub:me/tiny").state_dict))
"""


@pytest.mark.parametrize("how", ["offline", "unreachable"])
def test_without_a_network(how: str, source: dict, warm_cache: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(warm_cache, cache, symlinks=True)
    said = run(None, cache, OFFLINE, **({"HF_HUB_OFFLINE": "1"} if how == "offline" else {}))
    for route in ("warm", "bin", "shards", "timm", "file", "path", "folder"):
        assert said[route] == pytest.approx(source["total"], rel=1e-12), route
    assert said["damaged"].startswith("CheckpointError: hf-hub:me/tiny is damaged")  # by the hub's etag
    assert said["config"].startswith("LocalEntryNotFoundError: ")  # before this package has its turn
    for cold in ("cold", "name", "pretrained"):
        assert said[cold].startswith("CheckpointError: "), cold
        assert "is not in the cache and cannot be reached" in said[cold]
        assert all(route in said[cold] for route in ROUTES)
