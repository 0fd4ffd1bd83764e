"""Modules as users of Lightning write them: metric objects, hooks, everything that `self.log` can do."""

from __future__ import annotations

import torch
from torch import nn
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassF1Score

from tests.runtime.tiny import Net, Points


class Few(Points):
    """Sixty points of which forty-six, of uneven classes, are the test set."""

    def test_dataset(self):
        from torch.utils.data import TensorDataset

        keep = torch.cat([torch.arange(0, 60, 3), torch.arange(1, 60, 3), torch.arange(2, 18, 3)])
        return TensorDataset(self.x[keep], self.targets[keep])


class Measured(Net):
    """Logs metric objects of every kind of state: sums, lists, a collection, one inside another."""

    def __init__(self):
        super().__init__(norm=False, dropout=0.0)
        self.macro = MulticlassAccuracy(3, average="macro")
        self.f1 = MulticlassF1Score(3, average="macro")
        self.auroc = MulticlassAUROC(3)
        self.both = MetricCollection({"micro": MulticlassAccuracy(3, average="micro"), "mean": MeanMetric()})
        self.hidden = [MeanMetric()]  # not registered: a plain list
        self.twice = self.macro + self.macro

    def validation_step(self, batch, batch_idx):
        x, y = batch
        z = self.body(x)
        self.log("val_loss", nn.functional.cross_entropy(z, y))
        self.log("val_macro", self.macro, on_step=False, on_epoch=True)
        self.macro(z, y)  # after it was logged, which Lightning allows
        self.f1.update(z, y)
        self.auroc.update(z.softmax(1), y)
        self.both["micro"].update(z, y)
        self.both["mean"].update(z[:, 0])
        self.hidden[0].update(z[:, 1])
        self.log("f1", self.f1)
        self.log("auroc", self.auroc)
        self.log_dict(self.both)
        self.log("hidden", self.hidden[0])
        self.log("twice", self.twice)
        self.log("highest", z.max(), reduce_fx="max")
        self.log("lowest", z.min(), reduce_fx=torch.min)
        self.log("batches", 1.0, reduce_fx="sum")
        self.log("first", float(batch_idx), reduce_fx="max")
        self.log("weighed", z[:, 2].sum() / (2 * len(y)), batch_size=2 * len(y))
        self.log("of_a_batch", z.mean(), on_step=True, on_epoch=False)


class Gathering(Net):
    """Keeps what its validation steps find and looks at it at the end of the evaluation, as many modules do."""

    def __init__(self):
        super().__init__(norm=False, dropout=0.0)
        self.accuracy = MulticlassAccuracy(3, average="macro")

    def on_validation_start(self):
        self.calls = ["start"]

    def on_validation_epoch_start(self):
        self.calls.append("epoch_start")
        self.found = []

    def on_validation_batch_start(self, batch, batch_idx):
        self.calls.append(f"before {batch_idx}")

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.accuracy.update(self.body(x), y)
        self.found.append(self.body(x).argmax(1))
        return {"guess": self.found[-1]}

    def on_validation_batch_end(self, outputs, batch, batch_idx):
        assert torch.equal(outputs["guess"], self.found[-1])
        self.calls.append(f"after {batch_idx}")

    def on_validation_epoch_end(self):
        self.log("val_uniq", float(len(torch.cat(self.found).unique())))
        self.log("val_samples", float(len(torch.cat(self.found))))
        self.log("macro", self.accuracy.compute())
        self.accuracy.reset()
        expected = ["start", "epoch_start", *(f"{w} {k}" for k in range(len(self.found)) for w in ("before", "after"))]
        assert self.calls == expected
        self.calls.append("epoch_end")

    def on_validation_end(self):
        assert self.calls[-1] == "epoch_end"


class Both(Gathering):
    """The test set has a step and a hook of its own."""

    def test_step(self, batch, batch_idx):
        self.log("test_acc", 0.5)

    def on_test_epoch_end(self):
        self.log("ended", 1.0)


class Deaf(Net):
    """Overrides hooks that nothing calls."""

    def on_fit_start(self):
        raise AssertionError

    def on_save_checkpoint(self, checkpoint):
        raise AssertionError


class Clipping(Net):
    """Overrides hooks that local work cannot follow."""

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        raise AssertionError

    def optimizer_step(self, *args, **kwargs):
        raise AssertionError


class Late(Net):
    """Makes its layers when Lightning says so."""

    def __init__(self):
        super().__init__()
        del self.body

    def configure_model(self):
        self.body = nn.Linear(4, 3)
