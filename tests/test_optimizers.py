"""How timm's optimizers treat W, which starts 100,000 times smaller than it ends (docs/training.md)."""

import re
from pathlib import Path

import pytest
import timm
import torch
from timm.optim import create_optimizer_v2
from tiny import images, tiny
from torch import nn
from torch.nn.functional import cross_entropy

DECAY = 0.05
# Of the optimizers of timm 1.0.31 that run on a CPU, those whose steps are relative to what they change
RELATIVE = ("clamb", "clambw", "lamb", "lambc", "lambcd", "lambcw", "lambw", "larc", "lars", "nlarc", "nlars")
OTHERS = ("adamw", "adafactor", "lion", "muon", "nadamw", "sgd")


def spatial(model: nn.Module) -> list[nn.Parameter]:
    return [p for name, p in model.named_parameters() if name.endswith("gate.proj.weight")]


def step(opt: str, std: float, lr: float = 1e-3, decay: float = DECAY) -> tuple[torch.Tensor, torch.Tensor]:
    """Every W, in one row, before a step of a model whose gradients are all alive, and what it added."""
    torch.manual_seed(0)
    model = tiny().double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for w in spatial(model):
            w.normal_(std=std, generator=generator)
    before = torch.cat([w.detach().flatten() for w in spatial(model)])
    optimizer = create_optimizer_v2(model, opt=opt, lr=lr, weight_decay=decay)
    cross_entropy(model(images(4, 3, 32, 32).double()), torch.arange(4)).backward()
    optimizer.step()
    return before, torch.cat([w.detach().flatten() for w in spatial(model)]) - before


@pytest.mark.parametrize("opt", [*RELATIVE, *OTHERS])
def test_whose_step_of_w_is_relative_to_it(opt: str) -> None:
    small, large = (step(opt, std)[1].norm().item() for std in (1e-6, 1e-4))
    assert small > 0
    assert large / small == pytest.approx(100 if opt in RELATIVE else 1, rel=0.05)


@pytest.mark.parametrize(("opt", "factor"), [("lamb", 1.0), ("lars", 1e-3)])
def test_how_far_one_step_goes(opt: str, factor: float) -> None:
    """So in a run LAMB multiplies W by exp(the sum of its learning rates) at the most."""
    before, added = step(opt, 1e-3, lr=0.02)
    assert added.norm() == pytest.approx(0.02 * factor * before.norm().item(), rel=0.02)


@pytest.mark.parametrize(("opt", "plain"), [("lamb", "adam"), ("lars", "momentum")])
def test_without_weight_decay_the_step_is_a_plain_one(opt: str, plain: str) -> None:
    expected = step(plain, 1e-6, decay=0.0)[1]
    added = step(opt, 1e-6, decay=0.0)[1]
    torch.testing.assert_close(added, expected, rtol=0.05, atol=0.05 * expected.abs().max().item())


def test_the_lines_in_the_docs_spare_w_and_nothing_else() -> None:
    page = (Path(__file__).parents[1] / "docs/training.md").read_text()
    (code,) = [code for code in re.findall(r"```python\n(.+?)```", page, re.S) if "no_weight_decay" in code]
    names = {"timm": timm, "model": tiny()}
    exec(code, names)
    groups = names["optimizer"].param_groups
    spared = [p for group in groups if not group["weight_decay"] for p in group["params"] if p.ndim > 1]
    assert len(spared) == 2
    assert {id(p) for p in spared} == {id(p) for p in spatial(names["model"])}
    assert names["optimizer"].__class__.__name__ == "Lamb"


def test_grouping_by_linear_layers_misses_w_and_b() -> None:
    model = tiny()
    linear = {id(p) for m in model.modules() if isinstance(m, nn.Linear) for p in m.parameters()}
    missed = {name for name, p in model.named_parameters() if id(p) not in linear}
    assert {f"blocks.0.mlp_channels.gate.proj.{part}" for part in ("weight", "bias")} <= missed
