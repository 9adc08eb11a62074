"""Two gloo ranks with torch's FSDP1 and FSDP2, block by block: the gradients of one process."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.distributed as dist
from tiny import TINY, images, tiny
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from gmlp_vision import GMlpBlock

BATCH = 4
MODES = ["without", "selective", "block"]  # of activation checkpointing
WAYS = ["fsdp1", "fsdp1 original parameters", "fsdp2"]


def start() -> nn.Module:
    torch.manual_seed(0)
    return tiny().double()


def checkpointed(model: nn.Module, mode: str) -> nn.Module:
    model.set_grad_checkpointing(mode != "without", mode="block" if mode == "block" else "selective")
    return model.train()


def sharded(model: nn.Module, way: str) -> nn.Module:
    if way == "fsdp2":
        mesh = init_device_mesh("cpu", (2,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({GMlpBlock}),
        use_orig_params=way != "fsdp1",
        device_id=torch.device("cpu"),
    )


def stepped(model: nn.Module, way: str) -> dict[str, torch.Tensor]:
    """The whole weights after a step of SGD with rate 1: the gradient in a form that every way has."""
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    if way == "fsdp2":
        return {name: p.full_tensor().detach() for name, p in model.named_parameters()}
    return whole(model)


def whole(model: nn.Module) -> dict[str, torch.Tensor]:
    with FullyShardedDataParallel.summon_full_params(model):
        return {
            name.replace("_fsdp_wrapped_module.", ""): p.detach().clone()
            for name, p in model.named_parameters()
        }


def one_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    half, results = BATCH // 2, {}
    share = slice(rank * half, (rank + 1) * half)
    for way, mode in product(WAYS, MODES):
        model = sharded(checkpointed(start(), mode), way)
        model(images(BATCH, 3, 32, 32).double()[share]).square().sum(1).mean().backward()
        results[way, mode] = stepped(model, way)
    # from the meta device FSDP1 calls `reset_parameters` of every module that owns some
    meta = timm.create_model("gmlp_ti16", **TINY, device="meta")
    model = FullyShardedDataParallel(
        meta, auto_wrap_policy=ModuleWrapPolicy({GMlpBlock}), device_id=torch.device("cpu")
    )
    results["meta"] = whole(model)
    torch.save(results, f"{folder}/{rank}.pth")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, dict[str, torch.Tensor]]]:
    folder: Path = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(one_rank, (str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pth") for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_those_of_one_process(way: str, mode: str, ranks: list) -> None:
    model = start().train()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model(images(BATCH, 3, 32, 32).double()).square().sum(1).mean().backward()
    for found in (rank[way, mode] for rank in ranks):
        assert found.keys() == before.keys()
        for name, p in model.named_parameters():
            assert p.grad.abs().max() > 0, name
            scale = p.grad.abs().max().item()
            moved = before[name] - found[name]
            torch.testing.assert_close(moved, p.grad, atol=1e-10 * scale, rtol=0, msg=name)


@pytest.mark.slow
def test_from_the_meta_device_every_parameter_is_drawn(ranks: list) -> None:
    drawn, fresh = ranks[0]["meta"], timm.create_model("gmlp_ti16", **TINY)
    assert drawn.keys() == dict(fresh.named_parameters()).keys()
    assert all(p.isfinite().all() for p in drawn.values())
    for i in range(2):
        assert 0.5e-6 < drawn[f"blocks.{i}.mlp_channels.gate.proj.weight"].std() < 2e-6
        assert (drawn[f"blocks.{i}.mlp_channels.gate.proj.bias"] == 1).all()
