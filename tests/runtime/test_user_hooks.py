"""Hooks of PyTorch on a user's module: every form of the step has the values of a loop written out.

The loops import nothing from raylfl. Each client takes full batches of its own shard.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import nn

import raylfl
from tests.shares import one_in

CLIENTS, STEPS, LR = 2, 3, 0.1
X = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()
MASK = torch.tensor([[1.0, 0.0, 1.0, 0.0]] * 2)


class Rows:
    def __init__(self):
        self.train_dataset = self.test_dataset = torch.utils.data.TensorDataset(X, Y)


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 4), nn.Linear(4, 2)
        self.hook()

    def hook(self):
        pass

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x)))

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1])

    def test_step(self, batch, batch_idx):
        self.log("loss", F.cross_entropy(self(batch[0]), batch[1]))


class OnParameter(Net):
    """Rows of a weight are frozen by a hook on its gradient."""

    def hook(self):
        self.outer.weight.register_hook(lambda g: g * MASK)


class OnSeveral(Net):
    def hook(self):
        for p in self.inner.parameters():
            p.register_hook(lambda g: g.clamp(-0.01, 0.01))
        self.outer.bias.register_hook(lambda g: 2 * g)


class Accumulated(Net):
    def hook(self):
        def scale(p):
            p.grad.mul_(0.5)

        self.outer.weight.register_post_accumulate_grad_hook(scale)


class Replaced(Net):
    def hook(self):
        def replace(p):
            p.grad = torch.zeros_like(p.grad)

        self.inner.bias.register_post_accumulate_grad_hook(replace)


class Removed(Net):
    def hook(self):
        def remove(p):
            p.grad = None

        self.inner.bias.register_post_accumulate_grad_hook(remove)


class OnForward(Net):
    def hook(self):
        self.inner.register_forward_hook(lambda layer, args, output: output * 0.5)
        self.outer.register_forward_pre_hook(lambda layer, args: (args[0] + 0.1,))


class OnBackward(Net):
    def hook(self):
        self.outer.register_full_backward_hook(lambda layer, gave, got: (gave[0] * 0.3,))


class OnBackwardPre(Net):
    def hook(self):
        self.outer.register_full_backward_pre_hook(lambda layer, got: (got[0] * 0.3,))


class InConfigure(Net):
    def configure_model(self):
        if not hasattr(self, "hooked"):
            self.hooked = True
            self.outer.weight.register_hook(lambda g: g * MASK)


class InsideTheStep(Net):
    """A hook on a tensor in the step, which is no leaf."""

    def forward(self, x):
        hidden = torch.tanh(self.inner(x))
        if hidden.requires_grad:
            hidden.register_hook(lambda g: g * 0.3)
        return self.outer(hidden)


class Signed(torch.autograd.Function):
    """The identity, whose gradient is a sign."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g.sign() * 0.01


class OwnFunction(Net):
    def forward(self, x):
        return self.outer(Signed.apply(self.inner(x)))


class Projected(Net):
    """A weight is clamped in place in the step, before it is used."""

    def training_step(self, batch, batch_idx):
        with torch.no_grad():
            self.outer.weight.clamp_(-0.1, 0.1)
        return super().training_step(batch, batch_idx)


class ProjectedData(Net):
    def training_step(self, batch, batch_idx):
        self.outer.weight.data.clamp_(-0.1, 0.1)
        return super().training_step(batch, batch_idx)


class Drifting(Net):
    """A counter in an attribute scales the loss; each client begins with a fresh one."""

    def hook(self):
        self.count = 0

    def training_step(self, batch, batch_idx):
        self.count += 1
        return super().training_step(batch, batch_idx) * self.count


class Halved(Net):
    """A step that computes in float64 inside."""

    def training_step(self, batch, batch_idx):
        scores = self(batch[0]).double()
        return F.cross_entropy(scores, batch[1])


HOOKS = [OnParameter, OnSeveral, Accumulated, Replaced, Removed, OnForward, OnBackward, OnBackwardPre, InConfigure]
OTHERS = [InsideTheStep, OwnFunction, Projected, ProjectedData, Drifting, Halved]


def config(algorithm, vectorize):
    return {
        "name": "hooks",
        "rounds": 3,
        "num_clients": CLIENTS,
        "algorithm": algorithm,
        "partition": {"name": "iid"},
        "participation": {"name": "full"},
        "local": {"steps": STEPS, "batch_size": "full", "lr": LR},
        "runtime": {"backend": "local", "vectorize": vectorize},
    }


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """(the sample indices of the clients, the initial model) of these runs: hooks draw no random numbers."""
    from raylfl.config.load import load_config
    from raylfl.python.api import checked

    named = {"model": {"class_path": f"{__name__}.Net"}, "data": {"class_path": f"{__name__}.Rows"}}
    setup = checked(load_config({**config("fedavg", "never"), **named})).setup
    first = raylfl.run(
        {**config("fedavg", "never"), **named}, [f"logging.dir={tmp_path_factory.mktemp('x')}", "rounds=0"]
    )
    return [torch.from_numpy(setup.shards[c]) for c in range(CLIENTS)], first.module


@pytest.fixture
def shards(prepared):
    return prepared[0]


