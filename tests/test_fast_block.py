"""The ways in which a block is computed, against each other, against timm's gMLP and against float64."""

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import images, perturb, tiny
from torch import nn
from torch.func import functional_call, jvp, vmap
from torch.profiler import ProfilerActivity, profile

from gmlp_vision.layers import SpatialProjection, fast_block
from gmlp_vision.layers.channel_projection import HAS_BOTH, project_channels, suits_onednn
from gmlp_vision.models import gmlp

PARTS = ("fc1", "act", "drop1", "gate", "gate.norm", "gate.proj", "norm", "fc2", "drop2")
INNER = ["norm", "mlp_channels", "drop_path", *(f"mlp_channels.{name}" for name in PARTS)]


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Grows by one for each block that took the fast steps: whether they were written over each other."""
    calls: list[bool] = []
    compute = gmlp.fast_forward

    def noted(*args: object) -> torch.Tensor:
        calls.append(fast_block.may_overwrite())
        return compute(*args)

    monkeypatch.setattr(gmlp, "fast_forward", noted)
    return calls


def choices(blocks: int, grad: bool) -> list[bool]:
    """What `fast` grows by."""
    return blocks * [not grad]


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
def test_float32_is_timms(grad: bool, fast: list[bool]) -> None:
    model = tiny()
    with torch.set_grad_enabled(grad):
        logits, expected = model(images()), timms(model, torch.float32)(images())
    assert fast == choices(2, grad)
    assert expected.std() > 0.1
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


def watched(model: nn.Module) -> nn.Module:
    """With a hook in each block, which is then computed as its equation is written."""
    for block in model.blocks:
        block.norm.register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize("batch", [1, 3, 16])  # torch takes oneDNN by the batch too
@pytest.mark.parametrize("change", [None, watched])
def test_gradients_are_timms(batch: int, change: Callable | None, fast: list[bool]) -> None:
    """Against float64: of a sum over a batch, float32 has no one value to a part in 100,000."""
    model, x = tiny(), images(batch, 3, 32, 32)
    exact = timms(model, torch.float64)
    if change:
        change(model)
    model(x).square().sum().backward()
    exact(x.double()).square().sum().backward()
    assert fast == ([] if change else choices(2, grad=True))
    for (name, p), q in zip(model.named_parameters(), exact.parameters(), strict=True):
        assert q.grad.abs().max() > 0, name
        scale = q.grad.abs().max().item()
        torch.testing.assert_close(p.grad.double(), q.grad, atol=1e-5 * scale, rtol=1e-5, msg=name)


@pytest.mark.parametrize("threads", [1, 2])
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 20), st.lists(st.integers(1, 9), min_size=1, max_size=2), *2 * [st.integers(1, 40)])
def test_the_product_of_the_channels(
    threads: int, batch: int, tokens: list[int], inputs: int, outputs: int
) -> None:
    """Forward and all three gradients, against a product in float64."""
    draw = torch.Generator().manual_seed(batch)
    shapes = ((batch, *tokens, inputs), (outputs, inputs), (outputs,))
    tensors = [torch.randn(shape, generator=draw, requires_grad=True) for shape in shapes]
    x, weight, bias = exact = [t.detach().double().requires_grad_() for t in tensors]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        y = project_channels(*tensors)
        seed = torch.randn(y.shape, generator=draw)
        found = torch.autograd.grad(y, tensors, seed)
    finally:
        torch.set_num_threads(before)
    expected = x @ weight.T + bias
    torch.testing.assert_close(y.double(), expected, atol=1e-4, rtol=1e-5)
    for f, e in zip(found, torch.autograd.grad(expected, exact, seed.double()), strict=True):
        assert batch == 0 or e.abs().max() > 0
        torch.testing.assert_close(f.double(), e, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(1, 196, 64), (1, 196, 128), (2, 4, 8), (3, 2, 2, 8), (16, 4, 8)])
def test_torch_takes_onednn_where_it_is_said_to(shape: tuple[int, ...], threads: int) -> None:
    """Any other convolution of torch's is slower than a linear layer."""
    x, weight = torch.randn(shape), torch.randn(6, shape[-1])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            project_channels(x, weight, torch.zeros(6))
    finally:
        torch.set_num_threads(before)
    called = {event.key for event in profiler.key_averages()}
    for name in ("convolution", "mkldnn_convolution"):
        assert (f"aten::{name}" in called) == suits_onednn(x), name


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN:UserWarning")  # of torch's switch
def test_with_onednn_switched_off_the_projection_is_linear() -> None:
    """torch's own dilated convolution, which would be left, is slow."""
    model, x = tiny(), torch.randn(2, 4, 8)
    assert suits_onednn(x) == HAS_BOTH
    with torch.backends.mkldnn.flags(enabled=False):
        assert not suits_onednn(x)
        torch.testing.assert_close(model(images()), timms(model, torch.float32)(images()))
    assert suits_onednn(x) == HAS_BOTH


