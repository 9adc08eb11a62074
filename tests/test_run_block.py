"""Who may take a block's fast form: who wraps, hooks, patches, traces or counts is never passed by."""

import copy
from collections.abc import Callable, Iterator
from unittest import mock

import pytest
import torch
from tiny import images, tiny
from torch import nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from gmlp_vision.layers.fast_form import KNOWN, fast_form
from gmlp_vision.trunks.run_block import choose


class Halves(nn.Module):
    """A part that is known, with a known part of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.halves = Halves()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.halves(self.norm(x)))

    def fast_forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.full_like(x, 7.0)  # told apart from the block at once


fast_form(inner=nn.Linear)(Halves)
fast_form(norm=nn.LayerNorm, halves=Halves, drop=nn.Dropout)(Block)


def is_fast(block: nn.Module, x: torch.Tensor | None = None) -> bool:
    call = choose(block, torch.randn(2, 3, 3, 4) if x is None else x)
    return call is not block and call.__name__ == "fast_forward"


def test_a_plain_block_is_fast_with_and_without_gradients() -> None:
    block, x = Block().eval(), torch.randn(2, 3, 3, 4)
    assert is_fast(block)
    assert (choose(block, x)(x) == 7).all()
    with torch.no_grad():
        assert is_fast(block)
    with torch.inference_mode():
        assert is_fast(block)
    assert is_fast(copy.deepcopy(block))


def test_where_there_is_no_fast_form_the_block_is_called() -> None:
    block = nn.Linear(4, 4)
    assert choose(block, torch.randn(2, 4)) is block


@pytest.mark.parametrize("part", ["", "norm", "halves", "halves.inner", "drop"])
@pytest.mark.parametrize(
    "hook",
    [
        lambda m: m.register_forward_hook(lambda *_: None),
        lambda m: m.register_forward_pre_hook(lambda *_: None),
        lambda m: m.register_forward_pre_hook(lambda m, a, k: None, with_kwargs=True),
        lambda m: m.register_full_backward_hook(lambda *_: None),
        lambda m: m.register_full_backward_pre_hook(lambda *_: None),
    ],
    ids=["forward", "pre", "pre with kwargs", "backward", "backward pre"],
)
def test_a_hook_anywhere(part: str, hook: Callable) -> None:
    block = Block().eval()
    handle = hook(block.get_submodule(part))
    assert not is_fast(block)
    handle.remove()
    assert is_fast(block)


@pytest.mark.parametrize(
    "register",
    [
        nn.modules.module.register_module_forward_hook,
        nn.modules.module.register_module_forward_pre_hook,
        nn.modules.module.register_module_full_backward_hook,
    ],
)
def test_a_hook_on_all_modules(register: Callable) -> None:
    block = Block().eval()
    handle = register(lambda *_: None)
    try:
        assert not is_fast(block)
    finally:
        handle.remove()
    assert is_fast(block)


class Forwarding(nn.Module):
    """A wrapper that hands every attribute on, as FSDP's and many of users' own do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def __getattr__(self, name: str) -> object:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 3 * self.inner(x)


class Derived(Block):
    pass


