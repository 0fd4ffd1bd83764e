"""Cohorts in one recorded call: vmap's bits, and the buffers of each client as it would have them alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from raylfl.core.flat import FlatModule
from raylfl.core.oracle import Batch, LoopOracle
from raylfl.core.vectorized import VectorizedOracle
from raylfl.replay.recorded import fastest, program, steps
from raylfl.replay.recorded.calls import Call, Slot
from raylfl.runtime.workers.evaluate import Recorder
from raylfl.runtime.workers.training import TrainingLog
from tests.core import user_modules as users
from tests.shares import also

CPU = torch.device("cpu")


class Normed(users.Net):
    """Batch normalisation in place, and a mean of the inputs that is assigned anew in every step."""

    shape = (12,)

    def build(self):
        self.inner, self.norm, self.out = nn.Linear(12, 40), nn.BatchNorm1d(40), nn.Linear(40, users.CLASSES)
        self.register_buffer("mean", torch.zeros(12))
        self.register_buffer("unused", torch.arange(3))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        return self.out(self.norm(self.inner(x - self.mean)).relu())


class Swapped(Normed):
    """Besides, a buffer that is assigned the other one's tensor."""

    def build(self):
        super().build()
        self.register_buffer("before", torch.zeros(12))

    def forward(self, x):
        self.before = self.mean
        return super().forward(x - self.before)


class Dropped(Normed):
    def build(self):
        super().build()
        self.drop = nn.Dropout(0.4)

    def forward(self, x):
        return self.drop(super().forward(x))


def oracles(kind, dtype, clients, *steps):
    """A module, its vectorised oracles for these values of `runtime.step`, and parameters for each client."""
    torch.manual_seed(0)
    flat = FlatModule(kind(), dtype, CPU)
    x = flat.params + 0.1 * torch.randn(clients, flat.width, dtype=dtype)
    found = [VectorizedOracle(flat, step=step) for step in steps]
    for oracle in found:
        oracle.steps.seen = 1
    return flat.module, flat, found, x


def drawn(module, dtype, sizes):
    parts = [module.batch(size) for size in sizes]
    return [Batch((x.to(dtype), y), len(y)) for x, y in parts]


@pytest.mark.parametrize("kind", [Normed, Dropped, also(users.Residual)])
def test_replays_of_a_cohort_have_the_bits_of_vmap(kind, monkeypatch):
    monkeypatch.setattr(steps, "DECISIVE", 1)  # these networks are small
    monkeypatch.setattr(fastest, "SMALLEST", 1)
    module, flat, (ours, theirs), x = oracles(kind, torch.float32, 3, "auto", "autograd")
    module.train()
    start = flat.read_buffers().expand(3, -1) + 0.5
    if flat.buffers:
        ours.write_buffers(start)
        theirs.write_buffers(start)
    for k in range(9):
        torch.manual_seed(k)
        batches = drawn(module, torch.float32, [6, 6, 6])
        (losses, g), (expected, gradients) = (o.gradients(x, batches, lambda c, k=k: k) for o in (ours, theirs))
        assert torch.equal(losses, expected)
        assert torch.equal(g, gradients)
        if flat.buffers:
            assert torch.equal(ours.read_buffers(), theirs.read_buffers())
        x = x - 0.05 * g
    assert ours.steps.refusal is None
    (found,) = ours.steps.kinds.values()
    assert found.program is not None
    assert found.program.direct  # some products are written straight into the rows
    assert any("out=g" in line for line in found.program.listing.splitlines())
    used = found.program._function.__globals__.values()
    assert any(value is fastest.new_mask for value in used) == (kind is not Normed)


def test_clients_of_unequal_batches_begin_with_the_buffers_of_the_module():
    module, flat, (given, written), x = oracles(Normed, torch.float64, 3, "auto", "auto")
    module.train()
    written.write_buffers(flat.read_buffers().expand(3, -1))
    batches = drawn(module, torch.float64, [6, 4, 6])
    (losses, g), (expected, gradients) = (o.gradients(x, batches, lambda c: c) for o in (given, written))
    assert torch.equal(losses, expected)
    assert torch.equal(g, gradients)
    assert torch.equal(given.read_buffers(), written.read_buffers())


