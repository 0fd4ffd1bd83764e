"""Loss and gradient of small convolutional chains as matrix products, with the batch as the innermost dimension.

Library convolutions are tuned for many channels. For few channels (LeNet: 1 -> 6 -> 16) one matrix product over
gathered patches is several times faster, provided that gathering is cheap. It is cheap in the memory order
[C, H, W, B]: every copy moves runs of B numbers, and pooling and activations work on whole vectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raylfl.core.chain import IGNORED, Chain, cross_entropy, pair

_aten = torch.ops.aten
LARGEST = 32  # samples at a time: the patches of more samples do not fit into a core's caches
FEW = 8  # input channels of a convolution up to which this form is faster


class BatchLast(Chain):
    """Mean cross-entropy and gradient of a chain of layers, batch innermost; buffers are reused between batches."""

    def __init__(self, layers: Sequence[nn.Module]):
        super().__init__(layers)
        self._convolutions = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
        self._memory: dict[Any, Tensor] = {}
        self._views: dict[tuple[Any, ...], Tensor] = {}

    @property
    def possible(self) -> bool:
        """Whether the chain has convolutions, all of them without strides, dilation and groups."""
        return bool(self._convolutions) and all(
            c.groups == 1 and pair(c.dilation) == pair(c.stride) == [1, 1] for c in self._convolutions
        )

    @property
    def pays(self) -> bool:
        """Whether this form is used: every convolution has at most `FEW` input channels."""
        return self.possible and all(c.in_channels <= FEW for c in self._convolutions)

    @torch.no_grad()
    def loss_and_gradient(self, batch: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
        x, y = batch
        pieces = -(-len(y) // LARGEST)
        if pieces == 1:
            return self._piece(x, y, gradients)
        total = x.new_zeros(())
        for g in gradients:
            g.zero_()
        piece = [torch.empty_like(g) for g in gradients]
        count = int((y != IGNORED).sum())
        for inputs, targets in zip(x.tensor_split(pieces), y.tensor_split(pieces), strict=True):
            share = int((targets != IGNORED).sum()) / max(count, 1)
            if not share:
                continue
            total.add_(self._piece(inputs, targets, piece), alpha=share)
            torch._foreach_add_(list(gradients), piece, alpha=share)
        return total

    @contextmanager
    def in_place_of(self, network: nn.Sequential) -> Iterator[None]:
        """A context in which the network's forward pass on images is `scores`, except where autograd needs a graph."""

        def forward(x: Tensor) -> Tensor:
            here = x.ndim == 4 and not torch.is_grad_enabled()
            return self.scores(x) if here else type(network).forward(network, x)

        network.forward = forward  # type: ignore[method-assign]
        try:
            yield
        finally:
            del network.forward

    @torch.no_grad()
    def scores(self, x: Tensor) -> Tensor:
        """The outputs of the last layer [B, classes] for x [B, channels, height, width]."""
        return torch.cat([self._scores(piece) for piece in x.split(LARGEST)])

    def _scores(self, x: Tensor) -> Tensor:
        x = self._moved(x)
        for k, layer in enumerate(self.layers):
            x, _ = self._forward(k, layer, x)
        return x.t().contiguous()

    def _piece(self, x: Tensor, y: Tensor, gradients: Sequence[Tensor]) -> Tensor:
        return self._walk(self._moved(x), y, gradients)

    def _moved(self, x: Tensor) -> Tensor:
        return self._buffer("x", *x.shape[1:], len(x)).copy_(x.movedim(0, -1))

    def _loss(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        loss, g = cross_entropy(x.t().contiguous(), y)
        return loss, g.t().contiguous()

    def _forward(self, k: int, layer: nn.Module, x: Tensor) -> tuple[Tensor, Any]:
        count = x.shape[-1]
        match layer:
            case nn.Linear():
                out = self._buffer(k, layer.out_features, count)
                return torch.addmm(layer.bias[:, None], layer.weight, x, out=out), x
            case nn.Conv2d():
                patches = self._patches(k, layer, x)
                out = self._buffer(k, layer.out_channels, *_output(layer, x.shape), count)
                weight, bias = layer.weight.view(layer.out_channels, -1), cast(Tensor, layer.bias)
                torch.addmm(bias[:, None], weight, patches, out=out.view(layer.out_channels, -1))
                return out, (patches, x.shape)
            case nn.ReLU():
                x = x.relu_()
                return x, x
            case nn.MaxPool2d():
                images = x.permute(0, 3, 1, 2)  # torch sees channels-last images whose channels are the samples
                pooled, saved = super()._forward(k, layer, images)
                return pooled.permute(0, 2, 3, 1), saved
            case _:  # nn.Flatten
                return x.reshape(-1, count), x.shape

    def _backward(
        self, k: int, layer: nn.Module, g: Tensor, saved: Any, gradients: Sequence[Tensor], wanted: bool
    ) -> Tensor:
        match layer:
            case nn.Linear():
                torch.mm(g, saved.t(), out=gradients[0])
                torch.sum(g, 1, out=gradients[1])
                return torch.mm(layer.weight.t(), g) if wanted else g
            case nn.Conv2d():
                patches, shape = saved
                g = g.reshape(layer.out_channels, -1)
                torch.mm(g, patches.t(), out=gradients[0].view(layer.out_channels, -1))
                torch.sum(g, 1, out=gradients[1])
                if not wanted:
                    return g
                # the patches are no longer needed: their gradient overwrites them
                torch.mm(layer.weight.view(layer.out_channels, -1).t(), g, out=patches)
                return self._overlap(k, layer, patches, shape)
            case nn.MaxPool2d():
                images, indices = saved
                size, stride = pair(layer.kernel_size), pair(layer.stride)
                out = self._buffer((k, "g"), *images.permute(0, 2, 3, 1).shape)
                _aten.max_pool2d_with_indices_backward.grad_input(
                    *(g.permute(0, 3, 1, 2), images, size, stride, [0, 0], [1, 1], False, indices),
                    grad_input=out.permute(0, 3, 1, 2),
                )
                return out
            case _:
                return super()._backward(k, layer, g, saved, gradients, wanted)

    def _patches(self, k: int, layer: nn.Conv2d, x: Tensor) -> Tensor:
        """Patches [C * h * w, H' * W' * B] of images [C, H, W, B]: one column of inputs for each output (im2col)."""
        (pad_h, pad_w), (h, w) = pair(layer.padding), pair(layer.kernel_size)
        high, wide = _output(layer, x.shape)
        x = F.pad(x, (0, 0, pad_w, pad_w, pad_h, pad_h)) if pad_h or pad_w else x.contiguous()
        channels, _, width, count = x.shape
        row = width * count
        view = x.as_strided((channels, h, w, high, wide, count), (x.stride(0), row, count, row, count, 1))
        out = self._buffer((k, "patches"), channels, h, w, high, wide, count)
        return out.copy_(view).view(channels * h * w, -1)

    def _overlap(self, k: int, layer: nn.Conv2d, patches: Tensor, shape: Sequence[int]) -> Tensor:
        """The adjoint of `_patches` (col2im): sums over the columns of a kernel first, then over its rows."""
        (pad_h, pad_w), (h, w) = pair(layer.padding), pair(layer.kernel_size)
        channels, height, width, count = shape
        high, wide = _output(layer, shape)
        parts = patches.view(channels, h, w, high, wide, count)
        rows = self._buffer((k, "rows"), channels, h, high, width + 2 * pad_w, count).zero_()
        for j in range(w):
            rows.narrow(3, j, wide).add_(parts.select(2, j))
        out = self._buffer((k, "g"), channels, height + 2 * pad_h, width + 2 * pad_w, count).zero_()
        for i in range(h):
            out.narrow(1, i, high).add_(rows.select(1, i))
        return out[:, pad_h : pad_h + height, pad_w : pad_w + width] if pad_h or pad_w else out

    def _buffer(self, name: Any, *shape: int) -> Tensor:
        """A reusable buffer of this shape [..., samples]; batches of all sizes share the memory of one name."""
        key = (name, *shape)
        if key not in self._views:
            size = math.prod(shape)
            if name not in self._memory:
                self._memory[name] = self._convolutions[0].weight.new_empty(size // shape[-1] * LARGEST)
            self._views[key] = self._memory[name][:size].view(shape)
        return self._views[key]


def _output(layer: nn.Conv2d, shape: Sequence[int]) -> tuple[int, int]:
    """Output height and width of a convolution of [C, H, W, B]."""
    (pad_h, pad_w), (h, w) = pair(layer.padding), pair(layer.kernel_size)
    return shape[1] + 2 * pad_h - h + 1, shape[2] + 2 * pad_w - w + 1
