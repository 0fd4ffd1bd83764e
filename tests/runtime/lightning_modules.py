"""Modules as users of Lightning write them: metric objects, hooks, all uses of `self.log`."""

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
    """A module that logs metric objects with every kind of state: sums, lists, a collection, a nested one."""

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
        self.log_dict({"lowest": z.min()}, reduce_fx=torch.min)
        self.log("batches", 1.0, reduce_fx="sum")
        self.log("first", float(batch_idx), reduce_fx="max")
        self.log("weighed", z[:, 2].sum() / (2 * len(y)), batch_size=2 * len(y))
        self.log("of_a_batch", z.mean(), on_step=True, on_epoch=False)


class Gathering(Net):
    """A module that collects results of validation steps and uses them at the end of the evaluation."""

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
    """A module with separate steps and hooks for the test set."""

    def test_step(self, batch, batch_idx):
        self.log("test_acc", 0.5)

    def on_test_epoch_end(self):
        self.log("ended", 1.0)


class Clipping(Net):
    """A module that clips its gradients by Lightning's method, and logs their norms before and after."""

    def __init__(self, clip: float | None = 0.1, how: str | None = "norm", momentum: float = 0.9):
        super().__init__(norm=False, dropout=0.0)
        self.clip, self.how, self.momentum = clip, how, momentum

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=self.momentum)

    def on_after_backward(self):
        self.order = ["backward"]

    def on_before_optimizer_step(self, optimizer):
        self.order.append("before")
        self.log("norm", torch.nn.utils.get_total_norm([p.grad for p in self.parameters()]))

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        assert self.order == ["backward", "before"]
        self.given = gradient_clip_val, gradient_clip_algorithm
        self.shown = optimizer
        self.clip_gradients(optimizer, gradient_clip_val=self.clip, gradient_clip_algorithm=self.how)
        self.log("clipped", torch.nn.utils.get_total_norm([p.grad for p in self.parameters()]), reduce_fx="max")


class Hooked(Net):
    """A module that counts the calls of its training hooks, checks their order, and changes weights in some."""

    def __init__(self, moves: bool = False, epoch: int = 3):
        super().__init__(norm=False, dropout=0.0)
        self.moves, self.epoch, self.calls = moves, epoch, []

    def on_train_start(self):
        self.calls.append("start")

    def on_train_epoch_start(self):
        self.calls.append("epoch")

    def on_train_batch_start(self, batch, batch_idx):
        self.calls.append(f"before {batch_idx}")

    def training_step(self, batch, batch_idx):
        self.calls.append(f"step {batch_idx}")
        return {"loss": super().training_step(batch, batch_idx), "size": len(batch[0])}

    def on_after_backward(self):
        self.calls.append("gradient")
        if self.moves:  # the gradient's sign: in place, or by another tensor
            for k, p in enumerate(self.parameters()):
                if k % 2:
                    p.grad = p.grad.sign()
                else:
                    p.grad.sign_()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        assert outputs["size"] == len(batch[0])
        assert not outputs["loss"].requires_grad
        self.calls.append(f"after {batch_idx}")
        if self.moves:
            with torch.no_grad():
                for p in self.parameters():
                    p.clamp_(-0.5, 0.5)

    def on_train_epoch_end(self):
        self.calls.append("end of epoch")

    def on_train_end(self):
        steps = sum(call.startswith("step") for call in self.calls)
        expected = ["start"]
        for t in range(steps):  # ten samples a client, in batches of four: three steps an epoch
            expected += ["epoch"] * (t % self.epoch == 0) + [f"before {t}", f"step {t}", "gradient", f"after {t}"]
            expected += ["end of epoch"] * ((t + 1) % self.epoch == 0 or t == steps - 1)
        assert self.calls == expected
        self.log("epochs", self.calls.count("epoch"))
        if self.moves:
            with torch.no_grad():
                self.body[0].bias.fill_(0.25)


class Telling(Net):
    """A module that logs in its training step: plain values, batch_idx, other reductions, and the loss."""

    def __init__(self):
        super().__init__(norm=False, dropout=0.0)

    def training_step(self, batch, batch_idx):
        x, y = batch
        z = self.body(x)
        loss = nn.functional.cross_entropy(z, y)
        self.log("train_loss", 2 * loss)
        self.log("train_acc", (z.argmax(1) == y).float().mean(), prog_bar=True)
        self.log_dict({"first": x[:, 0].mean(), "index": float(batch_idx)})
        self.log("steps", 1, reduce_fx="sum")
        return loss


class TellingByMetric(Telling):
    """A metric object, too, which cannot be vectorised."""

    def __init__(self):
        super().__init__()
        self.train_accuracy = MulticlassAccuracy(3, average="micro")

    def training_step(self, batch, batch_idx):
        x, y = batch
        self.train_accuracy(self.body(x), y)
        self.log("by_metric", self.train_accuracy)
        return super().training_step(batch, batch_idx)


class Counting(Net):
    """A module whose loss depends on attributes from an earlier step."""

    def __init__(self):
        super().__init__(norm=False, dropout=0.0)
        self.count, self.seen = 0, []

    def training_step(self, batch, batch_idx):
        self.count += 1
        self.seen.append(self.count)
        self.last = batch[0]
        return super().training_step(batch, batch_idx) * (self.count + len(self.seen))

    def validation_step(self, batch, batch_idx):
        self.count += 1
        self.log("count", float(self.count + len(self.seen)))
        self.log("left", float(hasattr(self, "last")))


class Scheduled(Net):
    """A module with an optimizer in every form that Lightning accepts."""

    def __init__(self, form: str = "dict", lr: float = 0.1):
        super().__init__(norm=False, dropout=0.0)
        self.form, self.lr = form, lr

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        half = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        forms = {
            "plain": optimizer,
            "list": [optimizer],
            "two lists": ([optimizer], [half]),
            "dict": {"optimizer": optimizer, "lr_scheduler": half},
            "step": {"optimizer": optimizer, "lr_scheduler": {"scheduler": half, "interval": "step"}},
            "every second": {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": half, "interval": "step", "frequency": 2},
            },
            "plateau": {"optimizer": optimizer, "lr_scheduler": plateau, "monitor": "loss"},
            "two": [optimizer, torch.optim.SGD(self.parameters(), lr=self.lr)],
            "none": None,
        }
        return forms[self.form]


class Optimized(Net):
    """One of torch's optimizers, with a scheduler over steps if there is a decay; no dropout."""

    def __init__(self, name: str = "AdamW", options: dict | None = None, decay: float | None = None):
        super().__init__(norm=False, dropout=0.0)
        self.name, self.options, self.decay = name, options or {}, decay

    def configure_optimizers(self):
        kind = Prodigal if self.name == "Prodigal" else getattr(torch.optim, self.name)
        optimizer = kind(self.parameters(), **self.options)
        if self.decay is None:
            return optimizer
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.decay)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Prodigal(torch.optim.SGD):
    """Counts its steps among its options, as Prodigy does."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
        return super().step(closure)


class Stopping(Net):
    """A module that tries to skip the rest of the epoch."""

    def on_train_batch_start(self, batch, batch_idx):
        return -1
