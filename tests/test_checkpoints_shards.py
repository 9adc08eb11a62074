"""Weights in several files: every shard and every tensor of the index is accounted for."""

import hashlib
import json
import os
import re
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch
from tiny import same_weights, tiny

from gmlp_vision import CheckpointError, load_checkpoint
from gmlp_vision.checkpoints import convert_file, describe, read_checkpoint
from gmlp_vision.checkpoints.hashes import hub_sha256
from gmlp_vision.cli import main

State = dict[str, torch.Tensor]
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def write(folder: Path, shards: dict[str, State], index: str = INDEX, **more: object) -> Path:
    """Shards and their index, as Hugging Face's libraries write them."""
    folder.mkdir(exist_ok=True)
    for file, tensors in shards.items():
        save = safetensors.torch.save_file if file.endswith("safetensors") else torch.save
        save(tensors, folder / file)
    places = {name: file for file, tensors in shards.items() for name in tensors}
    size = sum(tensor.nbytes for tensors in shards.values() for tensor in tensors.values())
    stated = {"metadata": {"total_size": size}, "weight_map": places, **more}
    (folder / index).write_text(json.dumps(stated))
    return folder / index


def halves(state: State, form: str = "safetensors") -> dict[str, State]:
    names = sorted(state)
    stem = "model" if form == "safetensors" else "pytorch_model"
    return {
        f"{stem}-0000{i}-of-00002.{form}": {name: state[name].clone() for name in part}
        for i, part in ((1, names[:10]), (2, names[10:]))
    }


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return tiny(img_size=(16, 24))


@pytest.fixture
def good(model: torch.nn.Module, tmp_path: Path) -> Path:
    """The index of a folder that loads."""
    folder = tmp_path / "good"
    timm.models.save_for_hf(model, str(folder), safe_serialization=True)
    (folder / "model.safetensors").unlink()
    return write(folder, halves(model.state_dict()))


# -- what is read --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["safetensors", "bin"])
def test_an_index_gives_all_tensors(form: str, model: torch.nn.Module, tmp_path: Path) -> None:
    stem = "model" if form == "safetensors" else "pytorch_model"
    index = write(tmp_path / "x", halves(model.state_dict(), form), f"{stem}.{form}.index.json")
    found = read_checkpoint(index)
    assert same_weights(found.state_dict, model)
    assert (found.source, found.weights, found.config, found.notes) == (str(index), "raw", {}, ())
    (tmp_path / "x/config.json").write_text('{"architecture": "gmlp_ti16"}')
    for source in (tmp_path / "x", f"local-dir:{tmp_path / 'x'}"):
        folder = read_checkpoint(source)
        assert same_weights(folder.state_dict, model)
        assert folder.config == {"architecture": "gmlp_ti16"}


def test_it_loads_as_any_source_does(good: Path, model: torch.nn.Module, tmp_path: Path) -> None:
    loaded = tiny(img_size=(16, 24))
    assert "note" not in str(load_checkpoint(loaded, good.parent))
    assert same_weights(loaded, model)
    convert_file(good.parent, tmp_path / "out")
    assert same_weights(timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True), model)
    assert describe(good.parent)["image"] == "3 channels, 16 x 24 pixels"


def test_a_whole_file_goes_before_shards(good: Path, model: torch.nn.Module) -> None:
    changed = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    safetensors.torch.save_file(changed, good.parent / "model.safetensors")
    assert same_weights(read_checkpoint(good.parent).state_dict, changed)


def test_shards_may_stand_in_a_folder_of_the_folder(model: torch.nn.Module, tmp_path: Path) -> None:
    shards = {f"shards/{file}": tensors for file, tensors in halves(model.state_dict()).items()}
    (tmp_path / "shards").mkdir()
    assert same_weights(read_checkpoint(write(tmp_path, shards)).state_dict, model)


def test_the_sha256_is_that_of_all_files_joined(good: Path) -> None:
    joined = b"".join((good.parent / file).read_bytes() for file in (INDEX, FIRST, SECOND))
    found = read_checkpoint(good).sha256
    assert found == hashlib.sha256(joined).hexdigest()
    read_checkpoint(good, sha256=found.upper())
    data = bytearray((good.parent / SECOND).read_bytes())
    data[-1] ^= 1
    (good.parent / SECOND).write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"expected {found}, as given"):
        read_checkpoint(good, sha256=found)
    config = json.loads((good.parent / "config.json").read_text())
    (good.parent / "config.json").write_text(json.dumps({**config, "sha256": found}))
    with pytest.raises(CheckpointError, match=rf"expected {found}, by its config.json"):
        read_checkpoint(good.parent)


