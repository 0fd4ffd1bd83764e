"""Users' modules with hooks of PyTorch, shared or late layers, and steps that read batch_idx, against a plain loop.

Each client takes full batches of its own shard.
"""

from functools import wraps

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import nn

import raylfl
from raylfl.config.load import load_config
from raylfl.errors import BadConfig
from raylfl.python.api import checked
from tests.runtime.measured import rounds_of
from tests.runtime.plain import fedavg
from tests.shares import one_in

CLIENTS, STEPS, LR = 2, 6, 0.1
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


class Accumulated(Net):
    def hook(self):
        def scale(p):
            p.grad.mul_(0.5)

        self.outer.weight.register_post_accumulate_grad_hook(scale)


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


class Projected(Net):
    """A weight is clamped in place in the step, before it is used."""

    def training_step(self, batch, batch_idx):
        with torch.no_grad():
            self.outer.weight.clamp_(-0.1, 0.1)
        return super().training_step(batch, batch_idx)


class Drifting(Net):
    """A counter in an attribute scales the loss; each client begins with a fresh one."""

    def hook(self):
        self.count = 0

    def training_step(self, batch, batch_idx):
        self.count += 1
        return super().training_step(batch, batch_idx) * self.count


class Following(Net):
    """A frozen target network follows the trained one within a client's work, by `.data` (BYOL, MoCo)."""

    def hook(self):
        self.target = nn.Linear(4, 2)
        for p in self.target.parameters():
            nn.init.constant_(p.requires_grad_(False), 0.1)

    def training_step(self, batch, batch_idx):
        self.target.weight.data = 0.5 * self.target.weight.data + 0.5 * self.outer.weight.data
        self.target.bias.data.mul_(0.5).add_(self.outer.bias.data, alpha=0.5)
        hidden = torch.tanh(self.inner(batch[0]))
        return super().training_step(batch, batch_idx) + (self.outer(hidden) - self.target(hidden)).square().mean()


class Shared(Net):
    """A layer that is used twice under two names, and two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.first = self.again = nn.Linear(4, 4)
        self.left, self.right = nn.Linear(4, 2), nn.Linear(4, 2)
        self.right.weight = self.left.weight

    def forward(self, x):
        hidden = torch.tanh(self.again(torch.tanh(self.first(torch.tanh(self.inner(x))))))
        return self.outer(hidden) + self.left(hidden) * self.right(hidden)


class MadeLate(Net):
    """Layers are made in hooks of Lightning, as large models do."""

    def setup(self, stage):
        assert stage == "fit"
        self.late = nn.Linear(2, 2)

    def configure_model(self):
        self.last = nn.Linear(2, 2)

    def forward(self, x):
        return self.last(self.late(super().forward(x)))


KINDS = [OnParameter, Accumulated, Removed, OnForward, OnBackward, InConfigure, Following]
KINDS += [InsideTheStep, Projected, Drifting]


def config(algorithm, vectorize):
    return {
        "name": "hooks",
        "rounds": 2,
        "num_clients": CLIENTS,
        "algorithm": algorithm,
        "partition": {"name": "iid"},
        "participation": {"name": "full"},
        "local": {"steps": STEPS, "batch_size": "full", "lr": LR},
        "runtime": {"backend": "local", "vectorize": vectorize},
    }


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """(the initial model, the batches of the clients) of these runs: hooks draw no random numbers."""
    named = {"model": {"class_path": f"{__name__}.Net"}, "data": {"class_path": f"{__name__}.Rows"}}
    shards = checked(load_config({**config("fedavg", "never"), **named})).setup.shards
    place = [f"logging.dir={tmp_path_factory.mktemp('initial')}", "rounds=0"]
    first = raylfl.run({**config("fedavg", "never"), **named}, place).module
    return first, [(X[shards[c]], Y[shards[c]]) for c in range(CLIENTS)]


@pytest.fixture
def start(prepared):
    """The initial parameters, as a vector."""
    return nn.utils.parameters_to_vector(prepared[0].parameters()).detach()


def made(kind):
    module = kind()
    module.setup("fit")
    module.configure_model()
    return module


def trained(module):
    return [p for p in module.parameters() if p.requires_grad]


def rounds(kind, vectorize, *options):
    return rounds_of(config("fedavg", vectorize), options, model=kind, data=Rows)


def run(kind, algorithm, vectorize, runs, *options):
    return raylfl.run(config(algorithm, vectorize), [*runs, *options], model=kind, data=Rows)


@pytest.mark.parametrize(
    ("kind", "vectorize"),
    [
        *((kind, "auto") for kind in KINDS),
        *one_in(6, [(kind, "always") for kind in KINDS]),
        *one_in(6, [(kind, "never") for kind in KINDS[1:]]),
    ],
)
def test_fedavg_with_a_users_module_is_the_loop_written_out(prepared, start, kind, vectorize):
    found = rounds(kind, vectorize)
    expected = fedavg(lambda: made(kind), start, prepared[1], rounds=2, steps=STEPS, trained=trained)
    torch.testing.assert_close(found.params, expected, rtol=2e-5, atol=2e-6)
    plain = fedavg(Net, start, prepared[1], rounds=2, steps=STEPS)
    assert not torch.allclose(expected, plain, rtol=1e-3, atol=1e-4)  # the hook changes something


@pytest.mark.parametrize(("kind", "vectorize"), [(Shared, "never"), (Shared, "always"), (MadeLate, "never")])
def test_layers_that_are_shared_or_made_late_get_the_gradients_of_all_their_uses(prepared, kind, vectorize):
    start, found = rounds(kind, vectorize, "rounds=0"), rounds(kind, vectorize)
    expected = fedavg(lambda: made(kind), start.params, prepared[1], rounds=2, steps=STEPS)
    torch.testing.assert_close(found.params, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("kind", "algorithm", "vectorize"),
    [
        (OnParameter, "focus", "auto"),
        (Removed, "sfl", "auto"),
        (Removed, "dsgd", "never"),
    ],
)
def test_what_a_hook_freezes_stays_frozen_under_every_method(runs, prepared, kind, algorithm, vectorize):
    first, last = dict(prepared[0].named_parameters()), run(kind, algorithm, vectorize, runs).module
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


# -- batch_idx is the number of the local step -------------------------------------------------------------------------


def kept(function):
    @wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


class Base(Net):
    """Lightning's usual form: a step shared by training and validation."""

    def factor(self, batch, batch_idx):
        return 1.0

    def shared(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1]) * self.factor(batch, batch_idx)

    def training_step(self, batch, batch_idx):
        return self.shared(batch, batch_idx)


