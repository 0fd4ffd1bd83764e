"""Local optimizers: the rules by which a local step moves the parameters x of C clients along their directions v.

    sgd    b <- rho b + v;  x <- x - eta b
    adamw  n <- n + 1;  x <- (1 - eta lambda) x;  m <- b1 m + (1 - b1) v;  s <- b2 s + (1 - b2) v^2
           x <- x - eta m/(1 - b1^n) / (sqrt(s/(1 - b2^n)) + eps)     (Loshchilov & Hutter, ICLR 2019, Alg. 2)

eta is the learning rate, rho the momentum, b the momentum buffer, and lambda the weight decay; b1 and b2 are the decay
rates of adamw's moments m and s, and n is its number of steps.

The optimizer state of a client is one row, 0 before its first step: b [d] for sgd (nothing without momentum), (m, s, n)
[2d + 1] for adamw. Clients can keep their rows between rounds, or send them to be averaged (`local.optimizer_state`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:  # a config names its optimizer before torch is imported
    from torch import Tensor


class LocalOptimizer(ABC):
    """The interface of local optimizers; it changes the clients' states [C, m], m floats each, in place.

    on_tensors: whether a step is operators on tensors only, so that a graph can repeat it.
    """

    on_tensors: ClassVar[bool] = False

    @abstractmethod
    def width(self, parameters: int) -> int:
        """The number m of floats in the state of a client whose model has this many parameters."""

    def begin(self, state: Tensor) -> None:  # noqa: B027 - most have nothing to do
        """Prepares the local steps; called before the first one with the state [C, m]."""

    @abstractmethod
    def step(self, x: Tensor, v: Tensor, state: Tensor, lr: float | Tensor) -> None:
        """Takes a step along the directions v [C, d]: changes x [C, d] and the state [C, m] in place.

        lr: the learning rate eta of this step, a number or a tensor [1].
        """

    def end(self, state: Tensor) -> None:  # noqa: B027
        """Completes the state [C, m]; called after the last step."""


@dataclass(frozen=True)
class SGD(LocalOptimizer):
    """SGD with heavy-ball momentum, as in torch.optim.SGD."""

    momentum: float = 0.0
    on_tensors = True

    def width(self, parameters: int) -> int:
        return parameters if self.momentum else 0

    def step(self, x: Tensor, v: Tensor, state: Tensor, lr: float | Tensor) -> None:
        v = state.mul_(self.momentum).add_(v) if self.momentum else v
        if isinstance(lr, float):
            x.sub_(v, alpha=lr)
        else:
            x.addcmul_(v, lr, value=-1.0)


@dataclass(frozen=True)
class AdamW(LocalOptimizer):
    """Adam with decoupled weight decay, as in torch.optim.AdamW."""

    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    on_tensors = True

    def width(self, parameters: int) -> int:
        return 2 * parameters + 1

    def step(self, x: Tensor, v: Tensor, state: Tensor, lr: float | Tensor) -> None:
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
