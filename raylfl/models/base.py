"""Base classes of the shipped models, which take options from the config and input shapes from the data set.

A shipped model is an ordinary LightningModule: `training_step` returns the loss, `validation_step` and `test_step` log
`loss` (and `accuracy`), `configure_optimizers` is SGD. `training_step` logs nothing, works out of place and has no
branch that depends on values: torch.func can therefore run many clients in one call. Only models with batch
normalisation break this rule, because it updates its statistics in place. Initial weights come from torch's global
random generator, which must be seeded before a model is built.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from raylfl.components.options import Arguments
from raylfl.models.stack import Stack
from raylfl.replay.innermost.translation import IGNORED


class ShippedModel(Arguments, LightningModule):
    """A LightningModule whose constructor arguments are its options in the config, stored in `hparams`.

    lr: the learning rate of SGD if `local.optimizer` is `module`; otherwise `local.lr` applies.

    from_data: arguments that default to the data set's attribute of the same name if the config leaves them out.
    """

    from_data: ClassVar[tuple[str, ...]] = ()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD with the option `lr`; used if `local.optimizer` is `module`."""
        return torch.optim.SGD(self.parameters(), lr=self.hparams["lr"])

    def test_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Logs the same metrics as `validation_step`."""
        self.validation_step(batch, batch_idx)


def fitted_args(cls: type, init_args: Mapping[str, Any], data: object) -> dict[str, Any]:
    """The init_args of a model, completed with attributes of the data set such as `in_shape`.

    `cls.from_data` names these attributes; arguments in `init_args` take precedence. Nothing is added if the class has
    no `from_data`, or if the data set lacks the attribute.
    """
    names = [name for name in getattr(cls, "from_data", ()) if hasattr(data, name)]
    return {name: getattr(data, name) for name in names} | dict(init_args)


class Classifier(ShippedModel):
    """A classifier: a chain of named layers, whose loss is the mean cross-entropy of a batch.

    A batch is (x [B, *in_shape], y int64 [B]).

    in_shape: the shape of an input x; taken from the data if the config leaves it out.
    num_classes: the number of classes; taken from the data if the config leaves it out.

    layers: an nn.Sequential whose layers have names such as conv1, pool1, relu1, fc1. Split learning can cut the model
    after any of them (`layers.relu1`).
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
        """The function (parameters [C, *shape] by name, batches [C, B, ...]) -> losses [C] of C clients, or None.

        The function computes the losses of `training_step` by batched matrix products. There is none (None) if a layer
        is not of type Linear, Flatten, ReLU or Dropout, if a parameter is frozen, or if the class overrides
        `training_step` or `forward`.
        """
        kinds = (nn.Flatten, nn.Linear, nn.ReLU, nn.Dropout)
        cls = type(self)
        own = cls.training_step is not Classifier.training_step or cls.forward is not Classifier.forward
        dense = not own and all(type(layer) in kinds for layer in self.layers)
        return self._dense_losses if dense and all(p.requires_grad for p in self.parameters()) else None

    def _dense_losses(self, parameters: Mapping[str, Tensor], batch: Sequence[Tensor]) -> Tensor:
        """The loss of each client [C], for networks of linear and elementwise layers, as batched matrix products.

        Parameters and batches have a leading dimension C. Activations are [C, features, B]: matrix products then need
        no transposed copies, and the softmax reads B contiguous numbers per class, three times as fast as in
        [C, B, features].
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
        """Logs `loss` and `accuracy`, both means over the batch."""
        x, y = batch
        logits = self(x)
        hits = (logits.argmax(dim=-1) == y).to(logits.dtype)
        self.log("loss", F.cross_entropy(logits, y), batch_size=len(y))
        self.log("accuracy", hits.mean(), batch_size=len(y))


class Problem(ShippedModel, ABC):
    """An optimisation problem as a model: its only parameter is a vector x [d], float64, and its loss the objective.

    x0: the initial value of every entry of x.
    """

    from_data: ClassVar[tuple[str, ...]] = ("dim",)

    def __init__(self, dim: int, x0: float, lr: float):
        super().__init__()
        self.save_hyperparameters()
        self.x = nn.Parameter(torch.full((dim,), float(x0), dtype=torch.float64))

    @abstractmethod
    def objective(self, batch: Sequence[Tensor]) -> Tensor:
        """The loss of x on a batch, a scalar; the first dimension of each tensor in the batch is the sample."""

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        """The objective on the batch."""
        return self.objective(batch)

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Logs the objective on the batch as `loss`."""
        self.log("loss", self.objective(batch), batch_size=len(batch[0]))
