"""Loss and gradient of a chain of layers without autograd's graph.

Small networks spend a good part of a local step in bookkeeping: module calls, graph nodes, the engine, the
gathering of gradients. For a chain that ends in the mean cross-entropy, forward and backward pass are a list of
kernels known beforehand; called one after the other, each writing where its result belongs, they give the very
bits that autograd gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_aten = torch.ops.aten


class Chain:
    """Mean cross-entropy of a chain of Conv2d, Linear, ReLU, MaxPool2d and Flatten, and its gradient.

    cut: the place of the layer after which the chain is split between client and server, if it is; what passes there
    is counted in `exchanged_floats` (as many of activations as of their gradients).
    """

    def __init__(self, layers: Sequence[nn.Module], cut: int | None = None):
        self.layers, self.cut = layers, cut
        self.exchanged_floats = 0

    @staticmethod
    def of(module: nn.Module) -> Chain | None:
        """That of `module.cross_entropy_chain`, a nn.Sequential whose cross-entropy is the training loss.

        None where the module offers none, or one with other layers, frozen parameters, hooks, or parameters in
        another order.
        """
        layers = getattr(module, "cross_entropy_chain", None)
        if not isinstance(layers, nn.Sequential) or not all(map(_known, layers)):
            return None
        own = [p for layer in layers for p in layer.parameters(recurse=False)]
        theirs = list(module.parameters())
        same = len(own) == len(theirs) and all(a is b for a, b in zip(own, theirs, strict=True))
        return Chain(list(layers)) if same and own and all(p.requires_grad for p in own) else None

    @property
    def client_width(self) -> int:
        """Parameters before the cut, the client's half."""
        assert self.cut is not None
        return sum(p.numel() for layer in self.layers[: self.cut + 1] for p in layer.parameters())

    @staticmethod
    def takes(content: Any) -> bool:
        """Whether a batch is (inputs, a class each); targets may also be probabilities, for example."""
        pair = isinstance(content, (tuple, list)) and len(content) == 2
        return pair and isinstance(content[1], Tensor) and content[1].dtype == torch.int64 and content[1].ndim == 1

    @torch.no_grad()
    def loss_and_gradient(self, batch: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
        """Mean cross-entropy of a batch (x [B, ...], y int64 [B]); gradients: one tensor a parameter, in the order of
        `module.parameters()`, overwritten with its gradient.
        """
        x, y = batch
        kept: list[Any] = []  # of each layer: what its backward pass needs
        ours = False  # whether x may be written on: made here, and kept by no layer
        for k, layer in enumerate(self.layers):
            match layer:
                case nn.Linear():
                    kept.append(x)
                    x, ours = F.linear(x, layer.weight, layer.bias), True
                case nn.Conv2d():
                    kept.append(x)
                    x = F.conv2d(x, layer.weight, layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups)
                    ours = True
                case nn.ReLU():
                    x = x.relu_() if ours else x.relu()
                    kept.append(x)
                case nn.MaxPool2d():
                    pooled, indices = F.max_pool2d(x, layer.kernel_size, layer.stride, return_indices=True)
                    kept.append((x, indices))
                    x, ours = pooled, True
                case _:  # nn.Flatten
                    kept.append(x.shape)
                    x = x.flatten(1)
            if k == self.cut:
                self.exchanged_floats += x.numel()
        loss, g = cross_entropy(x, y)
        self._backward(g, kept, gradients)
        return loss

    def _backward(self, g: Tensor, kept: list[Any], gradients: Sequence[Tensor]) -> None:
        at = len(gradients)
        for k in range(len(self.layers) - 1, -1, -1):
            layer, saved = self.layers[k], kept[k]
            match layer:
                case nn.Linear():
                    at -= 2
                    torch.mm(g.t(), saved, out=gradients[at])
                    torch.sum(g, 0, out=gradients[at + 1])
                    if at:
                        g = g.mm(layer.weight)
                case nn.Conv2d():
                    at -= 2
                    shape = (layer.stride, layer.padding, layer.dilation, False, [0, 0], layer.groups)
                    wanted = [at > 0, True, True]
                    bias = [layer.out_channels]
                    g, w, b = _aten.convolution_backward(g, saved, layer.weight, bias, *shape, wanted)
                    gradients[at].copy_(w)
                    gradients[at + 1].copy_(b)
                case nn.ReLU():
                    g = _aten.threshold_backward(g, saved, 0)
                case nn.MaxPool2d():
                    size, stride = pair(layer.kernel_size), pair(layer.stride)
                    x, indices = saved
                    g = _aten.max_pool2d_with_indices_backward(g, x, size, stride, [0, 0], [1, 1], False, indices)
                case _:
                    g = g.reshape(saved)
            if not at:
                return


def cross_entropy(scores: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(mean cross-entropy of scores [B, classes] and classes int64 [B], its gradient [B, classes])."""
    log_p = F.log_softmax(scores, 1)
    loss, weight = _aten.nll_loss_forward(log_p, y, None, 1, -100)
    g = _aten.nll_loss_backward(torch.ones_like(loss), log_p, y, None, 1, -100, weight)
    return loss, _aten._log_softmax_backward_data(g, log_p, 1, scores.dtype)


def _known(layer: nn.Module) -> bool:
    hooked = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks
    match layer:
        case _ if hooked:
            return False
        case nn.Linear():
            return layer.bias is not None
        case nn.Conv2d():
            return layer.bias is not None and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        case nn.MaxPool2d():
            plain = (pair(layer.padding), pair(layer.dilation)) == ([0, 0], [1, 1])
            return plain and not layer.ceil_mode and not layer.return_indices
        case nn.Flatten():
            return (layer.start_dim, layer.end_dim) == (1, -1)
        case _:
            return isinstance(layer, nn.ReLU)


def pair(size: Any) -> list[int]:
    """A layer's option for height and width, which may be given as one number."""
    return [size, size] if isinstance(size, int) else list(size)