@pytest.mark.parametrize("grad", [True, False])
def test_a_batch_of_none(grad: bool, fast: list[bool]) -> None:
    with torch.set_grad_enabled(grad):
        assert tiny()(images(0, 3, 32, 32)).shape == (0, 5)
    assert fast == choices(2, grad)


@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_bfloat16_errs_no_more_than_timms(grad: bool, autocast: bool, fast: list[bool]) -> None:
    """In root mean square over seeds, by a tenth: of a single draw either may have the better one."""
    dtype = torch.float32 if autocast else torch.bfloat16  # of the weights
    ours, theirs = 0.0, 0.0
    for seed in range(16):
        model, x = perturb(tiny(), seed).to(dtype), images(8, 3, 32, 32, seed=seed).to(dtype)
        exact = timms(model, torch.float64)(x.double()).detach()
        with (
            torch.set_grad_enabled(grad),
            torch.autocast("cpu", torch.bfloat16, enabled=autocast),
        ):
            theirs += (timms(model, dtype)(x) - exact).square().mean().item()
            ours += (model(x) - exact).square().mean().item()
    assert fast == choices(32, grad)
    assert 0 < ours**0.5 <= 1.1 * theirs**0.5


@pytest.mark.parametrize("autocast", [True, False])
def test_bfloat16_gradients_err_no_more_than_timms(autocast: bool, fast: list[bool]) -> None:
    """Of each parameter, in root mean square over seeds."""
    dtype = torch.float32 if autocast else torch.bfloat16
    ours, theirs = Counter[str](), Counter[str]()
    for seed in range(16):
        model, x = perturb(tiny(), seed).to(dtype), images(8, 3, 32, 32, seed=seed).to(dtype)
        exact = gradients(timms(model, torch.float64), x.double())
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            for found, errors in (
                (gradients(model, x), ours),
                (gradients(timms(model, dtype), x), theirs),
            ):
                for name, grad in found.items():
                    scale = exact[name].square().mean()
                    assert scale > 0
                    errors[name] += ((grad.double() - exact[name]).square().mean() / scale).item()
    assert fast == choices(32, grad=True)
    assert theirs.keys() == ours.keys()
    for name, error in ours.items():
        assert 0 < error**0.5 <= 1.25 * theirs[name] ** 0.5, name
    assert 0 < ours.total() ** 0.5 <= 1.1 * theirs.total() ** 0.5


