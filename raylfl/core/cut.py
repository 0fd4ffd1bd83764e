"""Traffic between the two halves of a split model, measured in one probe step (it is the same in every step).

Split learning (Li & Lyu 2023, app. A; SplitFed, Thapa et al. 2022): the client runs the layers up to the cut and sends
its activations. The server runs the other layers forward and backward, and sends the gradient of the activations back.
The client finishes the backward pass. Together, the two backward passes compute the same gradients as one through the
whole model. Local steps are therefore the same as without a cut, and only the traffic differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from raylfl.errors import BadConfig


@dataclass(frozen=True)
class Cut:
    """The size of the client's half of a split model, and the traffic between the halves.

    client_width: the number of parameters of the client's half. floats_per_sample: the number of activations of one
    sample at the cut; for each sample, a step sends as many floats up (activations) as down (their gradients).
    """

    client_width: int
    floats_per_sample: int

    @staticmethod
    def after(
        name: str, module: nn.Module, parameters: Sequence[Tensor], loss: Callable[[], Tensor], samples: int
    ) -> Cut:
        """The cut after the layer `name` of a module, measured in one forward and backward pass.

        parameters: the trained parameters of the module. loss: computes the loss of a batch of `samples` samples.
        Raises BadConfig if the layer does not exist, does not lead to the loss, does not run exactly once, returns
        anything but one tensor, or if some parameters are used on both sides.
        """
        layers = dict(module.named_modules())
        if name not in layers:
            raise _refusal(name, f"a layer of {type(module).__name__}: {', '.join(filter(None, layers))}")
        halves: list[tuple[Tensor, Tensor]] = []

        def separate(layer: nn.Module, args: Any, output: Any) -> Tensor:
            if not isinstance(output, Tensor):
                raise _refusal(name, "a layer whose output is one tensor")
            received = output.detach().requires_grad_()
            halves.append((output, received))
            return received.clone()  # the next layer may work in place; it must not overwrite the tensor at the cut

        hook = layers[name].register_forward_hook(separate)
        try:
            value = loss()
        finally:
            hook.remove()
        if len(halves) != 1:
            raise _refusal(name, "a layer that runs once a forward pass")
        sent, received = halves[0]
        *server, back = torch.autograd.grad(value, [*parameters, received], allow_unused=True, retain_graph=True)
        if back is None:
            raise _refusal(name, "a layer on the way to the loss")
        client: Sequence[Tensor | None] = [None] * len(parameters)
        if sent.requires_grad:
            client = torch.autograd.grad(sent, parameters, grad_outputs=back, allow_unused=True)
        if any(a is not None and b is not None for a, b in zip(client, server, strict=True)):
            raise _refusal(
                name,
                "a layer that splits the parameters in two halves: some are used on both sides (a connection skips the "
                "cut)",
            )
        width = sum(p.numel() for p, g in zip(parameters, client, strict=True) if g is not None)
        return Cut(width, received.numel() // samples)


def _refusal(name: str, need: str) -> BadConfig:
    return BadConfig(f"algorithm.cut={name}, but must be {need}")
