"""Comparisons of a step with its reference: what counts as a difference, and when forms are compared."""

import collections
import functools
import itertools
import pickle
import random
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from raylfl.core.flat import FlatModule
from raylfl.core.oracle import Batch
from raylfl.core.reference import ReferenceStep
from raylfl.core.vectorized import VectorizedOracle
from raylfl.replay.effects import attributes_of, first_difference
from raylfl.replay.proof import POINTS, TRIES, Diverged, Outcome, ProofSchedule, compare, difference, steady

EPS = torch.finfo(torch.float32).eps
PIECES = {"first": 3, "second": 2}
INPUTS = 1000  # of a unit
ROW = torch.tensor([1.0, -2.0, 4.0, 1e-3, -1e-3])


def outcome(row=ROW, loss=1.0, logged=(), **changed):
    return Outcome(torch.tensor(loss), row, list(logged), changed)


def changed(k, by):
    row = ROW.clone()
    row[k] += by
    return row


def test_bits_are_compared_where_bits_are_promised():
    assert difference(outcome(), outcome(ROW.clone()), PIECES) is None
    last = torch.nextafter(ROW[3], torch.tensor(1.0)) - ROW[3]
    text = difference(outcome(), outcome(changed(3, last)), PIECES)
    assert text == "gradient of `second` differs by 1.2e-07 of its largest entry"
    signs = difference(outcome(torch.zeros(5)), outcome(-torch.zeros(5)), PIECES)
    assert signs == "gradient of `first` differs by the sign of a zero or the kind of a nan"


@pytest.mark.parametrize(
    ("k", "by", "differs"),
    [
        (2, 4 * 3e-4, False),
        (2, 4 * 4e-4, True),
        (3, 1e-3 * 3e-4, False),  # relative to the largest entry of its own parameter
        (3, 1e-3 * 3e-2, False),  # and below 64 eps of the largest of all: rounding of a gradient that cancels
        (3, 1e-3 * 4e-2, True),
        (0, float("nan"), True),
        (0, float("inf"), True),
    ],
)
def test_elsewhere_half_of_the_digits_are(k, by, differs):
    text = difference(outcome(), outcome(changed(k, by)), PIECES, EPS)
    assert (text is not None) == differs


def test_logged_names_buffers_and_losses_are_compared():
    one, two = ("a", torch.tensor(1.0)), ("b", torch.tensor(2.0))
    assert difference(outcome(), outcome(logged=[one]), PIECES, EPS) == "logs a instead of nothing"
    assert difference(outcome(logged=[one, two]), outcome(logged=[two, one]), PIECES, EPS) is not None
    assert "`a`" in difference(outcome(logged=[one]), outcome(logged=[("a", torch.tensor(1.1))]), PIECES, EPS)
    assert "`mean`" in difference(outcome(mean=torch.ones(2)), outcome(mean=torch.zeros(2)), PIECES, EPS)
    assert difference(outcome(), outcome(loss=1.001), PIECES, EPS).startswith("loss differs by 1.0e-03")
    both = outcome(torch.full((5,), torch.nan)), outcome(torch.full((5,), torch.nan))
    assert difference(*both, PIECES, EPS) is None


class Kinked(nn.Module):
    """A ReLU whose argument is 0 at x = 1/3, up to rounding."""

    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([1 / 3, 2.0]))

    def training_step(self, batch, batch_idx):
        return F.relu(self.x[0] * 3 - 1) + self.x[1] ** 2


