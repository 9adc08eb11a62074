"""The isotropic trunk: patch embedding, then blocks of one width on one token grid.

Shapes: B batch, H, W the token grid, N = H * W tokens in row-major order, D width.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from timm.layers import PatchEmbed
from torch import nn

from gmlp_vision.layers.grid_tied import GridTied, tied_layers
from gmlp_vision.layers.position import ClassToken, PositionTable
from gmlp_vision.layers.resample import Grid
from gmlp_vision.trunks.block_args import default_args, drop_path_rates
from gmlp_vision.trunks.checks import check_batch, check_count, check_divides, check_eps, check_image
from gmlp_vision.trunks.recompute import run_block, run_blocks
from gmlp_vision.trunks.trunk import Trunk

# Under torch.fx a check is one call in the graph: traced, its `if` would be on a symbolic shape.
torch.fx.wrap("check_batch")
torch.fx.wrap("check_image")

PATCHES = partial(PatchEmbed, output_fmt="NHWC")


class Isotropic(Trunk):
    """Patch embedding, `depth` blocks of one width on one token grid, final norm, pool, linear head.

    Args:
        block: The class of the blocks, called as (embed_dim, grid size, drop_path=, norm_eps=, device=,
            dtype=, **own). A block maps (B, H, W, D) to itself, or (B, 1 + N, D) with a class token. Or a
            sequence of `depth` classes, one for each block.
        num_classes: Width of the logits; 0 for no head.
        in_chans: Channels of the image.
        global_pool: 'avg' for the mean over tokens, '' for none; with a class token also 'token'.
        img_size: Height and width of the image in pixels, as int or (H, W). The patch must divide it.
        patch_size: Height and width of a patch in pixels, as int or (H, W).
        embed_dim: D, the width of a token.
        depth: Number of blocks.
        stem: Makes what takes the image to tokens, (B, H, W, D): called as (image size, patch size, in_chans,
            embed_dim, norm_layer=, device=, dtype=). Of timm's PatchEmbed, which it is for most, the trunk
            asks `grid_size`, `img_size`, `patch_size`, `dynamic_feat_size` and `set_input_size`, and sets
            `strict_img_size`.
        stem_norm: Whether the stem gets a `norm_layer`: in a PatchEmbed, a LayerNorm at its end.
        pos_embed: Whether a learned vector is added to each token.
        class_token: Whether a learned token stands before those of the image. Only for blocks whose class
            says `CLASS_TOKEN = True`: they take the tokens as a row.
        drop_rate: Dropout before the head, in [0, 1).
        drop_path_rate: Stochastic depth: probability that a sample skips a block, in [0, 1).
        drop_path_rule: 'linear' ramps it from 0 at the first block to `drop_path_rate` at the last;
            'constant' gives it to every block, as timm's mixers do.
        norm_eps: eps of the LayerNorms of the blocks, of the final one and of the stem's.
        final_norm: Whether a LayerNorm follows the last block.
        dynamic_img_size: Whether each call may have its own image size, which the patch must divide. A model
            without layers that belong to a grid takes any size without it.
        device, dtype: of the parameters.
        own: What the class of the blocks takes beside these.

    Attributes:
        POSITIONS: The class of the position table; one derived from it may go to other grids by its own rule.

    Raises:
        ValueError: A value outside what is listed above; the message gives it and what was expected.
        TypeError: An argument that the class of the blocks does not have.
    """

    STEPS = "blocks"
    POSITIONS: ClassVar[Callable[..., GridTied]] = PositionTable
    first_conv: ClassVar[str | None] = "stem.proj"

    def __init__(
        self,
        block: Callable[..., nn.Module] | Sequence[Callable[..., nn.Module]],
        *,
        embed_dim: int,
        depth: int,
        num_classes: int = 1000,
        in_chans: int = 3,
        global_pool: str = "avg",
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        stem: Callable[..., Any] = PATCHES,
        stem_norm: bool = False,
        pos_embed: bool = False,
        class_token: bool = False,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        drop_path_rule: str = "linear",
        norm_eps: float = 1e-6,
        final_norm: bool = True,
        dynamic_img_size: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **own: Any,
    ) -> None:
        image, patch = check_divides(img_size, patch_size)
        check_count("depth", depth)
        check_count("embed_dim", embed_dim)
        check_eps(norm_eps)
        super().__init__(
            num_classes,
            in_chans,
            global_pool,
            image,
            embed_dim,
            drop_rate,
            dynamic_img_size,
            num_prefix_tokens=int(class_token),
        )
        self.embed_dim = embed_dim
        self.norm_eps = norm_eps
        kinds = [block] * depth if callable(block) else list(block)
        self.block_args = {k: v for kind in kinds for k, v in default_args(kind).items()} | own
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        norm = partial(nn.LayerNorm, eps=norm_eps)
        self.stem = stem(
            image,
            patch,
            in_chans,
            embed_dim,
            norm_layer=norm if stem_norm else None,
            **dd,
        )
        grid_size = self.stem.grid_size
        self.pos_embed = self.POSITIONS(grid_size, embed_dim, **dd) if pos_embed else nn.Identity()
        self.cls_token = ClassToken(embed_dim, **dd) if class_token else nn.Identity()
        (rates,) = drop_path_rates(drop_path_rate, [depth], drop_path_rule)
        self.blocks = nn.Sequential(
            *(
                kind(embed_dim, grid_size, drop_path=rate, norm_eps=norm_eps, **dd, **own)
                for kind, rate in zip(kinds, rates, strict=True)
            )
        )
        if class_token and not all(getattr(type(b), "CLASS_TOKEN", False) for b in self.blocks):
            raise ValueError(
                f"class_token is True, and {type(self.blocks[0]).__name__} mixes tokens on their grid, "
                "where a class token has no place: leave it out"
            )
        # one number a block, so the larger side of a patch that is not square, as in timm
        reduction = max(self.stem.patch_size)
        self.feature_info = [
            {"module": f"blocks.{i}", "num_chs": embed_dim, "reduction": reduction} for i in range(depth)
        ]
        self.norm = norm(embed_dim, **dd) if final_norm else nn.Identity()
        self.finish_building(device, dtype)
        self.stem.strict_img_size = self.fixed_input_size

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        check_batch(x, self.in_chans)
        check_image(x, self.stem.img_size, self.stem.patch_size, self.stem.strict_img_size)
        # in memory by token: a residual sum takes the layout of its first term, so all blocks would have the
        # stem's
        return self.place(self.stem(x).contiguous())

    def place(self, x: torch.Tensor) -> torch.Tensor:
        """(B, H, W, D) tokens of the stem to those of the first block: positions, then a class token."""
        return self.cls_token(self.pos_embed(x))

    def forward_steps(self, x: torch.Tensor) -> torch.Tensor:
        if torch.jit.is_scripting():  # noqa: SIM108  TorchScript knows it in this form only
            x = self.blocks(x)
        else:
            x = run_blocks(self.blocks, x, self.checkpointing)
        return x

    def run_step(self, step: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return run_block(step, x, self.checkpointing)

    def finish(self, x: torch.Tensor) -> torch.Tensor:
        """Normalised tokens: (B, N, D), or (B, 1 + N, D) with a class token."""
        return self.norm(x).flatten(1, -2)

    def feature_map(self, x: torch.Tensor, image_size: tuple[int, int]) -> torch.Tensor:
        if self.num_prefix_tokens:
            x = x[:, self.num_prefix_tokens :].unflatten(1, self.stem.dynamic_feat_size(image_size))
        return x

    @torch.jit.ignore
    def settings(self) -> dict[str, Any]:
        # no pooling at all is a way to look at a model, not another one
        pool = {"global_pool": self.global_pool} if self.num_prefix_tokens and self.global_pool else {}
        return {**super().settings(), **pool}

    def keep_steps(self, count: int) -> dict[str, Any]:
        return {**super().keep_steps(count), "depth": count}

    def sizes(
        self, img_size: int | tuple[int, int] | None, patch_size: int | tuple[int, int] | None
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """Both as (height, width) in pixels, the present one for None."""
        sizes = self.img_size if img_size is None else img_size
        patches = self.stem.patch_size if patch_size is None else patch_size
        return check_divides(sizes, patches)

    def grids(self, img_size: tuple[int, int], patch_size: tuple[int, int] | None = None) -> dict[str, Grid]:
        (height, width), (p, q) = self.sizes(img_size, patch_size)
        return dict.fromkeys(tied_layers(self), (height // p, width // q))

    def resize_stem(self, img_size: tuple[int, int], patch_size: tuple[int, int]) -> None:
        """Makes the patch embedding one of another image and patch size, in pixels."""
        self.stem.set_input_size(img_size, patch_size)
        for info in self.feature_info:
            info["reduction"] = max(patch_size)

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Name patterns of timm's parameter groups (layer decay): stem, then each block, then the norm."""
        return {
            "stem": r"^(?:stem|pos_embed|cls_token)",
            "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))],
        }