class DerivedForward(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


class DerivedLinear(nn.Linear):
    pass


def derived_part(block: nn.Module) -> nn.Module:
    block.halves.inner.__class__ = DerivedLinear
    return block


def other_part(block: nn.Module) -> nn.Module:
    block.halves = nn.Identity()
    return block


def added_part(block: nn.Module) -> nn.Module:
    block.adapter = nn.Linear(4, 4)
    return block


def replaced_forward(block: nn.Module) -> nn.Module:
    block.forward = lambda x: x
    return block


def replaced_forward_of_a_part(block: nn.Module) -> nn.Module:
    block.norm.forward = lambda x: x
    return block


def compiled_part(block: nn.Module) -> nn.Module:
    block.halves.compile(backend="eager")
    return block


def compiled_in_place(block: nn.Module) -> nn.Module:
    block.compile(backend="eager")
    return block


def no_bias(block: nn.Module) -> nn.Module:
    block.halves.inner.bias = None
    return block


def parametrized(block: nn.Module) -> nn.Module:
    parametrize.register_parametrization(block.halves.inner, "weight", nn.Identity())
    return block


def dropping(block: nn.Module) -> nn.Module:
    return block.train()


@pytest.mark.parametrize(
    "change",
    [
        Forwarding, lambda b: torch.compile(b, backend="eager"), lambda b: nn.Sequential(b), derived_part,
        other_part, added_part, replaced_forward, replaced_forward_of_a_part, compiled_part,
        compiled_in_place, no_bias, parametrized, dropping, lambda _: Derived().eval(), lambda _:
        DerivedForward().eval(),
    ],
)  # fmt: skip
def test_what_is_wrapped_derived_or_changed_is_called_as_it_is(change: Callable) -> None:
    block = change(Block().eval())
    x = torch.randn(2, 3, 3, 4)
    assert choose(block, x) is block


@pytest.mark.parametrize(
    "cls", [Block, Halves, nn.LayerNorm, nn.Linear, nn.Dropout], ids=lambda cls: cls.__name__
)
def test_a_forward_patched_on_a_class(cls: type[nn.Module]) -> None:
    block = Block().eval()
    with mock.patch.object(cls, "forward", lambda self, x: x):
        assert not is_fast(block)
    assert is_fast(block)


def test_a_call_patched_on_all_modules() -> None:
    block, call = Block().eval(), nn.Module.__call__
    with mock.patch.object(nn.Module, "__call__", lambda self, *args: call(self, *args)):
        assert not is_fast(block)
    assert is_fast(block)


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [FunctionMode, DispatchMode, lambda: FlopCounterMode(display=False)])
def test_under_a_mode(mode: Callable) -> None:
    block = Block().eval()
    with mode():
        assert not is_fast(block)
    assert is_fast(block)


@pytest.mark.filterwarnings("ignore:`torch.jit.script:FutureWarning")  # of torch, loading jvp
def test_under_a_transform() -> None:
    block, x, seen = Block().eval(), torch.randn(5, 2, 3, 3, 4), []

    def call(t: torch.Tensor) -> torch.Tensor:
        seen.append(is_fast(block, t))
        return choose(block, t)(t)

    expected = block(x)
    with torch.no_grad():
        torch.testing.assert_close(vmap(call)(x), expected)
    torch.testing.assert_close(jvp(call, (x,), (x,))[0], expected)
    assert grad(lambda t: call(t).sum())(x).abs().max() > 0
    with torch.autograd.forward_ad.dual_level():
        call(torch.autograd.forward_ad.make_dual(x, x))
    assert seen == [False] * 4


