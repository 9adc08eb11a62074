"""The ways in which a block is computed, against each other, against timm's gMLP and against float64."""

from collections.abc import Iterator

import pytest
import timm
import torch
from tiny import images, perturb, tiny
from torch import nn
from torch.func import functional_call

from gmlp_vision.layers.spatial_projection import SpatialProjection
from gmlp_vision.models import gmlp

PARTS = ("fc1", "act", "drop1", "gate", "gate.norm", "gate.proj", "norm", "fc2", "drop2")
INNER = ["norm", "mlp_channels", "drop_path", *(f"mlp_channels.{name}" for name in PARTS)]


@pytest.fixture
def overwritten(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for each block that works in place."""
    calls: list[int] = []
    in_place = gmlp.block_in_place

    def counted(*args: object) -> torch.Tensor:
        calls.append(1)
        return in_place(*args)

    monkeypatch.setattr(gmlp, "block_in_place", counted)
    return calls


def timms(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """timm's own gMLP, of the size of `tiny`, with the weights of ours."""
    mixer = timm.models.MlpMixer(
        num_classes=5,
        img_size=32,
        patch_size=8,
        num_blocks=2,
        embed_dim=16,
        mlp_ratio=6,
        block_layer=timm.models.mlp_mixer.SpatialGatingBlock,
        mlp_layer=timm.layers.GatedMlp,
    )
    mixer.load_state_dict(model.state_dict())
    return mixer.eval().to(dtype)


# -- parity -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grad", [True, False])
def test_float32_is_timms(grad: bool, overwritten: list[int]) -> None:
    model = tiny()
    with torch.set_grad_enabled(grad):
        logits, expected = model(images()), timms(model, torch.float32)(images())
    assert len(overwritten) == (0 if grad else 2)
    assert expected.std() > 0.1
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


def test_gradients_are_timms() -> None:
    model = tiny()
    theirs = timms(model, torch.float32)
    model(images()).square().sum().backward()
    theirs(images()).square().sum().backward()
    for (name, p), q in zip(model.named_parameters(), theirs.parameters(), strict=True):
        assert q.grad.abs().max() > 0, name
        torch.testing.assert_close(p.grad, q.grad, atol=1e-5 * q.grad.abs().max().item(), rtol=1e-5)


@pytest.mark.parametrize("grad", [True, False])
def test_bfloat16_errs_no_more_than_timms(grad: bool, overwritten: list[int]) -> None:
    """In root mean square over seeds, by a tenth: of a single draw either may have the better one."""
    ours, theirs = 0.0, 0.0
    for seed in range(16):
        model, x = perturb(tiny(), seed).bfloat16(), images(8, 3, 32, 32, seed=seed).bfloat16()
        exact = timms(model, torch.float64)(x.double()).detach()
        with torch.set_grad_enabled(grad):
            theirs += (timms(model, torch.bfloat16)(x) - exact).square().mean().item()
            ours += (model(x) - exact).square().mean().item()
    assert bool(overwritten) != grad
    assert 0 < ours**0.5 <= 1.1 * theirs**0.5


@pytest.mark.parametrize("size", [(32, 32), (48, 24)])
def test_in_place_on_any_grid(size: tuple[int, int], overwritten: list[int]) -> None:
    model, x = tiny(dynamic_img_size=True), images(2, 3, *size)
    with torch.no_grad():
        logits = model(x)
    assert len(overwritten) == 2
    torch.testing.assert_close(logits, model(x).detach(), atol=1e-6, rtol=1e-5)


def test_onnx_gets_a_product_with_w_itself() -> None:
    """An Expand of W, which baddbmm asks for, would be a copy for each image."""
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(tiny(), (images(),), dynamo=True, dynamic_shapes=({0: batch},), verbose=False)
    kinds = [node.op_type for node in program.model.graph]
    assert kinds.count("MatMul") == 6  # U, W, V
    assert "Expand" not in kinds


# -- what others see ----------------------------------------------------------------------------------------


def test_the_input_of_a_block_is_left_alone(overwritten: list[int]) -> None:
    block, x = tiny().blocks[0], torch.randn(2, 16, 16)
    before = x.clone()
    with torch.inference_mode():
        y = block(x)
    assert len(overwritten) == 1
    assert torch.equal(x, before)
    assert not torch.equal(y, before)


def test_intermediates_are_not_overwritten_by_later_blocks(overwritten: list[int]) -> None:
    model = tiny(depth=3)
    expected = model.forward_intermediates(images(), intermediates_only=True)
    with torch.no_grad():
        found = model.forward_intermediates(images(), intermediates_only=True)
    assert len(overwritten) == 3
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e.detach(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", INNER)
def test_hooks_see_what_they_see_with_gradients(name: str, overwritten: list[int]) -> None:
    model, seen = tiny(), []
    module = model.blocks[1].get_submodule(name)
    module.register_forward_hook(lambda _, args, out: seen.append((args[0], out)))  # the tensors, no copies
    with torch.no_grad():
        model(images())
    model(images())
    assert len(overwritten) == 1  # the block without a hook
    (x, y), (expected_x, expected_y) = seen
    torch.testing.assert_close(x, expected_x.detach(), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(y, expected_y.detach(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", INNER)
def test_pre_hooks_may_change_what_a_part_gets(name: str) -> None:
    model = tiny()
    model.blocks[1].get_submodule(name).register_forward_pre_hook(lambda _, args: (args[0] * 2 + 1,))
    with torch.no_grad():
        torch.testing.assert_close(model(images()), with_gradients(model), atol=1e-5, rtol=1e-5)


def with_gradients(model: nn.Module) -> torch.Tensor:
    with torch.enable_grad():
        return model(images()).detach()


class Doubled(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def global_hook(model: nn.Module) -> Iterator[None]:
    handle = nn.modules.module.register_module_forward_hook(
        lambda m, a, out: out * 2 if isinstance(m, nn.GELU) else None
    )
    yield
    handle.remove()


def other_activation(model: nn.Module) -> Iterator[None]:
    for block in model.blocks:
        block.mlp_channels.act = nn.ReLU()
    yield


def derived_layer(model: nn.Module) -> Iterator[None]:
    for block in model.blocks:
        block.mlp_channels.fc1.__class__ = Doubled
    yield


def derived_projection(model: nn.Module) -> Iterator[None]:
    class Kept(SpatialProjection):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = super().forward(x)
            return self.last

    for block in model.blocks:
        block.mlp_channels.gate.proj.__class__ = Kept
    yield


def replaced_forward(model: nn.Module) -> Iterator[None]:
    for block in model.blocks:
        act = block.mlp_channels.act
        act.forward = lambda x, act=act: 2 * type(act).forward(act, x)
    yield


def no_bias(model: nn.Module) -> Iterator[None]:
    for block in model.blocks:
        block.mlp_channels.fc1.bias = None
    yield


def autocast(model: nn.Module) -> Iterator[None]:
    with torch.autocast("cpu", torch.bfloat16):
        yield


@pytest.mark.parametrize(
    "change",
    [global_hook, other_activation, derived_layer, derived_projection, replaced_forward, no_bias, autocast],
)
def test_what_is_not_known_is_called_as_it_is(change: object, overwritten: list[int]) -> None:
    model = tiny()
    plain = with_gradients(model)
    changing = change(model)
    next(changing)
    with torch.no_grad():
        logits = model(images())
    expected = with_gradients(model)
    next(changing, None)
    assert not overwritten
    torch.testing.assert_close(logits, expected, atol=1e-6, rtol=1e-5)
    if change is not derived_projection:  # which only keeps
        assert (expected - plain).abs().max() > 1e-4


def test_dropout_kept_on_in_eval_mode_stays_random(overwritten: list[int]) -> None:
    model = tiny(proj_drop_rate=0.5)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    with torch.no_grad():
        assert not torch.equal(model(images()), model(images()))
    assert not overwritten


def test_functional_call_sees_its_own_tensors(overwritten: list[int]) -> None:
    model = tiny()
    others = {name: p.detach() + 0.1 for name, p in model.named_parameters()}
    with torch.no_grad():
        logits = functional_call(model, others, images())
    assert not overwritten
    model.load_state_dict(others)
    torch.testing.assert_close(logits, with_gradients(model), atol=1e-5, rtol=1e-5)


def test_graphs_without_gradients_hold_no_step_in_place() -> None:
    model = tiny()
    with torch.no_grad():
        graphs = [torch.fx.symbolic_trace(model).graph, torch.export.export(model, (images(),)).graph]
    for graph in graphs:
        assert len(graph.nodes) > 20
        assert not any("_." in str(node.target) or "gelu_" in str(node.target) for node in graph.nodes)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.trace:FutureWarning")
def test_a_traced_model_is_the_plain_one() -> None:
    model = tiny()
    with torch.no_grad():
        traced = torch.jit.trace(model, images())
        assert "gelu" in str(traced.inlined_graph)
        assert "gelu_" not in str(traced.inlined_graph)
        x = images(3, 3, 32, 32, seed=5)
        torch.testing.assert_close(traced(x), model(x), atol=1e-6, rtol=1e-5)
