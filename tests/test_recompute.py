"""Activation checkpointing: equal gradients in each mode, and what is computed twice or kept."""

import json
from collections import Counter
from pathlib import Path

import pytest
import timm
import torch
import torch.distributed as dist
from tiny import images, perturb, tiny
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

MODES = ["selective", "block"]
every_mode = pytest.mark.parametrize("mode", MODES)


def gradients(model: nn.Module, x: torch.Tensor, dtype: torch.dtype | None = None) -> dict[str, torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(0)  # of dropout and stochastic depth
    with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        loss = model(x).float().square().sum()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def check_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, grad in expected.items():
        assert grad.abs().max() > 0, name
        torch.testing.assert_close(found[name], grad, atol=1e-6, rtol=1e-5, msg=name)


@every_mode
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("size", [(32, 32), (24, 48)])
def test_gradients_are_those_without(mode: str, dtype: torch.dtype | None, size: tuple[int, int]) -> None:
    rates = {"drop_rate": 0.1, "proj_drop_rate": 0.2, "drop_path_rate": 0.3}
    model = tiny(dynamic_img_size=True, **rates).train()
    x = images(4, 3, *size)
    expected = gradients(model, x, dtype)
    model.set_grad_checkpointing(mode=mode)
    check_equal(gradients(model, x, dtype), expected)


class Calls(TorchDispatchMode):
    """Counts the operations that are really computed."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def computed(model: nn.Module) -> tuple[int, int, int]:
    """How often in one step: the products of the channels, GELU, the products over the tokens."""
    with Calls() as calls:
        model(images()).square().sum().backward()
    return calls.counts["addmm"], calls.counts["gelu"], calls.counts["baddbmm"]


def test_what_is_computed_twice() -> None:
    model = tiny(num_classes=0).train()  # no head: each addmm is of a channel projection
    assert computed(model) == (4, 2, 2)
    model.set_grad_checkpointing()
    assert computed(model) == (4, 4, 4)
    model.set_grad_checkpointing(mode="block")
    assert computed(model) == (6, 4, 4)  # V's product is the last of a block: the backward pass needs it not
    model.set_grad_checkpointing(False)
    assert computed(model) == (4, 2, 2)


@pytest.mark.slow
def test_activation_bytes(tmp_path: Path) -> None:
    """Two blocks of gMLP-S against timm's: the bytes alive between forward and backward."""
    size = {"embed_dim": 256, "num_classes": 0}
    ours = timm.create_model("gmlp_s16", depth=2, **size).train()
    theirs = timm.models.MlpMixer(
        num_blocks=2,
        patch_size=16,
        mlp_ratio=6,
        block_layer=timm.models.mlp_mixer.SpatialGatingBlock,
        mlp_layer=timm.layers.GatedMlp,
        **size,
    )
    timms = alive(theirs, tmp_path)
    assert timms > 8e6
    ours.set_grad_checkpointing()
    assert alive(ours, tmp_path) <= 0.33 * timms
    ours.set_grad_checkpointing(mode="block")
    assert alive(ours, tmp_path) <= 0.08 * timms


def alive(model: nn.Module, folder: Path) -> int:
    x = images(1, 3, 224, 224)
    kept = [model(x)]  # the first call has its own
    kept.pop()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept.append(model(x))
    profiler.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    return sum(e["args"]["Bytes"] for e in events if e["name"] == "[memory]")


@every_mode
def test_one_graph(mode: str) -> None:
    model = tiny().train()
    expected = gradients(model, images())
    model.set_grad_checkpointing(mode=mode)
    check_equal(gradients_of(torch.compile(model, fullgraph=True, backend="aot_eager"), model), expected)


def gradients_of(call: object, model: nn.Module) -> dict[str, torch.Tensor]:
    model.zero_grad()
    call(images()).square().sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@every_mode
def test_forward_intermediates(mode: str) -> None:
    model = tiny().train()

    def features(x: torch.Tensor) -> torch.Tensor:
        final, maps = model.forward_intermediates(x)
        return final.sum() + sum(m.square().sum() for m in maps)

    features(images()).backward()
    expected = [p.grad.clone() for n, p in model.named_parameters() if not n.startswith("head")]
    model.zero_grad()
    model.set_grad_checkpointing(mode=mode)
    features(images()).backward()
    for (name, p), grad in zip(model.named_parameters(), expected, strict=False):
        assert grad.abs().max() > 0, name
        torch.testing.assert_close(p.grad, grad, atol=1e-6, rtol=1e-5)


def test_an_unknown_mode() -> None:
    model = tiny()
    with pytest.raises(ValueError, match=r"'layer'.*'selective' or 'block'"):
        model.set_grad_checkpointing(mode="layer")
    assert not model.grad_checkpointing


# -- two ranks ----------------------------------------------------------------------------------------------


def rank_gradients(rank: int, mode: str, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/{mode}", rank=rank, world_size=2)
    model = tiny().train()
    perturb(model, seed=7)
    model.load_state_dict(torch.load(f"{folder}/weights.pth", weights_only=True))
    model.set_grad_checkpointing(mode=mode)
    wrapped = DistributedDataParallel(model)
    for _ in range(2):  # a second step finds what the first has left
        model.zero_grad()
        wrapped(images(4, 3, 32, 32)[2 * rank : 2 * rank + 2]).square().sum().backward()
    if rank == 0:
        torch.save({name: p.grad for name, p in model.named_parameters()}, f"{folder}/{mode}.pth")
    dist.destroy_process_group()


@pytest.mark.slow
def test_distributed(tmp_path: Path) -> None:
    model = tiny().train()
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    model(images(4, 3, 32, 32)).square().sum().div(2).backward()  # the mean over two ranks
    expected = {name: p.grad for name, p in model.named_parameters()}
    torch.multiprocessing.spawn(both_modes, (str(tmp_path),), nprocs=2)
    for mode in MODES:
        check_equal(torch.load(tmp_path / f"{mode}.pth", weights_only=True), expected)


def both_modes(rank: int, folder: str) -> None:
    for mode in MODES:
        rank_gradients(rank, mode, folder)
