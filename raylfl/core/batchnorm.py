"""BatchNorm on batches of a single sample, whose batch statistics are undefined.

torch raises "Expected more than 1 value per channel when training" for such batches. They occur as the last batch of
an epoch and for clients with one sample. After `allow_single_samples`, a layer normalises such a batch by its running
statistics, as in evaluation, and does not update them. Layers without running statistics still raise. torch normalises
all other batches as usual, including a single image with several pixels.
"""

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

_MET = "met_single_sample"


def allow_single_samples(module: nn.Module) -> None:
    """Makes the BatchNorm layers of `module` accept a single value per channel in training, by hooks.

    Layers without running statistics are not changed.
    """
    for layer in module.modules():
        if isinstance(layer, _BatchNorm) and layer.track_running_stats:
            setattr(layer, _MET, False)
            layer.register_forward_pre_hook(_before)
            layer.register_forward_hook(_after, always_call=True)


def _before(layer: Any, args: tuple[Any, ...]) -> None:
    if layer.training and args[0].dim() > 1 and args[0].numel() == args[0].shape[1]:
        setattr(layer, _MET, True)
        layer.training = False


def _after(layer: Any, args: tuple[Any, ...], output: Any) -> None:
    if getattr(layer, _MET):
        setattr(layer, _MET, False)  # restored, because a step is recorded only if it leaves the module unchanged
        layer.training = True