class Rest(Base):
    @kept
    def training_step(self, *args, **kwargs):
        return super().training_step(*args, **kwargs)


class Fifth(Base):
    def factor(self, batch, batch_idx):
        return 3 if batch_idx == 4 else 1


class Tripled(Base):
    """The plain cross-entropy, which has a translation, except in one local step."""

    def shared(self, batch, batch_idx):
        loss = F.cross_entropy(self(batch[0]), batch[1])
        return 3 * loss if batch_idx == 3 else loss


class Late(Tripled):
    """The same, in a local step that no probe step has the number of."""

    def shared(self, batch, batch_idx):
        return super().shared(batch, 3 if batch_idx == 8 else 0)


class LogsThird(Base):
    def factor(self, batch, batch_idx):
        if batch_idx == 2:
            self.log("third", batch[0].mean())
        return 1


NUMBERED = [Rest, Fifth, Tripled, LogsThird]


@pytest.mark.parametrize(
    ("kind", "vectorize"), [*((kind, "auto") for kind in NUMBERED), *((kind, "never") for kind in NUMBERED[1::2])]
)
def test_each_step_gets_its_number(prepared, start, kind, vectorize):
    found = rounds(kind, vectorize)
    expected = fedavg(kind, start, prepared[1], rounds=2, steps=STEPS)
    torch.testing.assert_close(found.params, expected, rtol=1e-5, atol=1e-6)
    if kind is LogsThird:
        assert all(abs(row["train/third"]) > 0 for row in found.metrics)


def test_a_step_that_only_hands_the_number_on_is_replayed_with_the_same_bits(runs):
    ours, theirs = (run(Rest, "fedavg", "never", runs, f"runtime.step={step}") for step in ("auto", "autograd"))
    assert {row["step"] for row in ours.summary["local_steps"]} == {"recorded", "autograd"}
    assert torch.equal(ours.params, theirs.params)


def test_a_translation_that_differs_at_a_number_beyond_the_trial_ends_the_run(runs):
    words = r"round 0, client 0: Late.training_step .*matrix products\): loss differs by 6.7e-01 .*, in local step 8"
    with pytest.raises(BadConfig, match=words):
        run(Late, "fedavg", "auto", runs, "local.steps=10")
    run(Late, "fedavg", "never", runs, "local.steps=10")


def test_a_step_that_differs_at_one_number_only_is_an_error_when_recorded_steps_are_demanded(runs):
    with pytest.raises(BadConfig, match=r"runtime.step=recorded, but Fifth.training_step has other results"):
        run(Fifth, "fedavg", "never", runs, "runtime.step=recorded")
