"""Modules that change memory, gradients and random numbers in their own ways, against loops of plain PyTorch."""

import copy

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import raylfl
from raylfl.errors import BadConfig, ClientFailed
from raylfl.replay.proof import Diverged
from tests.shares import one_in

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


KINDS = [
    *(Clipped, InABall, ClippedInTheStep, SetAtTheStart, ChangedGradient, SwappedInTests, Viewed, Autoencoder),
    *(Seeded, Teacher, Scripted),
]


@pytest.mark.parametrize(
    ("kind", "form"), [*((k, FORMS[0]) for k in KINDS), *one_in(4, [(k, form) for k in KINDS for form in FORMS[1:]])]
)
def test_what_a_module_does_to_its_memory_is_what_it_does_in_a_plain_loop(runs, kind, form):
    expected = plain(kind)
    result = run(kind, runs, *form)
    same(result, expected)
    x = torch.cat([p.detach().reshape(-1) for p in result.module.parameters()])
    assert torch.equal(result.params, x)
    if kind is not SwappedInTests:
        with torch.no_grad():
            loss = float(F.cross_entropy(result.module(X), Y))
        assert result.metrics[-1]["test/loss"] == pytest.approx(loss, rel=1e-5)
    if kind not in (SwappedInTests, Scripted):  # whose steps are those of the plain module
        x = plain(type("Plain", (Net,), {}))
        assert not torch.allclose(x["b.weight"], expected["b.weight"], rtol=1e-3)


@pytest.mark.parametrize(("kind", "form"), [(Transposed, FORMS[0]), *((Decayed, form) for form in FORMS)])
def test_convolutions_begin_where_they_were_made_and_keep_what_is_assigned(runs, kind, form):
    same(run(kind, runs, *form, rounds=0, data=Images), kind().state_dict())
    same(run(kind, runs, *form, data=Images), plain(kind, inputs=IMAGES))


@pytest.mark.parametrize("kind", [Hooked, HookedAfterwards, Penalised])
def test_what_acts_late_is_not_left_out_before(runs, kind):
    expected = plain(kind, rounds=5, steps=9)
    for form in FORMS[:2]:
        same(run(kind, runs, *form, rounds=5, steps=9), expected)
    assert not torch.allclose(plain(Net, rounds=5, steps=9)["b.weight"], expected["b.weight"], rtol=1e-3)


@pytest.mark.parametrize(("kind", "form"), [(kind, form) for kind in (Unused, InTurn) for form in FORMS[1:]])
def test_the_modules_optimizer_leaves_parameters_without_a_gradient_alone(runs, kind, form):
    same(run(kind, runs, *form, "local.optimizer=module"), plain(kind))


def test_a_gradient_that_a_hook_removes_moves_nothing(runs):
    class Removed(Net):
        def on_after_backward(self):
            self.a.weight.grad = None

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), LR, weight_decay=0.1)

    state = run(Removed, runs, "auto", "auto", "local.optimizer=module").module.state_dict()
    assert torch.equal(state["a.weight"], Removed().a.weight)
    assert not torch.equal(state["b.weight"], Removed().b.weight)


def test_accumulated_batches_leave_a_parameter_alone_that_none_of_them_has_used(runs):
    options = "local.optimizer=module", "local.accumulate=2", "local.batch_size=3"
    state = run(Unused, runs, "auto", "auto", *options).module.state_dict()
    assert torch.equal(state["extra.weight"], Unused().extra.weight)
    assert not torch.equal(state["b.weight"], Unused().b.weight)


def test_a_step_that_draws_without_use_is_vectorised(runs):
    result = run(Idle, runs)
    assert {row["step"] for row in result.summary["local_steps"]} == {"cohort"}
    same(result, plain(Idle))


def tied(kind):
    class Tied(Net):
        def more(self):
            self.d = nn.Linear(4, 3)
            if kind == "data":
                self.d.weight.data = self.a.weight.data.t()
            elif kind == "parameter":
                self.d.weight = nn.Parameter(self.a.weight.data.t())
            else:
                self.register_buffer("w", self.a.weight.data)

    return Tied


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("data", "trained parameter d.weight shares memory with its parameter a.weight"),
        ("parameter", "trained parameter d.weight shares memory with its parameter a.weight"),
        ("buffer", "trained parameter a.weight shares memory with its buffer w"),
    ],
)
def test_memory_of_two_parameters_is_refused_by_their_names(runs, kind, words):
    with pytest.raises(BadConfig, match=words):
        run(tied(kind), runs)


def test_a_parameter_that_a_step_unfreezes_is_refused_by_its_name(runs):
    class Unfrozen(Net):
        def more(self):
            self.a.requires_grad_(False)

        def training_step(self, batch, batch_idx):
            self.a.requires_grad_(batch_idx >= 3)
            return super().training_step(batch, batch_idx)

    with pytest.raises(BadConfig, match=r"frozen parameter a.weight was unfrozen during the run; train it in __init__"):
        run(Unfrozen, runs)


class Late(Net):
    """A step that vmap refuses from number 9 on, which no comparison before the run has."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx) + 0.01 * torch.linalg.vector_norm(self.a.weight) ** 2
        return loss * 3 if batch_idx >= 9 and loss > 0.1 else loss


def test_a_vectorised_step_that_fails_late_ends_the_run_with_the_remedy(runs):
    with pytest.raises(Diverged, match=r"round 0, client 0: Late.training_step fails in a vectorised call, but not by"):
        run(Late, runs, steps=12)
    same(run(Late, runs, "never", steps=12), plain(Late, steps=12))


def test_a_step_after_an_error_is_compared_before_it_is_replayed(runs):
    failing = []

    class Transient(Net):
        def training_step(self, batch, batch_idx):
            if batch_idx == 12 and not failing:
                failing.append(True)
                raise OSError("once")
            return super().training_step(batch, batch_idx) * (3.0 if batch_idx == 12 else 1.0)

    for options in (["never"], ["always", "auto", "runtime.micro_cohort=1"]):  # the second: a vectorised call of one
        failing.clear()
        result = run(Transient, runs, *options, steps=14)
        assert failing
        same(result, plain(Transient, steps=14))
    failing.clear()
    with pytest.raises(ClientFailed, match="once"):
        run(Transient, runs, "never", "auto", "runtime.client_retries=0", steps=14)


def test_state_that_is_no_tensor_is_kept(runs):
    class Extra(Net):
        def get_extra_state(self):
            return {"value": 1}

        def set_extra_state(self, state):
            assert state == {"value": 1}

    result = run(Extra, runs)
    assert result.module.state_dict()["_extra_state"] == {"value": 1}
    same(result, plain(Net))


def test_buffers_of_a_scripted_module_are_refused_by_name(runs):
    class Normalised(Net):
        def more(self):
            self.c = torch.jit.script(nn.Sequential(nn.BatchNorm1d(3)))

    with pytest.raises(BadConfig, match=r"its buffer c.0.running_mean is in a scripted module"):
        run(Normalised, runs)
