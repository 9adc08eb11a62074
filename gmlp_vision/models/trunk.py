"""The isotropic trunk: patch embedding -> blocks -> norm -> pool -> head, with timm's model contract.

It takes a block factory and knows nothing of what a block does.

Shapes: B batch, N = H * W tokens in row-major order, D width.
"""

from typing import Any, Protocol

import torch
from timm.layers import PatchEmbed, to_2tuple
from timm.models import named_apply

# What timm's own models record a new size with. Private: timm.models has the functions that read the record
# (get_model_input_config, get_model_args, and so save_for_hf), but not this one that writes it.
from timm.models._input import update_model_input_size
from torch import nn

from gmlp_vision.layers import DynamicSpatialProjection, SpatialProjection
from gmlp_vision.models.checks import (
    check_count,
    check_divides,
    check_image,
    check_pool,
    check_rate,
    check_replaceable,
)
from gmlp_vision.models.recompute import check_mode, recompute
from gmlp_vision.models.weight_init import drop_path_rates, init_layer

# Under torch.fx the check is one call in the graph: traced, its `if` would be on a symbolic shape.
torch.fx.wrap("check_image")


class BlockFactory(Protocol):
    """Makes one block, a module that maps (B, N, D) to itself, or (B, H, W, D) where images vary in size."""

    def __call__(
        self, dim: int, grid_size: tuple[int, int], drop_path: float, device: Any, dtype: Any
    ) -> nn.Module: ...


