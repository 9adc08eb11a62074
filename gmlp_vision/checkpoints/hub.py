"""From the Hugging Face Hub, its cache, or a model name, to a folder or a file on this disk."""

import hashlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import urlparse

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)
from timm.models import PretrainedCfg, get_pretrained_cfg, is_model, list_models, split_model_name_tag

from gmlp_vision.checkpoints.shards import INDEX_SUFFIX, read_index
from gmlp_vision.errors import CheckpointError

LOCAL_ROUTES = (
    "Without a network, give a file or a folder instead: `gmlp_vision.load_checkpoint(model, FILE)`, "
    "`timm.create_model(NAME, pretrained=True, pretrained_cfg_overlay=dict(file=FILE))` or "
    "`timm.create_model('local-dir:FOLDER', pretrained=True)`"
)

# What the path in the address of a file ends in; any other address is that of a page.
WEIGHTS = (".safetensors", ".bin", ".pth", ".pth.tar", ".pt")

# torch's form for the name of a file that states the first digits of its sha256.
STATED_HASH = re.compile(r"-([0-9a-f]{8,})\.")

# What a download that breaks off ends in. huggingface_hub lets through the errors of its http client, another
# one in other versions; its own error derives from the client's.
BROKEN_DOWNLOAD: tuple[type[BaseException], ...] = (*HfHubHTTPError.__bases__, OSError)


@contextmanager
def explain_hub_errors(source: str) -> Iterator[None]:
    """Turns what huggingface_hub raises inside into one CheckpointError that says what to do."""
    try:
        yield
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"{source} is not in the cache and cannot be reached. {LOCAL_ROUTES}"
        ) from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"{source}: there is no such repository on the hub, or it is private"
        ) from error
    except EntryNotFoundError as error:
        raise CheckpointError(f"{source} is no timm model: it lacks config.json or weights") from error
    except BROKEN_DOWNLOAD as error:
        if isinstance(error, FileNotFoundError) or getattr(error, "filename", None) is not None:
            raise  # about a file of the user's own
        raise _not_fetched(source, error) from error


def download(repo: str) -> Path:
    """The folder in the hub's cache with the config.json and the weights of `repo`, fetched where need be.

    Args:
        repo: 'OWNER/NAME', or 'OWNER/NAME@REVISION'.

    Raises:
        CheckpointError: No such repository or no weights in it, no network and nothing in the cache, or a
            download that broke off.
    """
    repo_id, _, revision = repo.partition("@")
    try:
        with explain_hub_errors(f"hf-hub:{repo}"):
            config = hf_hub_download(repo_id, "config.json", revision=revision or None)
            _download_weights(repo_id, revision or None, f"hf-hub:{repo}")
    except CheckpointError:
        raise
    except Exception as error:  # such as for a name that no repository can have
        raise _not_fetched(f"hf-hub:{repo}", error) from error
    return Path(config).parent


def _download_weights(repo_id: str, revision: str | None, source: str) -> None:
    for name in ("model.safetensors", "pytorch_model.bin"):
        for file in (name, name + INDEX_SUFFIX):
            try:
                path = Path(hf_hub_download(repo_id, file, revision=revision))
            except EntryNotFoundError as error:  # neither on the hub nor, without a network, in the cache
                absent = error
                continue
            if file != name:
                _download_shards(repo_id, revision, path, source)
            return
    raise absent


def _download_shards(repo_id: str, revision: str | None, index: Path, source: str) -> None:
    for shard in read_index(index, source).shards:
        try:
            hf_hub_download(repo_id, shard, revision=revision)
        except LocalEntryNotFoundError:
            raise
        except EntryNotFoundError as error:
            raise CheckpointError(f"{source} lacks {shard}, a shard that its index names") from error


def _not_fetched(source: str, error: BaseException) -> CheckpointError:
    reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return CheckpointError(f"{source} was not fetched: {reason[:200]}. {LOCAL_ROUTES}")


