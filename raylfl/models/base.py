"""Base classes of the shipped models: options from the config, sizes from the data.

A model is a LightningModule like any user's: `training_step` returns the loss, `validation_step` and
`test_step` log `loss` (and `accuracy`), `configure_optimizers` is SGD. Nothing is logged in
`training_step`, nothing is done in place and no branch depends on values, so that torch.func can run many
clients in one call; batch normalisation, which updates its statistics in place, is the exception. Initial
weights come from torch's global generator: who builds a model seeds it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from raylfl.core.chain import IGNORED
from raylfl.models.stack import Stack
from raylfl.options import Arguments


class ShippedModel(Arguments, LightningModule):
    """A LightningModule whose constructor's arguments are its options, kept in `hparams`.

    from_data: arguments that, where the config leaves them out, are taken from attributes of the data.
    """

    from_data: ClassVar[tuple[str, ...]] = ()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD with the option `lr`; used where `local.optimizer` is `module`."""
        return torch.optim.SGD(self.parameters(), lr=self.hparams["lr"])


def fitted_args(cls: type, init_args: Mapping[str, Any], data: object) -> dict[str, Any]:
    """init_args, completed by attributes of the data (`in_shape`, `dim`, ...) that `cls.from_data` names.

    What init_args say stays. A class without `from_data`, or data without such an attribute, changes nothing.
    """
    names = [name for name in getattr(cls, "from_data", ()) if hasattr(data, name)]
    return {name: getattr(data, name) for name in names} | dict(init_args)


class Classifier(ShippedModel):
    """Cross-entropy over batches (x [B, *in_shape], y [B] int64); the network is one chain of named layers.

    layers: nn.Sequential with names such as conv1, pool1, relu1, fc1: split learning cuts after
    `layers.relu1`.
    """

    from_data: ClassVar[tuple[str, ...]] = ("in_shape", "num_classes")

    def __init__(self, stack: Stack, lr: float):
        super().__init__()
        self.save_hyperparameters(ignore="stack")
        self.layers = nn.Sequential(stack.layers)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, num_classes]."""
        logits: Tensor = self.layers(x)
        return logits

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        """Mean cross-entropy of the batch."""
        x, y = batch
        return F.cross_entropy(self(x), y)

    @property
    def cohort_losses(self) -> Callable[[Mapping[str, Tensor], Sequence[Tensor]], Tensor] | None:
        """Function (parameters [C, *shape] by name, batches [C, B, ...]) -> C training losses: `training_step` of each
        client, as batched matrix products.

        None for a network that is more than linear layers and what goes entry by entry between them, that has frozen
        parameters, or whose class has a training step or forward pass of its own.
        """
        kinds = (nn.Flatten, nn.Linear, nn.ReLU, nn.Dropout)
        cls = type(self)
        own = cls.training_step is not Classifier.training_step or cls.forward is not Classifier.forward
        dense = not own and all(type(layer) in kinds for layer in self.layers)
        return self._dense_losses if dense and all(p.requires_grad for p in self.parameters()) else None

    def _dense_losses(self, parameters: Mapping[str, Tensor], batch: Sequence[Tensor]) -> Tensor:
        """Activations are [C, features, B]: weights and their gradients are then products in the order in which both
        lie in memory, and the softmax works on whole vectors (three times as fast as [C, B, features]).
        """
        x, y = batch
        x = x.movedim(1, -1)
        for name, layer in self.layers.named_children():
            if isinstance(layer, nn.Flatten):
                x = x.flatten(1, -2)
            elif isinstance(layer, nn.Linear):
                weight, bias = parameters[f"layers.{name}.weight"], parameters[f"layers.{name}.bias"]
                x = torch.baddbmm(bias.unsqueeze(2), weight, x)
            else:
                x = layer(x)
        return F.cross_entropy(x, y, reduction="none").sum(dim=1) / (y != IGNORED).sum(dim=1)

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Log `loss` and `accuracy`, both means over the batch."""
        x, y = batch
        logits = self(x)
        hits = (logits.argmax(dim=-1) == y).to(logits.dtype)
        self.log("loss", F.cross_entropy(logits, y), batch_size=len(y))
        self.log("accuracy", hits.mean(), batch_size=len(y))

    def test_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """The same as `validation_step`."""
        self.validation_step(batch, batch_idx)


class Problem(ShippedModel, ABC):
    """An objective over one vector x [d] in float64, given as a loss per batch of samples.

    dim: d. x0: every entry of the starting point.
    """

    from_data: ClassVar[tuple[str, ...]] = ("dim",)

    def __init__(self, dim: int, x0: float, lr: float):
        super().__init__()
        self.save_hyperparameters()
        self.x = nn.Parameter(torch.full((dim,), float(x0), dtype=torch.float64))

    @abstractmethod
    def objective(self, batch: Sequence[Tensor]) -> Tensor:
        """The loss of x on a batch whose tensors begin with the batch dimension."""

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        """The objective on the batch."""
        return self.objective(batch)

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Log `loss`."""
        self.log("loss", self.objective(batch), batch_size=len(batch[0]))

    def test_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """As `validation_step`."""
        self.validation_step(batch, batch_idx)