def test_a_difference_at_a_kink_is_rounding_and_one_elsewhere_is_not():
    flat = FlatModule(Kinked(), torch.float32, torch.device("cpu"))
    reference = ReferenceStep(flat)

    def at(x):
        flat.load(x)
        return Outcome(*reference(None))

    def differs(x, *by):
        expected = at(x)
        other = Outcome(expected.loss, expected.row + torch.tensor(by))
        pieces = {"x": 2}
        assert difference(expected, other, pieces, EPS) is not None
        return difference(expected, steady(at, x, expected, other, pieces, EPS), pieces, EPS) is not None

    x = flat.params.clone()
    jump = 3.0 if at(x).row[0] == 0 else -3.0
    assert not differs(x, jump, 0.0)
    assert differs(x, 0.0, 0.1)  # another entry than the one at its kink
    assert differs(x, jump, 0.1)
    assert differs(torch.tensor([0.5, 2.0]), -3.0, 0.0)


def test_a_form_that_moves_is_not_excused_for_a_difference_beyond_its_moves():
    reference = lambda x: Outcome(x.sum(), torch.tensor([1.0, 0.0, 0.0]))  # noqa: E731
    noise = lambda x: 1e-5 * torch.sin(1e9 * x)  # noqa: E731
    x, pieces = torch.tensor([0.3, 0.7, 1.1]), {"weight": 1, "bias": 2}

    def differs(form):
        expected, other = reference(x), form(x)
        assert difference(expected, other, pieces, EPS) is not None
        return difference(expected, steady(reference, x, expected, other, pieces, EPS, form), pieces, EPS)

    rounding = lambda x: Outcome(x.sum(), torch.tensor([1.0, *noise(x)[1:].tolist()]))  # noqa: E731
    assert differs(rounding) is None
    wrong = lambda x: Outcome(x.sum(), torch.tensor([1.0, *(noise(x)[1:] + 1e-3).tolist()]))  # noqa: E731
    assert "gradient of `bias`" in differs(wrong)
    numbers = iter(range(100))
    other_numbers = lambda x: Outcome(x.sum(), torch.tensor([1.0, 0.0, 0.1 * next(numbers) + 0.1]))  # noqa: E731
    differs = compare(reference, x, other_numbers(x), pieces, EPS, other_numbers)
    assert "gradient of `bias`" in differs  # other bits at the same parameters


def tied_unit(seed, error=0.0):
    """(step, form, x): one hidden ReLU unit of INPUTS inputs that is 0 at x but for rounding; the form adds backwards.

    error: of the form, relative to its gradient.
    """
    generator = torch.Generator().manual_seed(seed)
    inputs, x = torch.randn(2, INPUTS + 1, generator=generator)

    def total(x, order):  # one rounding for each addition
        return torch.from_numpy(np.cumsum((x * inputs).numpy()[:INPUTS][::order])[-1:].copy())[0]

    def outcome(x, order, scale=1.0):
        value = total(x, order) + x[INPUTS]
        row = (value > 0) * torch.cat([inputs[:INPUTS], torch.ones(1)]) + 0.1
        return Outcome(value.relu(), row * scale)

    x[INPUTS] = -(total(x, 1).double() + total(x, -1)) / 2
    return lambda x: outcome(x, 1), lambda x: outcome(x, -1, 1 + error), x


def test_a_switch_between_the_rounding_errors_of_two_right_forms_is_no_difference():
    pieces, switched = {"weight": INPUTS, "bias": 1}, 0
    for seed in range(60):
        step, form, x = tied_unit(seed)
        switched += difference(step(x), form(x), pieces, EPS) is not None
        assert compare(step, x, form(x), pieces, EPS, form) is None
    assert switched > 10
    for seed in range(10):
        step, form, x = tied_unit(seed, error=1e-3)
        x[INPUTS] += 1
        assert "gradient of" in compare(step, x, form(x), pieces, EPS, form)
    step, form, x = tied_unit(0)
    once = Outcome(form(x).loss, form(x).row + 100)
    assert "gradient of" in compare(step, x, once, pieces, EPS, form)  # which the form does not give again