def test_functional_call_uses_its_own_tensors() -> None:
    block, seen = Block().eval(), []

    class Caller(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(is_fast(self.block, x))
            return choose(self.block, x)(x)

    x = torch.randn(2, 3, 3, 4)
    others = {f"block.{name}": p.detach() + 1 for name, p in block.named_parameters()}
    found = functional_call(Caller(), others, x)
    block.load_state_dict({name.removeprefix("block."): p for name, p in others.items()})
    assert seen == [False]
    torch.testing.assert_close(found, block(x))


def test_meta_tensors_and_other_dtypes_under_autocast() -> None:
    block = Block().eval()
    x = torch.randn(2, 3, 3, 4)
    assert choose(copy.deepcopy(block).to("meta"), x.to("meta"))(x.to("meta")).shape == x.shape
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_fast(block, x)
        assert is_fast(block.bfloat16(), x.bfloat16())


@pytest.fixture
def compute_as_known() -> Iterator[None]:
    before = dict(KNOWN)
    yield
    KNOWN.clear()
    KNOWN.update(before)


@pytest.mark.usefixtures("compute_as_known")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:`torch.jit.trace:FutureWarning")
def test_while_traced() -> None:
    block, x = Block().eval(), torch.randn(2, 3, 3, 4)

    class Caller(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return choose(self.block, x)(x)

    for traced in (torch.fx.symbolic_trace(Caller()), torch.jit.trace(Caller(), x)):
        torch.testing.assert_close(traced(x), block(x))
    exported = torch.export.export(Caller(), (x,)).module()
    torch.testing.assert_close(exported(x), block(x))
    assert is_fast(block)


# -- a whole model -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["selective", "block"])
def test_a_wrapped_block_runs_with_checkpointing_too(mode: str) -> None:
    model = tiny()
    plain = model(images())
    model.blocks[0] = Forwarding(model.blocks[0])
    expected = model(images())
    assert (expected - plain).abs().max() > 1e-2
    model.train().set_grad_checkpointing(mode=mode)
    torch.testing.assert_close(model(images()), expected)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # of torch.compile
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_compiled_block_runs_compiled(checkpointing: bool) -> None:
    model, graphs = tiny(), []
    expected = model(images())

    def backend(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        def run(*args: object) -> object:
            graphs.append(1)
            return graph(*args)

        return run

    torch.compiler.reset()
    for i in range(2):
        model.blocks[i] = torch.compile(model.blocks[i], backend=backend)
    model.train().set_grad_checkpointing(checkpointing)
    logits = model(images())
    torch.testing.assert_close(logits, expected, atol=1e-6, rtol=1e-5)
    logits.sum().backward()
    assert len(graphs) == (4 if checkpointing else 2)


def test_a_pre_hook_of_a_checkpointed_block_sees_the_tokens_alone() -> None:
    model, seen = tiny().train(), []
    model.blocks[0].register_forward_pre_hook(
        lambda _, args, kwargs: seen.append((len(args), kwargs)), with_kwargs=True
    )
    model.set_grad_checkpointing()
    model(images()).sum().backward()
    assert seen == [(1, {})] * 2


def test_a_patched_unit_is_obeyed() -> None:
    from gmlp_vision.layers import SpatialGatingUnit

    model = tiny()
    plain = model(images())
    with mock.patch.object(SpatialGatingUnit, "forward", lambda self, z: z.chunk(2, dim=-1)[0]):
        patched = model(images())
        with torch.no_grad():
            torch.testing.assert_close(model(images()), patched)
    assert (patched - plain).abs().max() > 1e-2


def test_vmap_without_gradients_warns_of_nothing() -> None:
    model, x = tiny(), images(6, 3, 32, 32).view(3, 2, 3, 32, 32)
    with torch.no_grad():  # warnings are errors
        torch.testing.assert_close(
            vmap(model)(x), torch.stack([model(batch) for batch in x]), atol=1e-6, rtol=1e-5
        )


@pytest.mark.parametrize("grad", [True, False])
def test_a_hook_on_all_blocks_together_fires(grad: bool) -> None:
    model, seen = tiny(), []
    expected = model(images())
    handle = model.blocks.register_forward_hook(lambda _, args, out: seen.append((args[0].shape, out)))
    with torch.set_grad_enabled(grad):
        torch.testing.assert_close(model(images()), expected, atol=1e-6, rtol=1e-5)
    assert [shape for shape, _ in seen] == [(2, 4, 4, 16)]
    assert seen[0][1].std() > 0.1
    handle.remove()
    model(images())
    assert len(seen) == 1
    model.blocks.register_forward_hook(lambda _, args, out: out.flip(-1))
    assert (model(images()) - expected).abs().max() > 1e-3


def test_blocks_that_are_compiled_or_wrapped_together_run_so() -> None:
    model = tiny()
    expected, calls = model(images()), []
    blocks = model.blocks

    class Counted(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            return super().forward(x)

    model.blocks = Counted(*blocks)
    torch.testing.assert_close(model(images()), expected, atol=1e-6, rtol=1e-5)
    assert calls == [1]


@pytest.mark.parametrize("name", ["forward", "__call__"])
def test_a_patch_of_the_class_that_holds_the_blocks_is_obeyed(name: str) -> None:
    model = tiny()
    expected = model(images())
    with mock.patch.object(nn.Sequential, name, lambda self, x: x.flip(-1)):
        assert (model(images()) - expected).abs().max() > 1e-3
    torch.testing.assert_close(model(images()), expected)