def download_pretrained(name: str) -> Path:
    """As `download`, for the released weights of a timm model name: 'gmlp_s16', 'gmlp_pico4.cifar10'.

    Where the model's cfg names a file, as for the weights that come with this package, it is that file. A
    file at a direct address is fetched into torch's cache, once, and held against the hash in its name.

    Raises:
        CheckpointError: No such model, or no released weights of it; and as `download`.
    """
    if not is_model(split_model_name_tag(name)[0]):
        raise CheckpointError(
            f"{name} is neither a file, nor a folder, nor the name of a model timm knows{did_you_mean(name)}"
        )
    place = released_at(name)
    if place is None:
        refuse_page(name)
        raise CheckpointError(f"{name} has no released weights; give a file or a folder")
    if isinstance(place, Path):
        return place
    return _download_file(name, place) if "://" in place else download(place)


def _download_file(name: str, url: str) -> Path:
    """The file at an address, in torch's cache, where timm's pretrained=True has it too."""
    path = Path(torch.hub.get_dir(), "checkpoints", Path(urlparse(url).path).name)
    stated = STATED_HASH.search(path.name)
    if not path.is_file():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            show = sys.stderr.isatty()
            torch.hub.download_url_to_file(url, str(path), stated and stated[1], progress=show)
        except Exception as error:  # what urllib, the disk and another hash raise has no common base
            raise _not_fetched(f"{name}, {url},", error) from error
    elif stated and not hashlib.sha256(path.read_bytes()).hexdigest().startswith(stated[1]):
        raise CheckpointError(f"{path} is damaged, or another file: remove it, and it is fetched again")
    return path


def did_you_mean(name: str) -> str:
    """The registered names that one is nearly, as the end of a message; '' if there are none."""
    close = get_close_matches(split_model_name_tag(name)[0], list_models(), cutoff=0.75)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def refuse_page(name: str) -> None:
    """Refuses a model name whose weights are behind a page, which a person has to visit.

    Raises:
        CheckpointError: And says where the page is, and how the file is loaded.
    """
    page = page_of(name)
    if page is not None:
        model = split_model_name_tag(name)[0]
        raise CheckpointError(
            f"the weights of {name} are behind a page, {page}: download the file there by hand, then "
            f"`timm.create_model({model!r}, pretrained=True, pretrained_cfg_overlay=dict(file=FILE))` or "
            f"`gmlp_vision.load_checkpoint(model, FILE)`; `gmlp-vision verify {model} --checkpoint FILE` "
            "measures it"
        )


def page_of(name: str) -> str | None:
    """The page on which a person finds the released weights of a timm model name; None if there is none."""
    cfg = cfg_of(name)
    url = str(cfg.url or "") if cfg and not cfg.file and not cfg.hf_hub_id else ""
    return url if url and not _is_file(url) else None


def released_at(name: str) -> Path | str | None:
    """Where a timm model name's released weights are: a file here, a repository, or the address of a file.

    None if it has none, or if they are behind a page.

    Raises:
        CheckpointError: The model has no such tag.
    """
    cfg = cfg_of(name)
    if cfg and cfg.file:
        return Path(cfg.file)
    if cfg and not cfg.hf_hub_id and _is_file(str(cfg.url or "")):
        return str(cfg.url)
    return (cfg.hf_hub_id or None) if cfg else None


def cfg_of(name: str) -> PretrainedCfg | None:
    """timm's cfg of a model name, of its first tag where it has none; None for a model without cfgs.

    Raises:
        CheckpointError: The model has no such tag.
    """
    try:
        return get_pretrained_cfg(name)
    except RuntimeError as error:
        raise CheckpointError(str(error)) from error


def _is_file(url: str) -> bool:
    """Whether an address is that of a file, and not of a page that leads to one."""
    return urlparse(url).path.endswith(WEIGHTS)
