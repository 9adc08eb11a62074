"""Sparse-MLP: routing, the loss for balance, and that it trains. tests/test_zoo.py has the rest."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from tiny import images, perturb, same, same_weights, tiny
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import gmlp_vision
from gmlp_vision.checkpoints import build
from gmlp_vision.layers import experts
from gmlp_vision.layers.experts import Mixture, balance_loss, keep_largest
from gmlp_vision.layers.resample import resample_map, resample_reader
from gmlp_vision.models.sparse_mlp import SIZES, SparseBlock
from gmlp_vision.trunks import Isotropic

NAME = "sparse_mlp_b"


def mixture(n: int = 4, k: int = 1, **kwargs: object) -> Mixture:
    return perturb(Mixture(6, 8, n, k, **kwargs), std=0.3)


def vectors(count: int = 50, seed: int = 1) -> torch.Tensor:
    return images(count, 6, seed=seed)


# -- the sizes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "count", "paper", "within"),
    # the small one is 1.8 % above the 22 M that Table 2 rounds to
    [
        ("sparse_mlp_s", 22_402_608, 22, 0.02),
        ("sparse_mlp_b", 69_976_768, 69, 0.015),
        ("sparse_mlp_l", 130_436_456, 130, 0.015),
    ],
)
def test_parameters_without_the_head(name: str, count: int, paper: float, within: float) -> None:
    model = timm.create_model(name, num_classes=0, device="meta")
    assert sum(p.numel() for p in model.parameters()) == count == pytest.approx(paper * 1e6, rel=within)


@pytest.mark.parametrize("name", SIZES)
def test_table_2(name: str) -> None:
    model, sizes = timm.create_model(name, device="meta"), SIZES[name]
    kinds = [isinstance(block, SparseBlock) for block in model.blocks]
    assert kinds == [False] * sizes["dense_depth"] + [True] * (sizes["depth"] - sizes["dense_depth"])
    block = model.blocks[-1]
    assert (block.mlp_tokens.top_k, len(block.mlp_tokens.experts)) == (1, sizes["token_experts"])
    assert block.represent1.over_tokens.weight.shape == (196, 392)
    if name == "sparse_mlp_s":
        assert block.mlp_channels.fc1.weight.shape == (2048, 512)
    else:
        assert (block.mlp_channels.top_k, len(block.mlp_channels.experts)) == (2, 4)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"token_top_k": 4}, "top_k is 4; expected 1 to 3"),
        ({"channel_top_k": 0}, "top_k is 0"),
        ({"token_experts": 0}, "0 experts"),
        ({"aux_weight": -1.0}, r"aux_weight is -1\.0"),
        ({"aux_weight": math.nan}, "aux_weight is nan"),
        ({"dense_depth": -1}, "dense_depth is -1"),
        ({"sparse_tokens": 0}, "sparse_tokens is 0"),
        ({"dense_depth": 2, "token_dim": 0}, "token_dim is 0"),
    ],
)
def test_what_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        tiny(NAME, **change)


def test_one_class_a_block() -> None:
    with pytest.raises(ValueError, match="argument"):
        Isotropic([nn.Identity, nn.Identity], embed_dim=8, depth=3)
    with pytest.raises(TypeError, match="heads"):
        tiny(NAME, heads=2)


# -- routing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "k"), [(1, 1), (4, 1), (4, 2), (4, 4)])
def test_chosen_and_all_experts_give_the_same(n: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = mixture(n, k).eval(), vectors().requires_grad_()
    weights = keep_largest(layer.gate(x).softmax(-1), k)
    assert ((weights > 0).sum(-1) == k).all()

    def outcome() -> list[torch.Tensor]:
        layer.zero_grad()
        y = layer(x)
        return [y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])]

    found = outcome()
    monkeypatch.setattr(experts, "may_branch", lambda x: False)
    for a, b in zip(found, outcome(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    assert found[0].std() > 0.01


def test_an_expert_computes_its_own_vectors_only() -> None:
    layer, seen = mixture(4, 2).eval(), []
    for expert in layer.experts:
        expert.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    layer(vectors(50).view(5, 10, 6))
    assert sum(seen) == 100
    assert max(seen) < 100


def test_each_vector_by_itself() -> None:
    layer, x = mixture(4, 2).eval(), vectors()
    torch.testing.assert_close(layer(x)[7:9], layer(x[7:9]), atol=1e-6, rtol=1e-5)
    assert layer(x[:0]).shape == (0, 6)


def test_an_expert_without_vectors_has_a_gradient_of_zero() -> None:
    """DDP waits for one."""
    layer = mixture(3)
    with torch.no_grad():
        layer.gate.weight.copy_(torch.tensor([[1.0], [0], [-1]]).expand(-1, 6))
    layer.eval()(torch.ones(5, 6)).sum().backward()
    grads = [expert.fc1.weight.grad.abs().max() for expert in layer.experts]
    assert grads[0] > 0
    assert grads[1] == grads[2] == 0


def test_noise_in_training_only() -> None:
    model, x = tiny(NAME), images()
    assert torch.equal(model(x), model(x))
    assert not torch.equal(model.train()(x), model(x))
    scores = torch.zeros(20000, 4)
    assert experts.with_noise(scores, 1 / 4, True).std().item() == pytest.approx(0.25, rel=0.05)


def test_what_is_counted_on_the_meta_device_is_what_is_computed() -> None:
    def flops(device: str) -> int:
        model = tiny(NAME, token_experts=2, channel_experts=2).to(device)
        with FlopCounterMode(display=False) as counter:
            model(images().to(device))
        return counter.get_total_flops()

    assert flops("meta") == flops("cpu")


# -- the loss for balance ---------------------------------------------------------------------------------


def slow_loss(scores: np.ndarray, noisy: np.ndarray, k: int) -> float:
    """Equations 6 to 11, number by number."""
    count, n = scores.shape
    importance, load = [0.0] * n, [0.0] * n
    for row in range(count):
        exps = [math.exp(s) for s in scores[row]]
        threshold = sorted(noisy[row])[-k]
        for i in range(n):
            importance[i] += exps[i] / sum(exps)
            load[i] += 0.5 * math.erfc((threshold - scores[row, i]) * n / math.sqrt(2))
    return sum(0.5 * (np.std(values) / np.mean(values)) ** 2 for values in (importance, load))


@pytest.mark.parametrize(("n", "k"), [(1, 1), (3, 1), (4, 2)])
def test_loss(n: int, k: int) -> None:
    scores = images(5, 4, n).double()
    noisy = scores + images(5, 4, n, seed=2).double() / n
    expected = slow_loss(scores.view(-1, n).numpy(), noisy.view(-1, n).numpy(), k)
    assert balance_loss(scores, noisy, k).item() == pytest.approx(expected, abs=1e-12)
    assert expected > 0.005 or n == 1


def test_load_is_how_often_other_noise_would_choose() -> None:
    """By the draw, 400,000 times, with the threshold that it has."""
    scores = images(1, 4).double() / 4
    noisy = scores + images(1, 4, seed=3).double() / 4
    threshold = noisy.topk(2).values[0, -1]
    draws = scores + torch.randn(400_000, 4, generator=torch.Generator().manual_seed(0)).double() / 4
    load = (draws >= threshold).double().mean(0)
    importance = scores.softmax(-1)[0]
    expected = sum(v.var(correction=0) / v.mean() ** 2 / 2 for v in (importance, load))
    assert balance_loss(scores, noisy, 2).item() == pytest.approx(expected.item(), rel=0.02)


def gradients(model: nn.Module, scale: float = 1.0, x: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(0)
    (scale * model(images() if x is None else x).square().sum()).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def test_the_backward_pass_is_that_of_the_sum_of_both_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    model, losses = tiny(NAME, aux_weight=0.3).train(), []
    found = gradients(model)
    told = model.auxiliary_loss().item()
    model.set_aux_weight(0.0)
    without = gradients(model)
    assert model.auxiliary_loss() == 0

    def kept(*args: object) -> torch.Tensor:
        losses.append(balance_loss(*args))
        return losses[-1]

    monkeypatch.setattr(experts, "balance_loss", kept)
    model.zero_grad()
    torch.manual_seed(0)
    y = model(images())
    assert len(losses) == 4  # of two blocks
    assert told == pytest.approx(0.3 * sum(losses).item(), rel=1e-5)
    (y.square().sum() + 0.3 * sum(losses)).backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(found[name], p.grad, atol=1e-6, rtol=1e-4)
    gate = "blocks.1.mlp_tokens.gate.weight"
    assert (found[gate] - without[gate]).abs().max() > 1e-3


def test_a_loop_that_scales_its_loss_scales_the_weight() -> None:
    model = tiny(NAME, aux_weight=0.3).train()
    once = gradients(model)
    model.set_aux_weight(0.3 * 1024)
    for name, grad in gradients(model, 1024).items():
        torch.testing.assert_close(grad / 1024, once[name], atol=1e-6, rtol=1e-4)


def test_a_lost_balance_is_said() -> None:
    with torch.autocast("cpu", torch.float16), pytest.warns(UserWarning, match="bfloat16"):
        tiny(NAME).train()(images())
    with torch.autocast("cpu", torch.float16):
        tiny(NAME, aux_weight=0.0).train()(images())


@pytest.fixture
def form() -> Iterator[None]:
    before = timm.layers.use_reentrant_ckpt()
    yield
    timm.layers.set_reentrant_ckpt(before)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize(("mode", "re_entrant"), [("selective", False), ("block", False), ("block", True)])
def test_checkpointing_adds_it_once(mode: str, re_entrant: bool) -> None:
    model = tiny(NAME, depth=3, dense_depth=1, aux_weight=1.0, drop_path_rate=0.2).train()
    expected, value = gradients(model), model.auxiliary_loss()
    assert value > 0
    timm.layers.set_reentrant_ckpt(re_entrant)
    model.set_grad_checkpointing(mode=mode)
    found = gradients(model)
    assert model.auxiliary_loss() == value
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, atol=1e-6, rtol=1e-5)


@pytest.mark.slow
def test_compiled_training_is_the_same() -> None:
    model = tiny(NAME, depth=1, aux_weight=1.0).train()
    expected, value = gradients(model), model.auxiliary_loss()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    model.zero_grad()
    torch.manual_seed(0)
    compiled(images()).square().sum().backward()
    torch.testing.assert_close(model.auxiliary_loss(), value)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, expected[name], atol=1e-5, rtol=1e-4)


def test_transforms_of_torch_func_see_it_too() -> None:
    layer, x = mixture(3, aux_weight=1.0).train(), vectors(8)
    parameters = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(p: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, p, x).square().sum()

    torch.manual_seed(0)
    found = torch.func.grad(loss)(parameters, x)
    torch.manual_seed(0)
    layer(x).square().sum().backward()
    for name, p in layer.named_parameters():
        torch.testing.assert_close(found[name], p.grad)
    each = torch.func.vmap(torch.func.grad(loss), (None, 0), randomness="different")(
        parameters, x.view(2, 4, 6)
    )
    assert each["gate.weight"].shape == (2, 3, 6)


def variation(layer: Mixture, x: torch.Tensor) -> float:
    importance = layer.gate(x).softmax(-1).mean(0)
    return (importance.std(correction=0) / importance.mean()).item()


@pytest.mark.parametrize("weight", [0.01, 0.0])
def test_experts_become_balanced_with_the_loss_and_not_without(weight: float) -> None:
    torch.manual_seed(0)
    layer, x = Mixture(6, 8, 4, 1, aux_weight=weight).train(), vectors(256) + 1
    with torch.no_grad():
        layer.gate.weight[0] += 0.15  # most vectors go to the first one
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    target, before = 0.3 * x.sin(), variation(layer, x)
    assert 0.2 < before < 0.3
    for _ in range(100):
        optimizer.zero_grad()
        functional.mse_loss(layer(x), target).backward()
        optimizer.step()
    used = layer.eval().gate(x).argmax(-1).bincount(minlength=4).tolist()
    if weight:
        assert variation(layer, x) < 0.1
        assert min(used) > 25
    else:
        assert variation(layer, x) > 0.4
        assert min(used) < 10


# -- numbers ----------------------------------------------------------------------------------------------


def test_bf16_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same experts chosen; what bfloat16 sends elsewhere makes a step, not a rounding."""
    model, kept = tiny(NAME, depth=1, sparse_channels=48, sparse_tokens=32), []
    monkeypatch.setattr(experts, "keep_largest", lambda p, k: kept.append(keep_largest(p, k)) or kept[-1])
    with torch.no_grad():
        expected = model.blocks(model.embed(images()))
        again = iter(kept[:])
        monkeypatch.setattr(experts, "keep_largest", lambda p, k: p * (next(again) > 0))
        with torch.autocast("cpu", torch.bfloat16):
            found = model.blocks(model.embed(images()))
    assert found.dtype == torch.bfloat16
    assert (found.float() - expected).norm() < 0.03 * expected.norm()


