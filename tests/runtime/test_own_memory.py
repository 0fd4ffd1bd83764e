"""What a module does to memory, gradients and random numbers has the results of a loop of plain PyTorch."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from raylfl.errors import BadConfig, ClientFailed
from raylfl.replay.proof import Diverged
from tests.runtime.changing_modules import (
    FORMS,
    IMAGES,
    LR,
    Autoencoder,
    ChangedGradient,
    Clipped,
    ClippedInTheStep,
    Decayed,
    Gated,
    Hooked,
    HookedAfterwards,
    HookedInTheStep,
    Idle,
    Images,
    InABall,
    InTurn,
    Net,
    Penalised,
    PenalisedLate,
    Scripted,
    Seeded,
    SetAtTheStart,
    SwappedInTests,
    Teacher,
    Transposed,
    Unused,
    Viewed,
    X,
    Y,
    plain,
    run,
    same,
)
from tests.shares import one_in

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


@pytest.mark.parametrize("kind", [Hooked, HookedAfterwards, HookedInTheStep, Gated, PenalisedLate, Penalised])
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
    """A step that vmap refuses at number 9, which no comparison before the run has."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx) + 0.01 * torch.linalg.vector_norm(self.a.weight) ** 2
        return loss * 3 if batch_idx == 9 and loss > 0.1 else loss


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
