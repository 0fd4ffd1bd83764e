"""Modules that change memory, gradients and random numbers in their own ways; runs of them, and the plain loop."""

import copy

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import raylfl

CLIENTS, SAMPLES, LR = 4, 6, 0.2
X = torch.randn(CLIENTS * SAMPLES, 3, generator=torch.Generator().manual_seed(5))
Y = (X.sum(1) > 0).long()
IMAGES = X[:, :, None, None] * torch.linspace(-1, 1, 64).view(8, 8)
SHARDS = [list(range(c * SAMPLES, (c + 1) * SAMPLES)) for c in range(CLIENTS)]
FORMS = [("auto", "auto"), ("never", "auto"), ("never", "autograd")]


class Rows:
    inputs = X

    def __init__(self):
        self.train_dataset = self.test_dataset = torch.utils.data.TensorDataset(self.inputs, Y)
        self.client_indices = SHARDS


class Images(Rows):
    inputs = IMAGES


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = self.layers()
        self.more()

    def layers(self):
        return nn.Linear(3, 4), nn.Linear(4, 2)

    def more(self):
        pass

    def hidden(self, x):
        return torch.tanh(self.a(x))

    def forward(self, x):
        return self.b(self.hidden(x))

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1])

    def test_step(self, batch, batch_idx):
        self.log("loss", F.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], LR)


class Convolution(Net):
    def layers(self):
        return nn.Conv2d(3, 4, 3), nn.Linear(144, 2)

    def hidden(self, x):
        return torch.relu(self.a(x)).flatten(1)


# -- entries that are assigned -----------------------------------------------------------------------------------------


class Clipped(Net):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        for p in self.parameters():
            p.data = p.data.clamp(-0.3, 0.3)


class InABall(Net):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        x = parameters_to_vector(self.parameters()).detach()
        vector_to_parameters(x * min(1.0, 1.5 / float(x.norm())), self.parameters())


class ClippedInTheStep(Net):
    def training_step(self, batch, batch_idx):
        self.b.weight.data = self.b.weight.data.clamp(-0.1, 0.1)
        return super().training_step(batch, batch_idx)


class SetAtTheStart(Net):
    def on_train_start(self):
        self.b.weight.data = torch.full_like(self.b.weight, 0.1)


class ChangedGradient(Net):
    """A hook between the gradient and the step assigns entries, as an optimizer of older code does in the step."""

    def on_before_optimizer_step(self, optimizer):
        self.a.bias.data = self.a.bias.data * 0.5


class SwappedInTests(Net):
    def on_test_start(self):
        self.x = parameters_to_vector(self.parameters()).detach().clone()
        vector_to_parameters(0.5 * self.x, self.parameters())

    def on_test_end(self):
        vector_to_parameters(self.x, self.parameters())


class Transposed(Convolution):
    def on_train_start(self):
        self.to(memory_format=torch.channels_last)


# -- views of a weight -------------------------------------------------------------------------------------------------


class Viewed(Net):
    def more(self):
        self.rows = self.a.weight.data[:2]

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.rows.clamp_(-0.1, 0.1)


class Autoencoder(Net):
    def more(self):
        self.w = self.a.weight.detach()

    def training_step(self, batch, batch_idx):
        return F.mse_loss(self.hidden(batch[0]) @ self.w, batch[0])


# -- what a comparison of two steps does not show ----------------------------------------------------------------------


def without_small(g):
    return torch.where(g.norm() < 0.12, torch.zeros_like(g), g)


class Hooked(Net):
    def more(self):
        self.b.weight.register_hook(without_small)


class HookedAfterwards(Net):
    def more(self):
        def change(p):
            p.grad = without_small(p.grad)

        self.b.weight.register_post_accumulate_grad_hook(change)


class HookedInTheStep(Net):
    def hidden(self, x):
        hidden = super().hidden(x)
        if hidden.requires_grad:
            hidden.register_hook(without_small)
        return hidden


