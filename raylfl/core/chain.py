"""Forward and backward pass through a chain of layers; the base class of the faster forms.

`BatchLast` and `CohortChain` follow this walk in other memory orders. `core/recorded/layers.py` finds such chains in
the recording of a module's training step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_aten = torch.ops.aten
IGNORED = -100  # the class label of samples that cross-entropy leaves out (torch's ignore_index)


class Chain:
    """Mean cross-entropy of a chain of Conv2d, Linear, ReLU, MaxPool2d and Flatten, and its gradient."""

    def __init__(self, layers: Sequence[nn.Module]):
        self.layers = layers
        makers = (nn.Linear, nn.Conv2d, nn.MaxPool2d)  # layers whose output is a new tensor
        self._first = next((k for k, layer in enumerate(layers) if isinstance(layer, makers)), len(layers))

    @torch.no_grad()
    def loss_and_gradient(self, batch: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
        """Mean cross-entropy of a batch (x [B, ...], y int64 [B]).

        gradients: one tensor for each parameter, in the order of `module.parameters()`; overwritten.
        """
        x, y = batch
        return self._walk(x, y, gradients)

    def _walk(self, x: Tensor, y: Tensor, gradients: Sequence[Tensor]) -> Tensor:
        """Forward and backward pass: writes the gradients and returns the loss."""
        kept: list[Any] = []  # each layer's values for its backward pass
        for k, layer in enumerate(self.layers):
            x, saved = self._forward(k, layer, x)
            kept.append(saved)
        loss, g = self._loss(x, y)
        at = len(gradients)
        for k in range(len(self.layers) - 1, -1, -1):
            layer = self.layers[k]
            at -= 2 * isinstance(layer, (nn.Linear, nn.Conv2d))  # weight and bias
            g = self._backward(k, layer, g, kept[k], gradients[at : at + 2], at > 0)
            if not at:
                break
        return loss

    def _loss(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of the last layer's output, and its gradient in the same layout."""
        return cross_entropy(x, y)

    def _forward(self, k: int, layer: nn.Module, x: Tensor) -> tuple[Tensor, Any]:
        """(output of layer k, values saved for its backward pass)."""
        match layer:
            case nn.Linear():
                return F.linear(x, layer.weight, layer.bias), x
            case nn.Conv2d():
                stride, padding, dilation = layer.stride, layer.padding, layer.dilation
                return F.conv2d(x, layer.weight, layer.bias, stride, padding, dilation, layer.groups), x
            case nn.ReLU():
                x = x.relu_() if k > self._first else x.relu()  # in place only on a tensor made by this walk
                return x, x
            case nn.MaxPool2d():
                pooled, indices = F.max_pool2d(x, layer.kernel_size, layer.stride, return_indices=True)
                return pooled, (x, indices)
            case _:  # nn.Flatten
                return x.flatten(1), x.shape

    def _backward(
        self, k: int, layer: nn.Module, g: Tensor, saved: Any, gradients: Sequence[Tensor], wanted: bool
    ) -> Tensor:
        """The gradient of layer k's input, from the gradient g of its output.

        gradients: where the layer's weight and bias gradients are written. wanted: whether the result is used.
        """
        match layer:
            case nn.Linear():
                torch.mm(g.t(), saved, out=gradients[0])
                torch.sum(g, 0, out=gradients[1])
                return g.mm(layer.weight) if wanted else g
            case nn.Conv2d():
                shape = (layer.stride, layer.padding, layer.dilation, False, [0, 0], layer.groups)
                bias, outputs = [layer.out_channels], [wanted, True, True]
                g, w, b = _aten.convolution_backward(g, saved, layer.weight, bias, *shape, outputs)
                gradients[0].copy_(w)
                gradients[1].copy_(b)
                return g
            case nn.ReLU():
                through: Tensor = _aten.threshold_backward(g, saved, 0)
                return through
            case nn.MaxPool2d():
                size, stride = pair(layer.kernel_size), pair(layer.stride)
                x, indices = saved
                padding, dilation = [0, 0], [1, 1]
                pooled: Tensor = _aten.max_pool2d_with_indices_backward(
                    g, x, size, stride, padding, dilation, False, indices
                )
                return pooled
            case _:
                return g.reshape(saved)


def cross_entropy(scores: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(mean cross-entropy, its gradient [B, classes]) of scores [B, classes] and labels y int64 [B]."""
    log_p = F.log_softmax(scores, 1)
    loss, weight = _aten.nll_loss_forward(log_p, y, None, 1, IGNORED)
    g = _aten.nll_loss_backward(torch.ones_like(loss), log_p, y, None, 1, IGNORED, weight)
    return loss, _aten._log_softmax_backward_data(g, log_p, 1, scores.dtype)


def pair(size: Any) -> list[int]:
    """A layer's option as [height, width]; a single number stands for both."""
    return [size, size] if isinstance(size, int) else list(size)
