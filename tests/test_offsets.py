"""Products with a W of offsets: both forms are the matrix, to the last digits, and so are their gradients."""

from pathlib import Path

import onnx
import openvino
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import images, perturb, same, tiny
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from gmlp_vision.export import export_model, open_openvino
from gmlp_vision.layers import offsets, toeplitz
from gmlp_vision.layers.offsets import makes_w, map_offsets, toeplitz_matrix
from gmlp_vision.layers.structured import map_tokens_by_group
from gmlp_vision.layers.toeplitz import ToeplitzProjection


def numbers(*size: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def force(monkeypatch: pytest.MonkeyPatch, form: bool) -> None:
    """Takes the form with W, or the other one, on every grid."""
    for module in (offsets, toeplitz):
        monkeypatch.setattr(module, "makes_w", lambda height, width: form)


def problem(batch: int, grid: tuple[int, int], channels: int, groups: int) -> tuple[torch.Tensor, ...]:
    sizes = (2 * grid[0] - 1, 2 * grid[1] - 1)
    table = numbers(*sizes, groups, seed=2) if groups > 1 else numbers(*sizes, seed=2)
    return numbers(batch, *grid, channels), table, numbers(grid[0] * grid[1], seed=3)


def slow(x: torch.Tensor, table: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    w = toeplitz_matrix(table, *x.shape[1:3])
    return map_tokens_by_group(x, w.unsqueeze(0) if w.ndim == 2 else w.permute(2, 0, 1), bias)


def gradients(y: torch.Tensor, *of: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(y.square().sum(), of, create_graph=True)


@pytest.mark.parametrize("form", [True, False], ids=["W", "frequencies"])
@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 3), st.tuples(st.integers(1, 7), st.integers(1, 7)), st.integers(1, 3), st.integers(1, 3)
)
def test_each_form_is_the_matrix(
    form: bool, batch: int, grid: tuple[int, int], groups: int, each: int
) -> None:
    problem_ = [tensor.requires_grad_() for tensor in problem(batch, grid, groups * each, groups)]
    x, table, bias = problem_
    expected = slow(*problem_)
    first = gradients(expected, *problem_)
    second = gradients(first[0] + table.sum() * first[0].sum() + first[1].sum(), *problem_)
    with pytest.MonkeyPatch.context() as patch:
        force(patch, form)
        patch.setattr(offsets, "CHANNELS", 2)  # so there are several pieces, and one that is not whole
        with torch.no_grad():
            torch.testing.assert_close(map_offsets(x, table, bias), expected, atol=1e-12, rtol=1e-12)
        y = map_offsets(x, table, bias)
        torch.testing.assert_close(y, expected, atol=1e-12, rtol=1e-12)
        found = gradients(y, *problem_)
        torch.testing.assert_close(found, first, atol=1e-10, rtol=1e-10)
        twice = gradients(found[0] + table.sum() * found[0].sum() + found[1].sum(), *problem_)
        torch.testing.assert_close(twice, second, atol=1e-6, rtol=1e-8)


@pytest.mark.parametrize("learned", [(True, False), (False, True)], ids=["tokens", "table"])
def test_a_gradient_that_nobody_asks_for(learned: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, False)
    x, table, bias = problem(2, (3, 4), 4, 2)
    wanted = next(t.requires_grad_() for t, is_wanted in zip((x, table), learned, strict=True) if is_wanted)
    (expected,) = gradients(slow(x, table, bias), wanted)
    (found,) = torch.autograd.grad(map_offsets(x, table, bias).square().sum(), wanted)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)
    (again,) = torch.autograd.grad(map_offsets(x, table, bias).square().sum(), wanted, create_graph=True)
    torch.testing.assert_close(again, expected, atol=1e-10, rtol=1e-10)
    twice = gradients(expected.square(), wanted)
    torch.testing.assert_close(gradients(again.square(), wanted), twice, atol=1e-6, rtol=1e-8)


def test_groups_that_do_not_divide_the_channels() -> None:
    with pytest.raises(ValueError, match="the groups do not divide the channels"):
        map_offsets(images(1, 18, 18, 4), torch.ones(35, 35, 3), torch.zeros(324))


def test_on_a_large_grid_w_is_not_made_and_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert makes_w(17, 17)
    assert makes_w(1, 5000)
    assert not makes_w(18, 18)
    monkeypatch.setattr(offsets, "toeplitz_matrix", None)
    layer, x = ToeplitzProjection((18, 18)), images(1, 18, 18, 8).requires_grad_()
    kept: list[torch.Size] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        y = layer(x)
    assert kept == [x.shape, (35, 35, 1)]
    y.sum().backward()
    with pytest.raises(TypeError):  # the check can fail
        ToeplitzProjection((17, 17))(images(1, 17, 17, 8))


