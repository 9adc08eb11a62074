"""Weights to disk. Under its own name a file is always whole: the old one or the new one."""

import hashlib
import io
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from timm.models import get_model_input_config, save_for_hf
from torch import nn

from gmlp_vision.atomic import new_folder, write_file
from gmlp_vision.errors import UserError

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
SAFE_SUFFIX = ".safetensors"
TORCH_SUFFIXES = (".pth", ".pt", ".pth.tar", ".bin", ".ckpt")

LABELS = ("label_names", "label_descriptions")  # at the root of a config.json, where transformers looks too


def is_file_name(path: Path) -> bool:
    """Whether this name asks for one file of weights, in capitals or not; any other asks for a folder."""
    return path.name.lower().endswith((SAFE_SUFFIX, *TORCH_SUFFIXES))


def check_out_name(out: str | Path) -> None:
    """Refuses a name that looks like that of another file, and would become a folder by surprise.

    Raises:
        UserError: It ends as files do, in letters or in up to three letters and digits, and in no slash.
    """
    path = Path(out)
    like_a_file = re.fullmatch(r"\.([a-z]+|[a-z][a-z0-9]{1,2})", path.suffix.lower())
    if like_a_file and not is_file_name(path) and not str(out).endswith(("/", os.sep)):
        raise UserError(
            f"{out} is no name of a file that is written here: end it in "
            f"{', '.join((SAFE_SUFFIX, *TORCH_SUFFIXES))}. For a new folder of that name, end it in a slash"
        )


def save_file(state_dict: Mapping[str, torch.Tensor], path: Path) -> None:
    """Writes tensors alone, as safetensors or in torch's form by the suffix, over what is there."""
    tensors = {name: tensor.detach().contiguous() for name, tensor in state_dict.items()}
    if path.name.lower().endswith(SAFE_SUFFIX):
        data = safetensors.torch.save(tensors, metadata={"format": "pt"})
    else:
        buffer = io.BytesIO()
        torch.save(tensors, buffer)
        data = buffer.getvalue()
    write_file(path, data)


def save_folder(model: nn.Module, path: Path, **config: Any) -> None:
    """Writes a new folder in timm's local-dir form.

    Args:
        config: As `write_local_dir` takes it.

    Raises:
        UserError: There is something at `path`.
        OSError: As `write_local_dir`.
    """
    with new_folder(path) as folder:
        write_local_dir(model, folder, **config)


def write_local_dir(model: nn.Module, folder: Path, **config: Any) -> None:
    """Writes model.safetensors and config.json into a folder, as timm and transformers read them.

    Args:
        config: As timm's `save_for_hf` takes it: model_args, data_config, model_config.

    Raises:
        OSError: The disk is full.
    """
    # a model of any size has no input size for timm, which would leave that of its name's weights
    size = {"input_size": get_model_input_config(model)["input_size"]}
    config["data_config"] = {**size, **config.get("data_config", {})}
    try:
        save_for_hf(model, str(folder), safe_serialization=True, **config)
    except safetensors.SafetensorError as error:  # which is no OSError
        raise OSError(f"model.safetensors cannot be written: {error}") from error
    config_file = folder / "config.json"
    stated = json.loads(config_file.read_text(encoding="utf-8"))
    # which says it at its root too; transformers' TimmWrapper would give both to timm, and fail
    stated["model_args"].pop("num_classes", None)
    stated |= {key: stated["pretrained_cfg"].pop(key) for key in LABELS if key in stated["pretrained_cfg"]}
    stated["sha256"] = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    write_file(config_file, json.dumps(stated, indent=2) + "\n")