def test_a_form_is_compared_at_powers_of_two_at_new_numbers_and_after_evaluations():
    schedule = ProofSchedule()

    def compared(kind, t):
        due = schedule.due(kind, t)
        if due:
            schedule.proved(kind, t)
        return due

    assert [k for k in range(1, 70) if compared("kind", 0)] == [1, 2, 4, 8, 16, 32, 64]
    assert [compared("kind", t) for t in (0, 5, 5, 0)] == [False, True, False, False]
    assert compared("other", 0)
    found = []
    for evaluation in range(1, 10):
        schedule.doubt()
        if compared("kind", 0):
            found.append(evaluation)
        assert not compared("kind", 0)
    assert found == [1, 2, 4, 8]
    assert schedule.comparisons == 7 + 1 + 1 + 4


def test_a_comparison_that_an_error_prevents_remains_due():
    schedule = ProofSchedule()
    assert [schedule.due("kind", t) for t in (0, 0, 3)] == [True, True, True]  # none of them was made
    schedule.proved("kind", 3)
    assert schedule.due("kind", 3)  # use number 4
    schedule.proved("kind", 3)
    assert [schedule.due("kind", t) for t in (3, 3, 0)] == [False, False, True]


def test_a_difference_survives_pickling_with_its_place():
    error = pickle.loads(pickle.dumps(Diverged("A.training_step differs", "runtime.x=y").at("round 3, client 5: ")))
    assert str(error) == "round 3, client 5: A.training_step differs (set runtime.x=y)"


# -- the attributes of a module ----------------------------------------------------------------------------------------


class Meter:
    def __init__(self):
        self.lock, self.seen = threading.Lock(), 0


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(2, 2), nn.BatchNorm1d(2)
        self.count, self.losses, self.meters = 0, [], {"loss": [0.0, Meter()]}
        self.rng, self.own, self.python = np.random.default_rng(0), torch.Generator(), random.Random(1)
        self.plain, self.nested = torch.ones(3), {"x": (torch.ones(2),)}
        self.queue, self.notes, self.array = collections.deque([1]), collections.defaultdict(list), np.zeros(5)
        self.call, self.function = functools.partial(print, [1]), lambda x: x


CHANGES = {
    "count": lambda m: setattr(m, "count", 1),
    "losses": lambda m: m.losses.append(1),
    "meters": lambda m: setattr(m.meters["loss"][1], "seen", 1),
    "rng": lambda m: m.rng.random(),
    "own": lambda m: torch.rand(1, generator=m.own),
    "python": lambda m: m.python.random(),
    "plain": lambda m: m.plain.add_(1),
    "plain ": lambda m: setattr(m.plain, "data", torch.zeros(3)),
    "nested": lambda m: m.nested["x"][0].mul_(2),
    "queue": lambda m: m.queue.append(2),
    "notes": lambda m: m.notes["a"].append(1),
    "array": lambda m: m.array.__setitem__(0, 1),
    "call": lambda m: m.call.args[0].append(2),
    "function": lambda m: setattr(m, "function", lambda x: x),
    "layer._forward_hooks": lambda m: m.layer.register_forward_hook(lambda *args: None),
    "layer.weight": lambda m: m.layer.weight.requires_grad_(False),
    "layer.bias": lambda m: setattr(m.layer, "bias", nn.Parameter(torch.zeros(2))),
    "norm.added": lambda m: m.norm.register_buffer("added", torch.ones(1)),
}


@pytest.mark.parametrize("path", CHANGES)
def test_a_change_of_an_attribute_is_seen(path):
    module = Stateful()
    before = attributes_of(module)
    assert first_difference(before, attributes_of(module)) is None
    CHANGES[path](module)
    assert first_difference(before, attributes_of(module)) == path.strip()


def test_buffers_parameters_and_modes_may_change_and_iterators_count_as_changed():
    module = Stateful()
    before = attributes_of(module)
    module.norm(torch.randn(3, 2))
    module.eval()
    with torch.no_grad():
        module.layer.weight.add_(1)
    assert first_difference(before, attributes_of(module)) is None
    module.numbers = itertools.count()
    assert first_difference(attributes_of(module), attributes_of(module)) == "numbers"


