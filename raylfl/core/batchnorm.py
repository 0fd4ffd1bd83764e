"""Batches of one sample under BatchNorm, whose own statistics are not defined.

A layer that is given a single value a channel normalises it by its running statistics, as in evaluation, and leaves
them as they are. That is what torch refuses ("Expected more than 1 value per channel when training") and what the
last mini-batch of an epoch, or a client with a single sample, comes to. Layers without running statistics still
refuse. All other batches, images of one sample among them, are torch's own business.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def allow_single_samples(module: nn.Module) -> None:
    """Let every BatchNorm layer of `module` meet a single value a channel in training."""
    for layer in module.modules():
        if isinstance(layer, _BatchNorm) and layer.track_running_stats:
            layer.register_forward_pre_hook(_before)
            layer.register_forward_hook(_after, always_call=True)


def _before(layer: Any, args: tuple[Any, ...]) -> None:
    layer.met_lone_sample = layer.training and args[0].dim() > 1 and args[0].numel() == args[0].shape[1]
    if layer.met_lone_sample:
        layer.training = False


def _after(layer: Any, args: tuple[Any, ...], output: Any) -> None:
    if layer.met_lone_sample:
        layer.training = True
