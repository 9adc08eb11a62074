"""The isotropic trunk: patch embedding -> blocks -> norm -> pool -> head, with timm's model contract.

It takes a block factory and knows nothing of what a block does.

Shapes: B batch, N = H * W tokens in row-major order, D width.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from timm.layers import PatchEmbed, calculate_drop_path_rates, lecun_normal_, to_2tuple
from timm.models import checkpoint, checkpoint_seq, named_apply
from torch import nn


class BlockFactory(Protocol):
    """Makes one block, a module that maps (B, N, D) to (B, N, D)."""

    def __call__(
        self, dim: int, grid_size: tuple[int, int], drop_path: float, device: Any, dtype: Any
    ) -> nn.Module: ...


class Trunk(nn.Module):
    """Patch embedding, `depth` blocks of one width on one token grid, final norm, mean pool and a linear head.

    Args:
        block: Factory of the blocks.
        num_classes: Width of the logits; 0 for no head.
        in_chans: Channels of the image.
        global_pool: 'avg' for the mean over tokens, '' for none.
        img_size: Height and width of the image in pixels, as int or (H, W). The patch must divide it.
        patch_size: Height and width of a patch in pixels, as int or (H, W).
        embed_dim: D, the width of a token.
        depth: Number of blocks.
        drop_rate: Dropout before the head, in [0, 1).
        drop_path_rate: Stochastic depth, the probability that a sample skips a block, in [0, 1).
        drop_path_rule: 'linear' ramps it from 0 at the first block to `drop_path_rate` at the last;
            'constant' gives it to every block.
        norm_eps: eps of the final LayerNorm.
        final_norm: Whether a LayerNorm follows the last block.
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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_divides(img_size, patch_size)
        check_rate("drop_rate", drop_rate)
        check_pool(global_pool)
        self.num_classes = num_classes
        self.in_chans = in_chans
        self.global_pool = global_pool
        self.num_features = self.head_hidden_size = self.embed_dim = embed_dim
        self.grad_checkpointing = False
        dd: dict[str, Any] = {"device": device, "dtype": dtype}

        self.stem = PatchEmbed(to_2tuple(img_size), to_2tuple(patch_size), in_chans, embed_dim, **dd)
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
        """(B, in_chans, height, width) image to (B, N, D) tokens."""
        check_image_size(x, self.stem.img_size[0], self.stem.img_size[1])
        return self.stem(x)

    def forward_features(self, x: torch.Tensor) -> torch.Tensor:
        """(B, in_chans, height, width) image to (B, N, D) normalised tokens."""
        x = self.embed(x)
        if self.grad_checkpointing and not torch.jit.is_scripting():
            x = checkpoint_seq(self.blocks, x)
        else:
            x = self.blocks(x)
        return self.norm(x)

    def forward_head(self, x: torch.Tensor, pre_logits: bool = False) -> torch.Tensor:
        """(B, N, D) tokens to (B, num_classes) logits, or to the head's input with `pre_logits`."""
        if self.global_pool == "avg":
            x = x.mean(dim=1)
        x = self.head_drop(x)
        return x if pre_logits else self.head(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, in_chans, height, width) image to (B, num_classes) logits."""
        return self.forward_head(self.forward_features(x))

    # -- features of inner blocks -------------------------------------------------------------------------

    def forward_intermediates(
        self,
        x: torch.Tensor,
        indices: int | Sequence[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[torch.Tensor] | tuple[torch.Tensor, list[torch.Tensor]]:
        """The outputs of chosen blocks, and the final features.

        Args:
            x: (B, in_chans, height, width) image.
            indices: Which blocks: the last n for an int, those at these positions for a sequence (negative
                ones count from the end), all for None.
            norm: Whether the final norm is applied to each of them.
            stop_early: Whether to stop after the last chosen block; the final features are then its output,
                normalised.
            output_fmt: 'NCHW' for (B, D, H, W) maps, 'NLC' for (B, N, D) tokens.
            intermediates_only: Whether to return only the list of intermediates.

        Returns:
            (features, intermediates), or the intermediates alone; features are (B, N, D), normalised.

        Raises:
            ValueError: An unknown `output_fmt`, or an index that no block has.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"output_fmt is {output_fmt!r}; expected 'NCHW' or 'NLC'")
        chosen = block_indices(indices, len(self.blocks))
        x = self.embed(x)
        tokens = []
        for i, block in enumerate(self.blocks[: chosen[-1] + 1] if stop_early else self.blocks):
            x = checkpoint(block, x) if self.grad_checkpointing else block(x)
            if i in chosen:
                tokens.append(self.norm(x) if norm else x)
        if output_fmt == "NCHW":
            tokens = [t.transpose(1, 2).unflatten(2, self.stem.grid_size).contiguous() for t in tokens]
        return tokens if intermediates_only else (self.norm(x), tokens)

    def prune_intermediate_layers(
        self, indices: int | Sequence[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drops, in place, what `forward_intermediates(indices)` does not need.

        Args:
            indices: As in `forward_intermediates`.
            prune_norm: Whether the final norm goes too.
            prune_head: Whether the head and the pooling go too.

        Returns:
            The positions of the chosen blocks, ascending and none negative.
        """
        chosen = block_indices(indices, len(self.blocks))
        self.blocks = self.blocks[: chosen[-1] + 1]
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0, "")
        return chosen

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
    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Whether each block is recomputed in the backward pass instead of keeping its activations."""
        self.grad_checkpointing = enable

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Name patterns of timm's parameter groups (layer decay): the stem, then each block, then the norm."""
        return {"stem": r"^stem", "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))]}

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        """Empty: timm already spares biases and norms, and the paper names no other exception (A.1)."""
        return set()


# -- pieces ---------------------------------------------------------------------------------------------------


def check_divides(img_size: int | tuple[int, int], patch_size: int | tuple[int, int]) -> None:
    """Refuses an image that the patch does not divide; timm would drop the remaining pixels in silence."""
    for axis, size, patch in zip(("height", "width"), to_2tuple(img_size), to_2tuple(patch_size), strict=True):
        if size < 1 or patch < 1 or size % patch:
            raise ValueError(
                f"img_size has a {axis} of {size} pixels, which a patch of {patch} does not divide; "
                f"choose a multiple of {patch}"
            )


def check_rate(name: str, rate: float) -> None:
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"{name} is {rate}; expected a probability in [0, 1)")


def check_pool(global_pool: str) -> None:
    if global_pool not in ("avg", ""):
        raise ValueError(f"global_pool is {global_pool!r}; expected 'avg', or '' for no pooling")


# Under torch.fx the check is one call in the graph: traced, its `if` would be on a symbolic shape.
@torch.fx.wrap
def check_image_size(x: torch.Tensor, height: int, width: int) -> None:
    if x.shape[-2] != height or x.shape[-1] != width:
        raise ValueError(
            f"the image is {x.shape[-2]} x {x.shape[-1]} pixels (height x width) but this model was made for "
            f"{height} x {width}: resize the image, or create the model with img_size=({x.shape[-2]}, {x.shape[-1]})"
        )


def drop_path_rates(rate: float, depth: int, rule: str) -> list[float]:
    """The drop-path rate of each block. The paper gives one survival probability and no rule (Table 1)."""
    check_rate("drop_path_rate", rate)
    if rule == "linear":
        return calculate_drop_path_rates(rate, depth)
    if rule == "constant":
        return [rate] * depth
    raise ValueError(f"drop_path_rule is {rule!r}; expected 'linear' or 'constant'")


def block_indices(indices: int | Sequence[int] | None, depth: int) -> list[int]:
    """timm's three ways to choose blocks, as ascending positions in range(depth)."""
    if indices is None:
        return list(range(depth))
    if isinstance(indices, int):
        if not 1 <= indices <= depth:
            raise ValueError(f"indices asks for the last {indices} blocks; expected 1 to {depth}")
        return list(range(depth - indices, depth))
    if not indices or not all(-depth <= i < depth for i in indices):
        raise ValueError(f"indices are {list(indices)}; expected at least one, each in [{-depth}, {depth})")
    return sorted({i % depth for i in indices})


def init_layer(module: nn.Module, name: str) -> None:
    """Init of one layer by its kind, visited depth first so that a parent's own `init_weights` has the last word."""
    if isinstance(module, nn.Linear):
        if name.startswith("head"):
            nn.init.zeros_(module.weight)
        else:
            nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Conv2d):
        lecun_normal_(module.weight)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.LayerNorm):
        module.reset_parameters()
    elif name and hasattr(module, "init_weights"):  # the model itself has no name
        module.init_weights()
