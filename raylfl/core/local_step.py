"""One local step, and the callbacks around local steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from raylfl.core.local_optimizer import LocalOptimizer
from raylfl.core.local_rule import LocalRule
from raylfl.core.returned import direction_of

if TYPE_CHECKING:
    from raylfl.core.algorithm import Algorithm, State
    from raylfl.core.oracle import Batch


class Observer:
    """Callbacks of the local solver around its local steps; this base class does nothing.

    between_steps: whether the callbacks read or change anything between the steps, which must then run one by one.
    """

    between_steps = False

    def begin(self) -> None:
        """Called at the starting points, before the first local step; not called if no client takes a step."""

    def before_step(self, t: int, batches: Sequence[Batch]) -> None:
        """Called before local step t, with the batches of the clients that take it."""

    def after_gradient(self, g: Tensor) -> None:
        """Called with the gradients g [C, d] of a local step, before clipping; may change them in place."""

    def after_step(self, t: int, rows: Sequence[int], losses: Tensor) -> None:
        """Called after local step t, with the numbers `rows` (0..C-1) and the losses of the clients that took it."""

    def end(self) -> None:
        """Called after the last local step, before the uploads are computed; not called if no client takes a step."""


def step_along(
    algorithm: Algorithm,
    rule: LocalRule,
    optimizer: LocalOptimizer,
    x: Tensor,
    g: Tensor,
    carry: State,
    inner: Tensor,
    rate: float | Tensor,
) -> State:
    """Moves x [C, d] in place by one local step with gradients g [C, d], which it may change; returns the new carry.

    inner: the optimizer's state [C, m], changed in place. rate: the learning rate; a tensor [1] in steps that a graph
    repeats with other rates.
    """
    if rule.clip_norm is not None:
        g *= (rule.clip_norm / (torch.linalg.vector_norm(g, dim=1, keepdim=True) + 1e-6)).clamp(max=1.0)
    if rule.weight_decay:
        g.add_(x, alpha=rule.weight_decay)
    v, carry = direction_of(algorithm, x, g, carry)
    optimizer.step(x, v, inner, rate)
    return carry
