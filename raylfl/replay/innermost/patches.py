"""Convolutions and max-pools of B images [C, H, W, B] with C channels, the samples of a batch innermost in memory.

Library convolutions are tuned for many channels. For few channels (LeNet: 1 -> 6 -> 16), one matrix product over
gathered patches is several times faster if gathering is cheap. In this memory order it is: every copy moves B
consecutive numbers, and pooling and activations are computed on whole vectors.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_aten = torch.ops.aten


@dataclass(frozen=True)
class Convolution:
    """A 2-d convolution with stride 1, without dilation or groups."""

    channels: int  # input channels
    kernel: tuple[int, int]
    padding: tuple[int, int]

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """(output [C', H', W', B], patches of x for `backward`), for x [C, H, W, B] and weight [C', C, h, w]."""
        patches, (high, wide) = self._patches(x), self._size(x.shape)
        out = torch.addmm(bias[:, None], weight.view(len(weight), -1), patches)
        return out.view(len(weight), high, wide, -1), patches

    def backward(
        self,
        g: Tensor,
        patches: Tensor,
        shape: Sequence[int],
        weight: Tensor,
        out: Sequence[Tensor],
        needs_input: bool,
    ) -> Tensor | None:
        """Writes the gradients of weight and bias to the two tensors `out`; returns the gradient of the input.

        g: the gradient of the output. patches: the patches that `forward` returned, which may be overwritten. shape:
        the shape of the input [C, H, W, B]. needs_input: whether to compute the input's gradient; if not, None is
        returned.
        """
        g = g.reshape(len(weight), -1)
        torch.mm(g, patches.t(), out=out[0].view(len(weight), -1))
        torch.sum(g, 1, out=out[1])
        if not needs_input:
            return None
        torch.mm(weight.view(len(weight), -1).t(), g, out=patches)
        return self._overlap(patches, shape)

    def _size(self, shape: Sequence[int]) -> tuple[int, int]:
        """(height, width) of the output, for an input of this shape [C, H, W, B]."""
        (h, w), (pad_h, pad_w) = self.kernel, self.padding
        return shape[1] + 2 * pad_h - h + 1, shape[2] + 2 * pad_w - w + 1

    def _patches(self, x: Tensor) -> Tensor:
        """The patches [C * h * w, H' * W' * B] of x [C, H, W, B] for a kernel h x w (im2col).

        A column holds the inputs of one output position [H', W'] of one sample.
        """
        (h, w), (pad_h, pad_w), (high, wide) = self.kernel, self.padding, self._size(x.shape)
        x = F.pad(x, (0, 0, pad_w, pad_w, pad_h, pad_h)) if pad_h or pad_w else x.contiguous()
        channels, _, width, count = x.shape
        row = width * count
        view = x.as_strided((channels, h, w, high, wide, count), (x.stride(0), row, count, row, count, 1))
        return view.contiguous().view(channels * h * w, -1)

    def _overlap(self, patches: Tensor, shape: Sequence[int]) -> Tensor:
        """The adjoint of `_patches` (col2im): the images [C, H, W, B] in which overlapping patches are added up.

        shape: [C, H, W, B]. The sum is over the columns of the kernel first, then over its rows.
        """
        (h, w), (pad_h, pad_w), (high, wide) = self.kernel, self.padding, self._size(shape)
        channels, height, width, count = shape
        parts = patches.view(channels, h, w, high, wide, count)
        rows = patches.new_zeros(channels, h, high, width + 2 * pad_w, count)
        for j in range(w):
            rows.narrow(3, j, wide).add_(parts.select(2, j))
        out = patches.new_zeros(channels, height + 2 * pad_h, width + 2 * pad_w, count)
        for i in range(h):
            out.narrow(1, i, high).add_(rows.select(1, i))
        return out[:, pad_h : pad_h + height, pad_w : pad_w + width] if pad_h or pad_w else out


@dataclass(frozen=True)
class Pool:
    """A 2-d max-pool without padding or dilation."""

    size: tuple[int, ...]
    stride: tuple[int, ...]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(output [C, H', W', B], indices of the maxima) for x [C, H, W, B].

        It uses torch's kernel for channels-last images, with the samples as channels.
        """
        pooled, indices = F.max_pool2d(x.permute(0, 3, 1, 2), self.size, self.stride, return_indices=True)
        return pooled.permute(0, 2, 3, 1), indices

    def backward(self, g: Tensor, x: Tensor, indices: Tensor) -> Tensor:
        """The gradient of the input x, from the gradient g of the output and the indices from `forward`."""
        args = g.permute(0, 3, 1, 2), x.permute(0, 3, 1, 2), self.size, self.stride, (0, 0), (1, 1), False, indices
        back: Tensor = _aten.max_pool2d_with_indices_backward(*args)
        return back.permute(0, 2, 3, 1)
