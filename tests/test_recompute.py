"""Activation checkpointing: equal gradients in each mode, and what is computed twice or kept."""

from collections import Counter
from collections.abc import Iterator

import pytest
import timm
import torch
from memory import activation_bytes
from tiny import images, perturb, tiny
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gmlp_vision.trunks import Isotropic, run_block

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
@pytest.mark.parametrize("proj_drop_rate", [0.0, 0.2])  # with dropout a block is computed as it is written
def test_gradients_are_those_without(
    mode: str, dtype: torch.dtype | None, size: tuple[int, int], proj_drop_rate: float
) -> None:
    rates = {"drop_rate": 0.1, "proj_drop_rate": proj_drop_rate, "drop_path_rate": 0.3}
    model = tiny(dynamic_img_size=True, **rates).train()
    x = images(4, 3, *size)
    expected = gradients(model, x, dtype)
    model.set_grad_checkpointing(mode=mode)
    check_equal(gradients(model, x, dtype), expected)


@pytest.fixture
def with_re_entrance() -> Iterator[None]:
    before = timm.layers.use_reentrant_ckpt()
    timm.layers.set_reentrant_ckpt(True)
    yield
    timm.layers.set_reentrant_ckpt(before)


@pytest.mark.usefixtures("with_re_entrance")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rate", ["proj_drop_rate", "drop_path_rate"])
def test_with_re_entrance(rate: str, dtype: torch.dtype) -> None:
    """A block is computed without gradients, then with them: in other steps, but with the same draws."""
    model, x = tiny(**{rate: 0.5}).to(dtype).train(), images(4, 3, 32, 32).to(dtype)
    expected = gradients(model, x)
    model.set_grad_checkpointing(mode="block")
    check_equal(gradients(model, x), expected)


class Calls(TorchDispatchMode):
    """Counts the operations that are really computed."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def computed(model: nn.Module) -> Counter[str]:
    """How often in one step each operation is computed. There are 12 tokens of width 16."""
    with Calls() as calls:
        model(images(2, 3, 32, 24)).square().sum().backward()
    return calls.counts


@pytest.mark.parametrize("ratio", [1, 2, 6])
@pytest.mark.parametrize("fast", [False, True])
def test_what_is_computed_twice(fast: bool, ratio: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """U once in 'selective' mode, twice in 'block' mode; in the fast form it is applied in halves."""
    if fast:  # which a mode that counts would not meet
        monkeypatch.setattr(run_block, "is_observed", lambda x: False)
    model, blocks, stem = tiny(num_classes=0, mlp_ratio=ratio, img_size=(32, 24)).train(), 2, 1

    def counts() -> tuple[int, int, int]:
        """The products with U and V; GELU; the products with W, less those of the backward pass."""
        found = computed(model)
        if fast:
            return found["convolution"] - stem, found["gelu"], found["baddbmm"]
        return found["addmm"], found["gelu"], found["mm"] - backward

    backward = 0 if fast else computed(model)["mm"] - blocks
    u = 2 * blocks if fast else blocks
    v = w = blocks
    assert counts() == (u + v, u, w)
    model.set_grad_checkpointing()
    assert counts() == (u + v, 2 * u, 2 * w)
    model.set_grad_checkpointing(mode="block")
    # V's product is the last of a block: the backward pass does not ask for it
    assert counts() == (2 * u + v, 2 * u, 2 * w)
    model.set_grad_checkpointing(False)
    assert counts() == (u + v, u, w)


class Normed(nn.Module):
    """A block with a BatchNorm, as pyramids have."""

    def __init__(self, dim: int, grid_size: object, drop_path: float, norm_eps: float, **dd: object) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(dim, eps=norm_eps, momentum=None if dim == 12 else 0.1)
        self.fc = nn.Linear(dim, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc(self.norm(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1).relu())


@every_mode
@pytest.mark.parametrize("dim", [8, 12])  # 12: cumulative averages, which go by the count of batches
def test_running_statistics_and_gradients_are_those_without(mode: str, dim: int) -> None:
    states, grads = [], []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = perturb(
            Isotropic(Normed, embed_dim=dim, depth=2, img_size=16, patch_size=4, num_classes=3)
        ).train()
        model.set_grad_checkpointing(checkpointing, mode=mode)
        grads.append([gradients(model, images(4, 3, 16, 16, seed=seed)) for seed in range(3)][-1])
        states.append(model.state_dict())
    check_equal(grads[1], grads[0])
    assert states[0].keys() == states[1].keys()
    for name, expected in states[0].items():
        torch.testing.assert_close(states[1][name], expected, msg=name)
    assert states[0]["blocks.0.norm.num_batches_tracked"] == 3
    assert states[0]["blocks.0.norm.running_mean"].abs().max() > 0.01


@pytest.mark.usefixtures("with_re_entrance")
def test_a_batch_norm_is_never_met_by_re_entrance() -> None:
    model = Isotropic(Normed, embed_dim=8, depth=1, img_size=16, patch_size=4, num_classes=3).train()
    model.set_grad_checkpointing(mode="block")
    perturb(model)(images(4, 3, 16, 16)).sum().backward()
    assert model.blocks[0].norm.num_batches_tracked == 1


@pytest.mark.slow
def test_activation_bytes() -> None:
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
    timms = alive(theirs)
    assert timms > 8e6
    ours.set_grad_checkpointing()
    assert alive(ours) <= 0.33 * timms
    ours.set_grad_checkpointing(mode="block")
    assert alive(ours) <= 0.08 * timms


def alive(model: nn.Module) -> int:
    """The bytes that a step keeps for its backward pass."""
    x = images(1, 3, 224, 224)
    model(x).square().sum().backward()  # the first step has its own
    return activation_bytes(lambda: model(x).square().sum())


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