def test_the_router_computes_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, dtypes = mixture().to(torch.bfloat16).eval(), []
    monkeypatch.setattr(experts, "keep_largest", lambda p, k: dtypes.append(p.dtype) or keep_largest(p, k))
    assert layer(vectors().bfloat16()).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        mixture().eval()(vectors())
    assert dtypes == [torch.float32, torch.float32]


# -- grids and files --------------------------------------------------------------------------------------


def test_a_reader_reads_of_a_resized_picture_what_it_read() -> None:
    a, x = images(12, 5).double(), images(12, 3, seed=2).double()
    larger = resample_map(x, (3, 4), (5, 7))
    torch.testing.assert_close(resample_reader(a, (3, 4), (5, 7)).T @ larger, a.T @ x, atol=1e-12, rtol=1e-10)
    with pytest.raises(ValueError, match=r"\(12, 5\).* 6"):
        resample_reader(a, (2, 3), (3, 4))


@pytest.mark.parametrize("dense_depth", [0, 1])
@pytest.mark.parametrize("name", ["sparse_mlp_s", "sparse_mlp_b"])
def test_a_bare_file_tells_its_sizes(name: str, dense_depth: int, tmp_path: Path) -> None:
    model = tiny(name, dense_depth=dense_depth)
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}
    torch.save(model.state_dict(), tmp_path / "x.pth")
    built = build(tmp_path / "x.pth").model.eval()
    assert same_weights(built, model)
    same(built(images()), model(images()))


def test_other_counts_of_chosen_experts_are_refused(tmp_path: Path) -> None:
    timm.models.save_for_hf(tiny(NAME, token_top_k=2), tmp_path, safe_serialization=True)
    with pytest.raises(gmlp_vision.CheckpointError, match=r"token_top_k=2.*token_top_k=1"):
        gmlp_vision.load_checkpoint(tiny(NAME), tmp_path)
    timm.models.save_for_hf(tiny(NAME, aux_weight=0.5), tmp_path, safe_serialization=True)
    gmlp_vision.load_checkpoint(tiny(NAME), tmp_path)  # of training alone


def test_experts_stay_on_another_grid() -> None:
    model = tiny(NAME)
    kept: Callable[[], set[int]] = lambda: {  # noqa: E731
        id(p) for name, p in model.named_parameters() if "over_tokens" not in name and "stem" not in name
    }
    before = kept()
    model.set_input_size((48, 32))
    assert kept() == before
    assert model.blocks[0].represent1.over_tokens.weight.shape == (24, 10)
    assert model(images(2, 3, 48, 32)).std() > 0