class Trunk(nn.Module):
    """Patch embedding, `depth` blocks of one width on one token grid, final norm, mean pool, linear head.

    Args:
        block: Factory of the blocks.
        num_classes: Width of the logits; 0 for no head.
        in_chans: Channels of the image.
        global_pool: 'avg' for the mean over tokens, '' for none.
        img_size, patch_size: Height and width in pixels, as int or (H, W). The patch must divide the image.
        embed_dim: D, the width of a token.
        depth: Number of blocks.
        drop_rate: Dropout before the head, in [0, 1).
        drop_path_rate, drop_path_rule: Of stochastic depth, see `drop_path_rates`.
        norm_eps: eps of the final LayerNorm.
        final_norm: Whether a LayerNorm follows the last block.
        dynamic_img_size: Whether each call may have its own image size. The blocks then get the tokens on
            their grid, (B, H, W, D), and read it off; `img_size` is the size that their weights belong to.
        device, dtype: of the parameters.

    Raises:
        ValueError: A value outside what is listed above; the message gives it and what was expected.
    """

    def __init__(
        self,
        block: BlockFactory,
        num_classes: int = 1000,
        in_chans: int = 3,
        global_pool: str = "avg",
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        embed_dim: int = 256,
        depth: int = 30,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        drop_path_rule: str = "linear",
        norm_eps: float = 1e-6,
        final_norm: bool = True,
        dynamic_img_size: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_divides(img_size, patch_size)
        check_count("depth", depth)
        check_count("embed_dim", embed_dim)
        check_rate("drop_rate", drop_rate)
        check_pool(global_pool)
        self.num_classes = num_classes
        self.in_chans = in_chans
        self.global_pool = global_pool
        self.dynamic_img_size = dynamic_img_size
        self.num_features = self.head_hidden_size = self.embed_dim = embed_dim
        self.grad_checkpointing = False
        self.checkpointing_mode = "selective"
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.stem = PatchEmbed(
            to_2tuple(img_size),
            to_2tuple(patch_size),
            in_chans,
            embed_dim,
            output_fmt="NHWC" if dynamic_img_size else None,  # None: (B, N, D)
            strict_img_size=not dynamic_img_size,
            **dd,
        )
        self.blocks = nn.Sequential(
            *(
                block(embed_dim, self.stem.grid_size, drop_path=rate, **dd)
                for rate in drop_path_rates(drop_path_rate, depth, drop_path_rule)
            )
        )
        # one number a block, so the larger side of a patch that is not square, as in timm
        reduction = max(self.stem.patch_size)
        self.feature_info = [
            {"module": f"blocks.{i}", "num_chs": embed_dim, "reduction": reduction} for i in range(depth)
        ]
        self.norm = nn.LayerNorm(embed_dim, eps=norm_eps, **dd) if final_norm else nn.Identity()
        self.head_drop = nn.Dropout(drop_rate)
        self.head = nn.Linear(embed_dim, num_classes, **dd) if num_classes > 0 else nn.Identity()
        self.init_weights()

    # -- forward ------------------------------------------------------------------------------------------

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        """(B, in_chans, height, width) image to the tokens that the blocks get."""
        check_image(x, self.stem.img_size, self.stem.patch_size, self.stem.strict_img_size)
        return self.stem(x)

    def forward_features(self, x: torch.Tensor) -> torch.Tensor:
        """(B, in_chans, height, width) image to (B, N, D) normalised tokens."""
        x = self.embed(x)
        if self.grad_checkpointing and not torch.jit.is_scripting():
            for block in self.blocks:
                x = recompute(block, x, self.checkpointing_mode)
        else:
            x = self.blocks(x)
        return self.norm(x).flatten(1, -2)

    def forward_head(self, x: torch.Tensor, pre_logits: bool = False) -> torch.Tensor:
        """(B, N, D) tokens to (B, num_classes) logits, or to the head's input with `pre_logits`."""
        if self.global_pool == "avg":
            x = x.mean(dim=1)
        x = self.head_drop(x)
        return x if pre_logits else self.head(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, in_chans, height, width) image to (B, num_classes) logits."""
        return self.forward_head(self.forward_features(x))

    # -- image size ---------------------------------------------------------------------------------------

    @torch.jit.ignore
    def set_input_size(
        self, img_size: int | tuple[int, int] | None = None, patch_size: int | tuple[int, int] | None = None
    ) -> None:
        """Carries the weights, in place, to another image or patch size (docs/resampling.md).

        Call it before making an optimizer: what it changes become new parameters.

        Args:
            img_size: Height and width in pixels, as int or (H, W); None for the present ones.
            patch_size: The same of a patch. A new one resizes the stem's kernel by timm's own rule.

        Raises:
            ValueError: The patch does not divide the image, or W or b is computed or shared; nothing changes.
        """
        new_img_size = to_2tuple(self.stem.img_size if img_size is None else img_size)
        new_patch_size = to_2tuple(self.stem.patch_size if patch_size is None else patch_size)
        check_divides(new_img_size, new_patch_size)
        grid_size = (new_img_size[0] // new_patch_size[0], new_img_size[1] // new_patch_size[1])
        layers = self.named_modules()
        tied = {k: m for k, m in layers if isinstance(m, SpatialProjection) and m.grid_size != grid_size}
        check_replaceable(self, tied)
        with torch.no_grad():
            carried = [layer.on_grid(grid_size) for layer in tied.values()]  # all before any is replaced
        self.stem.set_input_size(new_img_size, new_patch_size)
        for layer, (weight, bias) in zip(tied.values(), carried, strict=True):
            layer.replace_grid(grid_size, weight, bias)
        for info in self.feature_info:
            info["reduction"] = max(new_patch_size)
        update_model_input_size(self, new_img_size, patch_size=patch_size)

    @torch.jit.ignore
    def clear_cache(self) -> None:
        """Forgets what is kept for the image sizes met; needed only if a weight was edited by ``.data``."""
        for module in self.modules():
            if isinstance(module, DynamicSpatialProjection):
                module.clear_cache()

    # -- the rest of timm's contract ----------------------------------------------------------------------

    @torch.jit.ignore
    def init_weights(self) -> None:
        """Draws all weights anew: zero head, LeCun-normal stem, Xavier-uniform channel projections.

        A layer with an `init_weights` of its own, as a spatial projection has, sets itself.
        """
        named_apply(init_layer, self)

    @torch.jit.ignore
    def get_classifier(self) -> nn.Module:
        """The head: nn.Linear, or nn.Identity when num_classes is 0."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replaces the head by a new one, drawn as at construction, and the pooling if one is given.

        Args:
            num_classes: Width of the logits; 0 for no head.
            global_pool: 'avg', '' or None to keep the present one.

        Raises:
            ValueError: An unknown `global_pool`.
        """
        if global_pool is not None:
            check_pool(global_pool)
            self.global_pool = global_pool
        self.num_classes = num_classes
        weight = self.stem.proj.weight  # there is always a stem; a head may be Identity
        self.head = nn.Identity()
        if num_classes > 0:
            self.head = nn.Linear(self.embed_dim, num_classes, device=weight.device, dtype=weight.dtype)
            init_layer(self.head, "head")

    @torch.jit.ignore
    def set_grad_checkpointing(self, enable: bool = True, mode: str = "selective") -> None:
        """Whether the blocks keep less for the backward pass, which then computes it again (docs/speed.md).

        Args:
            enable: Whether they do.
            mode: 'selective' keeps the products of a block's first projection; 'block' keeps nothing.

        Raises:
            ValueError: An unknown `mode`.
        """
        check_mode(mode)
        self.grad_checkpointing = enable
        self.checkpointing_mode = mode

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Name patterns of timm's parameter groups (layer decay): stem, then each block, then the norm."""
        return {"stem": r"^stem", "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))]}

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        """Empty: timm already spares biases and norms, and the paper names no other exception (A.1)."""
        return set()