def test_a_size_that_disagrees_is_told(good: Path, model: torch.nn.Module) -> None:
    stated = json.loads(good.read_text())
    size = stated["metadata"]["total_size"]
    good.write_text(json.dumps({**stated, "metadata": {"total_size": size + 1000}}))
    said = f"the index says {size + 1000:,} bytes, and its tensors have {size:,}"
    assert read_checkpoint(good).notes == (said,)
    assert said in load_checkpoint(tiny(img_size=(16, 24)), good).notes
    assert describe(good)["note"] == said
    for metadata in ({}, {"total_size": "a lot"}, None, []):
        good.write_text(json.dumps({**stated, "metadata": metadata}))
        assert read_checkpoint(good).notes == ()


# -- what is refused -----------------------------------------------------------------------------------------


def refused(source: Path, why: str) -> None:
    """The source is refused with this reason, and a model that was to take it is as it was."""
    model = tiny(img_size=(16, 24))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=why):
        load_checkpoint(model, source)
    assert same_weights(model, before)


def test_a_missing_shard(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (good.parent / SECOND).unlink()
    refused(good.parent, rf"{good.parent} lacks 1 of its 2 shards: {SECOND}")
    assert main(["info", str(good)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    (good.parent / SECOND).mkdir()
    refused(good, "lacks 1 of its 2 shards")


def test_shards_without_an_index(good: Path) -> None:
    good.unlink()
    refused(good.parent, rf"no index of shards, and {FIRST} is one of 2 shards: give the index")
    refused(
        good.parent / FIRST, rf"{FIRST} is one of 2 shards: give the index .*, such as {INDEX}, or the folder"
    )
    whole = good.parent / "model-00001-of-00001.safetensors"
    (good.parent / FIRST).rename(whole)
    assert len(read_checkpoint(whole).state_dict) == 10


def test_what_the_index_and_the_shards_do_not_agree_on(model: torch.nn.Module, tmp_path: Path) -> None:
    shards = halves(model.state_dict())
    name, other = sorted(shards[FIRST])[0], sorted(shards[SECOND])[0]
    index = write(tmp_path / "x", shards)

    def rewrite(first: State, second: State) -> None:
        safetensors.torch.save_file(first, index.parent / FIRST)
        safetensors.torch.save_file(second, index.parent / SECOND)

    rewrite({k: v for k, v in shards[FIRST].items() if k != name}, shards[SECOND])
    refused(index, rf"the shard {FIRST} is not what .* In the index, not in the shard: {re.escape(name)}\.")
    rewrite({**shards[FIRST], "extra": torch.ones(1)}, shards[SECOND])
    refused(index, r"not in the shard: none\. In the shard, not in the index: extra")
    rewrite(shards[FIRST], {**shards[SECOND], name: shards[FIRST][name]})
    refused(index, rf"the shard {SECOND} has {re.escape(name)}, which by the index are in another, {FIRST}")
    rewrite({**shards[FIRST], other: shards[SECOND][other]}, shards[SECOND])
    refused(index, rf"the shard {FIRST} has {re.escape(other)}, which by the index are in another, {SECOND}")
    rewrite(shards[SECOND], shards[FIRST])
    refused(index, "by the index are in another")
    rewrite(*shards.values())
    assert same_weights(read_checkpoint(index).state_dict, model)


def test_tensors_that_no_shard_has(good: Path) -> None:
    stated = json.loads(good.read_text())
    name = next(iter(stated["weight_map"]))
    del stated["weight_map"][name]
    good.write_text(json.dumps(stated))
    refused(good, f"In the shard, not in the index: {re.escape(name)}")


@pytest.mark.parametrize(
    "outside", ["../x.pth", "{}/x.pth", "a/../../x.pth", "C:x.pth", "..\\x.pth", "", ".", "a\0b"]
)
def test_files_outside_the_folder_are_not_read(outside: str, good: Path, model: torch.nn.Module) -> None:
    torch.save(model.state_dict(), good.parents[1] / "x.pth")
    places = dict.fromkeys(model.state_dict(), outside.format(good.parents[1]))
    good.write_text(json.dumps({"weight_map": places}))
    refused(good, r"names files outside its folder: .*they are not read")


def test_an_index_that_is_none(good: Path) -> None:
    for text in ("", "{", "[" * 100_000, "\xff"):
        good.write_bytes(text.encode("latin1"))
        refused(good, "is not JSON")
    for places in ("{}", '{"a": {"file": "x"}}', '["a"]', "null"):
        for text in (places, f'{{"weight_map": {places}}}'):
            good.write_text(text)
            refused(good, "is no index of shards; expected a weight_map")
    refused(good.parent, "is no index of shards")


def test_a_shard_that_is_damaged_or_no_dict_of_tensors(good: Path, model: torch.nn.Module) -> None:
    whole = (good.parent / FIRST).read_bytes()
    (good.parent / FIRST).write_bytes(whole[:-1])
    refused(good, rf"shard {FIRST}, is not a whole \.safetensors file")
    for content in ({"state_dict": halves(model.state_dict())[FIRST]}, [1], None):
        torch.save(content, good.parent / FIRST)
        refused(good, rf"{FIRST} is no(t what the index says| dict of tensors)")


# -- the hub's cache -----------------------------------------------------------------------------------------


def cached(cache: Path, data: bytes, etag: str, name: str = "model.safetensors") -> Path:
    """A file as huggingface_hub files it."""
    repo = cache / "models--me--tiny"
    for folder in ("blobs", "snapshots/abc"):
        (repo / folder).mkdir(parents=True, exist_ok=True)
    (repo / "blobs" / etag).write_bytes(data)
    link = repo / "snapshots/abc" / name
    link.symlink_to(f"../../blobs/{etag}")
    return link


def test_only_the_hubs_cache_names_files_by_their_hash(model: torch.nn.Module, tmp_path: Path) -> None:
    data = safetensors.torch.save(model.state_dict())
    sha256, another = hashlib.sha256(data).hexdigest(), "ab" * 32
    assert hub_sha256(cached(tmp_path / "1", data, sha256)) == sha256
    read_checkpoint(cached(tmp_path / "2", data, sha256))
    with pytest.raises(CheckpointError, match=rf"expected {another}, which the hub's cache files it under"):
        read_checkpoint(cached(tmp_path / "3", data, another))
    with pytest.raises(CheckpointError, match="is damaged"):  # by the user's own link to it, and itself
        read_checkpoint(
            link_to(tmp_path / "mine.pth", tmp_path / "3/models--me--tiny/snapshots/abc/model.safetensors")
        )
    with pytest.raises(CheckpointError, match="is damaged"):
        read_checkpoint(tmp_path / f"3/models--me--tiny/blobs/{another}")
    read_checkpoint(cached(tmp_path / "4", data, "cd" * 20))  # a small file: its name is git's hash


def test_a_blob_that_is_shared_by_another_hash(model: torch.nn.Module, tmp_path: Path) -> None:
    """Newer versions keep one copy for all repositories, under the hash of Xet, and link the blob to it."""
    data = safetensors.torch.save(model.state_dict())
    sha256, xet = hashlib.sha256(data).hexdigest(), "ef" * 32
    link = cached(tmp_path, data, sha256)
    store = tmp_path / "blobs" / xet[:2]
    store.mkdir(parents=True)
    blob = tmp_path / "models--me--tiny/blobs" / sha256
    os.replace(blob, store / xet)
    blob.symlink_to(f"../../blobs/ef/{xet}")
    assert hub_sha256(link) == sha256
    assert same_weights(read_checkpoint(link).state_dict, model)


@pytest.mark.parametrize(
    "place", ["store/{}", "blobs/{}", "models--me--tiny/snapshots/abc/{}", "models--me--tiny/{}"]
)
def test_another_store_may_name_files_as_it_likes(place: str, good: Path, tmp_path: Path) -> None:
    for file in (FIRST, SECOND):
        stored = tmp_path / place.format(hashlib.sha256(file.encode()).hexdigest())
        stored.parent.mkdir(parents=True, exist_ok=True)
        os.replace(good.parent / file, stored)
        link_to(good.parent / file, stored)
    assert hub_sha256(good.parent / FIRST) is None
    read_checkpoint(good.parent)


def test_shards_in_the_hubs_cache_are_held_against_their_hash(model: torch.nn.Module, tmp_path: Path) -> None:
    index = write(tmp_path / "x", halves(model.state_dict()))
    for path in sorted(index.parent.iterdir()):
        data = path.read_bytes()
        damaged = data[:-1] + bytes([data[-1] ^ 1]) if path.name == SECOND else data
        link = cached(tmp_path, damaged, hashlib.sha256(data).hexdigest(), path.name)
    with pytest.raises(CheckpointError, match=rf"shard {SECOND}, is damaged"):
        read_checkpoint(link.with_name(INDEX))


def link_to(link: Path, target: Path) -> Path:
    link.symlink_to(target)
    return link
