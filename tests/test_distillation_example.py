"""The example of distillation: its teacher, and the commands of its page."""

import re
from pathlib import Path

import pytest
import timm
import torch
from benchmark_scripts import load
from timm.optim import create_optimizer_v2
from timm.task import LogitDistillationTask
from torch import nn

import gmlp_vision  # noqa: F401  registers the names

FOLDER = Path(__file__).parents[1] / "examples/distillation"
teacher = load("distillation", FOLDER.parent).teacher
PAGE = (FOLDER / "README.md").read_text()


def test_the_page_says_how_large_the_teacher_is() -> None:
    model = timm.create_model("conv_teacher", device="meta")
    count = sum(p.numel() for p in model.parameters())
    assert f"{count / 1e6:.2f} M parameters" in PAGE


@pytest.mark.parametrize("size", [32, 24])
def test_the_teacher_teaches_by_timms_own_task(size: int) -> None:
    """Its pupil learns from it at its own size: the loss reaches the pupil and falls."""
    torch.manual_seed(0)
    small = teacher.ConvTeacher(stem_width=4, widths=(4, 8, 8))
    small.pretrained_cfg = timm.get_pretrained_cfg("conv_teacher").to_dict()
    for module in small.modules():  # timm's BatchNorm starts as the identity
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight)
    pupil = timm.create_model("gmlp_pico4", depth=2, embed_dim=16, img_size=size)
    task = LogitDistillationTask(pupil, small, nn.CrossEntropyLoss(), distill_loss_weight=1.0)
    task.train()
    assert not small.training
    optimizer = create_optimizer_v2(pupil, opt="nadamuon", lr=3e-2)
    images, classes = torch.randn(16, 3, size, size), torch.randint(10, (16,))
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = task(images, classes)["loss"]
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.9 * losses[0]
    assert all(p.grad is None for p in small.parameters())


def test_the_teacher_takes_another_head_and_all_of_train_pys_arguments() -> None:
    model = timm.create_model("conv_teacher", num_classes=7, in_chans=1, drop_rate=0.5)
    assert model(torch.randn(2, 1, 32, 32)).shape == (2, 7)


def test_the_pages_commands_name_what_is_there() -> None:
    for path in re.findall(r"PYTHONPATH=(\S+)", PAGE):
        assert Path(__file__).parents[1] / path == FOLDER
