"""What a model's inner blocks make, as timm's `features_only` and detection or segmentation code ask for it.

Shapes: B batch, N = H * W tokens in row-major order, D width.
"""

from collections.abc import Sequence

import torch
from torch import nn

from gmlp_vision.models.checks import block_indices
from gmlp_vision.models.recompute import recompute
from gmlp_vision.models.trunk import Trunk


class FeatureTrunk(Trunk):
    """A trunk that gives out the features of chosen blocks, and can drop what they do not need."""

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
        grid_size = self.stem.dynamic_feat_size((x.shape[-2], x.shape[-1]))
        x = self.embed(x)
        tokens = []
        for i, block in enumerate(self.blocks[: chosen[-1] + 1] if stop_early else self.blocks):
            x = recompute(block, x, self.checkpointing_mode) if self.grad_checkpointing else block(x)
            if i in chosen:
                tokens.append((self.norm(x) if norm else x).flatten(1, -2))
        if output_fmt == "NCHW":
            tokens = [t.transpose(1, 2).unflatten(2, grid_size).contiguous() for t in tokens]
        return tokens if intermediates_only else (self.norm(x).flatten(1, -2), tokens)

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
