"""Losses and gradients of C dense networks at once, as batched matrix products without an autograd graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raylfl.core.chain import IGNORED, Chain

_aten = torch.ops.aten


class CohortChain(Chain):
    """C equal chains of Linear, ReLU and Flatten layers, each with its own parameters and batch.

    Activations are [C, features, B], so that the matrix products need no transposed copies and the softmax works on
    whole vectors.
    """

    def __init__(self, layers: Sequence[nn.Module]):
        super().__init__(layers)
        linear = [k for k, layer in enumerate(layers) if isinstance(layer, nn.Linear)]
        self._place = {k: 2 * n for n, k in enumerate(linear)}  # layer k -> position of its weight in `parameters`
        self._parameters: Sequence[Tensor] = ()

    @staticmethod
    def possible(layers: Sequence[nn.Module]) -> bool:
        """Whether all layers are Linear, ReLU or Flatten."""
        return all(isinstance(layer, (nn.Linear, nn.ReLU, nn.Flatten)) for layer in layers)

    @torch.no_grad()
    def losses_and_gradients(
        self, batches: Sequence[Tensor], parameters: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> Tensor:
        """Mean cross-entropies [C] of batches (x [C, B, ...], y int64 [C, B]).

        parameters: one tensor [C, *shape] for each parameter, in the order of `module.parameters()`; gradients: tensors
        of the same shapes, overwritten.
        """
        x, y = batches
        self._parameters = parameters
        return self._walk(x.movedim(1, -1), y, gradients)

    def _loss(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        scores, y = x.unsqueeze(2), y.unsqueeze(1)  # images of one row: torch has cross-entropy kernels for images
        log_p = F.log_softmax(scores, 1)
        each, total = _aten.nll_loss2d_forward(log_p, y, None, 0, IGNORED)
        count = (y != IGNORED).sum(2, keepdim=True).to(x.dtype)
        g = _aten.nll_loss2d_backward((1 / count).expand_as(each), log_p, y, None, 0, IGNORED, total)
        g = _aten._log_softmax_backward_data(g, log_p, 1, x.dtype)
        return (each.sum(2, keepdim=True) / count).flatten(), g.squeeze(2)

    def _forward(self, k: int, layer: nn.Module, x: Tensor) -> tuple[Tensor, Any]:
        match layer:
            case nn.Linear():
                weight, bias = self._parameters[self._place[k] :][:2]
                return torch.baddbmm(bias.unsqueeze(2), weight, x), x
            case nn.Flatten():
                return x.flatten(1, -2), x.shape
            case _:
                return super()._forward(k, layer, x)

    def _backward(
        self, k: int, layer: nn.Module, g: Tensor, saved: Any, gradients: Sequence[Tensor], wanted: bool
    ) -> Tensor:
        if not isinstance(layer, nn.Linear):
            return super()._backward(k, layer, g, saved, gradients, wanted)
        gradients[0].copy_(torch.bmm(g, saved.transpose(1, 2)))
        torch.sum(g, 2, out=gradients[1])
        return torch.bmm(self._parameters[self._place[k]].transpose(1, 2), g) if wanted else g