class Gated(Net):
    """A hook that is linear in the gradient, and acts once a hidden value is large."""

    def hidden(self, x):
        hidden = super().hidden(x)
        if hidden.requires_grad:
            small = hidden.detach().abs() <= 0.97
            hidden.register_hook(lambda g: g * small)
        return hidden


class PenalisedLate(Net):
    """A penalty from local step 6 on, which is 0 in the first round."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss + F.relu(self.b.weight.norm() - 1.5) if batch_idx >= 6 else loss


class Penalised(Net):
    """A penalty on parameters in a plain list, which becomes positive late."""

    def more(self):
        self.held = [self.a.weight, self.b.weight]

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) + sum(F.relu(w.norm() - 1.6) for w in self.held)


class Seeded(Net):
    def training_step(self, batch, batch_idx):
        torch.manual_seed(batch_idx)
        return F.cross_entropy(self.b(F.dropout(self.hidden(batch[0]), 0.5)), batch[1])


class Idle(Net):
    """A step that draws numbers and does not use them."""

    def training_step(self, batch, batch_idx):
        torch.rand(3)
        return super().training_step(batch, batch_idx)


class Teacher(Net):
    """A moving average of a layer, in a list."""

    def more(self):
        self.teachers = [copy.deepcopy(self.b)]

    def training_step(self, batch, batch_idx):
        h = self.hidden(batch[0])
        loss = F.cross_entropy(self.b(h), batch[1])
        with torch.no_grad():
            for p, q in zip(self.teachers[0].parameters(), self.b.parameters(), strict=True):
                p.mul_(0.9).add_(q, alpha=0.1)
        return loss + F.mse_loss(self.b(h), self.teachers[0](h).detach()) if batch_idx >= 2 else loss


class Decayed(Convolution):
    def training_step(self, batch, batch_idx):
        with torch.no_grad():
            self.b.weight.mul_(0.9)
        return super().training_step(batch, batch_idx)


class Scripted(Net):
    def more(self):
        self.c = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))

    def hidden(self, x):
        return self.c(super().hidden(x))


# -- parameters without a gradient -------------------------------------------------------------------------------------


class Unused(Net):
    def more(self):
        self.extra = nn.Linear(2, 2)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 0.02, weight_decay=0.1)


class InTurn(Unused):
    def more(self):
        self.c = nn.Linear(4, 2)

    def training_step(self, batch, batch_idx):
        return F.cross_entropy((self.b if batch_idx % 2 else self.c)(self.hidden(batch[0])), batch[1])


def run(kind, runs, vectorize="auto", step="auto", *options, rounds=2, steps=5, data=Rows, algorithm="fedavg"):
    config = {
        "rounds": rounds,
        "num_clients": CLIENTS,
        "algorithm": algorithm,
        "partition": "natural",
        "participation": "full",
        "local": {"steps": steps, "batch_size": "full", "lr": LR},
        "runtime": {"backend": "local", "vectorize": vectorize, "step": step},
    }
    return raylfl.run(config, [*runs, *options], model=kind, data=data)


def plain(kind, rounds=2, steps=5, inputs=X):
    """The state_dict after FedAvg of full batches, by a loop with the module's optimizer and hooks."""
    state = kind().state_dict()
    for _ in range(rounds):
        ends = []
        for shard in SHARDS:
            module = kind()
            module.load_state_dict(state)
            optimizer = module.configure_optimizers()
            module.on_train_start()
            for t in range(steps):
                batch = inputs[shard].clone(), Y[shard].clone()
                optimizer.zero_grad()
                loss = module.training_step(batch, t)
                loss.backward()
                module.on_before_optimizer_step(optimizer)
                optimizer.step()
                module.on_train_batch_end({"loss": loss}, batch, t)
            ends.append({name: value.clone() for name, value in module.state_dict().items()})
        state = {name: torch.stack([end[name] for end in ends]).mean(0) for name in state}
    return state


def same(result, expected):
    found = result.module.state_dict()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=2e-5, atol=2e-6)