@pytest.fixture
def start(prepared):
    """The initial parameters, as a vector."""
    return nn.utils.parameters_to_vector(prepared[1].parameters()).detach()


class Loop:
    """Local gradients of a module as PyTorch gives them."""

    def __init__(self, kind, shards):
        self.module, self.shards = kind(), shards
        if kind is InConfigure:
            self.module.configure_model()

    def start(self, client):
        """Begins a client's local work: Python attributes have their first values."""
        self.client = client
        if hasattr(self.module, "count"):
            self.module.count = 0

    def gradient(self, x, t):
        """(parameters as the step leaves them, gradient) at x."""
        parameters, rows = list(self.module.parameters()), self.shards[self.client]
        nn.utils.vector_to_parameters(x.clone(), parameters)
        self.module.zero_grad()
        self.module.training_step((X[rows], Y[rows]), t).backward()
        g = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        return nn.utils.parameters_to_vector(parameters).detach(), torch.cat([part.reshape(-1) for part in g])

    def work(self, client, x, correct=lambda g: g):
        """STEPS steps of SGD from x; the gradients may be corrected."""
        self.start(client)
        for t in range(STEPS):
            x, g = self.gradient(x, t)
            x = x - LR * correct(g)
        return x


def fedavg(loop, x):
    for _ in range(3):
        x = torch.stack([loop.work(c, x) for c in range(CLIENTS)]).mean(0)
    return x


def sfl(loop, x, orders):
    for order in orders:
        for c in order:
            x = loop.work(c, x)
    return x


def scaffold(loop, x):
    """Karimireddy et al. 2020, Alg. 1 with option II and a server learning rate of 1."""
    c, own = torch.zeros_like(x), [torch.zeros_like(x) for _ in range(CLIENTS)]
    for _ in range(3):
        ends = [loop.work(i, x, lambda g, i=i, c=c, own=own: g - own[i] + c) for i in range(CLIENTS)]
        new = [own[i] - c + (x - ends[i]) / (STEPS * LR) for i in range(CLIENTS)]
        c = c + sum(new[i] - own[i] for i in range(CLIENTS)) / CLIENTS
        own, x = new, torch.stack(ends).mean(0)
    return x


LOOPS = {"fedavg": fedavg, "scaffold": scaffold}


def run(kind, algorithm, vectorize, runs, *options):
    return raylfl.run(config(algorithm, vectorize), [*runs, *options], model=kind, data=Rows)


@pytest.mark.parametrize(
    ("kind", "vectorize"),
    [
        *((kind, "auto") for kind in HOOKS + OTHERS),
        *one_in(4, [(kind, "always") for kind in HOOKS + OTHERS]),
        *one_in(4, [(kind, "never") for kind in (HOOKS + OTHERS)[1:]]),
    ],
)
def test_fedavg_with_a_users_module_is_the_loop_written_out(runs, shards, start, kind, vectorize):
    found = run(kind, "fedavg", vectorize, runs)
    expected = fedavg(Loop(kind, shards), start)
    plain = fedavg(Loop(Net, shards), start)
    torch.testing.assert_close(found.params, expected, rtol=2e-5, atol=2e-6)
    assert kind is Halved or not torch.allclose(expected, plain, rtol=1e-3, atol=1e-4)  # the hook changes something


@pytest.mark.parametrize("vectorize", ["auto", "never"])
@pytest.mark.parametrize("kind", [OnParameter, Accumulated, OnBackward, InConfigure])
def test_scaffold_with_hooks_is_the_loop_written_out(runs, shards, start, kind, vectorize):
    found = run(kind, "scaffold", vectorize, runs)
    torch.testing.assert_close(found.params, scaffold(Loop(kind, shards), start), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("algorithm", "vectorize"),
    [
        *((algorithm, "auto") for algorithm in ("fedavg", "focus", "scaffold", "sfl", "dsgd")),
        *((algorithm, way) for algorithm in ("scaffold", "dsgd") for way in ("always", "never")),
    ],
)
@pytest.mark.parametrize("kind", [OnParameter, Replaced])
def test_what_a_hook_freezes_stays_frozen_under_every_method(runs, prepared, kind, algorithm, vectorize):
    first, last = dict(prepared[1].named_parameters()), run(kind, algorithm, vectorize, runs).module
    moved = {name: (p - first[name]).detach().abs() for name, p in last.named_parameters()}
    frozen = moved["outer.weight"][:, 1::2] if kind is OnParameter else moved["inner.bias"]
    assert float(frozen.max()) == 0
    assert float(moved["inner.weight"].min()) > 0
    assert float(moved["outer.weight"][:, ::2].min()) > 0


def test_a_run_says_once_what_differs_and_by_how_much(runs):
    log = (run(OnParameter, "fedavg", "auto", runs).run_dir / "log.txt").read_text()
    line = (
        "clients work one by one: OnParameter.training_step has other results for several clients in one call (vmap): "
    )
    assert log.count(f"warning: model {__name__}.OnParameter: {line}gradient of `outer.weight` differs by ") == 1
    assert f"{line}gradient of `outer.weight` differs by " in log[log.index("local steps: ") :]
