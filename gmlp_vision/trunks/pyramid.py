"""The pyramid trunk: a stem, then stages, each with fewer and wider tokens than the one before.

Shapes: B batch, H, W the token grid of a stage, D its width.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import nn

from gmlp_vision.layers.grid_tied import tied_layers
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.windows import Windows
from gmlp_vision.trunks.block_args import default_args, drop_path_rates, one_stage_each
from gmlp_vision.trunks.checks import check_batch, check_count, check_eps, check_image, check_steps, pixels
from gmlp_vision.trunks.recompute import run_blocks
from gmlp_vision.trunks.trunk import Trunk

# Under torch.fx a check is one call in the graph: traced, its `if` would be on a symbolic shape.
torch.fx.wrap("check_batch")
torch.fx.wrap("check_image")

MakeBlock = Callable[..., nn.Module]


class Stage(nn.Module):
    """A downsampling, where there is one, and the blocks behind it. It is called as a module, by itself too.

    Attributes:
        checkpointing: 'selective' or 'block' where activations are computed again (trunks/recompute.py), ''
            where they are kept.

    Shape: (B, H', W', D') of the stage before -> (B, H, W, D).
    """

    def __init__(self, downsample: nn.Module, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.downsample = downsample
        self.blocks = nn.Sequential(*blocks)
        self.checkpointing = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.downsample(x)
        if torch.jit.is_scripting():  # noqa: SIM108  TorchScript knows it in this form only
            x = self.blocks(x)
        else:
            x = run_blocks(self.blocks, x, self.checkpointing)
        return x


class Pyramid(Trunk):
    """Stem, stages, final norm, mean over the tokens, linear head.

    In what the blocks take, a sequence has one value a stage; where that is a sequence again, the blocks of
    the stage take its values in turn.

    Args:
        block: The class of the blocks, called as (width, grid size, drop_path=, norm_eps=, device=, dtype=,
            **own); or one class a stage. A block maps (B, H, W, D) to itself.
        stem: Makes what turns the image, (B, height, width, in_chans), into the tokens of the first stage;
            see layers/embed.py. Called as (in_chans, width, stride=, device=, dtype=).
        downsample: The same between two stages; or one a stage, of which the first is not called. There is
            none where neither stride nor width changes.
        norm: Makes the final norm from the last width and eps.
        embed_dims: The width of each stage.
        depths: The number of blocks of each stage.
        strides: By how much the grid of each stage is smaller than that before it, the first one's than the
            image.
        num_classes: Width of the logits; 0 for no head.
        in_chans: Channels of the image.
        global_pool: 'avg' for the mean over tokens, '' for none.
        img_size: Height and width of the image in pixels, as int or (H, W). A model without layers that
            belong to a grid takes others too.
        drop_rate: Dropout before the head, in [0, 1).
        drop_path_rate: Stochastic depth: probability that a sample skips a branch, in [0, 1).
        drop_path_rule: 'linear' ramps it from 0 at the first block of all to `drop_path_rate` at the last,
            'stagewise' does so within each stage, 'constant' gives it to every block.
        norm_eps: eps of the norms of the blocks and of the final one.
        final_norm: Whether a norm follows the last stage.
        dynamic_img_size: Whether each call may have its own image size, to which what belongs to a grid is
            carried.
        device, dtype: of the parameters.
        own: What the class of the blocks takes beside these.

    Raises:
        ValueError: A value outside what is listed above; the message gives it and what was expected.
        TypeError: An argument that the class of the blocks does not have.
    """

    STEPS = "stages"
    first_conv: ClassVar[str | None] = "stem.proj"

    def __init__(
        self,
        block: MakeBlock | Sequence[MakeBlock],
        *,
        stem: Callable[..., nn.Module],
        downsample: Callable[..., nn.Module] | Sequence[Callable[..., nn.Module]],
        norm: Callable[..., nn.Module] = nn.LayerNorm,
        embed_dims: Sequence[int],
        depths: Sequence[int],
        strides: Sequence[int] = (4, 2, 2, 2),
        num_classes: int = 1000,
        in_chans: int = 3,
        global_pool: str = "avg",
        img_size: int | tuple[int, int] = 224,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        drop_path_rule: str = "linear",
        norm_eps: float = 1e-5,
        final_norm: bool = True,
        dynamic_img_size: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **own: Any,
    ) -> None:
        count = len(depths)
        for name, values in (("depths", depths), ("embed_dims", embed_dims), ("strides", strides)):
            if len(values) != count or not count:
                raise ValueError(
                    f"{name} is {list(values)}; expected one value a stage, and depths is {list(depths)}"
                )
            for stage, value in enumerate(values):
                check_count(f"{name}[{stage}]", value)
        check_eps(norm_eps)
        blocks = list(block) if isinstance(block, Sequence) else [block] * count
        downs = list(downsample) if isinstance(downsample, Sequence) else [downsample] * count
        super().__init__(
            num_classes,
            in_chans,
            global_pool,
            pixels("img_size", img_size),
            embed_dims[-1],
            drop_rate,
            dynamic_img_size,
        )
        self.embed_dims, self.depths, self.strides = tuple(embed_dims), tuple(depths), tuple(strides)
        self.norm_eps = norm_eps
        self.block_args = {**default_args(blocks[-1]), **own}
        dd: dict[str, Any] = {"device": device, "dtype": dtype}

        self.stem = stem(in_chans, embed_dims[0], stride=strides[0], **dd)
        embeds: list[nn.Module] = [nn.Identity()]
        for (before, dim), stride, make in zip(pairwise(embed_dims), strides[1:], downs[1:], strict=True):
            changes = stride > 1 or before != dim
            embeds.append(make(before, dim, stride=stride, **dd) if changes else nn.Identity())
        # the layers of the stages are made for their grids, which only stem and downsamplings know
        grids = list(_grids([self.stem, *embeds[1:]], self.img_size))
        rates = drop_path_rates(drop_path_rate, depths, drop_path_rule)
        self.stages = nn.Sequential(
            *(
                Stage(
                    embeds[i],
                    [
                        blocks[i](embed_dims[i], grids[i], drop_path=rate, norm_eps=norm_eps, **dd, **args)
                        for rate, args in zip(rates[i], stage_args, strict=True)
                    ],
                )
                for i, stage_args in enumerate(one_stage_each(own, depths))
            )
        )
        reductions = [math.prod(strides[: i + 1]) for i in range(count)]
        self.feature_info = [
            {"module": f"stages.{i}", "num_chs": embed_dims[i], "reduction": reductions[i]}
            for i in range(count)
        ]
        self.norm = norm(embed_dims[-1], eps=norm_eps, **dd) if final_norm else nn.Identity()
        self.finish_building(device, dtype)
        self.size_step = _size_step(self)
        check_steps(self.img_size[0], self.img_size[1], self.size_step)

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        check_batch(x, self.in_chans)
        check_image(x, self.img_size, self.size_step, self.fixed_input_size)
        return self.stem(x.permute(0, 2, 3, 1))

    def forward_steps(self, x: torch.Tensor) -> torch.Tensor:
        return self.stages(x)

    def run_step(self, step: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return step(x)

    def finish(self, x: torch.Tensor) -> torch.Tensor:
        """Normalised tokens on their grid: (B, H, W, D)."""
        return self.norm(x)

    def norm_fits(self, step: int) -> bool:
        return step == len(self.depths) - 1

    def feature_map(self, x: torch.Tensor, image_size: tuple[int, int]) -> torch.Tensor:
        return x

    def embeds(self) -> list[Any]:
        """The stem, and what stands before each further stage."""
        stages: Any = self.stages
        return [self.stem, *(stage.downsample for stage in stages[1:])]

    @torch.jit.ignore
    def set_grad_checkpointing(self, enable: bool = True, mode: str = "selective") -> None:
        super().set_grad_checkpointing(enable, mode)
        stages: Any = self.stages
        for stage in stages:
            stage.checkpointing = self.checkpointing

    @torch.jit.ignore
    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "strides": self.strides}

    def keep_steps(self, count: int) -> dict[str, Any]:
        super().keep_steps(count)
        self.depths, self.strides = self.depths[:count], self.strides[:count]
        self.embed_dims = self.embed_dims[:count]
        self.num_features = self.head_hidden_size = self.embed_dims[-1]
        self.size_step = _size_step(self)
        own = {k: v[:count] for k, v in self.block_args.items() if isinstance(v, list | tuple)}
        self.block_args |= own
        return {"depths": self.depths, "embed_dims": self.embed_dims, "strides": self.strides, **own}

    def sizes(
        self, img_size: int | tuple[int, int] | None, patch_size: int | tuple[int, int] | None
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """Both as (height, width) in pixels, the present one for None.

        Raises:
            ValueError: Another patch than the stride of the stem, or an image that gives a stage no tokens.
        """
        stride = (self.strides[0], self.strides[0])
        if patch_size is not None and pixels("patch_size", patch_size) != stride:
            raise ValueError(
                f"patch_size is {patch_size}; the stem of a pyramid keeps its stride, which is {stride[0]}"
            )
        size = self.img_size if img_size is None else pixels("img_size", img_size)
        check_steps(size[0], size[1], self.size_step)
        return size, stride

    def grids(self, img_size: tuple[int, int], patch_size: tuple[int, int] | None = None) -> dict[str, Grid]:
        size, _ = self.sizes(img_size, patch_size)
        by_stage = self.stage_grids(size)
        return {
            name: by_stage[int(name.split(".")[1]) if name.startswith("stages.") else 0]
            for name in tied_layers(self)
        }

    def stage_grids(self, img_size: tuple[int, int]) -> list[Grid]:
        """The grid of each stage, (H, W) in tokens, for an image of (height, width) pixels."""
        return list(_grids(self.embeds(), img_size))

    def resize_stem(self, img_size: tuple[int, int], patch_size: tuple[int, int]) -> None:
        """Nothing: a convolution takes any size."""

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Name patterns of timm's parameter groups (layer decay): stem, stages or their blocks, the norm."""
        blocks: Any = r"^stages\.(\d+)"
        if not coarse:
            blocks = [
                (r"^stages\.(\d+)\.downsample", (0,)),
                (r"^stages\.(\d+)\.blocks\.(\d+)", None),
                (r"^norm", (99999,)),
            ]
        return {"stem": r"^stem", "blocks": blocks}


def _grids(embeds: Sequence[Any], size: Grid) -> Iterator[Grid]:
    """The grid behind each of these, for an image of this size."""
    for embed in embeds:
        size = size if isinstance(embed, nn.Identity) else embed.out_size(size)
        yield size


def _size_step(model: Pyramid) -> tuple[int, int]:
    """What must divide an image, (height, width) in pixels, so that no stage meets a rest."""
    steps, before = [1], 1
    stages: Any = model.stages
    for stride, stage, embed in zip(model.strides, stages, model.embeds(), strict=True):
        step = getattr(embed, "step", 1)
        if step > 1:
            steps.append(before * step)
        before *= stride
        steps += [before * m.window for m in stage.modules() if isinstance(m, Windows)]
    return (math.lcm(*steps),) * 2