def gradients(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    logits = model(x)
    return dict(
        zip(
            dict(model.named_parameters()),
            torch.autograd.grad(logits.square().sum(), list(model.parameters())),
            strict=True,
        )
    )


@pytest.mark.parametrize("grad", [True, False])
def test_autocast_of_tokens_in_another_dtype(grad: bool, fast: list[bool]) -> None:
    """The branch has autocast's dtype then, and its sum with the tokens theirs."""
    block, x = tiny().blocks[0], images(2, 16, 16)
    with torch.set_grad_enabled(grad), torch.autocast("cpu", torch.bfloat16):
        y = block(x)
    assert not fast
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, block(x), atol=0.05, rtol=0.05)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("size", [(32, 32), (48, 24)])
def test_any_grid(size: tuple[int, int], grad: bool, fast: list[bool]) -> None:
    model, x = tiny(dynamic_img_size=True), images(2, 3, *size)
    with torch.set_grad_enabled(grad):
        logits = model(x)
    assert fast == choices(2, grad)
    torch.testing.assert_close(logits, watched(model)(x), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("change", [None, watched])
def test_what_onnx_gets(change: Callable | None) -> None:
    """W itself, since an Expand, which baddbmm asks for, would copy it for each image; U in halves."""
    model, batch = tiny(), torch.export.Dim("batch")
    if change:
        change(model)
    program = torch.onnx.export(model, (images(),), dynamo=True, dynamic_shapes=({0: batch},), verbose=False)
    kinds = Counter(node.op_type for node in program.model.graph)
    assert kinds["MatMul"] == (6 if change else 8)  # U, W, V
    assert kinds["Split"] == (2 if change else 0)  # Z
    assert kinds["Conv"] == 1  # the stem
    assert kinds["Expand"] == 0


# -- what others see ----------------------------------------------------------------------------------------


def test_the_input_of_a_block_is_left_alone(fast: list[bool]) -> None:
    block, x = tiny().blocks[0], torch.randn(2, 16, 16)
    before = x.clone()
    with torch.inference_mode():
        y = block(x)
    assert fast == [True]
    assert torch.equal(x, before)
    assert not torch.equal(y, before)


def test_intermediates_are_not_overwritten_by_later_blocks(fast: list[bool]) -> None:
    model = tiny(depth=3)
    expected = model.forward_intermediates(images(), intermediates_only=True)
    with torch.no_grad():
        found = model.forward_intermediates(images(), intermediates_only=True)
    assert fast == choices(3, grad=True) + choices(3, grad=False)
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e.detach(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", INNER)
def test_hooks_see_what_they_see_with_gradients(name: str, fast: list[bool]) -> None:
    model, seen = tiny(), []
    module = model.blocks[1].get_submodule(name)
    module.register_forward_hook(lambda _, args, out: seen.append((args[0], out)))  # the tensors, no copies
    with torch.no_grad():
        model(images())
    model(images())
    assert fast == choices(1, grad=False) + choices(1, grad=True)  # the block without a hook
    (x, y), (expected_x, expected_y) = seen
    torch.testing.assert_close(x, expected_x.detach(), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(y, expected_y.detach(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", INNER)
def test_pre_hooks_may_change_what_a_part_gets(name: str) -> None:
    model = tiny()
    model.blocks[1].get_submodule(name).register_forward_pre_hook(lambda _, args: (args[0] * 2 + 1,))
    with torch.no_grad():
        torch.testing.assert_close(model(images()), as_written(model), atol=1e-5, rtol=1e-5)


def as_written(model: nn.Module) -> torch.Tensor:
    """The logits as the equation is written: a hook on everything forbids any other steps."""
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        return model(images()).detach()
    finally:
        handle.remove()


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


def no_activation(model: nn.Module) -> Iterator[None]:
    for block in model.blocks:
        block.mlp_channels.act = nn.Identity()
    yield


def no_gate(model: nn.Module) -> Iterator[None]:
    for block in model.blocks:
        block.mlp_channels.gate = nn.Identity()
        block.mlp_channels.fc2 = perturb(nn.Linear(96, 16))  # of all of Z
    yield


def norm_after_the_gate(model: nn.Module) -> Iterator[None]:
    for block in model.blocks:
        block.mlp_channels.norm = perturb(nn.LayerNorm(48))
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


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        global_hook,
        other_activation,
        no_activation,
        no_gate,
        norm_after_the_gate,
        derived_layer,
        derived_projection,
        replaced_forward,
        no_bias,
    ],
)
def test_what_is_not_known_is_called_as_it_is(change: object, grad: bool, fast: list[bool]) -> None:
    model = tiny()
    plain = as_written(model)
    changing = change(model)
    next(changing)
    with torch.set_grad_enabled(grad):
        logits = model(images())
    expected = as_written(model)
    next(changing, None)
    assert not fast
    torch.testing.assert_close(logits, expected, atol=1e-6, rtol=1e-5)
    if change is not derived_projection:  # which only keeps
        assert (expected - plain).abs().max() > 1e-4


def test_dropout_kept_on_in_eval_mode_stays_random(fast: list[bool]) -> None:
    model = tiny(proj_drop_rate=0.5)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    with torch.no_grad():
        assert not torch.equal(model(images()), model(images()))
    assert not fast


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("rate", ["drop_path_rate", "proj_drop_rate"])
def test_a_seed_drops_the_same_with_a_hook_as_without(rate: str, grad: bool, fast: list[bool]) -> None:
    model = tiny(drop_path_rule="constant", **{rate: 0.5}).train()
    torch.manual_seed(1)
    with torch.set_grad_enabled(grad):
        logits = model(images())
    assert fast == (choices(2, grad) if rate == "drop_path_rate" else [])
    torch.manual_seed(1)
    torch.testing.assert_close(logits, as_written(model), atol=1e-5, rtol=1e-5)
    assert (logits - model.eval()(images())).abs().max() > 1e-3


@pytest.mark.parametrize("name", INNER)
def test_backward_hooks_see_the_gradient_of_a_part(name: str, fast: list[bool]) -> None:
    model, seen = tiny(), []
    model.blocks[1].get_submodule(name).register_full_backward_hook(lambda *args: seen.append(args[2][0]))
    model(images()).square().sum().backward()
    assert fast == choices(1, grad=True)  # the block without a hook
    assert seen[0].abs().max() > 0


@pytest.mark.parametrize("grad", [True, False])
def test_functional_call_sees_its_own_tensors(grad: bool, fast: list[bool]) -> None:
    model = tiny()
    others = {name: p.detach() + 0.1 for name, p in model.named_parameters()}
    with torch.set_grad_enabled(grad):
        logits = functional_call(model, others, images())
    assert not fast
    model.load_state_dict(others)
    torch.testing.assert_close(logits, as_written(model), atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:`torch.jit.script:FutureWarning")  # of torch, loading jvp
def test_transforms_of_the_fast_block(fast: list[bool]) -> None:
    """vmap, forward-mode derivatives and second ones, against those of the steps as written."""
    block, x = tiny().blocks[0].requires_grad_(False), torch.randn(3, 16, 16)
    results, counts = [], []
    for _ in range(2):
        mapped = vmap(block)(torch.stack([x, x.sin()], dim=1))
        _, along = jvp(block, (x,), (x.cos(),))
        _, product = torch.autograd.functional.vhp(lambda t: block(t).square().sum(), x, x.sin())
        results.append((mapped, along, product))
        counts.append(len(fast))
        block.norm.register_forward_hook(lambda *_: None)
    assert counts == 2 * [len(choices(3, grad=True))]
    for found, expected in zip(*results, strict=True):
        assert expected.std() > 1e-3
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("grad", [True, False])
def test_shapes_alone(grad: bool, fast: list[bool]) -> None:
    with torch.set_grad_enabled(grad):
        assert tiny().to("meta")(images().to("meta")).shape == (2, 5)
    assert not fast


def operations(model: nn.Module, x: torch.Tensor) -> Counter[str]:
    """How often each function is called in the graph that torch.compile takes; there is one graph."""
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        graphs.append(graph.graph)
        return graph

    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(model, fullgraph=True, backend=backend)(x), model(x))
    (graph,) = graphs
    return Counter(
        getattr(n.target, "__name__", str(n.target)) for n in graph.nodes if n.op.startswith("call")
    )


@pytest.mark.parametrize("grad", [True, False])
def test_compiled_a_block_is_in_halves(grad: bool) -> None:
    """Where nobody watches, and by oneDNN in float32; and no step is written over another."""
    # torch 2.9 tells what it compiles that it is being exported, so there the block stays as written
    says_export = torch.compile(lambda x: x + torch.compiler.is_exporting(), backend="eager")(torch.zeros(1))
    with torch.set_grad_enabled(grad):
        plain = operations(watched(tiny()), images())
        full = operations(tiny(), images())
        half = operations(tiny().bfloat16(), images().bfloat16())
        with torch.autocast("cpu", torch.bfloat16):
            cast = operations(tiny(), images())
    in_halves = (5, 1, 2) if says_export else (7, 1, 4)
    by_onednn = (1, 7, 4) if HAS_BOTH and not says_export else in_halves
    kinds = ("linear", "conv2d", "gelu")  # plain: U, V, head; stem
    for count, expected in ((plain, (5, 1, 2)), (full, by_onednn), (half, in_halves), (cast, in_halves)):
        assert tuple(count[kind] for kind in kinds) == expected
        assert not any(name.endswith("_") for name in count)


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
