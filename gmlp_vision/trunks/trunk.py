"""What all models share: timm's model contract, once, over embed -> steps -> norm -> pool -> head.

A trunk of some shape (isotropic.py; a pyramid) builds its parts in its constructor and says with a few
methods what the contract cannot know. It takes a class of blocks and knows nothing of what a block does.

Shapes: B batch, H, W the token grid, N = H * W tokens in row-major order, D width.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from timm.models import named_apply

# What timm's own models record a change with; private, as in input_size.py
from timm.models._input import update_model_args
from torch import nn

from gmlp_vision.layers.grid_tied import any_size, own_layers
from gmlp_vision.layers.resample import Grid
from gmlp_vision.trunks.block_args import shown_or_forgotten
from gmlp_vision.trunks.checks import check_count, check_pool, check_rate
from gmlp_vision.trunks.init import init_layer
from gmlp_vision.trunks.input_size import resize
from gmlp_vision.trunks.recompute import check_mode

OUTPUT_FORMATS = ("NCHW", "NHWC", "NLC")


class Trunk(nn.Module):
    """The contract. A derived class makes `stem`, the steps and `norm`, then calls `finish_building`.

    Between blocks the tokens stand on their grid, (B, H, W, D); only where there is a class token they are a
    row, (B, 1 + N, D).

    Args:
        num_classes: Width of the logits; 0 for no head.
        in_chans: Channels of the image.
        global_pool: 'avg' for the mean over tokens, '' for none; with a class token also 'token' for that.
        img_size: (height, width) of the image, in pixels.
        num_features: Width of the last tokens, which the head takes.
        drop_rate: Dropout before the head, in [0, 1).
        dynamic_img_size: Whether each call may have its own image size. What belongs to a grid is then
            carried to that of the call; `img_size` is the size that the weights belong to.
        num_prefix_tokens: 1 with a class token, else 0.

    Attributes:
        STEPS: The name of the modules that are run one after the other, each of which gives a level of
            features.
        first_conv, classifier: The names, as timm's cfgs have them, of what depends on the image's channels
            and on the count of classes.
        feature_info: timm's record of the levels of features.
        fixed_input_size: Whether a call must have the size that the model was made for.
    """

    STEPS: ClassVar[str]
    first_conv: ClassVar[str | None]
    classifier: ClassVar[str] = "head"

    if TYPE_CHECKING:  # TorchScript reads annotations too, and knows none of these
        feature_info: list[dict[str, Any]]
        norm: nn.Module
        norm_eps: float
        block_args: dict[str, Any]

    def __init__(
        self,
        num_classes: int,
        in_chans: int,
        global_pool: str,
        img_size: tuple[int, int],
        num_features: int,
        drop_rate: float,
        dynamic_img_size: bool,
        num_prefix_tokens: int = 0,
    ) -> None:
        super().__init__()
        check_count("in_chans", in_chans)
        check_count("num_classes", num_classes, least=0)
        check_rate("drop_rate", drop_rate)
        check_pool(global_pool, num_prefix_tokens > 0)
        self.num_classes = num_classes
        self.in_chans = in_chans
        self.global_pool = global_pool
        self.img_size = img_size
        self.dynamic_img_size = dynamic_img_size
        self.num_features = self.head_hidden_size = num_features
        self.num_prefix_tokens = num_prefix_tokens
        self.grad_checkpointing = False
        self.checkpointing = ""  # its mode, or '' where activations are kept
        self.drop_rate = drop_rate

    def finish_building(self, device: Any, dtype: Any) -> None:
        """The head, and what can only be said once all layers are there."""
        self.head_drop = nn.Dropout(self.drop_rate)
        self.head = self._new_head(device, dtype)
        kind, why = any_size(self)
        if self.dynamic_img_size and kind == "fixed":
            raise ValueError(f"dynamic_img_size is True, but the model has one size: {why}")
        for name, layer in own_layers(self).items():
            layer.held_as = name.rpartition(".")[2]
            layer.dynamic = self.dynamic_img_size
        self.fixed_input_size = bool(own_layers(self)) and not self.dynamic_img_size
        # timm's way for a model to say so; get_model_input_config gives it out
        self._traits = {"fixed_input_size": self.fixed_input_size, "first_conv": self.first_conv}
        self.init_weights()

    # -- what a trunk of some shape says ------------------------------------------------------------------

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        """(B, in_chans, height, width) image to the tokens that the first step takes."""
        raise NotImplementedError

    def forward_steps(self, x: torch.Tensor) -> torch.Tensor:
        """The tokens through all steps; in TorchScript by the modules themselves."""
        raise NotImplementedError

    def finish(self, x: torch.Tensor) -> torch.Tensor:
        """The last step's tokens to what `forward_features` returns."""
        raise NotImplementedError

    def feature_map(self, x: torch.Tensor, image_size: tuple[int, int]) -> torch.Tensor:
        """A step's tokens to (B, H, W, D), without a class token; the image is (height, width) pixels."""
        raise NotImplementedError

    def run_step(self, step: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """One step. Blocks are called by trunks/recompute.py's `run_block` alone."""
        raise NotImplementedError

    def norm_fits(self, step: int) -> bool:
        """Whether the final norm, and so pooling and head, can take the output of this step."""
        return True

    def keep_steps(self, count: int) -> dict[str, Any]:
        """Drops the steps behind the first `count`; returns the constructor's arguments that say so."""
        steps: Any = self.get_submodule(self.STEPS)
        setattr(self, self.STEPS, steps[:count])
        self.feature_info = self.feature_info[:count]
        return {}

    def grids(self, img_size: tuple[int, int], patch_size: tuple[int, int] | None = None) -> dict[str, Grid]:
        """The grid, in tokens, of every layer that belongs to one, by its name, for an image of this size.

        Args:
            img_size: (height, width), in pixels.
            patch_size: The same of a patch, where it is to be another.

        Raises:
            ValueError: The patch does not divide the image.
        """
        raise NotImplementedError

    def sizes(
        self, img_size: int | tuple[int, int] | None, patch_size: int | tuple[int, int] | None
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """Image and patch size as (height, width) in pixels; the present one for None.

        Raises:
            ValueError: The patch does not divide the image.
        """
        raise NotImplementedError

    def resize_stem(self, img_size: tuple[int, int], patch_size: tuple[int, int]) -> None:
        """Makes what comes before the first step fit another image and patch size, (height, width)."""
        raise NotImplementedError

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Name patterns of timm's parameter groups (layer decay)."""
        raise NotImplementedError

    # -- forward ------------------------------------------------------------------------------------------

    def forward_features(self, x: torch.Tensor) -> torch.Tensor:
        """(B, in_chans, height, width) image to normalised tokens: (B, N, D) in an isotropic model."""
        return self.finish(self.forward_steps(self.embed(x)))

    def forward_head(self, x: torch.Tensor, pre_logits: bool = False) -> torch.Tensor:
        """Normalised tokens to (B, num_classes) logits, or to the head's input with `pre_logits`."""
        if self.global_pool == "token":
            x = x[:, 0]
        elif self.global_pool == "avg":
            x = x.flatten(1, -2)
            if self.num_prefix_tokens > 0:
                x = x[:, self.num_prefix_tokens :]
            x = x.mean(dim=1)
        x = self.head_drop(x)
        return x if pre_logits else self.head(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, in_chans, height, width) image to (B, num_classes) logits."""
        return self.forward_head(self.forward_features(x))

    # -- features -----------------------------------------------------------------------------------------

    def forward_intermediates(
        self,
        x: torch.Tensor,
        indices: int | Sequence[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[torch.Tensor] | tuple[torch.Tensor, list[torch.Tensor]]:
        """The outputs of chosen steps, and the final features.

        Args:
            x: (B, in_chans, height, width) image.
            indices: Which steps: the last n for an int, those at these positions for a sequence (negative
                ones count from the end), all for None.
            norm: Whether the final norm is applied to each of them; in a pyramid to the last stage's alone.
            stop_early: Whether to stop after the last chosen step; the final features are then its output,
                normalised.
            output_fmt: 'NCHW' for (B, D, H, W) maps, 'NHWC' for (B, H, W, D), 'NLC' for (B, N, D) tokens.
            intermediates_only: Whether to return only the list of intermediates.

        Returns:
            (features, intermediates), or the intermediates alone; features as `forward_features` returns
            them. In a pyramid that stopped early they are not normalised.

        Raises:
            ValueError: An unknown `output_fmt`, or an index that no step has.
        """
        if output_fmt not in OUTPUT_FORMATS:
            raise ValueError(f"output_fmt is {output_fmt!r}; expected one of {', '.join(OUTPUT_FORMATS)}")
        steps: Any = self.get_submodule(self.STEPS)
        chosen = step_indices(indices, len(steps))
        image_size = (x.shape[-2], x.shape[-1])
        x = self.embed(x)
        maps = []
        for i, step in enumerate(steps[: chosen[-1] + 1] if stop_early else steps):
            x = self.run_step(step, x)
            if i in chosen:
                maps.append(self.feature_map(self.norm(x) if norm and self.norm_fits(i) else x, image_size))
        if output_fmt == "NCHW":
            maps = [m.permute(0, 3, 1, 2).contiguous() for m in maps]
        elif output_fmt == "NLC":
            maps = [m.flatten(1, 2) for m in maps]
        if intermediates_only:
            return maps
        return (self.finish(x) if self.norm_fits(i) else x), maps

    def prune_intermediate_layers(
        self, indices: int | Sequence[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drops, in place, what `forward_intermediates(indices)` does not need.

        Args:
            indices: As in `forward_intermediates`.
            prune_norm: Whether the final norm goes too; that of a pyramid always goes with its last stage.
            prune_head: Whether the head and the pooling go too.

        Returns:
            The positions of the chosen steps, ascending and none negative.

        Raises:
            ValueError: An index that no step has, or the head is to stay and what it takes is not.
        """
        chosen = step_indices(indices, len(self.feature_info))
        fits = self.norm_fits(chosen[-1])
        if not (fits or prune_head):
            raise ValueError(
                "prune_head is False, and the head takes the last stage's tokens: keep that stage"
            )
        args = self.keep_steps(chosen[-1] + 1)
        if prune_norm or not fits:
            self.norm = nn.Identity()
            args["final_norm"] = False
        if prune_head:
            self.reset_classifier(0, "")
        update_model_args(self, **args)
        return chosen

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
            ValueError: The patch does not divide the image, a layer has no rule for another grid, what
                belongs to a grid is computed, shared, sharded or quantised, or a tool has put more of the
                grid around it (LoRA); nothing changes.
        """
        self.img_size = resize(self, self, img_size, patch_size)

    @torch.jit.ignore
    def clear_cache(self) -> None:
        """Frees what is cached for the image sizes met, with `dynamic_img_size`."""
        for layer in own_layers(self).values():
            layer.clear_cache()

    @torch.jit.ignore
    def restate(self, **own: Any) -> None:
        """Records that the blocks are now as these arguments make them, for `settings` and for timm."""
        self.block_args = {**self.block_args, **own}
        update_model_args(self, **own)

    @torch.jit.ignore
    def settings(self) -> dict[str, Any]:
        """The arguments of the constructor that change what a model computes, whatever its tensors."""
        # a class among them is the family's choice, and no config can say it
        own = {k: v for k, v in self.block_args.items() if not (shown_or_forgotten(k) or isinstance(v, type))}
        return {"norm_eps": self.norm_eps, "final_norm": not isinstance(self.norm, nn.Identity), **own}

    # -- the rest of timm's contract ----------------------------------------------------------------------

    @torch.jit.ignore
    def init_weights(self) -> None:
        """Draws all weights anew: zero head, LeCun-normal convolutions, Xavier-uniform linear layers.

        Any other layer sets itself by its `reset_parameters`, as a spatial projection does.
        """
        named_apply(partial(init_layer, head=self.classifier), self)

    @torch.jit.ignore
    def get_classifier(self) -> nn.Module:
        """The head: nn.Linear, or nn.Identity when num_classes is 0."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replaces the head by a new one, drawn as at construction, and the pooling if one is given.

        Args:
            num_classes: Width of the logits; 0 for no head.
            global_pool: As at construction, or None to keep the present one.

        Raises:
            ValueError: No count of classes, or an unknown `global_pool`.
        """
        check_count("num_classes", num_classes, least=0)
        if global_pool is not None:
            check_pool(global_pool, self.num_prefix_tokens > 0)
            self.global_pool = global_pool
        self.num_classes = num_classes
        like = next(self.parameters())  # of the stem: a head may be Identity
        self.head = self._new_head(like.device, like.dtype)
        init_layer(self.head, self.classifier, self.classifier)

    def _new_head(self, device: Any, dtype: Any) -> nn.Module:
        if self.num_classes == 0:
            return nn.Identity()
        return nn.Linear(self.num_features, self.num_classes, device=device, dtype=dtype)

    @torch.jit.ignore
    def set_grad_checkpointing(self, enable: bool = True, mode: str = "selective") -> None:
        """Whether the blocks keep less for the backward pass, which then computes it again (docs/speed.md).

        Args:
            enable: Whether they do.
            mode: 'selective' keeps the products of a block's widening projections; 'block' keeps nothing.

        Raises:
            ValueError: An unknown `mode`.
        """
        check_mode(mode)
        self.grad_checkpointing = enable
        self.checkpointing = mode if enable else ""

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        """Position table and class token, as timm's ViTs; timm spares biases and norms by itself."""
        names = {name: set(name.split(".")) for name, _ in self.named_parameters()}
        return {name for name, parts in names.items() if parts & {"pos_embed", "cls_token"}}


def step_indices(indices: int | Sequence[int] | None, count: int) -> list[int]:
    """timm's three ways to choose steps, as ascending positions in range(count)."""
    if indices is None:
        return list(range(count))
    if isinstance(indices, int):
        if not 1 <= indices <= count:
            raise ValueError(f"indices asks for the last {indices} levels; expected 1 to {count}")
        return list(range(count - indices, count))
    if not indices or not all(-count <= i < count for i in indices):
        raise ValueError(f"indices are {list(indices)}; expected at least one, each in [{-count}, {count})")
    return sorted({i % count for i in indices})