# -- several clients in one call ---------------------------------------------------------------------------------------


class Dense(nn.Module):
    hooked = False

    def __init__(self, norm=False, p=0.0):
        super().__init__()
        self.inner, self.out = nn.Linear(4, 8), nn.Linear(8, 3)
        self.norm, self.drop = nn.BatchNorm1d(8) if norm else nn.Identity(), nn.Dropout(p)

    def forward(self, x):
        return self.out(self.drop(self.norm(self.inner(x))).tanh())

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1])


def batches(count):
    return [Batch((torch.randn(6, 4), torch.arange(6) % 3), 6) for _ in range(count)]


def take(oracle, steps=5, count=3):
    x = oracle.workspace(count).copy_(oracle.flat.params + 0.1 * torch.randn(count, oracle.width))
    for k in range(steps):
        x -= 0.1 * oracle.gradients(x, batches(count), lambda c, k=k: k)[1]
    return x


@pytest.mark.parametrize("options", [{}, {"norm": True}, {"p": 0.5}, {"norm": True, "p": 0.5}], ids=str)
def test_calls_of_several_clients_are_compared_without_a_trace(options):
    """Dropout draws other numbers for each client: the comparison repeats the call with the reference's."""
    found = []
    for compares in (True, False):
        torch.manual_seed(0)
        flat = FlatModule(Dense(**options), torch.float32, torch.device("cpu"))
        oracle = VectorizedOracle(flat)
        oracle.innermost = None
        if not compares:
            oracle.schedule.due = lambda kind, t: False
        torch.manual_seed(1)
        found.append((take(oracle), flat.params.clone(), flat.read_buffers(), torch.rand(3), oracle.schedule))
    (ours, *theirs), (plain, *others) = found
    assert torch.equal(ours, plain)
    assert all(torch.equal(a, b) for a, b in zip(theirs[:-1], others[:-1], strict=True))
    assert theirs[-1].comparisons == 3


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_a_hook_that_vmap_does_not_call_is_a_difference(p):
    oracle = VectorizedOracle(FlatModule(Dense(p=p), torch.float32, torch.device("cpu")))
    oracle.innermost = None
    oracle.flat.module.inner.bias.register_hook(lambda g: 0 * g)
    with pytest.raises(Diverged, match=r"\(vmap\): gradient of `inner.bias` differs by 1.0e\+00 .*vectorize=never"):
        take(oracle)


class Written(Dense):
    """A network with losses of a cohort that are wrong from some use on."""

    wrong_from = 0

    def cohort_losses(self, parameters, batch):
        self.uses = getattr(self, "uses", 0) + 1
        hidden = torch.einsum("chi,cbi->cbh", parameters["inner.weight"], batch[0])
        hidden = (hidden + parameters["inner.bias"][:, None]).tanh()
        scores = torch.einsum("coh,cbh->cbo", parameters["out.weight"], hidden) + parameters["out.bias"][:, None]
        losses = F.cross_entropy(scores.flatten(0, 1), batch[1].flatten(), reduction="none")
        return losses.view(len(batch[0]), -1).mean(1) * (1.01 if self.uses > self.wrong_from else 1.0)


@pytest.mark.parametrize(("wrong_from", "until"), [(0, 1), (5, 8)])
def test_losses_of_a_cohort_that_are_not_the_modules_end_the_run(wrong_from, until):
    module = Written()
    module.wrong_from = wrong_from
    oracle = VectorizedOracle(FlatModule(module, torch.float32, torch.device("cpu")), step="autograd")
    oracle.innermost = None
    with pytest.raises(Diverged, match=r"\(cohort_losses\): loss differs by 9.9e-03 of its largest entry"):
        take(oracle, 20)
    assert module.uses == until + 1 + TRIES + POINTS * (1 + TRIES)  # how far the form moves, here and nearby