@pytest.mark.parametrize("kind", [Normed, Swapped])
def test_each_client_has_the_buffers_that_it_would_have_alone(kind):
    """Unequal batches and steps: rows are grouped by size, and later steps have a prefix of the clients."""
    module, flat, (together,), x = oracles(kind, torch.float64, 4, "auto")
    module.train()
    order, inverse = np.array([2, 0, 3, 1]), np.array([1, 3, 0, 2])
    start = flat.read_buffers() + torch.rand(4, flat.read_buffers().numel(), dtype=torch.float64)
    together.write_buffers(start)
    together.reorder(order)
    rows, alone = x[torch.from_numpy(order)], [start[c : c + 1] for c in range(4)]
    for sizes in ([5, 5, 5, 5], [3, 7, 3, 7], [4, 4]):
        batches = drawn(module, torch.float64, sizes)
        losses, g = together.gradients(rows[: len(sizes)], batches, lambda c: 0)
        for k, batch in enumerate(batches):
            loop = LoopOracle(flat, step="autograd")
            loop.write_buffers(alone[order[k]])
            loss, gradient = loop.gradients(rows[k : k + 1].clone(), [batch], lambda c: 0)
            alone[order[k]] = loop.read_buffers()
            torch.testing.assert_close(losses[k], loss[0], rtol=1e-12, atol=0)
            torch.testing.assert_close(g[k], gradient[0], rtol=1e-9, atol=1e-12)
    together.reorder(inverse)
    torch.testing.assert_close(together.read_buffers(), torch.cat(alone), rtol=1e-12, atol=1e-13)
    counted = [name for name, _ in module.named_buffers()].index("norm.num_batches_tracked")
    assert together.buffers.held[counted].dtype == torch.int64


def test_more_clients_than_before_begin_with_the_buffers_of_the_module():
    _, flat, (oracle,), _ = oracles(Normed, torch.float64, 1, "auto")
    for count in (2, 4):
        oracle.buffers.fill(count)
        assert torch.equal(oracle.read_buffers(), flat.read_buffers().expand(count, -1))


def test_buffers_that_do_not_travel_begin_as_at_first_after_another_clients_steps():
    module, flat, (oracle,), _ = oracles(Normed, torch.float64, 1, "auto")
    loop = LoopOracle(flat, step="autograd")
    loop.write_buffers(flat.read_buffers()[None])
    loop.gradients(flat.params.clone()[None], drawn(module, torch.float64, [5]), lambda c: 0)
    assert loop.changed_buffers() == ["norm.num_batches_tracked"]
    oracle.write_buffers(flat.read_buffers().expand(2, -1))
    assert oracle.changed_buffers() == []
    assert oracle.buffers.held[-1].tolist() == [0, 0]


def test_gradients_with_other_bits_are_copied_into_the_rows(monkeypatch):
    """A library may round a product differently in another order of memory."""
    monkeypatch.setattr(steps, "DECISIVE", 1)
    whole, first = program.reverse_products, []

    def another(plan, gradients):
        plan = whole(plan, gradients)
        first.append(gradients[0])
        spoilt = [Slot(k) for k in gradients if k == first[0]]
        return replace(plan, calls=plan.calls + [Call(torch.ops.aten.add_.Scalar, (k, 1), {}, k) for k in spoilt])

    monkeypatch.setattr(program, "reverse_products", another)
    module, _, (ours, theirs), x = oracles(users.Residual, torch.float32, 3, "auto", "autograd")
    module.train()
    for k in range(8):
        batches = drawn(module, torch.float32, [6, 6, 6])
        found, expected = (o.gradients(x, batches, lambda c, k=k: k)[1] for o in (ours, theirs))
        assert torch.equal(found, expected)
    (kind,) = ours.steps.kinds.values()
    assert 0 not in kind.program.direct
    assert 1 in kind.program.direct


class Told(users.Net):
    """A module that logs a number for each client, one that all clients share, and a sum over steps."""

    shape = (12,)

    def build(self):
        self.out = nn.Linear(12, users.CLASSES)

    def forward(self, x):
        scores = self.out(x).sin()
        self.log("largest", scores.max(), reduce_fx="max")
        self.log("rate", 0.25)
        return scores


def test_what_a_cohort_logs_is_logged_by_its_replay():
    """Batches of two sizes: a replay has one row a client, and the options of its log."""
    module, _, found, x = oracles(Told, torch.float32, 4, "auto", "autograd")
    rows = []
    for oracle in found:
        module.train()
        steps = TrainingLog(oracle.log, 4)
        recorder = Recorder()
        recorder.attach(module)
        for k in range(9):
            torch.manual_seed(k)
            oracle.log.sink = steps.log
            with recorder.into(steps):
                oracle.gradients(x, drawn(module, torch.float32, [6, 3, 6, 3]), lambda c, k=k: k)
            steps.keep(range(4))
            if k == 4:
                steps = TrainingLog(oracle.log, 4)  # as for the next clients: it sees replays only
        rows.append(steps.results().result())
    assert found[0].steps.refusal is None
    assert [kind.program is not None for kind in found[0].steps.kinds.values()] == [True, True]
    assert rows[0].keys() == rows[1].keys() == {"largest", "rate"}
    for name in rows[0]:
        assert rows[0][name].tolist() == rows[1][name].tolist()
    assert len(set(rows[0]["largest"].tolist())) == 4


def test_a_cohort_of_one_client_may_log_a_plain_number():
    """Under vmap the number has one entry with stride 0."""
    module, _, (oracle,), x = oracles(Told, torch.float32, 1, "auto")
    module.log = TrainingLog(oracle.log, 1).log
    oracle.log.sink = module.log
    for k in range(5):
        oracle.gradients(x, drawn(module, torch.float32, [6]), lambda c, k=k: k)
    assert oracle.steps.refusal is None