def test_its_cost_is_that_of_three_products() -> None:
    """4 N (H + W) multiply-adds a channel, and little for the table."""
    with FlopCounterMode(display=False) as counter:
        ToeplitzProjection((18, 20))(images(1, 18, 20, 96))
    macs = 4 * 360 * 38 * 96
    assert macs < counter.get_total_flops() / 2 < 1.02 * macs


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")  # torch's own
def test_a_counter_or_a_transform_sees_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, False)
    x, table, bias = problem(3, (4, 3), 6, 2)
    expected = slow(x, table, bias)
    found = torch.func.vmap(lambda one: map_offsets(one[None], table, bias)[0])(x)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
    y, moved = torch.func.jvp(lambda t: map_offsets(x, t, bias), (table,), (torch.ones_like(table),))
    torch.testing.assert_close(y, expected, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(moved, slow(x, torch.ones_like(table), 0 * bias), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_floats_are_multiplied_in_float32(dtype: torch.dtype) -> None:
    layer, x = perturb(ToeplitzProjection((18, 18), groups=2)), images(1, 18, 18, 8)
    expected = layer(x).detach()
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x.requires_grad_())
        assert torch.equal(y.detach(), expected)  # no product is in bfloat16
        (there,) = torch.autograd.grad(y.square().sum(), x)
    (expected_there,) = torch.autograd.grad(layer(x).square().sum(), x)
    assert torch.equal(there, expected_there)
    y = layer.to(dtype)(x.detach().to(dtype))
    assert y.dtype == dtype
    assert (y.float() - expected).norm() < 0.01 * expected.norm()


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("grid", [(3, 4), (18, 19)])
def test_graphs_have_both_forms(groups: int, grid: tuple[int, int]) -> None:
    layer, x = perturb(ToeplitzProjection(grid, groups=groups).double(), std=0.1), numbers(2, *grid, 4)
    expected = slow(x, layer.table, layer.bias)
    script, trace, export = torch.jit.script, torch.fx.symbolic_trace, torch.export.export
    for graph in (script(layer), trace(layer), export(layer, (x,)).module()):
        torch.testing.assert_close(graph(x), expected, atol=1e-12, rtol=1e-12)


# -- in a model ---------------------------------------------------------------------------------------------

KINDS = ["toeplitz", "7x7", "lrpe"]


def large(spatial: str, **kwargs: object) -> nn.Module:
    """On 18 x 18 tokens, where no W is made but in files."""
    groups = 2 if spatial == "lrpe" else 1
    return tiny(spatial=spatial, groups=groups, img_size=72, patch_size=4, **kwargs)


@pytest.mark.parametrize("spatial", KINDS)
@pytest.mark.parametrize("grid", [4, 18])
def test_the_fast_form_is_the_written_one(spatial: str, grid: int) -> None:
    model = large(spatial).double()
    model.set_input_size(grid * 4)
    x = images(2, 3, grid * 4, grid * 4).double().requires_grad_()
    fast = model(x)
    (of_fast,) = torch.autograd.grad(fast.square().sum(), x)
    with torch.no_grad():
        same(model(x), fast)
    for block in model.blocks:
        block.norm.register_forward_hook(lambda *_: None)
    written = model(x)
    same(fast, written)
    (of_written,) = torch.autograd.grad(written.square().sum(), x)
    same(of_fast * 1e3, of_written * 1e3)


@pytest.mark.parametrize("spatial", KINDS)
def test_each_call_on_its_own_grid(spatial: str) -> None:
    dynamic = large(spatial, dynamic_img_size=True).double()
    for size in ((72, 72), (76, 80), (24, 32)):
        model = large(spatial).double()
        model.load_state_dict(dynamic.state_dict())
        model.set_input_size(size)
        x = images(2, 3, *size).double()
        same(dynamic(x), model(x))


@pytest.mark.parametrize("mode", ["selective", "block"])
def test_checkpointing_gives_the_same_gradients(mode: str) -> None:
    model, x = large("toeplitz").train(), images(2, 3, 72, 72)

    def of_parameters() -> list[torch.Tensor]:
        return list(torch.autograd.grad(model(x).square().sum(), list(model.parameters())))

    expected = of_parameters()
    model.set_grad_checkpointing(True, **({} if mode == "selective" else {"mode": mode}))
    torch.testing.assert_close(of_parameters(), expected)


@pytest.mark.slow
@pytest.mark.parametrize("spatial", KINDS)
def test_files_for_other_runtimes(spatial: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model = large(spatial, depth=1)
    model.set_input_size(96)  # 24 x 24 tokens, where no W is made in files either
    assert export_model(model, path, "onnx", dynamic_batch=True).difference < 1e-4
    graph = onnx.load(path).graph
    kinds = [node.op_type for node in graph.node]
    assert kinds.count("Conv") == (2 if spatial == "7x7" else 1)  # one is the stem
    # neither W, nor FFTs, nor steps that only make constants
    assert all(torch.Size(c.dims).numel() <= 2 * 24 * 48 * 48 for c in graph.initializer)
    assert not {"Gather", "DFT", "Cos", "Range"} & set(kinds)
    x = images(2, 3, 96, 96)
    with torch.no_grad():
        same(open_openvino(path)(x), model(x))  # it reads the same file
    own = tmp_path / "model.xml"
    assert export_model(model, own, "openvino", dynamic_batch=True).difference < 1e-4
    operations = [node.get_type_name() for node in openvino.Core().read_model(own).get_ops()]
    assert sum("Convolution" in kind for kind in operations) == (2 if spatial == "7x7" else 1)
