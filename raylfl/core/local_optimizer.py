"""Local optimizers: the rules by which a local step moves the parameters x of C clients along their directions v.

    sgd    b <- rho b + v;  x <- x - eta b
    adamw  n <- n + 1;  x <- (1 - eta lambda) x;  m <- b1 m + (1 - b1) v;  s <- b2 s + (1 - b2) v^2
           x <- x - eta m/(1 - b1^n) / (sqrt(s/(1 - b2^n)) + eps)     (Loshchilov & Hutter, ICLR 2019, Alg. 2)

eta is the learning rate, rho the momentum, lambda the weight decay; b1 and b2 are the decay rates of adamw's moments m
and s, and n counts its steps.

The state of a client is one row, 0 before its first step: b [d] of sgd (nothing without momentum), (m, s, n) [2d + 1]
of adamw. As a row it can stay with the client between its rounds, or be sent and averaged (`local.optimizer_state`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a config names its optimizer before torch is imported
    from torch import Tensor


class LocalOptimizer(ABC):
    """The rule of a local step; the state [C, m] of C clients is changed in place."""

    @abstractmethod
    def width(self, parameters: int) -> int:
        """The number m of floats in the state of a client whose model has this many parameters."""

    def begin(self, state: Tensor) -> None:  # noqa: B027 - most have nothing to do
        """Called before the first step with the state [C, m]."""

    @abstractmethod
    def step(self, x: Tensor, v: Tensor, state: Tensor, lr: float) -> None:
        """Moves x [C, d] along v [C, d] in place, and the state [C, m] with it."""

    def end(self, state: Tensor) -> None:  # noqa: B027
        """Called after the last step with the state [C, m], which has to be complete afterwards."""


@dataclass(frozen=True)
class SGD(LocalOptimizer):
    """SGD with heavy-ball momentum, like torch.optim.SGD."""

    momentum: float = 0.0

    def width(self, parameters: int) -> int:
        return parameters if self.momentum else 0

    def step(self, x: Tensor, v: Tensor, state: Tensor, lr: float) -> None:
        x.sub_(state.mul_(self.momentum).add_(v) if self.momentum else v, alpha=lr)


@dataclass(frozen=True)
class AdamW(LocalOptimizer):
    """Adam with decoupled weight decay, like torch.optim.AdamW."""

    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def width(self, parameters: int) -> int:
        return 2 * parameters + 1

    def step(self, x: Tensor, v: Tensor, state: Tensor, lr: float) -> None:
        d = x.shape[1]
        m, s, n = state[:, :d], state[:, d : 2 * d], state[:, 2 * d :]
        n += 1
        x.mul_(1.0 - lr * self.weight_decay)
        m.lerp_(v, 1.0 - self.b1)
        s.mul_(self.b2).addcmul_(v, v, value=1.0 - self.b2)
        steps = n.double()  # 1 - b2^n would lose digits in float32
        first, second = 1.0 - self.b1**steps, 1.0 - self.b2**steps
        scale = (s.sqrt() / second.sqrt().to(s)).add_(self.eps)
        x.sub_(m / scale * (lr / first).to(m))
